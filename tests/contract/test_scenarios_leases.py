"""What hurt users of other queues, on the lease API: lost jobs, stale completions, crashes, retries.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.stores import nth_write, refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S
from ulak import FULL, AsyncQueue, Backoff, Duplicate, Outcome, StorageUnavailable, Terminal
from ulak.core import flows
from ulak.core.flows import Call
from ulak.core.job import Draft, Hold

LEASE_S = 30.0

# Lost jobs


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_L7_the_next_tick_reclaims_what_a_refused_write_left(make, clock, nth):
    q = make()
    q.enqueue_many(range(250))
    q.deliver_many(250)
    clock.advance(LEASE_S)
    refuse(q, nth_write(nth))
    with pytest.raises(StorageUnavailable):
        q.tick_timeouts()
    left = q.counts().leased
    assert 0 < left <= 250
    assert q.tick_timeouts() == left
    counts = q.counts()
    assert (counts.leased, counts.ready, counts.totals.reclaimed) == (0, 250, 250)
    assert {job.attempt for job in q.jobs(limit=250)} == {1}


def test_L14_a_refused_nack_raises_and_the_lease_stays(make, clock):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    refuse(q, nth_write(1))
    with pytest.raises(StorageUnavailable):
        q.nack(lease, error=ValueError("it failed"))
    counts = q.counts()
    assert (counts.leased, counts.open, counts.totals.processed) == (1, 1, 0)
    clock.advance(LEASE_S)
    assert q.tick_timeouts() == 1
    again = q.deliver()
    assert (again.id, again.payload, again.attempt) == (job_id, "payload", 2)


def test_L14_a_refused_ack_may_be_repeated_with_the_same_lease(make):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    refuse(q, nth_write(1))
    with pytest.raises(StorageUnavailable):
        q.ack(lease)
    assert q.terminal_of(job_id) is None
    assert q.ack(lease) is Outcome.OK
    assert q.counts().totals.succeeded == 1


# Duplicate or stale completion


def test_S1_a_delay_longer_than_the_lease_gives_one_delivery_at_its_time(make, clock):
    workers = [make() for _ in range(3)]
    workers[0].enqueue("later", delay=3 * LEASE_S)
    deliveries = []
    for half_lease in range(12):
        for worker in workers:
            worker.tick_timeouts()
            lease = worker.deliver()
            if lease is not None:
                deliveries.append((half_lease * LEASE_S / 2, lease.delivery))
                assert worker.ack(lease) is Outcome.OK
        clock.advance(LEASE_S / 2)
    assert deliveries == [(3 * LEASE_S, 1)]


def test_S2_the_holder_of_a_lapsed_lease_cannot_complete_the_job(make, clock):
    slow, quick = make(), make()
    job_id = slow.enqueue("payload")
    lapsed = slow.deliver()
    clock.advance(LEASE_S)
    current = quick.deliver()
    assert (current.id, current.delivery) == (job_id, lapsed.delivery + 1)
    assert slow.ack(lapsed) is Outcome.STALE
    assert slow.nack(lapsed) is Outcome.STALE
    assert slow.release(lapsed) is Outcome.STALE
    assert slow.extend(lapsed, 600) is Outcome.STALE
    assert slow.terminal_of(job_id) is None
    assert quick.ack(current) is Outcome.OK
    assert quick.counts().totals.succeeded == 1
    assert (quick.acked_by(lapsed), quick.acked_by(current)) == (False, True)


def paused_before_its_write(q):
    """A tick that has read which leases ended, and has not settled them yet."""
    tick = flows.reclaim([q.name])
    ask = next(tick)
    while not (isinstance(ask, Call) and ask.name == "settle"):
        ask = tick.send(q._edge.answer(ask))
    return tick, ask


def finish(q, tick, ask):
    """Let the tick go on; how many leases it reclaimed."""
    try:
        while True:
            ask = tick.send(q._edge.answer(ask))
    except StopIteration as stop:
        return stop.value


def test_S5_a_paused_tick_does_not_overwrite_a_finished_job(make, clock):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    clock.advance(LEASE_S)
    tick, ask = paused_before_its_write(q)
    assert q.ack(lease) is Outcome.OK
    assert finish(q, tick, ask) == 0
    job = q.get(job_id)
    assert q.terminal_of(job_id) is Terminal.ACKED
    assert [attempt.cause for attempt in job.history] == ["ack"]
    assert q.counts().totals.reclaimed == 0


def test_S5_a_paused_tick_does_not_take_the_job_from_its_next_holder(make, clock):
    q = make()
    q.enqueue("payload")
    first = q.deliver()
    clock.advance(LEASE_S)
    tick, ask = paused_before_its_write(q)
    assert q.nack(first) is Outcome.OK
    second = q.deliver()
    assert finish(q, tick, ask) == 0
    assert q.ack(second) is Outcome.OK


def test_S5_a_paused_tick_lets_an_extended_lease_live(make, clock):
    q = make()
    q.enqueue("payload")
    lease = q.deliver()
    clock.advance(LEASE_S)
    tick, ask = paused_before_its_write(q)
    assert q.extend(lease, LEASE_S) is Outcome.OK
    assert finish(q, tick, ask) == 0
    assert q.ack(lease) is Outcome.OK


@pytest.mark.parametrize("end", ["ack", "dead", "cancel", "expire", "delete"])
def test_S13_a_unique_key_is_free_once_its_job_has_ended(make, clock, end):
    q = make(max_attempts=1)
    first = q.enqueue("first", unique_key="K", expires=600)
    if end == "ack":
        q.ack(q.deliver())
    elif end == "dead":
        q.nack(q.deliver())
    elif end == "cancel":
        q.cancel(first)
    elif end == "expire":
        clock.advance(600)
    else:
        q.delete(first)
    second = q.enqueue("second", unique_key="K")
    assert second != first
    assert not isinstance(second, Duplicate)
    assert q.deliver().payload == "second"


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "held"])
def test_S13_while_its_job_is_open_a_unique_key_answers_that_job(make, state):
    q = make(capacity=1)
    delay = 60 if state == "scheduled" else 0
    if state == "held":
        (first,) = q._edge.store.add("default", [Draft(b"", "bytes", task="t", unique_key="K")])
        q._edge.store.settle([(q.deliver(), Hold())])
    else:
        first = q.enqueue("first", unique_key="K", delay=delay)
    if state == "leased":
        q.deliver()
    assert getattr(q.counts(), state) == 1
    # A full queue does not make the duplicate wait.
    for second in (q.enqueue("second", unique_key="K", timeout=0), q.try_enqueue("third", unique_key="K")):
        assert isinstance(second, Duplicate)
        assert second == first
    assert q.counts().total == 1


# Stuck for ever


def test_F14_dead_deliveries_that_fill_the_queue_are_freed_and_redelivered(make, clock):
    q, other = make(capacity=10), make()
    q.enqueue_many(range(10))
    crashed = q.deliver_many(10)
    assert (q.deliver(), q.try_enqueue("more")) == (None, FULL)
    clock.advance(LEASE_S)
    assert other.tick_timeouts() == 10
    again = other.deliver_many(10)
    assert [(lease.payload, lease.delivery) for lease in again] == [(n, 2) for n in range(10)]
    assert other.ack_many(again) == [Outcome.OK] * 10
    assert q.ack_many(crashed) == [Outcome.STALE] * 10
    assert q.try_enqueue("more")


# Retry and backoff


def test_R6_crashes_are_spaced_by_backoff_and_end_after_max_attempts(make, clock):
    q = make(max_attempts=5, backoff=Backoff(base=20, cap=50, floor=10))
    job_id = q.enqueue("kills its worker")
    waits_s = []
    for crash in range(1, 6):
        lease = q.deliver()
        assert (lease.attempt, lease.delivery, lease.crashes) == (crash, crash, crash - 1)
        assert q.crash() == 1
        job = q.get(job_id)
        assert job.crashes == crash
        if job.state == "dead":
            break
        waits_s.append(job.run_at.timestamp() - clock.calendar())
        pass_the_wait(q, clock, waits_s[-1])
    # The first crash is made good at once, each later one waits longer: up to 20, 40, then the cap of 50.
    assert waits_s[0] <= 0
    assert all(9.999 <= wait_s <= widest for wait_s, widest in zip(waits_s[1:], [20, 40, 50], strict=True))
    assert q.terminal_of(job_id) is Terminal.DEAD
    assert q.counts().totals.processed == 5


def pass_the_wait(q, clock, wait_s):
    """Let a backoff pass, and see that nothing is delivered before its end."""
    if wait_s > 0:
        clock.advance(wait_s - 0.001)
        assert q.deliver() is None
        clock.advance(0.002)


def test_R6_lapsed_leases_are_spaced_by_the_same_backoff(make, clock):
    q = make(max_attempts=3, backoff=Backoff(base=20, cap=50, floor=10))
    job_id = q.enqueue("freezes its worker")
    for widest in (20, 40):
        q.deliver()
        clock.advance(LEASE_S)
        assert q.tick_timeouts() == 1
        wait_s = q.get(job_id).run_at.timestamp() - clock.calendar()
        assert 9.999 <= wait_s <= widest
        pass_the_wait(q, clock, wait_s)
    q.deliver()
    clock.advance(LEASE_S)
    q.tick_timeouts()
    assert q.terminal_of(job_id) is Terminal.DEAD


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
@pytest.mark.parametrize("end", ["nack", "crash", "lapse"])
def test_R8_a_job_that_never_succeeds_runs_exactly_max_attempts_times(make, clock, max_attempts, end):
    q = make(max_attempts=max_attempts)
    job_id = q.enqueue("payload")
    executions = 0
    while (lease := q.deliver()) is not None:
        executions += 1
        if end == "nack":
            assert q.nack(lease) is Outcome.OK
        elif end == "crash":
            assert q.crash() == 1
        else:
            clock.advance(LEASE_S)
            assert q.tick_timeouts() == 1
    assert executions == max_attempts
    assert q.terminal_of(job_id) is Terminal.DEAD
    assert [attempt.attempt for attempt in q.get(job_id).history] == list(range(1, max_attempts + 1))


# Concurrency model


def test_N1_one_async_queue_serves_three_loops_and_a_thread(kind):
    q = AsyncQueue(kind.url(), capacity=1)

    async def round_trip(payload):
        """Both sides wait: the consumer for a job, the producer for room."""
        consumer = asyncio.create_task(q.deliver(timeout=WAIT_S))
        await asyncio.sleep(0)
        first = await q.enqueue(payload, timeout=WAIT_S)
        producer = asyncio.create_task(q.enqueue([payload], timeout=WAIT_S))
        await asyncio.sleep(0)
        lease = await consumer
        assert (lease.id, lease.payload) == (first, payload)
        assert await q.ack(lease) is Outcome.OK
        await producer
        lease = await q.deliver(timeout=WAIT_S)
        assert lease.payload == [payload]
        assert await q.ack(lease) is Outcome.OK

    for number in range(3):
        asyncio.run(round_trip(number))
    Running(lambda: asyncio.run(round_trip("in a thread"))).result()
    assert asyncio.run(q.counts()).acked == 8
    asyncio.run(q.close())


def test_N1_a_waiter_left_behind_by_a_dead_loop_takes_nothing(kind):
    q = AsyncQueue(kind.url())

    async def leave_a_waiter():
        waiting = asyncio.create_task(q.deliver(timeout=None))
        await asyncio.sleep(0)
        return waiting

    asyncio.run(leave_a_waiter())

    async def use_it():
        await q.enqueue("payload")
        assert (await q.deliver()).payload == "payload"
        await q.close()

    asyncio.run(use_it())


def test_N1_one_queue_serves_running_loops_and_threads(make):
    q = make()

    async def round_trip(payload):
        q.enqueue(payload)
        lease = await asyncio.to_thread(q.deliver, WAIT_S)
        assert lease.payload == payload
        return q.ack(lease)

    for number in range(3):
        assert asyncio.run(round_trip(number)) is Outcome.OK
    assert Running(lambda: asyncio.run(round_trip("in a thread"))).result() is Outcome.OK
