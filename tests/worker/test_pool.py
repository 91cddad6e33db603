"""The worker pool: its size, its numbers, what it tells its handlers, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import threading

import pytest

from tests.support.pools import AT_ONCE, KINDS, LEASE_S, Gate, causes, of_kind, threads_of
from tests.support.stores import refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import (
    ArgumentError,
    AsyncQueue,
    Backoff,
    Cancel,
    Closed,
    Context,
    Reject,
    Snooze,
    StorageUnavailable,
    Terminal,
    current_job,
)
from ulak.clock import MACHINE
from ulak.core.job import Draft
from ulak.storage.drive import run
from ulak.worker import pool as pool_module
from ulak.worker.keeper import Keeper
from ulak.worker.pool import KEEPER_WAIT_S

# The pool itself


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_jobs_run_at_once_as_there_are_workers(make, kind):
    q = make()
    with Gate() as gate, q.workers(gate.handler(kind), count=5) as pool:
        q.enqueue_many(range(12))
        gate.entered(5)
        assert (q.counts().leased, q.counts().ready, pool.size) == (5, 7, 5)
        gate.open()
        assert pool.drain(timeout=WAIT_S).drained


def test_a_pool_runs_once(make):
    pool = make().workers(print, count=1)
    assert pool.size == 0
    for call in (pool.drain, pool.shutdown, pool.metrics):
        with pytest.raises(Closed):
            call()
    with pool, pytest.raises(Closed):
        pool.start()
    with pytest.raises(Closed):
        pool.start()
    assert pool.size == 0


def test_a_pool_whose_store_was_closed_before_it_started_says_what_to_do(make):
    q = make()
    pool = q.workers(print, count=1)
    q.close()
    with pytest.raises(Closed, match=r"closed before the pool was started\n  start a pool while"):
        pool.start()
    assert pool.size == 0


def test_a_pool_that_could_not_start_keeps_no_store_open_and_may_be_started_again(make):
    q, answers = make(), []
    refuse(q, lambda name, args: answers.pop() if answers else None)
    opened, pool = q._open(), q.workers(print, count=1)
    answers.append(StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        pool.start()
    assert (opened._handles, pool.size) == (1, 0)
    with pool:
        assert (opened._handles, pool.size) == (2, 1)
    assert opened._handles == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", ["work until the end", "have left before"])
def test_all_threads_of_a_pool_end_with_it(timed, kind, workers):
    """On a clock that stands still: no thread ends merely because it looks again after a while."""
    q = timed()
    with q.workers(of_kind(kind, lambda _: None), count=3) as pool:
        q.enqueue_many(range(5))
        if workers == "have left before":
            q.mark_producer_finished()
            eventually(lambda: pool.size == 0)
        assert pool.drain(timeout=WAIT_S).drained
        assert pool.size == 0
    eventually(lambda: not threads_of(q), within_s=5.0)


def test_the_backoff_is_stored_as_the_queues_policy(make, caplog):
    q, given = make(), Backoff(base=0.5, cap=2.0)
    with q.workers(print, count=1, backoff=given):
        assert q.settings().backoff == given
    with q.workers(print, count=1, backoff=given), q.workers(print, count=1):
        assert q.settings().backoff == given
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with q.workers(print, count=1, backoff=Backoff(base=9.0)):
        assert q.settings().backoff == given
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "configure(backoff=" in line.getMessage()


def test_without_a_backoff_the_default_is_stored(make):
    q = make()
    with q.workers(print, count=1):
        assert q.settings().backoff == Backoff(base=1.0, cap=300.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_identities_hold_in_every_snapshot_and_count_from_the_pools_start(make, kind):
    q = make(max_attempts=2, capacity=200)
    q.enqueue_many(["before"] * 3)
    q.ack_many(q.deliver_many(2))

    def handler(payload):
        if payload in ("fails", "before"):
            raise ValueError
        if payload == "rejected":
            raise Reject
        if payload == "cancelled":
            raise Cancel
        if payload == "snoozed" and current_job().delivery == 1:
            raise Snooze(0)

    with q.workers(of_kind(kind, handler), count=4, backoff=AT_ONCE) as pool:
        q.enqueue_many(["fails", "rejected", "cancelled", "snoozed", "fine"] * 30)
        while q.counts().open:
            assert_identities(pool.metrics())
        metrics = pool.metrics()
    assert_identities(metrics)
    assert (metrics.enqueued, metrics.succeeded, metrics.dead_lettered) == (150, 60, 61)
    assert (metrics.retries, metrics.cut, metrics.processed) == (31, 30, 182)


def assert_identities(metrics):
    assert metrics.processed == metrics.succeeded + metrics.failed
    assert metrics.failed == metrics.retries + metrics.dead_lettered + metrics.cut


def test_refused_enqueues_are_counted_as_rejected(make):
    q = make(capacity=1)
    with Gate() as gate, q.workers(gate.handler("def"), count=1) as pool:
        q.enqueue("payload")
        gate.entered()
        for _ in range(3):
            assert not q.try_enqueue("no room")
        metrics = pool.metrics()
        gate.open()
    assert (metrics.rejected, metrics.enqueued) == (3, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"count": 0},
        {"count": -1},
        {"count": True},
        {"count": 10_001},
        {"count": 1.5},
        {"grace": -1},
        {"backoff": 1},
    ],
)
def test_a_pool_refuses_options_that_cannot_be(make, options):
    with pytest.raises(ArgumentError):
        make().workers(print, **options)


def test_a_pool_refuses_a_lease_too_short_to_renew(make):
    with pytest.raises(ArgumentError, match="visibility timeout"):
        make(visibility_timeout=0.01).workers(print)


# What a renewal carries


@pytest.mark.parametrize("kind", KINDS)
def test_progress_is_stored_by_the_next_renewal(timed, clock, kind):
    q = timed()
    with Gate() as gate:
        stand = gate.handler(kind)

        def handler(payload, context: Context):
            context.progress(3, 10, "pages \ud800")
            return stand(payload)

        async def ahandler(payload, context: Context):
            await handler(payload, context)

        with q.workers(handler if kind == "def" else ahandler, count=1) as pool:
            # The keeper renews in its first round too. Tasks sleep in real time.
            eventually(lambda: clock.sleepers == (2 if kind == "def" else 1))
            job_id = q.enqueue("payload")
            gate.entered()
            assert q.get(job_id).progress == ""
            let_time_pass(clock, LEASE_S / 3, sleepers=1)
            eventually(lambda: q.get(job_id).progress == "3/10 pages ?")
            gate.open()
            assert pool.drain(timeout=WAIT_S).drained


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_a_requested_cancel_reaches_the_handler_and_its_ack_still_wins(timed, clock, end):
    q, told = timed(), threading.Event()
    with Gate() as gate:
        stand = gate.handler("def")

        def handler(payload, context: Context):
            stand(payload)
            eventually(lambda: context.cancelled)
            told.set()
            if end == "raises":
                raise ValueError(payload)

        with q.workers(handler, count=1) as pool:
            job_id = q.enqueue("payload")
            gate.entered()
            # Not before the keeper has made its first round: it renews the lease, and so hears of a cancel.
            eventually(lambda: clock.sleepers == 1)
            assert q.cancel(job_id).done == (job_id,)
            gate.open()
            let_time_pass(clock, LEASE_S / 3, sleepers=1)
            assert told.wait(WAIT_S)
            assert pool.drain(timeout=WAIT_S).drained
            metrics = pool.metrics()
    ended = Terminal.ACKED if end == "returns" else Terminal.CANCELLED
    assert q.terminal_of(job_id) is ended
    assert (metrics.processed, metrics.cut) == (1, int(end == "raises"))


def test_a_handler_is_told_that_its_lease_is_lost(timed, clock):
    q, rival = timed(), timed()
    with Gate() as gate:
        stand = gate.handler("def")

        def handler(payload, context: Context):
            stand(payload)
            if context.delivery == 1:
                eventually(lambda: context.cancelled)

        with q.workers(handler, count=1, backoff=AT_ONCE) as pool:
            q.enqueue("payload")
            gate.entered()
            eventually(rival.crash)
            gate.open()
            let_time_pass(clock, LEASE_S / 3, sleepers=1)
            eventually(lambda: pool.metrics().succeeded == 1)
            assert pool.metrics().stale == 1


def test_a_renewal_between_two_jobs_of_a_worker_does_not_cancel_the_second(make):
    """The keeper reads what a worker holds while the worker goes on from one job to the next."""
    q = make()
    q.enqueue_many(["first", "second"])
    first, second = q.deliver_many(2)
    assert q.ack(first)
    crew = q.workers(print, count=1)._crew
    context = Context(second)
    crew.seats[0].lease, crew.seats[0].context = first, context
    run(q._edge, Keeper(crew, lambda: iter(()))._renew())
    assert not context.cancelled


def test_the_keeper_rests_nine_times_as_long_as_its_round_took_however_often_it_is_called(
    timed, clock, monkeypatch
):
    monkeypatch.setattr(pool_module, "SYSTEM", clock)
    q, rounds, took_s = timed(), [], 0.01

    def decide(name, _):
        if name == "promote":
            rounds.append(clock.interval())
            clock.advance(took_s)

    refuse(q, decide)
    with q.workers(print, count=1):
        eventually(lambda: clock.sleepers == 2)
        sooner_s = itertools.count(36_000, -1)

        def are_five_more():
            q.enqueue("sooner", delay=next(sooner_s))
            clock.advance(took_s)
            return len(rounds) >= before + 5

        before = len(rounds)
        eventually(are_five_more)
        # Nobody moves the clock any more.
        begun = MACHINE.interval()
    assert MACHINE.interval() - begun < KEEPER_WAIT_S
    gaps = [after - before for before, after in itertools.pairwise(rounds[before - 1 : before + 5])]
    assert min(gaps) >= 9.99 * took_s


def test_the_keeper_rests_no_longer_than_until_it_has_to_renew_leases(timed, clock, monkeypatch):
    monkeypatch.setattr(pool_module, "SYSTEM", clock)
    # A round takes 0.05 s, so it would rest for 0.25 s; leases of 0.3 s are renewed each 0.1 s.
    q, rests, rest = timed(visibility_timeout=0.3), [], Keeper._rest

    def noted(keeper, until):
        rests.append((until, keeper._renew_at))
        return rest(keeper, until)

    monkeypatch.setattr(Keeper, "_rest", noted)
    refuse(q, lambda name, _: clock.advance(0.05) if name == "promote" else None)
    with q.workers(print, count=1):
        eventually(lambda: len(rests) >= 5, clock=clock, step_s=0.02)
    assert all(until <= renew_at + 1e-9 for until, renew_at in rests)


# The end


def test_a_drains_report_names_what_did_not_keep_it(make):
    q = make()
    q._edge.store.add(q.name, [Draft(b"", "bytes", task="unknown")] * 2)
    with q.workers(lambda _: None, count=1) as pool:
        q.enqueue("plain")
        eventually(lambda: (q.counts().held, q.counts().open) == (2, 2))
        q.pause()
        q.enqueue_many(["waits"] * 3)
        report = pool.drain(timeout=WAIT_S)
    assert (report.drained, report.open, report.held, report.paused, report.released) == (True, 5, 2, True, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drain_with_a_deadline_hands_back_what_runs_unspent(make, kind):
    q = make(max_attempts=1)
    with Gate() as gate, q.workers(gate.handler(kind), count=2) as pool:
        running = q.enqueue_many(["running"] * 2)
        q.enqueue("waiting")
        scheduled = q.enqueue("scheduled", delay=3600)
        gate.entered(2)
        report = pool.drain(timeout=0.05)
        assert (report.drained, report.open, report.held, report.released) == (False, 4, 0, 2)
        for job_id in running:
            job = q.get(job_id)
            assert (job.state, job.attempt, causes(job)) == ("ready", 0, ["shutdown"])
        assert q.get(scheduled).state == "scheduled"
        gate.open()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_handler_brings_after_the_shutdown_is_stale(make, kind):
    q, told = make(), []
    with Gate() as gate:
        stand, astand = gate.handler("def"), gate.handler("async def")

        def stubborn(payload, context: Context):
            stand(payload)
            told.append(context.cancelled)

        async def astubborn(payload, context: Context):
            """Ignores its cancellation."""
            with contextlib.suppress(asyncio.CancelledError):
                await astand(payload)
            told.append(context.cancelled)

        with q.workers(stubborn if kind == "def" else astubborn, count=1) as pool:
            job_id = q.enqueue("payload")
            gate.entered()
            assert pool.shutdown(grace=0).released == 1
            gate.open()
            eventually(lambda: pool.size == 0)
            assert (pool.metrics().stale, pool.metrics().processed) == (1, 0)
    assert told == [True]
    assert (q.get(job_id).state, q.get(job_id).attempt) == ("ready", 0)


@pytest.mark.parametrize("finished", [True, False])
def test_leaving_by_an_exception_shuts_down_and_lets_it_through(make, finished):
    q = make()
    with Gate() as gate:
        pool = q.workers(gate.handler("def"), count=1)

        def leave():
            with pool:
                gate.entered()
                if finished:
                    q.mark_producer_finished()
                threading.Timer(0.01, gate.open).start()
                raise LookupError

        running, waiting = q.enqueue_many(["running", "waiting"])
        with pytest.raises(LookupError):
            leave()
        assert pool.size == 0
    assert q.terminal_of(running) is Terminal.ACKED
    assert q.get(waiting).state == "ready"


def test_leaving_drains_if_the_producers_have_finished_and_else_shuts_down(make):
    q, ran = make(), []
    with q.workers(ran.append, count=1):
        q.enqueue("scheduled", delay=3600)
    assert q.counts().scheduled == 1
    with q.workers(ran.append, count=1), q.producer():
        q.enqueue_many(range(50))
        q.redrive(q.cancel(q.jobs("scheduled")[0].id).done)
    assert sorted(map(str, ran)) == sorted([*map(str, range(50)), "scheduled"])
    assert q.counts().open == 0


def test_a_job_redriven_after_the_workers_have_left_is_run(make):
    q, ran = make(max_attempts=1), []

    def handler(payload):
        ran.append(payload)
        if len(ran) == 1:
            raise ValueError

    with q.workers(handler, count=1) as pool:
        with q.producer():
            job_id = q.enqueue("payload")
        eventually(lambda: pool.size == 0)
        assert q.redrive(job_id).done == (job_id,)
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED, within_s=5.0)


# Event loops


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_of_an_async_queue_runs_both_kinds(queue_url, kind):
    threads = set()

    async def main():
        q, ran = AsyncQueue(queue_url, max_attempts=2), []

        def work(payload):
            threads.add(threading.current_thread())
            ran.append(payload)
            if payload == "fails":
                raise ValueError

        async with q.workers(of_kind(kind, work), count=2, backoff=AT_ONCE) as pool:
            assert pool.size == 2
            async with q.producer():
                await q.enqueue_many(["fine", "fails"])
            report = await pool.drain(timeout=WAIT_S)
            metrics = await pool.metrics()
        assert (report.drained, pool.size) == (True, 0)
        assert sorted(ran) == ["fails", "fails", "fine"]
        assert (metrics.succeeded, metrics.dead_lettered, metrics.retries) == (1, 1, 1)
        with pytest.raises(Closed):
            await pool.start()
        await q.close()

    asyncio.run(main())
    # An `async def` handler runs on the caller's loop, a `def` handler never on it.
    assert (threading.current_thread() in threads) == (kind == "async def")


def test_a_cancelled_task_that_leaves_its_async_pool_hands_the_job_back(queue_url):
    async def main():
        q, inside = AsyncQueue(queue_url, max_attempts=1), asyncio.Event()

        async def handler(_):
            inside.set()
            await asyncio.sleep(3600)

        async def serve():
            async with q.workers(handler, count=1, grace=0):
                await asyncio.sleep(3600)

        serving = asyncio.create_task(serve())
        job_id = await q.enqueue("payload")
        await asyncio.wait_for(inside.wait(), WAIT_S)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving, WAIT_S)
        job = await q.get(job_id)
        assert (job.state, job.attempt, causes(job)) == ("ready", 0, ["shutdown"])
        await q.close()

    asyncio.run(main())


def test_a_loop_that_ends_before_its_pool_was_shut_down_does_not_hang(queue_url):
    async def main():
        q, inside = AsyncQueue(queue_url), asyncio.Event()

        async def handler(_):
            inside.set()
            await asyncio.sleep(3600)

        pool = q.workers(handler, count=2)
        await pool.start()
        await q.enqueue("payload")
        await asyncio.wait_for(inside.wait(), WAIT_S)
        return pool

    pool = Running(lambda: asyncio.run(main())).result(5.0)
    asyncio.run(pool.shutdown(grace=0))


@pytest.mark.parametrize("turns", [0, 1])
def test_a_loop_closed_before_its_workers_began_leaves_nothing_behind(queue_url, turns):
    loop, q = asyncio.new_event_loop(), AsyncQueue(queue_url)

    async def handler(_):
        raise AssertionError("nothing was enqueued")

    pool = q.workers(handler, count=2)
    loop.run_until_complete(pool.start())
    for _ in range(turns):
        loop.stop()
        loop.run_forever()
    loop.close()
    # The keeper sees that nobody works there; were it not so, the end would wait for the whole grace.
    Running(lambda: asyncio.run(pool.shutdown(grace=WAIT_S))).result(WAIT_S / 2)
    assert pool.size == 0
    gc.collect()
