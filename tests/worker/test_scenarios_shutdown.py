"""What hurt users of other queues, on ending a pool: deploys, grace, producers that come and go.

A pool in a library hears of a signal by a call of `shutdown`. A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import pytest

from tests.support.pools import AT_ONCE, KINDS, LEASE_S, Gate, causes, is_renewed, of_kind
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
def test_W5_a_second_stop_ends_the_first_ones_grace_and_leaves_no_job_behind(make, kind):
    q = make(max_attempts=1)
    with Gate() as gate, q.workers(gate.handler(kind), count=1) as pool:
        job_id = q.enqueue("running")
        gate.entered()
        first = Running(lambda: pool.shutdown(grace=3600))
        eventually(lambda: not pool._crew.taking)
        assert pool.shutdown(grace=0).released + first.result(5.0).released == 1
        assert (q.get(job_id).state, q.get(job_id).attempt) == ("ready", 0)


@pytest.mark.parametrize(("kind", "running"), [("def", 2), ("async def", 1)])
def test_W6_handlers_that_wait_for_a_stopped_loop_do_not_keep_a_stop(make, kind, running):
    """A coroutine that blocks keeps its own loop too, and so the other workers."""
    q, stopped, waiting = make(max_attempts=1), asyncio.new_event_loop(), threading.Semaphore(0)

    def handler(_):
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), stopped)
        waiting.release()
        future.result(WAIT_S)

    with q.workers(of_kind(kind, handler), count=2) as pool:
        ids = q.enqueue_many(["first", "second"])
        for _ in range(running):
            assert waiting.acquire(timeout=WAIT_S)
        report = Running(lambda: pool.shutdown(grace=0.05)).result(0.05 + 2.0)
        assert report.released >= running
        assert report.open == 2
        assert {(q.get(job_id).state, q.get(job_id).attempt) for job_id in ids} == {("ready", 0)}
        eventually(lambda: stopped.run_until_complete(asyncio.sleep(0)) or pool.size == 0)
    stopped.close()


@pytest.mark.parametrize("kind", KINDS)
def test_W9_a_pool_that_stops_takes_nothing_that_is_freed_meanwhile(make, kind):
    q, crashed, ran = make(), make(visibility_timeout=0.05, backoff=AT_ONCE), []
    with Gate() as gate, q.workers(gate.handler(kind), count=2) as leaving:
        q.enqueue("running")
        gate.entered()
        stop = Running(lambda: leaving.shutdown(WAIT_S))
        eventually(lambda: leaving.size == 1)
        left = q.enqueue("left by a crashed worker")
        assert crashed.deliver().id == left
        # Whoever looks first frees it: this one, or the pool that still has a job to finish.
        eventually(lambda: crashed.tick_timeouts() or q.get(left).history)
        gate.open()
        assert stop.result().open == 1
    # Its worker has finished its job since, and looked for no other one.
    assert q.get(left).delivery == 1
    with q.workers(of_kind(kind, ran.append), count=1):
        eventually(lambda: q.terminal_of(left) is Terminal.ACKED)
    assert (ran, causes(q.get(left))) == (["left by a crashed worker"], ["lost", "ack"])


def ignores_its_end(gate):
    """A handler that goes on, whatever it is told, until the gate is open."""
    stand = gate.handler("async def")

    async def handler(payload):
        while not gate.is_open:
            with contextlib.suppress(asyncio.CancelledError):
                await stand(payload)

    return handler


def test_N10_a_handler_that_ignores_its_cancellation_keeps_no_stop_and_brings_nothing_later(make):
    q, ran = make(max_attempts=1), []
    with Gate() as gate:
        with q.workers(ignores_its_end(gate), count=1) as pool:
            job_id = q.enqueue("payload")
            gate.entered()
            assert Running(lambda: pool.shutdown(grace=0.05)).result(0.05 + 2.0).released == 1
            # It is told, and stands there again.
            gate.entered()
        with q.workers(of_kind("async def", ran.append), count=1):
            eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        gate.open()
        eventually(lambda: pool.size == 0)
    job = q.get(job_id)
    assert (job.state, job.attempt, causes(job)) == ("succeeded", 1, ["shutdown", "ack"])
    assert (ran, pool.metrics().stale) == (["payload"], 1)


def test_N10_it_keeps_no_stop_on_the_callers_loop_either(queue_url):
    async def main():
        q = AsyncQueue(queue_url, max_attempts=1)
        with Gate() as gate:
            async with q.workers(ignores_its_end(gate), count=1) as pool:
                job_id = await q.enqueue("payload")
                await asyncio.to_thread(gate.entered)
                report = await asyncio.wait_for(pool.shutdown(grace=0.05), 0.05 + 2.0)
                assert report.released == 1
            job = await q.get(job_id)
            assert (job.state, job.attempt) == ("ready", 0)
        await asyncio.to_thread(eventually, lambda: pool.size == 0)
        job = await q.get(job_id)
        assert (job.state, job.attempt, causes(job)) == ("ready", 0, ["shutdown"])
        await q.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_N8_a_pool_that_is_cancelled_again_and_again_at_any_moment_ends(queue_url, seed):
    """Whatever swallows a cancellation in between, it ends, and the jobs are there for the next one."""
    draw = random.Random(seed)

    async def handler(_):
        await asyncio.sleep(draw.choice([0, 0.001]))

    async def serve(q):
        async with q.workers(handler, count=3, grace=draw.choice([0, WAIT_S])) as pool:
            for number in range(4):
                await q.enqueue(number)
            await (pool.drain() if draw.random() < 0.5 else asyncio.sleep(WAIT_S))

    async def a_moment():
        for _ in range(draw.randrange(20)):
            await asyncio.sleep(draw.choice([0, 0, 0.0005]))

    async def main():
        q = AsyncQueue(queue_url)
        for _ in range(15):
            serving = asyncio.create_task(serve(q))
            while not serving.done():
                await a_moment()
                serving.cancel()
                await asyncio.wait([serving], timeout=draw.choice([0, 0.01, WAIT_S]))
            with contextlib.suppress(asyncio.CancelledError):
                serving.result()
        async with q.workers(handler, count=3) as pool:
            assert (await pool.drain(timeout=WAIT_S)).drained
        counts = await q.counts()
        assert (counts.acked, counts.dead) == (counts.total, 0)
        await q.close()

    Running(lambda: asyncio.run(main())).result(2 * WAIT_S)


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
