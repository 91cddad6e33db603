-- Whether a row belongs here is asked for each row that is written, and IN makes a table of its list each time.
-- With the plus the library does not take this for a range to walk: the state that is asked for is one of them.
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (queue, state, ended_at, id) WHERE +state BETWEEN 4 AND 7;
