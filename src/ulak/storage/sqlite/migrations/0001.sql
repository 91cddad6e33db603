-- The first schema. What the numbers mean stands in ulak/storage/sqlite/records.py.

-- One row a queue; row 0 is the store's own and holds the last id given out, because a page less is written.
-- Counters change in the transaction that changes the jobs they count.
CREATE TABLE queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    last_id INTEGER NOT NULL DEFAULT 0,
    capacity INTEGER,
    paused INTEGER NOT NULL DEFAULT 0,
    backoff TEXT,
    retention TEXT,
    entered INTEGER NOT NULL DEFAULT 0,
    "left" INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    redriven INTEGER NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL DEFAULT 0,
    dead_lettered INTEGER NOT NULL DEFAULT 0,
    cut INTEGER NOT NULL DEFAULT 0,
    ever_cancelled INTEGER NOT NULL DEFAULT 0,
    ever_expired INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    reclaimed INTEGER NOT NULL DEFAULT 0,
    pruned INTEGER NOT NULL DEFAULT 0
) STRICT;

-- refused: while it is held, workers that know its task leave it. The payload stands last: what lies before it
-- is read without its pages.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    delivery INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    run_at REAL NOT NULL,
    expires_at REAL,
    ended_at REAL,
    holder INTEGER,
    worker TEXT,
    started_at REAL,
    lease_s REAL,
    lease_end REAL,
    codec TEXT NOT NULL,
    task TEXT,
    unique_key TEXT,
    idempotency_key TEXT,
    headers TEXT,
    backoff TEXT,
    progress TEXT,
    history BLOB,
    result BLOB,
    payload BLOB NOT NULL
) STRICT;

-- Each in the order in which it is walked.
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, id) WHERE state = 0;
CREATE INDEX jobs_due ON jobs (queue, run_at, id) WHERE state = 1;
CREATE INDEX jobs_leased ON jobs (queue, lease_end) WHERE state = 2;
CREATE INDEX jobs_held ON jobs (queue, priority DESC, id) WHERE state = 3;
CREATE INDEX jobs_held_by_task ON jobs (queue, task, priority DESC, id) WHERE state = 3 AND refused = 0;
CREATE INDEX jobs_refused ON jobs (queue) WHERE state = 3 AND refused = 1;
CREATE INDEX jobs_ended ON jobs (queue, state, ended_at, id) WHERE state IN (4, 5, 6, 7);
CREATE INDEX jobs_expiring ON jobs (queue, expires_at) WHERE expires_at IS NOT NULL AND state IN (0, 1, 3);
CREATE UNIQUE INDEX jobs_unique ON jobs (queue, unique_key) WHERE unique_key IS NOT NULL AND state < 4;
CREATE INDEX jobs_wrong ON jobs (id) WHERE state < 0 OR state > 7;

CREATE TABLE keys (
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    job INTEGER NOT NULL,
    until_at REAL NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_until ON keys (until_at);

-- Processes that hold leases; each has a lock file named by its token. absent_since: when somebody first found
-- it unlocked, in seconds since the machine's boot. An id never comes again: leases still name it.
CREATE TABLE holders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    pid INTEGER NOT NULL,
    since_at REAL NOT NULL,
    absent_since REAL
) STRICT;

CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    info TEXT NOT NULL,
    seen_at REAL NOT NULL,
    holder INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    last_tick REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- One row. boot: the machine's, when the store was last opened first.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    uid TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    boot TEXT NOT NULL
) STRICT;
