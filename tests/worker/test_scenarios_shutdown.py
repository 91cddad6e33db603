"""What hurt users of other queues, on ending a pool: deploys, grace, producers that come and go.

A pool in a library hears of a signal by a call of `shutdown`. A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.pools import KINDS, LEASE_S, Gate, is_renewed, of_kind
from tests.support.stores import refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import AsyncQueue, Closed, Terminal
from ulak.worker.runtime import CLAIM_S


@pytest.mark.parametrize("kind", KINDS)
def test_W1_a_stop_lets_running_jobs_finish_and_takes_nothing_new(make, kind):
    q = make()
    with Gate() as gate, q.workers(gate.handler(kind), count=2) as pool:
        running = q.enqueue("running")
        gate.entered()
        stop = Running(lambda: pool.shutdown(WAIT_S))
        # The idle worker leaves at once.
        eventually(lambda: pool.size == 1)
        behind = q.enqueue("behind")
        gate.open()
        report = stop.result()
        assert (report.released, report.open, pool.size) == (0, 1, 0)
    assert q.terminal_of(running) is Terminal.ACKED
    assert (q.get(running).attempt, q.get(running).delivery) == (1, 1)
    assert (q.get(behind).state, q.get(behind).delivery) == ("ready", 0)


def test_W1_leases_are_renewed_while_a_stop_waits(timed, clock):
    q = timed()
    with Gate() as gate, q.workers(gate.handler("def"), count=1) as pool:
        q.enqueue("running")
        gate.entered()
        stop = Running(lambda: pool.shutdown(grace=3600))
        for _ in range(4):
            let_time_pass(clock, LEASE_S / 3, sleepers=2)  # the stop, and the keeper of the lease
            eventually(lambda: is_renewed(q, clock))
        gate.open()
        assert stop.result().released == 0
    assert (q.counts().acked, q.counts().totals.reclaimed) == (1, 0)


def test_W1_an_async_pool_lets_running_jobs_finish(queue_url):
    async def main():
        q = AsyncQueue(queue_url)
        with Gate() as gate:
            async with q.workers(gate.handler("async def"), count=2) as pool:
                running = await q.enqueue("running")
                await asyncio.to_thread(gate.entered)
                stop = asyncio.create_task(pool.shutdown(WAIT_S))
                await asyncio.to_thread(eventually, lambda: pool.size == 1)
                gate.open()
                assert (await asyncio.wait_for(stop, WAIT_S)).released == 0
        assert await q.terminal_of(running) is Terminal.ACKED
        await q.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_W2_stops_that_interrupt_a_job_use_up_no_attempt(make, kind):
    q = make(max_attempts=3)
    job_id = q.enqueue("interrupted")
    with Gate() as gate:
        for stop in range(1, 6):
            pool = q.workers(gate.handler(kind), count=1)
            pool.start()
            gate.entered()
            report = pool.shutdown(grace=0)
            assert (report.released, report.open) == (1, 1)
            job = q.get(job_id)
            assert (job.state, job.attempt, job.delivery) == ("ready", 0, stop)
    assert [attempt.cause for attempt in q.get(job_id).history] == ["shutdown"] * 5
    with q.workers(of_kind(kind, lambda _: None), count=1) as pool:
        assert pool.drain(timeout=WAIT_S).drained
    job = q.get(job_id)
    assert (q.terminal_of(job_id), job.attempt, job.delivery) == (Terminal.ACKED, 1, 6)
    assert q.counts().totals.processed == 1


@pytest.mark.parametrize("kind", KINDS)
def test_W3_after_the_grace_an_unfinished_job_is_ready_again_not_terminal(make, kind):
    q = make(max_attempts=1)
    job_id = q.enqueue("takes longer than the grace")
    with Gate() as gate:
        with q.workers(gate.handler(kind), count=1) as pool:
            gate.entered()
            report = pool.shutdown(grace=0.05)
            assert report.released == 1
        assert (q.get(job_id).state, q.terminal_of(job_id)) == ("ready", None)
        gate.open()
    eventually(lambda: pool.size == 0)
    # What the old handler brought in the end had no effect.
    assert (q.get(job_id).state, q.terminal_of(job_id)) == ("ready", None)
    lease = q.deliver()
    assert (lease.attempt, lease.delivery) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_W7_workers_stay_while_a_slow_producer_lets_the_queue_run_empty(make, kind):
    q, ran = make(), []
    with q.workers(of_kind(kind, ran.append), count=2) as pool:
        with q.producer():
            for number in range(5):
                q.enqueue(number)
                eventually(lambda: q.counts().open == 0)
                assert pool.size == 2
        eventually(lambda: pool.size == 0)
    assert ran == [0, 1, 2, 3, 4]
    with pytest.raises(Closed):
        q.enqueue("too late")


def test_W7_workers_stay_until_the_last_of_several_producers_has_finished(make):
    q, ran = make(), []
    with q.workers(ran.append, count=2) as pool:
        quick, slow = q.producer(), q.producer()
        q.enqueue("from the quick one")
        quick.finish()
        eventually(lambda: q.counts().open == 0)
        q.enqueue("from the slow one")
        slow.finish()
        eventually(lambda: pool.size == 0)
    assert ran == ["from the quick one", "from the slow one"]


@pytest.mark.parametrize("kind", KINDS)
def test_W7_a_drain_waits_for_the_producer_and_for_what_it_enqueued_last(make, kind):
    q, ran = make(), []
    with q.workers(of_kind(kind, ran.append), count=2) as pool:
        producer = q.producer()
        drain = Running(lambda: pool.drain(WAIT_S))
        for number in range(5):
            q.enqueue(number)
            eventually(lambda: q.counts().open == 0)
            assert not drain.is_over
        q.enqueue_many(range(5, 50))
        producer.finish()
        assert drain.result().drained
    assert sorted(ran) == list(range(50))


@pytest.mark.parametrize("kind", KINDS)
def test_W7_no_job_is_dropped_in_the_moment_of_finishing(make, kind):
    """The producer finishes while the workers are about to look for the last time, again and again."""
    for _ in range(20):
        with make(capacity=None) as q:
            ran = []
            with q.workers(of_kind(kind, ran.append), count=3), q.producer():
                for number in range(3):
                    q.enqueue(number)
            assert sorted(ran) == [0, 1, 2]
            assert q.counts().open == 0


@pytest.mark.parametrize("kind", KINDS)
def test_W7_a_producer_that_registers_again_finds_the_pool_at_work(make, kind):
    q, ran = make(), []
    with q.workers(of_kind(kind, ran.append), count=2) as pool:
        with q.producer():
            q.enqueue("first")
        eventually(lambda: pool.size == 0)
        with q.producer():
            q.enqueue("second")
            eventually(lambda: ran == ["first", "second"], within_s=5.0)
        assert Running(pool.drain).result().drained


@pytest.mark.parametrize("end", ["drain", "shutdown"])
def test_W2_a_claim_that_is_under_way_at_the_end_is_handed_back_before_it(make, end):
    """The process may end right after, and would leave a lease behind, and so spend an attempt."""
    q, begun, go_on, ran = make(), threading.Event(), threading.Event(), []

    def decide(name, args):
        if name == "turn" and args[2] and not begun.is_set():
            begun.set()
            assert go_on.wait(WAIT_S)

    refuse(q, decide)
    q.enqueue("late")
    with q.workers(ran.append, count=1) as pool:
        assert begun.wait(WAIT_S)
        threading.Timer(0.1, go_on.set).start()
        report = pool.shutdown(grace=0) if end == "shutdown" else pool.drain(timeout=0)
        counts = q.counts()
        assert (report.open, counts.leased, counts.ready, pool.size) == (1, 0, 1, 0)
    assert (ran, q.jobs()[0].attempt) == ([], 0)


def test_W3_an_end_does_not_wait_long_for_a_store_that_does_not_answer(make):
    q, begun, go_on = make(), threading.Event(), threading.Event()

    def decide(name, args):
        if name == "turn" and args[2]:
            begun.set()
            assert go_on.wait(WAIT_S)

    refuse(q, decide)
    pool = q.workers(print, count=1)
    pool.start()
    assert begun.wait(WAIT_S)
    assert Running(lambda: pool.shutdown(grace=0)).result(CLAIM_S + 5.0).open == 0
    assert pool.size == 1
    go_on.set()
    eventually(lambda: pool.size == 0)


@pytest.mark.parametrize("end", ["drain", "shutdown"])
def test_W7_leaving_after_a_stop_that_left_jobs_open_ends(make, end):
    """The producers have finished, but nobody is left who could drain the queue."""
    q = make()

    def run():
        with q.workers(gate.handler("def"), count=1) as pool:
            with q.producer():
                q.enqueue("unfinished")
            gate.entered()
            return pool.drain(timeout=0) if end == "drain" else pool.shutdown(grace=0)

    with Gate() as gate:
        report = Running(run).result(5.0)
    assert (report.drained, report.open, report.released) == (False, 1, 1)


def test_W7_a_stop_from_elsewhere_ends_a_drain(make):
    q = make()
    with Gate() as gate:
        pool = q.workers(gate.handler("def"), count=1)
        pool.start()
        q.enqueue_many(["running", "waiting"])
        gate.entered()
        drain = Running(pool.drain)
        stop, report = pool.shutdown(grace=0), drain.result()
        # Whichever of the two ends gets there first.
        assert stop.released + report.released == 1
        assert (report.drained, report.open) == (False, 2)


def test_W7_a_pause_that_let_the_workers_go_does_not_hang_the_end(make):
    q = make()

    def run():
        with q.workers(lambda _: None, count=1) as pool:
            q.pause()
            with q.producer():
                q.enqueue("waits")
            eventually(lambda: pool.size == 0)
            q.resume()

    Running(run).result(5.0)
