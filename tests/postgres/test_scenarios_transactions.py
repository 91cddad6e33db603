"""What hurt users of other queues, with transactions: the caller's own, odd defaults, pooling proxies.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgres.roles import IN_THIS_DATABASE, look, sessions
from tests.postgres.test_scenarios_workers import LONG_JOBS, started, ticked_for
from tests.support.children import child
from tests.support.pooler import Pooler
from tests.support.pools import causes
from tests.support.postgres import conninfo, execute, fresh_database
from tests.support.roles import LONG_S, QUEUE, hold, work, work_till_drained
from tests.support.waiting import WAIT_S, eventually
from ulak import AsyncQueue, Outcome, Queue, Terminal
from ulak.storage.postgres.others import GONE_AFTER_S


@contextlib.contextmanager
def transaction(url: str):
    """A transaction of the caller's own; it ends as the test says, else with the block."""
    import psycopg

    with contextlib.closing(psycopg.connect(conninfo(url))) as connection:
        yield connection


# The caller's transaction


def test_L12_a_job_that_is_committed_after_a_later_one_is_delivered_too(make, url):
    q = make()
    with transaction(url) as late, transaction(url) as soon:
        first = q.enqueue("first id", connection=late)
        second = q.enqueue("second id", connection=soon)
        assert first < second
        soon.commit()
        lease = q.deliver()
        assert lease.id == second
        assert q.ack(lease) is Outcome.OK
        assert q.deliver() is None
        late.commit()
    lease = q.deliver()
    assert (lease.id, lease.payload) == (first, "first id")


def test_L12_a_pool_that_waits_takes_both_as_they_are_committed(make, url):
    q = make()
    with child(work, url, LONG_S, "def") as worker, transaction(url) as late, transaction(url) as soon:
        worker.hear("ready")
        q.enqueue({"name": "first id"}, connection=late)
        q.enqueue({"name": "second id"}, connection=soon)
        soon.commit()
        assert started(worker)[0] == "second id"
        late.commit()
        assert started(worker)[0] == "first id"
        eventually(lambda: q.counts().acked == 2)


def test_L13_a_job_is_there_exactly_if_the_callers_transaction_commits(make, url):
    q = make()
    execute(url, "CREATE TABLE IF NOT EXISTS orders (name text)")
    with transaction(url) as own:
        for ends, there in (("rollback", 0), ("commit", 1)):
            own.execute("INSERT INTO orders VALUES (%s)", (ends,))
            q.enqueue(ends, connection=own)
            assert (q.counts().total, q.deliver()) == (0, None)
            getattr(own, ends)()
            assert q.counts().total == there
    lease = q.deliver()
    assert lease.payload == "commit"
    assert q.counts().leased == 1
    execute(url, "DROP TABLE orders")


def test_L13_an_ack_counts_exactly_if_the_callers_transaction_commits(make, url):
    q = make()
    q.enqueue("payload")
    lease = q.deliver()
    with transaction(url) as own:
        assert q.ack(lease, connection=own) is Outcome.OK
        assert q.terminal_of(lease.id) is None
        own.rollback()
        assert (q.terminal_of(lease.id), q.counts().leased) == (None, 1)
        assert q.ack(lease, connection=own) is Outcome.OK
        own.commit()
    assert q.terminal_of(lease.id) is Terminal.ACKED
    assert (q.counts().leased, q.counts().totals.succeeded) == (0, 1)


def test_L13_a_process_that_dies_amid_its_transaction_leaves_no_job(make, url):
    q = make()
    with transaction(url) as own:
        q.enqueue("never", connection=own)
        execute(url, f"SELECT pg_terminate_backend({own.info.backend_pid})")
    eventually(lambda: not sessions(url, "state LIKE 'idle in transaction%'"))
    assert (q.counts().total, q.deliver()) == (0, None)


# What a database has its sessions begin with


@pytest.mark.parametrize(
    "default",
    [
        "default_transaction_isolation TO 'repeatable read'",
        "default_transaction_isolation TO 'serializable'",
        "default_transaction_read_only TO on",
        "search_path TO nowhere",
        "statement_timeout TO '5s'",
        "idle_in_transaction_session_timeout TO '1s'",
        "timezone TO 'Asia/Kathmandu'",
        "datestyle TO 'SQL, DMY'",
        "bytea_output TO 'escape'",
        "standard_conforming_strings TO off",
        "enable_indexscan TO off",
    ],
)
def test_T10_a_databases_defaults_change_nothing(default):
    url = fresh_database()
    name = execute(url, "SELECT current_database()")[0][0]
    execute(url, f"ALTER DATABASE {name} SET {default}")
    with Queue(url, QUEUE, capacity=500, visibility_timeout=LONG_S) as q:
        ids = q.enqueue_many(range(400))
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(child(work_till_drained, url)) for _ in range(2)]
            for worker in workers:
                worker.hear("ready")
            later = [q.enqueue(number) for number in range(400, 420)]
            for worker in workers:
                worker.tell("go")
            ran = sorted(number for worker in workers for number in worker.hear("ran", within_s=50.0))
        assert ran == list(range(420))
        totals = q.counts().totals
        assert (totals.succeeded, totals.processed, len(ids) + len(later)) == (420, 420, 420)


def test_T10_a_databases_limits_on_time_and_digits_are_not_for_our_sessions():
    url = fresh_database()
    name = execute(url, "SELECT current_database()")[0][0]
    limits = ["statement_timeout TO '1s'", "extra_float_digits TO 0"]
    if int(execute(url, "SHOW server_version_num")[0][0]) >= 140_000:
        limits.append("idle_session_timeout TO '1s'")
    for limit in limits:
        execute(url, f"ALTER DATABASE {name} SET {limit}")
    with Queue(url, QUEUE) as q, transaction(url) as other:
        q.enqueue("x")
        assert q.deliver()  # so that it has a session that only tells that it lives
        store = q._open().edge.store
        store.fire("nightly", 0.1 + 0.2, q.name)
        assert store.schedules() == {"nightly": 0.1 + 0.2}
        before = set(sessions(url))
        # It waits for longer than that, and so do the sessions that nobody uses meanwhile.
        other.execute("LOCK TABLE ulak.queues")
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(q.pause)
            time.sleep(1.5)
            other.rollback()
            waits.result()
        assert before <= set(sessions(url))


# A proxy that hands out sessions by the transaction


@pytest.fixture
def pooler(url) -> Iterator[Pooler]:
    with Pooler(url, size=3) as pooler:
        yield pooler


def test_T6_two_clients_of_a_pooling_proxy_run_a_thousand_jobs_once_each(pooler, url):
    through = pooler.url(url)
    holders = f"SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND {IN_THIS_DATABASE}"
    # Of tests before, which left their loops.
    others = set(look(url, holders))
    with Queue(through, QUEUE, capacity=2000) as q:
        for start in range(0, 900, 100):
            q.enqueue_many(range(start, start + 100))
        for number in range(900, 1000):
            q.enqueue(number)
        with child(work_till_drained, through) as first, child(work_till_drained, through) as second:
            for worker in (first, second):
                worker.hear("ready")
            for worker in (first, second):
                worker.tell("go")
            ran = first.hear("ran", within_s=50.0) + second.hear("ran", within_s=50.0)
        assert sorted(ran) == list(range(1000))
        counts = q.counts()
        assert (counts.acked, counts.totals.processed, counts.totals.reclaimed) == (1000, 1000, 0)
    assert pooler.sessions <= 3
    # Nothing of ours stays with a session that is the next one's.
    assert set(look(url, holders)) <= others


class Counting(Pooler):
    """Counts who connects."""

    clients = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        await super().serve(reader, writer)


def test_T6_waiting_behind_a_pooling_proxy_opens_no_connection_each_time(url):
    with Counting(url, size=3) as pooler, Queue(pooler.url(url), QUEUE) as q:
        assert q.deliver(timeout=0.2) is None
        before = pooler.clients
        for _ in range(20):
            assert q.deliver(timeout=0.05) is None
        assert pooler.clients <= before + 1
        q.enqueue("x")
        assert q.deliver(timeout=5.0)


def test_T6_an_event_loop_works_through_a_pooling_proxy(pooler, url):
    async def work() -> list[int]:
        ran = []
        async with AsyncQueue(pooler.url(url), QUEUE) as q:
            await asyncio.gather(*(q.enqueue(number) for number in range(50)))
            while (lease := await q.deliver()) is not None:
                ran.append(lease.payload)
                assert await q.ack(lease) is Outcome.OK
        return ran

    assert sorted(asyncio.run(work())) == list(range(50))


def test_T6_behind_a_pooling_proxy_the_deadline_brings_back_what_a_killed_worker_held(pooler, url):
    with Queue(pooler.url(url), QUEUE) as q:
        job_id = q.enqueue("orphan")
        with child(hold, pooler.url(url), LONG_S, 1, None) as worker:
            worker.hear("held")
            worker.kill()
        # There can be no presence, so nobody is taken for gone by it.
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        look(url, "UPDATE {0}.jobs SET lease_end = 0")
        assert q.tick_timeouts() == 1
        assert causes(q.get(job_id)) == ["lost"]


def test_T6_a_worker_behind_a_pooling_proxy_is_not_taken_for_gone_by_one_that_is_not(pooler, url, make):
    q = make()
    with child(work, pooler.url(url), LONG_S, "def") as worker:
        worker.hear("ready")
        ids = q.enqueue_many(LONG_JOBS)
        for _ in LONG_JOBS:
            started(worker)
        assert ticked_for(q, 4 * GONE_AFTER_S) == 0
        worker.tell("return")
        eventually(lambda: q.counts().acked == 2)
        assert [causes(q.get(job_id)) for job_id in ids] == [["ack"]] * 2


def test_T6_a_transaction_of_the_callers_own_may_come_through_a_pooling_proxy(pooler, url):
    with Queue(pooler.url(url), QUEUE) as q, transaction(pooler.url(url)) as own:
        q.counts()
        q.enqueue("payload", connection=own)
        assert q.counts().total == 0
        own.commit()
        lease = q.deliver()
        assert q.ack(lease, connection=own) is Outcome.OK
        own.commit()
        assert q.terminal_of(lease.id) is Terminal.ACKED


def test_T6_another_client_of_the_same_sessions_is_not_disturbed(pooler, url):
    import psycopg

    with (
        Queue(pooler.url(url), QUEUE) as q,
        contextlib.closing(
            psycopg.connect(pooler.url(conninfo(url)), autocommit=True, prepare_threshold=None)
        ) as other,
    ):
        ended = threading.Event()
        seen = set()

        def ask() -> None:
            while not ended.is_set():
                seen.update(
                    other.execute(
                        "SELECT current_setting('search_path'), current_setting('lock_timeout'), "
                        "current_setting('transaction_isolation')"
                    ).fetchall()
                )

        asking = threading.Thread(target=ask)
        asking.start()
        for number in range(100):
            q.enqueue(number)
            q.ack(q.deliver())
        ended.set()
        asking.join(WAIT_S)
        assert seen == {('"$user", public', "0", "read committed")}
