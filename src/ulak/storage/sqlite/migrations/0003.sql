-- The index of ended jobs, by a cheaper question. It is asked for each row that is written, and IN makes a table of its
-- list each time. With the plus the library does not take it for a range to walk: the state asked for is one of them.
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (queue, state, ended_at, id) WHERE +state BETWEEN 4 AND 7;
