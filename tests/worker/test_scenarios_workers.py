"""What hurt users of other queues, on the worker pool: lost liveness, killed workers, event loops, memory.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import signal
import threading
import time
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.pools import AT_ONCE, KINDS, LEASE_S, Gate, is_renewed, of_kind
from tests.support.stores import nth_write, refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import AsyncQueue, Keep, NewJob, Queue, Retention, StorageUnavailable, Terminal
from ulak.core.job import Draft

# Lost jobs


@pytest.mark.parametrize("operation", ["horizon", "ended", "promote", "beat", "prune"])
def test_L7_a_pool_keeps_its_duties_after_one_was_refused(make, operation):
    q, crashed = make(), make(visibility_timeout=0.1)
    job_id = q.enqueue("left by a crashed worker")
    assert crashed.deliver().id == job_id
    refused = threading.Event()

    def decide(name, _args):
        if name != operation or refused.is_set():
            return None
        refused.set()
        return StorageUnavailable("the store refuses this call")

    refuse(q, decide)
    with q.workers(lambda _: None, count=1, backoff=AT_ONCE):
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
    assert refused.is_set()


def test_L7_a_renewal_that_was_refused_is_tried_again_in_time(timed, clock):
    q, renewals = timed(), []

    def decide(name, _args):
        if name != "extend":
            return None
        renewals.append(name)
        return StorageUnavailable("the store refuses this call") if len(renewals) == 1 else None

    refuse(q, decide)
    with Gate() as gate, q.workers(gate.handler("def"), count=1) as pool:
        q.enqueue("payload")
        gate.entered()
        for third in (1, 2):
            let_time_pass(clock, LEASE_S / 3, sleepers=1)
            eventually(lambda third=third: len(renewals) == third)
        eventually(lambda: is_renewed(q, clock))
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained
        assert pool.metrics().stale == 0


def test_L7_a_reclaim_that_is_refused_again_and_again_is_not_tried_in_a_hot_loop(timed, clock):
    q, refused, mended = timed(), [], threading.Event()

    def decide(name, args):
        if name != "settle" or not args[0] or mended.is_set():
            return None
        refused.append(name)
        if len(refused) == 100:
            mended.set()
        return StorageUnavailable("the store refuses this write")

    q.enqueue("left by a crashed worker")
    q.deliver()
    clock.advance(LEASE_S)
    refuse(q, decide)
    with q.workers(lambda _: None, count=1):
        # The worker sleeps, and so does whoever reclaims: nobody spins on a lease that stays ended.
        eventually(lambda: refused and clock.sleepers == 2)
        mended.set()
    assert len(refused) < 100


@pytest.mark.parametrize("kind", KINDS)
def test_L7_a_pool_outlives_a_store_that_is_away_for_a_while(make, kind):
    q, refused, away = make(), [], threading.Event()

    def decide(name, _args):
        if not away.is_set() or name == "line":
            return None
        refused.append(name)
        return StorageUnavailable("the store is away")

    refuse(q, decide)
    with q.workers(of_kind(kind, lambda _: None), count=2, backoff=AT_ONCE) as pool:
        away.set()
        # The duties run into it at the latest after a second.
        eventually(lambda: "horizon" in refused)
        away.clear()
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert pool.size == 2


@pytest.mark.parametrize("kind", KINDS)
def test_L10_a_pool_holds_a_job_whose_task_it_does_not_know(make, kind):
    q, ran = make(max_attempts=1), []
    (stranger,) = q._edge.store.add(q.name, [Draft(b"new", "bytes", task="new.task", max_attempts=1)])
    known = q.enqueue("plain")
    with q.workers(of_kind(kind, ran.append), count=2) as pool:
        report = pool.drain(timeout=WAIT_S)
    assert ran == ["plain"]
    assert (report.drained, report.open, report.held) == (True, 1, 1)
    job = q.get(stranger)
    assert (job.state, job.attempt, q.terminal_of(stranger)) == ("held", 0, None)
    assert q.terminal_of(known) is Terminal.ACKED
    (lease,) = q._edge.store.claim([q.name], 9, worker="new", lease_s=LEASE_S, tasks=frozenset({"new.task"}))
    assert (lease.id, lease.payload, lease.attempt) == (stranger, b"new", 1)


@pytest.mark.parametrize("kind", KINDS)
def test_L14_a_job_whose_settlement_was_refused_is_not_lost(timed, clock, kind):
    q = timed(visibility_timeout=3600)
    refuse(q, nth_write(1))
    job_id = q.enqueue("payload")
    with q.workers(of_kind(kind, lambda _: None), count=2, backoff=AT_ONCE) as pool:
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED, clock=clock)
        assert pool.size == 2
    counts = q.counts()
    assert (counts.total, counts.acked, counts.totals.succeeded) == (1, 1, 1)


# Duplicate or stale completion


def test_S1_a_delay_longer_than_the_lease_gives_one_delivery_to_a_pool(timed, clock):
    q, started_at = timed(), []
    due = clock.calendar() + 3 * LEASE_S
    with q.workers(lambda _: started_at.append(clock.calendar()), count=3) as pool:
        job_id = q.enqueue("later", delay=3 * LEASE_S)
        for _ in range(12):
            let_time_pass(clock, LEASE_S / 4, sleepers=4)
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert started_at == [due]
        assert pool.metrics().processed == 1
    assert q.get(job_id).delivery == 1


@pytest.mark.parametrize("kind", KINDS)
def test_S3_a_job_of_five_leases_is_delivered_once(timed, clock, kind):
    q, rival = timed(), timed()
    with Gate() as gate, q.workers(gate.handler(kind), count=1) as pool:
        job_id = q.enqueue("long")
        gate.entered()
        for _ in range(15):
            let_time_pass(clock, LEASE_S / 3, sleepers=1)
            eventually(lambda: is_renewed(q, clock))
            assert (rival.tick_timeouts(), rival.deliver()) == (0, None)
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained
        assert (pool.metrics().stale, pool.metrics().reclaimed) == (0, 0)
    assert q.terminal_of(job_id) is Terminal.ACKED
    assert q.get(job_id).delivery == 1


@pytest.mark.parametrize("kind", KINDS)
def test_S3_leases_are_renewed_on_the_real_clock(make, kind):
    q, renewals = make(visibility_timeout=0.2), threading.Semaphore(0)

    def decide(name, _args):
        if name == "extend":
            renewals.release()

    refuse(q, decide)
    with Gate() as gate, q.workers(gate.handler(kind), count=1) as pool:
        job_id = q.enqueue("long")
        gate.entered()
        # No word on whether one comes in time: that is tested on a clock of the test's own.
        for _ in range(6):
            assert renewals.acquire(timeout=WAIT_S)
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained
    assert q.terminal_of(job_id) is Terminal.ACKED


@pytest.mark.parametrize("kind", KINDS)
def test_S14_a_lapsed_lease_is_logged_as_stale_and_the_worker_goes_on(make, caplog, kind):
    q, reaper = make(backoff=AT_ONCE), make()
    with Gate() as gate, q.workers(gate.handler(kind), count=1) as pool:
        lapsed = q.enqueue("lapses")
        gate.entered()
        eventually(reaper.crash)
        following = q.enqueue("follows")
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained
        metrics = pool.metrics()
    assert (metrics.stale, metrics.reclaimed, metrics.succeeded, metrics.processed) == (1, 1, 2, 3)
    assert q.terminal_of(lapsed) is q.terminal_of(following) is Terminal.ACKED
    (line,) = [record for record in caplog.records if "stale" in record.getMessage()]
    assert (line.levelno, line.job_id, line.attempt) == (logging.WARNING, lapsed, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_S19_jobs_behind_a_slow_worker_do_not_lapse_while_they_wait(timed, clock, kind):
    q, rival, ran = timed(), timed(), []

    def slow(payload):
        clock.advance(0.4 * LEASE_S)
        assert rival.tick_timeouts() == 0
        ran.append(payload)

    with q.workers(of_kind(kind, slow), count=1) as pool:
        q.enqueue_many(range(10))
        # The deadline is on the test's clock, which the jobs move.
        assert pool.drain(timeout=3600).drained
        assert (pool.metrics().stale, pool.metrics().processed) == (0, 10)
    assert ran == list(range(10))


# Stuck for ever


def test_F14_a_pool_takes_over_a_queue_full_of_dead_deliveries(make):
    q, crashed = make(capacity=10), make(visibility_timeout=0.1)
    q.enqueue_many(range(10))
    assert len(crashed.deliver_many(10)) == 10
    ran = []
    with q.workers(ran.append, count=2, backoff=AT_ONCE) as pool:
        assert pool.drain(timeout=WAIT_S).drained
    assert sorted(ran) == list(range(10))
    assert q.counts().acked == 10


@pytest.mark.parametrize("kind", KINDS)
def test_F15_a_pool_leaves_a_flood_of_delayed_jobs_in_the_store(make, kind):
    q, ran = make(), threading.Event()
    q.enqueue_many(NewJob(number, priority=9, delay=3600) for number in range(20_000))
    with q.workers(of_kind(kind, lambda _: ran.set()), count=4) as pool:
        took_s = []
        for _ in range(10):
            ran.clear()
            start = time.perf_counter()
            q.enqueue("ready")
            assert ran.wait(WAIT_S)
            took_s.append(time.perf_counter() - start)
        # The best of several, since other processes may hold the processor.
        assert min(took_s) < 0.1
        eventually(lambda: pool.metrics().succeeded == 10)
        assert (q.counts().scheduled, q.counts().leased) == (20_000, 0)


# Clock


def test_C4_a_step_of_the_wall_clock_during_a_job_stops_no_renewal(timed, clock):
    q, rival = timed(), timed()
    with Gate() as gate, q.workers(gate.handler("def"), count=1) as pool:
        job_id = q.enqueue("payload")
        gate.entered()
        today = datetime.fromtimestamp(clock.calendar(), UTC)
        for days in (-1, 1, 0):
            eventually(lambda: clock.sleepers == 1)
            clock.set_calendar(today + timedelta(days=days))
            for _ in range(4):
                assert (rival.tick_timeouts(), rival.deliver()) == (0, None)
                let_time_pass(clock, LEASE_S / 3, sleepers=1)
                eventually(lambda: is_renewed(q, clock))
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained
        assert (pool.metrics().reclaimed, pool.metrics().stale) == (0, 0)
    assert q.get(job_id).delivery == 1


# Concurrency model


def handlers_of_signals():
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["here", "in a thread", "in a running loop"])
def test_N3_a_pool_takes_no_signal_handler_wherever_it_starts(make, kind, where):
    q, ran, seen = make(), [], []

    def embed():
        seen.append(handlers_of_signals())
        with q.workers(of_kind(kind, ran.append), count=2) as pool:
            q.enqueue("payload")
            seen.append(handlers_of_signals())
            assert pool.drain(timeout=WAIT_S).drained
        seen.append(handlers_of_signals())

    async def inside_a_loop():
        embed()

    if where == "here":
        embed()
    elif where == "in a thread":
        Running(embed).result()
    else:
        asyncio.run(inside_a_loop())
    assert ran == ["payload"]
    before, during, after = seen
    assert before == during == after


@pytest.mark.parametrize("kind", KINDS)
def test_N3_a_pool_leaves_the_callers_event_loop_alone(make, kind):
    q = make()
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    try:
        with q.workers(of_kind(kind, lambda _: None), count=1):
            assert asyncio.get_event_loop() is own
        assert asyncio.get_event_loop() is own
    finally:
        asyncio.set_event_loop(None)
        own.close()


def test_N3_an_async_pool_takes_no_signal_handler(queue_url):
    async def main():
        before = handlers_of_signals()
        q = AsyncQueue(queue_url)
        async with q.workers(of_kind("async def", lambda _: None), count=2) as pool:
            await q.enqueue("payload")
            assert handlers_of_signals() == before
            assert (await pool.drain(timeout=WAIT_S)).drained
        assert handlers_of_signals() == before
        await q.close()

    asyncio.run(main())


def test_N5_garbage_collection_takes_no_worker_of_an_async_pool(queue_url):
    async def main():
        q, ran = AsyncQueue(queue_url), []

        async def handler(payload):
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, ran.append, payload)

        async with q.workers(handler, count=4) as pool:
            for number in range(40):
                await q.enqueue(number)
                gc.collect(0 if number % 10 else 2)
                await asyncio.sleep(0)
            assert (await pool.drain(timeout=WAIT_S)).drained
        assert sorted(ran) == list(range(40))
        await q.close()

    asyncio.run(main())


# Memory growth


@pytest.mark.parametrize("kind", KINDS)
def test_M2_a_pool_keeps_nothing_of_the_jobs_it_ran(queue_url, caplog, kind):
    """5,000 jobs, not 200,000: tracing makes each one slow, and 10 bytes kept of each would show."""
    # The test runner keeps what is logged.
    caplog.set_level(logging.CRITICAL + 1, "ulak")
    few = Retention(*[Keep(count=100, age_s=3600)] * 4)
    with (
        Queue(queue_url, retention=few, max_attempts=1) as q,
        q.workers(of_kind(kind, lambda payload: 1 / payload), count=2) as pool,
    ):

        def jobs(number):
            """Every tenth job fails."""
            for _ in range(number // 1000):
                q.enqueue_many([payload % 10 for payload in range(1000)])
                eventually(lambda: q.counts().open == 0)
            gc.collect()

        jobs(1_000)
        tracemalloc.start()
        try:
            jobs(3_000)
            grown: list[int] = []
            # A session with a server that is opened, or first used, meanwhile has its 50 kB, once. What is
            # kept of each job would show each time.
            while len(grown) < 3 and min(grown, default=5_000 * 10) >= 5_000 * 10:
                before = tracemalloc.get_traced_memory()[0]
                jobs(5_000)
                grown.append(tracemalloc.get_traced_memory()[0] - before)
        finally:
            tracemalloc.stop()
        assert min(grown) < 5_000 * 10
        assert pool.metrics().processed == 4_000 + 5_000 * len(grown)


@pytest.mark.parametrize("kind", KINDS)
def test_M6_what_is_refused_while_the_store_is_away_is_told_and_not_kept(make, caplog, kind):
    """Thousands of calls, not a minute: nothing depends on how long it lasts but how often is tried."""
    caplog.set_level(logging.CRITICAL + 1, "ulak")
    q, is_away = make(), threading.Event()
    refuse(q, lambda name, _: StorageUnavailable("away") if is_away.is_set() and name != "line" else None)

    def attempts(number):
        refused = 0
        for _ in range(number):
            try:
                q.enqueue("x" * 1000, timeout=0)
            except StorageUnavailable:
                refused += 1
        gc.collect()
        return refused

    with q.workers(of_kind(kind, lambda _: None), count=2) as pool:
        is_away.set()
        attempts(500)
        tracemalloc.start()
        try:
            sizes = []
            for _ in range(3):
                assert attempts(2_500) == 2_500
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        # What each call left would show both times; what a worker has just begun to do only once.
        assert min(after - before for before, after in itertools.pairwise(sizes)) < 2_500 * 10
        is_away.clear()
        job_id = q.enqueue("normal")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert (pool.size, q.counts().total) == (2, 1)
