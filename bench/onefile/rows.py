"""The tables of the raw yardsticks: ulak's own, with its columns and indexes, and the leanest queue."""

from __future__ import annotations

import sqlite3
import time

from bench.kit import environment

LEASE_S = 30.0
MIGRATIONS = environment.ROOT / "src/ulak/storage/sqlite/migrations"
INSERT = (
    "INSERT INTO jobs (id, queue, state, priority, max_attempts, created_at, run_at, codec, payload)"
    " VALUES (?, 1, 0, 0, 5, ?, ?, 'bytes', ?)"
)
CLAIM = (
    "UPDATE jobs SET state = 2, attempt = attempt + 1, delivery = delivery + 1, holder = 1, worker = 'raw',"
    " started_at = ?, lease_s = 30.0, lease_end = ? WHERE id IN (SELECT id FROM jobs WHERE queue = 1"
    " AND state = 0 ORDER BY priority DESC, id LIMIT ?) RETURNING id, delivery, payload"
)
LEAN_SCHEMA = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL, priority INTEGER NOT NULL, payload BLOB NOT NULL
);
CREATE INDEX jobs_ready ON jobs (priority DESC, id) WHERE state = 0;
"""
LEAN_INSERT = "INSERT INTO jobs (id, state, priority, payload) VALUES (?, 0, 0, ?)"
KEEP = "UPDATE jobs SET state = 4, ended_at = ? WHERE id = ? AND delivery = ? AND state = 2"
DELETE = "DELETE FROM jobs WHERE id = ? AND delivery = ? AND state = 2"


def connect(database, schema=None):
    """A connection to a new file, by WAL and FULL: each commit is in the file when it returns."""
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(schema or own_schema())
    return connection


def own_schema():
    """What ulak makes of an empty file."""
    return "\n".join(path.read_text() for path in sorted(MIGRATIONS.glob("*.sql")))


def values(job_id, payload):
    """What INSERT takes."""
    now_at = time.time()
    return (job_id, now_at, now_at, payload)
