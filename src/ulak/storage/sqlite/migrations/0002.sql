-- The past of queues, for views; see ulak/core/history.py. grain: of how many seconds a row is. at: when they began.
CREATE TABLE history (
    queue INTEGER NOT NULL,
    grain INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (queue, grain, at)
) STRICT, WITHOUT ROWID;
