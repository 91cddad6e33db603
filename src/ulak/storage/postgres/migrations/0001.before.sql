-- The first schema. What the numbers mean stands in ulak/storage/stored.py. Text that anybody may choose is bytea:
-- a text column holds no NUL, and no more than the database's encoding knows.

-- One row. prepared: the number of the last migration; programs that know more wait for it. version: of the last
-- one whose half after the deploy is done too; programs that know less are refused.
CREATE TABLE store (
    uid text NOT NULL,
    epoch bigint NOT NULL,
    version integer NOT NULL,
    prepared integer NOT NULL
);

-- keep_...: how many ended jobs are kept, as `retention` says, or its default.
CREATE TABLE queues (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    capacity bigint,
    paused boolean NOT NULL DEFAULT false,
    backoff text,
    retention text,
    keep_succeeded bigint NOT NULL,
    keep_dead bigint NOT NULL,
    keep_cancelled bigint NOT NULL,
    keep_expired bigint NOT NULL
);

CREATE SEQUENCE job_ids AS bigint;

-- Open jobs: ready, scheduled, leased, held. They change often, so they are vacuumed often, and what has ended
-- moves away. refused: while it is held, workers that know its task leave it. back_at: when it came
-- to a place that may not be behind all that were stored before: handed back, made ready, brought back, moved.
CREATE TABLE jobs (
    id bigint PRIMARY KEY,
    queue bigint NOT NULL,
    priority bigint NOT NULL,
    attempt bigint NOT NULL DEFAULT 0,
    delivery bigint NOT NULL DEFAULT 0,
    max_attempts bigint NOT NULL,
    crashes bigint NOT NULL DEFAULT 0,
    created_at float8 NOT NULL,
    run_at float8 NOT NULL,
    expires_at float8,
    ended_at float8,
    holder bigint,
    claim bigint,
    started_at float8,
    lease_s float8,
    lease_end float8,
    back_at float8,
    state smallint NOT NULL CHECK (state BETWEEN 0 AND 3),
    cancel_requested boolean NOT NULL DEFAULT false,
    refused boolean NOT NULL DEFAULT false,
    codec text NOT NULL,
    task text COLLATE "C",
    worker bytea,
    unique_key bytea,
    idempotency_key bytea,
    headers bytea,
    backoff text,
    progress bytea,
    history bytea,
    result bytea,
    payload bytea NOT NULL
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Each in the order in which it is walked.
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, id) WHERE state = 0;
-- See ulak/storage/postgres/marks.py.
CREATE INDEX jobs_back ON jobs (queue, back_at) WHERE state = 0 AND back_at IS NOT NULL;
CREATE INDEX jobs_due ON jobs (queue, run_at, id) WHERE state = 1;
CREATE INDEX jobs_leased ON jobs (queue, lease_end) WHERE state = 2;
CREATE INDEX jobs_held ON jobs (queue, priority DESC, id) WHERE state = 3;
CREATE INDEX jobs_held_by_task ON jobs (queue, (coalesce(task, '')), priority DESC, id)
    WHERE state = 3 AND NOT refused;
CREATE INDEX jobs_held_by_id ON jobs (queue, id) WHERE state = 3;
CREATE INDEX jobs_expiring ON jobs (queue, expires_at) WHERE expires_at IS NOT NULL AND state <> 2;
CREATE UNIQUE INDEX jobs_unique ON jobs (queue, unique_key) WHERE unique_key IS NOT NULL;

-- Jobs that have ended, until retention forgets them.
CREATE TABLE ended (
    id bigint PRIMARY KEY,
    queue bigint NOT NULL,
    priority bigint NOT NULL,
    attempt bigint NOT NULL,
    delivery bigint NOT NULL,
    max_attempts bigint NOT NULL,
    crashes bigint NOT NULL,
    created_at float8 NOT NULL,
    run_at float8 NOT NULL,
    expires_at float8,
    ended_at float8 NOT NULL,
    holder bigint,
    started_at float8,
    lease_s float8,
    lease_end float8,
    state smallint NOT NULL CHECK (state BETWEEN 4 AND 7),
    cancel_requested boolean NOT NULL,
    codec text NOT NULL,
    task text COLLATE "C",
    worker bytea,
    unique_key bytea,
    idempotency_key bytea,
    headers bytea,
    backoff text,
    progress bytea,
    history bytea,
    result bytea,
    payload bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX ended_in_order ON ended (queue, state, ended_at, id);
-- Most have succeeded; the others are looked at.
CREATE INDEX ended_otherwise ON ended (queue, id) WHERE state <> 4;

-- How many jobs of a queue are where, and what became of them: the sum of its rows. A process adds to the row of
-- its shard, in the transaction that changes the jobs. A transaction of a caller's inserts a row without a shard,
-- which is added to another later: it may stay open for long, and nobody may have to wait for it.
CREATE TABLE tallies (
    queue bigint NOT NULL,
    shard bigint,
    entered bigint NOT NULL DEFAULT 0,
    "left" bigint NOT NULL DEFAULT 0,
    scheduled bigint NOT NULL DEFAULT 0,
    leased bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    expired bigint NOT NULL DEFAULT 0,
    redriven bigint NOT NULL DEFAULT 0,
    retries bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    cut bigint NOT NULL DEFAULT 0,
    ever_cancelled bigint NOT NULL DEFAULT 0,
    ever_expired bigint NOT NULL DEFAULT 0,
    deleted bigint NOT NULL DEFAULT 0,
    reclaimed bigint NOT NULL DEFAULT 0,
    pruned bigint NOT NULL DEFAULT 0,
    UNIQUE (queue, shard)
) WITH (
    fillfactor = 20,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Whether so many jobs more fit into a queue. Nobody else takes room of it until the transaction ends; what is
-- summed up after that has seen all who did before. It is no lock on the queue's row: that can be changed meanwhile.
CREATE FUNCTION has_room(of_queue bigint, wanted bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    most bigint;
    taken bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(tableoid::integer, id::integer) FROM queues WHERE id = of_queue;
    SELECT capacity INTO most FROM queues WHERE id = of_queue;
    IF most IS NULL THEN
        RETURN true;
    END IF;
    SELECT coalesce(sum(entered - "left"), 0) INTO taken FROM tallies WHERE queue = of_queue;
    RETURN taken + wanted <= most;
END
$$;

CREATE TABLE keys (
    queue bigint NOT NULL,
    name bytea NOT NULL,
    job bigint NOT NULL,
    until_at float8 NOT NULL,
    PRIMARY KEY (queue, name)
);
CREATE INDEX keys_until ON keys (until_at);

-- Processes that hold leases; each has an advisory lock of this number. An id never comes again: leases still
-- name it. server_started_at: of the server that the lock was taken on. absent_since: when somebody first found
-- the lock free. Unlogged: it is emptied where a crash of the server took all locks and spared its start time.
CREATE SEQUENCE holder_ids AS integer;
CREATE UNLOGGED TABLE holders (
    id integer PRIMARY KEY,
    server_started_at timestamptz NOT NULL,
    since_at float8 NOT NULL,
    absent_since float8
);

CREATE TABLE workers (
    name bytea PRIMARY KEY,
    info bytea NOT NULL,
    seen_at float8 NOT NULL,
    holder bigint
);

CREATE TABLE schedules (
    name text COLLATE "C" PRIMARY KEY,
    last_tick float8 NOT NULL
);

-- The past of queues, for views; see ulak/core/history.py. grain: of how many seconds a row is. at: when they began.
CREATE TABLE history (
    queue bigint NOT NULL,
    grain integer NOT NULL,
    at bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (queue, grain, at)
);
CREATE INDEX history_old ON history (grain, at);
