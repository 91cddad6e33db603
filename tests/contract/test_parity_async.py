"""A representative part of the parity tests on `AsyncQueue`: the same answers, awaited."""

import asyncio
import contextlib
import random

import pytest

from tests.support.waiting import WAIT_S
from ulak import (
    FULL,
    AsyncQueue,
    Backoff,
    Closed,
    Outcome,
    PayloadError,
    Queue,
    QueueFull,
    State,
    Terminal,
    WrongQueue,
)
from ulak.clock import SYSTEM
from ulak.core.store import Until

OK, STALE = Outcome.OK, Outcome.STALE


@pytest.fixture
def run(queue_url, clock):
    """Run a coroutine function that gets a maker of queues, on a loop of its own and within the patience."""

    async def main(scene):
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(WAIT_S):

            async def make(name="default", *, url=queue_url, **options):
                return await stack.enter_async_context(AsyncQueue(url, name, **{"clock": clock, **options}))

            return await scene(make)

    return lambda scene: asyncio.run(main(scene))


async def settle_down():
    """Let every task run until it waits for something outside the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def enqueued_in_line(queue, *payloads):
    """Tasks that wait for room, each behind the one before it."""
    line, waiters = queue._edge.store.line(Until.ROOM, queue.name), []
    for number, payload in enumerate(payloads, 1):
        waiters.append(asyncio.create_task(queue.enqueue(payload)))
        while len(line) < number:
            await settle_down()
    return waiters


def test_priority_then_fifo_then_the_ack(run):
    async def scene(make):
        queue = await make()
        for payload, priority in [("low", 1), ("high 1", 9), ("middle", 5), ("high 2", 9)]:
            await queue.enqueue(payload, priority)
        order = []
        while (lease := await queue.deliver()) is not None:
            order.append(lease.payload)
            assert [await queue.ack(lease), await queue.ack(lease)] == [OK, STALE]
            assert await queue.terminal_of(lease.id) is Terminal.ACKED
            assert await queue.acked_by(lease)
        assert order == ["high 1", "high 2", "middle", "low"]
        counts = await queue.counts()
        assert (counts.acked, counts.open, counts.total) == (4, 0, 4)

    run(scene)


def test_the_failure_step_up_to_death(run, clock):
    # A nack, a time-out and a crash: three attempts, and the payload is still there.
    async def scene(make):
        queue = await make(max_attempts=3)
        job_id = await queue.enqueue({"to": "ada"})
        first = await queue.deliver()
        assert await queue.nack(first, error=ValueError("no")) is OK
        assert await queue.ack(first) is STALE
        await queue.deliver()
        assert await queue.tick_timeouts() == 0
        clock.advance(30)
        assert await queue.tick_timeouts() == 1
        await queue.deliver()
        assert await queue.crash() == 1
        assert await queue.terminal_of(job_id) is Terminal.DEAD
        (letter,) = await queue.jobs(state="dead")
        assert (letter.payload, len(letter.history)) == ({"to": "ada"}, 3)
        assert (await queue.redrive(job_id)).done == (job_id,)
        assert await queue.ack(await queue.deliver()) is OK

    run(scene)


def test_a_lease_of_another_queue_is_refused(run, new_url):
    async def scene(make):
        queue, other_name, other_store = await make(), await make("other"), await make(url=new_url())
        for each in (queue, other_name, other_store):
            await each.enqueue("a")
        lease = await queue.deliver()
        for stranger in (other_name, other_store):
            await stranger.deliver()
            for call in (stranger.ack, stranger.nack, stranger.release):
                with pytest.raises(WrongQueue):
                    await call(lease)
            assert (await stranger.counts()).leased == 1
        assert await queue.ack(lease) is OK

    run(scene)


def test_a_refused_payload_poisons_nothing(run):
    async def scene(make):
        queue = await make()
        with pytest.raises(PayloadError):
            await queue.enqueue({"a": object()})
        await queue.enqueue("a")
        assert await queue.ack(await queue.deliver()) is OK
        assert (await queue.counts()).total == 1

    run(scene)


def test_SAFE_4_the_states_sum_to_all_ever_enqueued_when_awaited(run, clock):
    async def scene(make):
        for seed in range(50):
            rng, enqueued, leases = random.Random(seed), 0, [None]
            queue = await make(f"run-{seed}", max_attempts=3)
            for _ in range(40):
                lease = rng.choice(leases)
                action = rng.choice(["enqueue", "deliver", "ack", "nack", "tick"])
                if action == "enqueue":
                    await queue.enqueue("a", rng.randint(0, 3))
                    enqueued += 1
                elif action == "deliver":
                    leases.append(await queue.deliver())
                elif action == "tick":
                    clock.advance(10)
                    await queue.tick_timeouts()
                elif lease is not None:
                    await (queue.ack(lease) if action == "ack" else queue.nack(lease))
                counts = await queue.counts()
                assert counts.pending + counts.leased + counts.acked + counts.dead == enqueued == counts.total

    run(scene)


def test_C3_a_delivery_waits_for_work_and_gives_up_in_time(run):
    async def scene(make):
        queue = await make(clock=SYSTEM)
        assert await queue.deliver() is None
        assert await queue.deliver(timeout=0.01) is None
        waiter = asyncio.create_task(queue.deliver(timeout=None))
        await settle_down()
        assert not waiter.done()
        await queue.enqueue("a")
        assert (await waiter).payload == "a"

    run(scene)


def test_T7_a_cancelled_waiting_enqueue_leaves_nothing_behind(run):
    async def scene(make):
        queue = await make(clock=SYSTEM, capacity=1)
        await queue.enqueue("a")
        waiters = await enqueued_in_line(queue, 0, 1, 2)
        waiters[0].cancel()
        await asyncio.wait(waiters[:1])
        assert (await queue.counts()).total == 1
        for number in (1, 2):
            await queue.ack(await queue.deliver())
            await waiters[number]
            assert [info.payload for info in await queue.jobs(state="ready")] == [number]
        assert (await queue.counts()).total == 3

    run(scene)


def test_T7_a_waiter_cancelled_when_it_was_just_given_its_turn_hands_it_on(run):
    # Room is made and the first waiter is cancelled before it can run: the second one must not sleep on.
    async def scene(make):
        queue = await make(clock=SYSTEM, capacity=1)
        await queue.enqueue("a")
        first, second = await enqueued_in_line(queue, 0, 1)
        lease = await queue.deliver()
        await queue.ack(lease)
        first.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        counts = await queue.counts()
        assert (counts.open, counts.total) == (1, 2)

    run(scene)


def test_a_cancelled_waiting_delivery_loses_no_job(run):
    async def scene(make):
        queue = await make(clock=SYSTEM)
        waiter = asyncio.create_task(queue.deliver(timeout=None))
        await settle_down()
        await queue.enqueue("a")
        waiter.cancel()
        await asyncio.wait([waiter])
        lease = waiter.result() if not waiter.cancelled() else await queue.deliver()
        assert lease.payload == "a"

    run(scene)


def test_T4_full_at_once_or_in_time(run):
    async def scene(make):
        queue = await make(clock=SYSTEM, capacity=1)
        await queue.enqueue("a")
        assert await queue.try_enqueue("b") is FULL
        with pytest.raises(QueueFull):
            await queue.enqueue("b", timeout=0.01)
        await queue.nack(await queue.deliver(), delay=60)
        assert await queue.try_enqueue("b") is FULL
        assert (await queue.counts()).total == 1

    run(scene)


def test_T6_producers_are_counted_and_the_last_one_closes(run):
    async def scene(make):
        queue = await make(clock=SYSTEM)
        async with queue.producer():
            async with queue.producer():
                await queue.enqueue("a")
            await queue.enqueue("b")
        with pytest.raises(Closed):
            await queue.enqueue("c")
        assert len(await queue.deliver_many(2)) == 2
        waiter = asyncio.create_task(queue.deliver(timeout=None))
        await settle_down()
        assert not waiter.done()
        assert await queue.crash() == 2
        lease = await waiter
        assert (lease.payload, lease.attempt) == ("a", 2)

    run(scene)


def test_threads_and_loops_see_one_queue(run, queue_url, clock):
    # The same store through both facades.
    async def scene(make):
        queue = await make(max_attempts=2)
        with Queue(queue_url, clock=clock) as other:
            job_id = other.enqueue("a", 3)
            lease = await queue.deliver()
            assert other.ack(lease) is OK
            assert await queue.ack(lease) is STALE
            assert await queue.counts() == other.counts()
            assert (await queue.get(job_id)).state is State.SUCCEEDED

    run(scene)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_pool_drains_all_jobs_of_its_producer(run, is_async):
    done = []

    async def awaited(payload):
        await asyncio.sleep(0)
        done.append(payload)

    async def scene(make):
        queue = await make(clock=SYSTEM, capacity=16)
        handler = awaited if is_async else done.append
        async with queue.workers(handler, count=4) as pool, queue.producer():
            for number in range(300):
                await queue.enqueue(number)
        assert sorted(done) == list(range(300))
        metrics = await pool.metrics()
        assert (metrics.enqueued, metrics.processed, metrics.succeeded, metrics.failed) == (300, 300, 300, 0)
        assert (await queue.counts()).open == 0

    run(scene)


def test_a_pool_of_tasks_retries_and_buries(run):
    runs = []

    async def fail(payload):
        runs.append(payload)
        if payload % 2:
            raise ValueError(payload)

    async def scene(make):
        queue = await make(clock=SYSTEM, capacity=1, max_attempts=3)
        backoff = Backoff(base=0.001, cap=0.002)
        async with queue.workers(fail, count=2, backoff=backoff), queue.producer():
            for number in range(10):
                await queue.enqueue(number)
        counts = await queue.counts()
        assert (counts.acked, counts.dead, counts.open) == (5, 5, 0)
        assert sorted(runs) == sorted([0, 2, 4, 6, 8] + [1, 3, 5, 7, 9] * 3)

    run(scene)
