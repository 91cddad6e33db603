"""`connection=`: jobs and acks in a transaction of the caller's own, whoever made the connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.postgres import conninfo, execute, fresh_url
from ulak import ArgumentError, AsyncQueue, LeaseLost, Outcome, Queue, QueueFull, StorageBusy
from ulak.core.job import Duplicate
from ulak.testing import ManualClock

psycopg = pytest.importorskip("psycopg")

SOON_S = 5.0
"""No call that nothing is in the way of takes so long, whatever else the machine does."""


@pytest.fixture
def q(make) -> Queue:
    return make()


@contextlib.contextmanager
def by_psycopg(url):
    with psycopg.connect(conninfo(url)) as db:
        yield db, db.commit, db.rollback


@contextlib.contextmanager
def by_psycopg_of_another_taste(url):
    """Rows are dicts, numbers and texts are read as the caller likes, and its transaction has begun."""
    from psycopg.rows import dict_row
    from psycopg.types.string import TextLoader

    with psycopg.connect(conninfo(url), row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as db:
        for name in ("int4", "int8", "text", "float8"):
            db.adapters.register_loader(name, TextLoader)
        db.execute("CREATE TEMPORARY TABLE jobs (id int) ON COMMIT DROP")
        yield db, db.commit, db.rollback


@contextlib.contextmanager
def by_sqlalchemy(url, take):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(conninfo(url).replace("postgresql:", "postgresql+psycopg:"))
    try:
        with take(engine) as opened:
            yield opened, opened.commit, opened.rollback
    finally:
        engine.dispose()


def by_session(url):
    from sqlalchemy.orm import Session

    return by_sqlalchemy(url, Session)


@contextlib.contextmanager
def by_core(url):
    with by_sqlalchemy(url, lambda engine: engine.connect()) as (db, commit, roll_back):
        db.begin()
        yield db, commit, roll_back


@contextlib.contextmanager
def by_django(url):
    pytest.importorskip("django")
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
    parts = urlsplit(conninfo(url))
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path[1:],
                "USER": parts.username or "",
                "HOST": parts.hostname or parse_qs(parts.query).get("host", [""])[0],
                "PORT": parts.port or "",
            }
        }
    )
    db = handler["default"]
    try:
        db.set_autocommit(False)
        db.in_atomic_block = True
        db.ensure_connection()
        yield db, db.connection.commit, db.connection.rollback
    finally:
        db.in_atomic_block = False
        db.close()


KINDS = [by_psycopg, by_psycopg_of_another_taste, by_session, by_core, by_django]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_and_an_ack_count_exactly_if_the_transaction_commits(q: Queue, url, kind):
    first = q.enqueue("first")
    with kind(url) as (db, _, roll_back):
        q.enqueue("rolled back", connection=db)
        assert q.ack(q.deliver(), connection=db) is Outcome.OK
        roll_back()
    assert (q.counts().open, q.counts().leased) == (1, 1)
    assert q.crash() == 1
    with kind(url) as (db, commit, _):
        stored = q.enqueue("committed", connection=db)
        lease = q.deliver()
        assert q.ack(lease, connection=db) is Outcome.OK
        assert q.counts().leased == 1
        commit()
    assert lease.id == first
    assert (q.counts().ready, q.counts().acked, q.counts().total) == (1, 1, 2)
    assert q.deliver().id == stored


def test_an_event_loops_connection_is_joined_without_blocking_it(url):
    async def scene():
        async with AsyncQueue(url, "mail") as queue:
            await queue.enqueue("first")
            async with await psycopg.AsyncConnection.connect(conninfo(url)) as db:
                await queue.enqueue("second", connection=db)
                assert await queue.ack(await queue.deliver(), connection=db) is Outcome.OK
                assert (await queue.counts()).total == 1
                await db.commit()
            counts = await queue.counts()
            assert (counts.ready, counts.acked) == (1, 1)

    asyncio.run(scene())


def test_an_async_session_is_joined(url):
    pytest.importorskip("sqlalchemy")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def scene():
        engine = create_async_engine(conninfo(url).replace("postgresql:", "postgresql+psycopg:"))
        async with AsyncQueue(url, "mail") as queue:
            await queue.counts()
            async with AsyncSession(engine) as session:
                await queue.enqueue("gone", connection=session)
                await session.rollback()
                await queue.enqueue("stays", connection=session)
                await session.commit()
            assert (await queue.counts()).ready == 1
            async with engine.connect() as db:
                with pytest.raises(ArgumentError, match="inside a transaction"):
                    await queue.enqueue("x", connection=db)
                await db.begin()
                await queue.enqueue("gone too", connection=db)
        await engine.dispose()

    asyncio.run(scene())


@contextlib.contextmanager
def connected(url, **options) -> Iterator[psycopg.Connection]:
    with contextlib.closing(psycopg.connect(conninfo(url), **options)) as db:
        yield db


def test_what_cannot_be_joined_is_refused_and_nothing_is_stored(q: Queue, url):
    q.enqueue("open")
    with connected(url, autocommit=True) as db:
        with pytest.raises(ArgumentError, match="inside a transaction"):
            q.enqueue("x", connection=db)
        with db.transaction():
            assert q.enqueue("in a block", connection=db)
    with pytest.raises(ArgumentError, match="closed"):
        q.enqueue("x", connection=db)
    with connected(url) as db:
        with contextlib.suppress(psycopg.Error):
            db.execute("SELECT nothing")
        with pytest.raises(ArgumentError, match="roll it back"):
            q.enqueue("x", connection=db)
    with connected(url) as db, db.pipeline(), pytest.raises(ArgumentError, match="pipeline"):
        q.enqueue("x", connection=db)
    ascii_only = connected(url, client_encoding="sql_ascii")
    with ascii_only as db, pytest.raises(ArgumentError, match="client_encoding"):
        q.enqueue("x", connection=db)
    for other in (object(), 5, "postgresql://host/app"):
        with pytest.raises(ArgumentError, match="psycopg 3"):
            q.enqueue("x", connection=other)
    assert q.counts().total == 2


def test_jobs_whose_time_is_over_are_left_to_others_by_a_transaction_that_may_stay_open(q: Queue, url):
    q.enqueue("over", expires=0.001)
    time.sleep(0.01)
    with connected(url) as db:
        q.enqueue("open", connection=db)
        q.enqueue("beside")
        assert q.counts().expired == 1
        db.commit()
    q.configure(capacity=3)
    q.enqueue("over", expires=0.001, unique_key="k")
    time.sleep(0.01)
    with connected(url) as db:
        # Where it is in the way, it is ended.
        assert not isinstance(q.enqueue("new", unique_key="k", connection=db), Duplicate)
        db.rollback()
        assert q.enqueue("third", connection=db)
        db.commit()
    assert (q.counts().ready, q.counts().expired) == (3, 2)


def test_a_connection_to_another_store_is_refused_and_its_transaction_goes_on(q: Queue):
    q.enqueue("open")
    other = fresh_url()
    with Queue(other) as elsewhere:
        elsewhere.enqueue("there")
    with connected(
        "postgresql".join(["", other.partition("postgresql")[2]]).replace(urlsplit(other).path, "/template1")
    ) as db:
        db.execute("CREATE TEMPORARY TABLE mine (id int)")
        with pytest.raises(ArgumentError, match="another database"):
            q.enqueue("x", connection=db)
        db.execute("INSERT INTO mine VALUES (1)")
        assert db.execute("SELECT count(*) FROM mine").fetchone() == (1,)


def test_an_event_loops_connection_is_refused_by_a_call_of_a_thread(q: Queue, url):
    q.enqueue("open")

    async def scene():
        async with await psycopg.AsyncConnection.connect(conninfo(url)) as db:
            with pytest.raises(ArgumentError, match="aenqueue"):
                q.enqueue("x", connection=db)

    asyncio.run(scene())


def test_a_transaction_is_left_as_it_was_set(q: Queue, url):
    q.enqueue("open")
    with connected(url) as db:
        db.execute("SET LOCAL search_path TO pg_catalog; SET LOCAL lock_timeout TO '7s'")
        q.enqueue("x", connection=db)
        lease = q.deliver()
        q.release(lease)
        with pytest.raises(LeaseLost):
            q.ack(lease, connection=db)
        shown = db.execute(
            "SELECT current_setting('search_path'), current_setting('lock_timeout')"
        ).fetchone()
        assert shown == ("pg_catalog", "7s")


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_sees_nothing_new_takes_no_room_that_may_be_taken(make, url, isolation):
    bounded, unbounded = make("bounded", capacity=1), make("unbounded")
    bounded.counts()
    unbounded.counts()
    with connected(url) as db:
        db.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        assert db.execute("SELECT 1").fetchone() == (1,)
        bounded.enqueue("takes the room")
        with pytest.raises(ArgumentError, match="READ COMMITTED"):
            bounded.enqueue("one too many", connection=db)
        unbounded.enqueue("fits", connection=db)
        db.commit()
    assert (bounded.counts().open, unbounded.counts().open) == (1, 1)


def test_what_fails_leaves_nothing_and_the_transaction_goes_on(make, url):
    q = make(capacity=1)
    with connected(url) as db:
        q.enqueue("takes the room", connection=db)
        with pytest.raises(QueueFull):
            q.enqueue("no room", connection=db)
        db.commit()
    assert (q.counts().ready, q.counts().total) == (1, 1)


# A transaction that stays open


def took_s(call) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_an_open_transaction_that_enqueued_delays_neither_claims_nor_settlements(make, url):
    q = make(capacity=100)
    q.enqueue_many(["ready"] * 50)
    with connected(url) as db:
        q.enqueue("not yet", connection=db)
        for end in (q.ack, q.nack, q.release, lambda lease: q.extend(lease, 60.0)):
            lease = q.deliver()
            # Whatever waits for a lock here gives up with StorageBusy.
            assert end(lease) is Outcome.OK
        assert took_s(lambda: q.ack_many(q.deliver_many(30))) < SOON_S
        assert q.crash() == 1
        with pytest.raises(StorageBusy, match="nothing was changed"):
            q.enqueue("waits for the room", timeout=1.0)
        db.commit()
    assert q.enqueue("again")
    counts = q.counts()
    assert (counts.open, counts.total) == (52 - 31, 52)


def test_an_open_transaction_delays_nobody_in_a_queue_without_a_capacity(q: Queue, url):
    q.enqueue("first")
    with connected(url) as db:
        q.enqueue("not yet", connection=db)
        assert took_s(lambda: [q.enqueue(number) for number in range(20)]) < SOON_S
        assert len(q.deliver_many(100)) == 21
        db.commit()
    assert q.deliver().payload == "not yet"


def test_two_transactions_that_lock_two_queues_crosswise_end_with_a_typed_error_for_one(make, url):
    one, other = make("one", capacity=10), make("other", capacity=10)
    one.counts()
    other.counts()
    barrier = threading.Barrier(2)
    told = []

    def both(first: Queue, second: Queue) -> None:
        with connected(url) as db:
            first.enqueue("x", connection=db)
            barrier.wait()
            try:
                second.enqueue("y", connection=db)
            except StorageBusy as error:
                told.append(error)
                db.rollback()
            else:
                db.commit()

    threads = [threading.Thread(target=both, args=pair) for pair in ((one, other), (other, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    stored = one.counts().ready, other.counts().ready
    assert (len(told), stored) in ((1, (1, 1)), (2, (0, 0)))


def test_an_open_transaction_that_acked_costs_no_job_beside_it_its_lease(url):
    clock = ManualClock()
    with Queue(url, "mail", clock=clock, visibility_timeout=30.0) as q:
        q.enqueue_many(range(50))
        leases = q.deliver_many(50)
        with connected(url) as db:
            q.ack(leases[0], connection=db)
            for _ in range(9):
                clock.advance(10.0)
                assert [q.extend(lease, 30.0) for lease in leases] == [Outcome.OK] * 50
                assert q.tick_timeouts() == 0
            db.commit()
        assert q.ack_many(leases[1:]) == [Outcome.OK] * 49
        assert (q.counts().acked, q.counts().totals.reclaimed) == (50, 0)


def test_a_lease_that_ended_is_not_acked_by_a_transaction(q: Queue, url):
    q.enqueue("x")
    lease = q.deliver()
    q.release(lease)
    with connected(url) as db, pytest.raises(LeaseLost):
        q.ack(lease, connection=db)
    assert execute(url, "SELECT 1") == [(1,)]


def test_bytes_arrive_as_they_are_whatever_the_connection_makes_of_backslashes(q, url):
    payloads = [b"\\x00", b"a\\b'", bytes(range(256))]
    with psycopg.connect(conninfo(url)) as db:
        db.execute("SET standard_conforming_strings TO off")
        for number, payload in enumerate(payloads):
            q.enqueue(payload, connection=db)
            q.enqueue(payload, unique_key=f"{number}", connection=db)
    assert [job.payload for job in q.jobs()] == [payload for payload in payloads for _ in range(2)]
