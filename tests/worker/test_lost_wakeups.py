"""On a store that may lose every wake-up, as one of several processes does: whoever waits looks by itself, as
often as `capabilities.poll_s` says.

Nobody is woken here, and the clock moves by one such time: what looked less often would sleep on.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.pools import KINDS, of_kind
from tests.support.stores import Silent, stand_before
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import AsyncQueue, Closed
from ulak.core.store import Until

POLL_S = 0.05


@pytest.fixture
def silent(timed):
    """Opens the queue on the test's clock; all wake-ups are lost."""

    def open_silent(**options):
        q = timed(**options)
        stand_before(q, lambda store: Silent(store, POLL_S))
        return q

    return open_silent


def test_enqueues_that_wait_for_room_get_it_in_order(silent, clock):
    q = silent(capacity=1)
    q.enqueue("first")
    waiting = []
    for number in range(3):
        waiting.append(Running(lambda number=number: q.enqueue(number)))
        eventually(lambda number=number: clock.sleepers == number + 1)
    for number in range(3):
        eventually(lambda number=number: clock.sleepers == 3 - number)
        q.ack(q.deliver())
        # The first in line takes the room; the next one hears of it by its own look.
        let_time_pass(clock, POLL_S, sleepers=3 - number)
        eventually(lambda number=number: waiting[number].is_over)
        let_time_pass(clock, POLL_S, sleepers=2 - number)
        assert q.jobs("ready")[0].payload == number


def test_an_enqueue_that_waits_hears_that_the_producers_have_finished(silent, clock):
    q = silent(capacity=1)
    q.enqueue("first")
    waiting = Running(lambda: q.enqueue("second"))
    eventually(lambda: clock.sleepers == 1)
    q.mark_producer_finished()
    let_time_pass(clock, POLL_S, sleepers=1)
    with pytest.raises(Closed):
        waiting.result()


def test_a_deliver_that_waits_gets_the_next_job(silent, clock):
    q = silent()
    waiting = Running(lambda: q.deliver(timeout=None))
    eventually(lambda: clock.sleepers == 1)
    q.enqueue("payload")
    let_time_pass(clock, POLL_S, sleepers=1)
    assert waiting.result().payload == "payload"


def test_a_deliver_that_waits_ends_with_the_last_job(silent, clock):
    q = silent()
    q.enqueue("payload")
    lease = q.deliver()
    waiting = Running(lambda: q.deliver(timeout=None))
    eventually(lambda: clock.sleepers == 1)
    q.mark_producer_finished()
    q.ack(lease)
    let_time_pass(clock, POLL_S, sleepers=1)
    assert waiting.result() is None


def test_the_workers_of_a_pool_find_jobs_and_a_drain_their_end(silent, clock):
    q, ran = silent(), []
    with q.workers(ran.append, count=2) as pool, q.producer() as producer:
        for number in range(3):
            eventually(lambda: clock.sleepers == 3)  # the workers and the keeper of their leases
            q.enqueue(number)
            let_time_pass(clock, POLL_S, sleepers=3)
            eventually(lambda number=number: q.counts().acked == number + 1)
        drain = Running(pool.drain)
        eventually(lambda: clock.sleepers == 4)
        producer.finish()
        let_time_pass(clock, POLL_S, sleepers=4)
        assert drain.result().drained
        assert (ran, pool.size) == ([0, 1, 2], 0)


def test_idle_workers_hear_of_a_shutdown(silent, clock):
    q = silent()
    with q.workers(print, count=2) as pool:
        eventually(lambda: clock.sleepers == 3)
        ending = Running(pool.shutdown)
        let_time_pass(clock, POLL_S, sleepers=4)
        assert ending.result().open == 0
        assert pool.size == 0


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_real_clock_a_pool_and_its_producer_come_to_their_end(make, kind):
    q, ran = make(capacity=2), []
    stand_before(q, lambda store: Silent(store, POLL_S))
    with q.workers(of_kind(kind, ran.append), count=2) as pool:
        with q.producer():
            for number in range(10):
                q.enqueue(number, timeout=WAIT_S)
        assert pool.drain(timeout=WAIT_S).drained
    assert sorted(ran) == list(range(10))


def waiting_for_room(q):
    """How many stand in line, be it the silent one or, where calls are awaited, the store's own."""
    silent = q._open().edge.store
    return sum(len(store.line(Until.ROOM, q.name)) for store in (silent, silent._store))


def test_waiters_of_an_event_loop_look_by_themselves(queue_url):
    async def main():
        q = AsyncQueue(queue_url, capacity=1)
        stand_before(q, lambda store: Silent(store, POLL_S))
        async with asyncio.timeout(WAIT_S):
            consumer = asyncio.create_task(q.deliver(timeout=None))
            producers = []
            for number in range(3):
                producers.append(asyncio.create_task(q.enqueue(number)))
                # They come one after the other: calls at the same moment are in no order.
                while not producers[0].done() or waiting_for_room(q) < number:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.001)
            for number in range(3):
                lease = await consumer
                assert lease.payload == number
                await q.ack(lease)
                consumer = asyncio.create_task(q.deliver(timeout=None))
            await asyncio.gather(*producers)
            q.mark_producer_finished()
            assert await consumer is None
        await q.close()

    asyncio.run(main())
