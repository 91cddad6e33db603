"""The memory store's waiters for the ends of jobs: its short ways tell of ends; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from ulak import Filter, Keep, Lease, Queue, Retention
from ulak.core import flows
from ulak.core.job import Done
from ulak.storage.drive import arun
from ulak.storage.ends import Ends
from ulak.storage.memory import MemoryStore


@pytest.fixture
def q() -> Iterator[Queue]:
    """A queue whose plain calls go the short way."""
    with Queue("memory://", retention=Retention(succeeded=Keep(1, 60.0))) as queue:
        yield queue


def store_of(q: Queue) -> MemoryStore:
    store = q._open().edge.store
    assert isinstance(store, MemoryStore)
    return store


def leased(q: Queue, jobs: int) -> list[Lease]:
    q.enqueue_many([b"x"] * jobs)
    return q.deliver_many(jobs)


def waits_for(q: Queue, job_id: int) -> threading.Event:
    signal = threading.Event()
    store_of(q).ends(job_id).join(signal)
    return signal


ACKS: dict[str, Callable[[Queue, list[Lease]], Any]] = {
    "ack": lambda q, leases: [q.ack(lease) for lease in leases],
    "ack_many": lambda q, leases: q.ack_many(leases),
}


@pytest.mark.parametrize("way", ACKS)
def test_the_short_ways_wake_who_waits_for_the_jobs_they_end_and_nobody_else(q: Queue, way: str) -> None:
    leases = leased(q, 4)
    waiters = [waits_for(q, lease.id) for lease in leases]
    ACKS[way](q, leases[1:3])
    assert [signal.is_set() for signal in waiters] == [False, True, True, False]


@pytest.mark.parametrize("way", ACKS)
def test_nothing_is_kept_of_ends_that_nobody_waits_for(q: Queue, way: str) -> None:
    for _ in range(3):
        ACKS[way](q, leased(q, 10))
    q.cancel([q.enqueue(b"x") for _ in range(10)])
    q.delete(Filter())
    store = store_of(q)
    assert (store.awaited.waiting, store.shelf(q.name)._ended_ids, store.touched) == ({}, [], set())


def test_the_table_of_who_waits_is_the_same_for_good(q: Queue) -> None:
    # The short ways look at it, and have it from when they were made.
    (lease,) = leased(q, 1)
    table = store_of(q).awaited.waiting
    signal = waits_for(q, lease.id)
    store_of(q).ends(lease.id).leave(signal)
    assert store_of(q).awaited.waiting is table
    assert table == {}


def test_a_waiter_whose_loop_is_gone_is_taken_out_when_its_job_ends(q: Queue) -> None:
    (lease,) = leased(q, 1)
    loop, edge = asyncio.new_event_loop(), q._open().edge
    waiting = loop.create_task(arun(edge, flows.wait_end(lease.id, timeout_s=None)))
    loop.run_until_complete(asyncio.sleep(0))
    assert len(edge.store.ends(lease.id)) == 1
    loop.close()
    q.ack(lease)
    assert store_of(q).awaited.waiting == {}
    assert not waiting.done()


def test_a_wait_that_is_cancelled_leaves_nothing_behind(q: Queue) -> None:
    (lease,) = leased(q, 1)
    edge = q._open().edge

    async def wait_and_give_up() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await arun(edge, flows.wait_end(lease.id, timeout_s=None))

    asyncio.run(wait_and_give_up())
    assert store_of(q).awaited.waiting == {}


def test_ten_thousand_tasks_of_a_loop_each_hear_of_their_own_job(q: Queue) -> None:
    jobs, edge = 10_000, q._open().edge
    q.configure(retention=None)
    leases = leased(q, jobs)

    async def wait_for_all() -> list[Any]:
        waits = [
            asyncio.ensure_future(arun(edge, flows.wait_end(lease.id, timeout_s=None))) for lease in leases
        ]
        await asyncio.sleep(0)
        assert len(store_of(q).awaited.waiting) == jobs
        edge.store.settle([(lease, Done(b"%d" % lease.id)) for lease in leases])
        return await asyncio.gather(*waits)

    assert [job.result for job in asyncio.run(wait_for_all())] == [b"%d" % lease.id for lease in leases]
    assert store_of(q).awaited.waiting == {}


# Interrupts


def strike_at(line_number: int) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that raises KeyboardInterrupt at the n-th line run in the orders of the store."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(("shelf.py", "acts.py")):
            return trace if frame.f_code.co_filename.endswith(("memory.py", "direct.py")) else None
        if event == "line":
            seen += 1
            if seen == line_number:
                raise KeyboardInterrupt
        return trace

    return trace


def test_whoever_waits_looks_again_after_an_interrupt_in_the_midst_of_a_change() -> None:
    # What the change had done, and whom it had yet to tell, is not known any more.
    for line_number in range(1, 200):
        with Queue("memory://") as q:
            job_id, other = q.enqueue(b"x"), q.enqueue(b"y")
            signals = [waits_for(q, job_id), waits_for(q, other)]
            previous = sys.gettrace()
            sys.settrace(strike_at(line_number))
            try:
                q.cancel(job_id)
            except KeyboardInterrupt:
                assert [signal.is_set() for signal in signals] == [True, True], line_number
                continue
            finally:
                sys.settrace(previous)
            assert [signal.is_set() for signal in signals] == [True, False]
            break
    assert 5 < line_number < 199


# The table by itself


def test_joining_twice_is_standing_once() -> None:
    begun: list[int] = []
    ends, signal = Ends(lambda: begun.append(1)), threading.Event()
    ends.join(1, signal)
    ends.join(1, signal)
    assert (len(ends.line(1)), begun) == (1, [1, 1])
    ends.leave(1, signal)
    assert ends.waiting == {}
