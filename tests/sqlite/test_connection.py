"""`connection=`: enqueue and ack inside a transaction of the caller's own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S, eventually
from ulak import (
    ArgumentError,
    AsyncQueue,
    Backoff,
    Context,
    LeaseLost,
    Queue,
    QueueFull,
    StorageBusy,
    Terminal,
)

AT_ONCE = Backoff(base=0.001, cap=0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def q(path: Path) -> Iterator[Queue]:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.counts()
        yield q


@pytest.fixture
def db(q: Queue, path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=0.1)) as db:
        db.execute("CREATE TABLE orders (name TEXT)")
        yield db


def names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute("SELECT name FROM orders")]


@pytest.mark.parametrize("isolation", ["", None, "IMMEDIATE"])
def test_L13_a_job_is_there_exactly_if_the_callers_transaction_commits(q, db, isolation):
    db.isolation_level = isolation
    for ends, there in (("ROLLBACK", 0), ("COMMIT", 1)):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders VALUES (?)", (ends,))
        q.enqueue(ends, connection=db)
        assert q.counts().total == 0
        assert q.deliver() is None
        db.execute(ends)
        assert q.counts().total == there
    lease = q.deliver()
    assert lease is not None
    assert lease.payload == "COMMIT"


def test_an_ack_counts_exactly_if_the_callers_transaction_commits(q, db):
    q.enqueue("payload")
    lease = q.deliver()
    db.execute("BEGIN IMMEDIATE")
    assert q.ack(lease, connection=db)
    assert q.terminal_of(lease.id) is None
    db.execute("ROLLBACK")
    assert q.terminal_of(lease.id) is None
    db.execute("BEGIN IMMEDIATE")
    assert q.ack(lease, connection=db)
    db.execute("COMMIT")
    assert q.terminal_of(lease.id) is Terminal.ACKED
    assert q.acked_by(lease)
    assert q.counts().totals.succeeded == 1


def test_an_ack_without_a_lease_cannot_be_committed_by_oversight(q, db, path):
    q.enqueue("payload")
    lease = q.deliver()
    q.release(lease)
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO orders VALUES ('twice')")
    with pytest.raises(LeaseLost, match="lease has ended"):
        q.ack(lease, connection=db)
    db.rollback()
    assert names(path) == []
    assert q.counts().ready == 1


def test_no_room_is_said_at_once(path):
    with Queue(f"sqlite:///{path}", "mail", capacity=1) as q, closing(sqlite3.connect(path)) as db:
        q.enqueue("first")
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(QueueFull):
            q.enqueue("second", connection=db)
        assert db.in_transaction
        db.execute("COMMIT")
        assert q.counts().total == 1


def test_a_step_that_fails_leaves_the_callers_transaction_as_it_was(path):
    with Queue(f"sqlite:///{path}", "mail", capacity=1) as q, closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE orders (name TEXT)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders VALUES ('kept')")
        q.enqueue("first", connection=db)
        with pytest.raises(QueueFull):
            q.enqueue("second", connection=db)
        db.execute("COMMIT")
        assert names(path) == ["kept"]
        assert q.counts().total == 1


@pytest.mark.parametrize("wrong", ["not one", "elsewhere", "in memory", "no transaction", "bytes for text"])
def test_a_connection_that_cannot_be_joined_is_refused(q, db, tmp_path, wrong):
    elsewhere = sqlite3.connect(
        ":memory:" if wrong == "in memory" else tmp_path / "other.db", isolation_level=None
    )
    with closing(elsewhere):
        given = {"not one": "jobs.db", "elsewhere": elsewhere, "in memory": elsewhere}.get(wrong, db)
        if wrong != "no transaction" and isinstance(given, sqlite3.Connection):
            given.execute("BEGIN")
        if wrong == "bytes for text":
            db.text_factory = bytes
        with pytest.raises(ArgumentError, match="connection="):
            q.enqueue("payload", connection=given)
        assert q.counts().total == 0


def test_rows_of_the_callers_own_kind_do_not_matter(q, db):
    db.row_factory = lambda _, row: {"row": row}
    db.execute("BEGIN IMMEDIATE")
    job_id = q.enqueue("payload", connection=db, unique_key="once", idempotency_key="key")
    assert q.enqueue("payload", connection=db, unique_key="once") == job_id
    db.execute("COMMIT")
    assert q.counts().total == 1


def test_who_began_to_read_before_others_wrote_is_told_so(q, db):
    db.execute("BEGIN")
    db.execute("SELECT * FROM orders").fetchall()
    q.enqueue("in between")
    with pytest.raises(StorageBusy, match="BEGIN IMMEDIATE"):
        q.enqueue("payload", connection=db)
    db.execute("ROLLBACK")
    assert q.counts().total == 1


def test_a_waiting_worker_starts_a_job_when_its_transaction_commits(q, db):
    ran = []
    with q.workers(ran.append, count=1):
        db.execute("BEGIN IMMEDIATE")
        q.enqueue("payload", connection=db)
        db.execute("COMMIT")
        eventually(lambda: ran == ["payload"])


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK", "raises after the commit"])
def test_a_handler_finishes_its_job_together_with_what_it_writes(q, db, path, ends):
    def handler(payload: object, context: Context) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            own.execute("INSERT INTO orders VALUES (?)", (payload,))
            context.ack(connection=own)
            own.execute("ROLLBACK" if ends == "ROLLBACK" else "COMMIT")
        if ends.startswith("raises"):
            raise ValueError(payload)

    with q.workers(handler, count=1, backoff=AT_ONCE):
        job_id = q.enqueue("payload", max_attempts=2)
        eventually(lambda: q.terminal_of(job_id) is not None)
    if ends == "ROLLBACK":
        assert q.terminal_of(job_id) is Terminal.DEAD
        assert [attempt.error.type for attempt in q.get(job_id).history] == ["NotCommitted"] * 2
        assert names(path) == []
    else:
        assert q.terminal_of(job_id) is Terminal.ACKED
        assert q.counts().totals.processed == 1
        assert names(path) == ["payload"]


def test_an_event_loop_joins_too(path, db):
    async def main() -> None:
        async with AsyncQueue(f"sqlite:///{path}", "mail") as q:
            db.execute("BEGIN IMMEDIATE")
            await q.enqueue("payload", connection=db)
            db.execute("COMMIT")
            lease = await q.deliver()
            db.execute("BEGIN IMMEDIATE")
            assert await q.ack(lease, connection=db)
            db.execute("COMMIT")
            assert (await q.counts()).acked == 1

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_a_store_without_transactions_says_so():
    with Queue("memory://") as q, closing(sqlite3.connect(":memory:")) as db:
        with pytest.raises(ArgumentError, match="memory://"):
            q.enqueue("payload", connection=db)
        q.enqueue("payload")
        with pytest.raises(ArgumentError, match="memory://"):
            q.ack(q.deliver(), connection=db)
