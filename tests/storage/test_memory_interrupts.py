"""Ctrl-C between any two lines of a call: nothing hangs, and the store agrees with itself again."""

import linecache
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from ulak import Filter, Queue, Retention
from ulak.core.store import Keep
from ulak.testing import ManualClock

KEEP = Keep(2, 60.0)

UNINTERRUPTED = {"break", "try:", "gate.open = None"}
"""The lines of entering and leaving a gate where the interpreter itself lets no signal in."""


def fill(clock: ManualClock) -> Queue:
    """A queue with jobs in every state, and orders that have stale entries."""
    q = Queue(
        "memory://", max_attempts=2, capacity=50, retention=Retention(KEEP, KEEP, KEEP, KEEP), clock=clock
    )
    q.enqueue_many([b"ready"] * 3)
    q.enqueue("later", 5, delay=10, unique_key="later")
    q.enqueue("expires", 1, expires=5)
    for _ in range(4):
        dead = q.enqueue("dies", 9, max_attempts=1)
        lease = q.deliver()
        assert lease is not None
        assert lease.id == dead
        q.nack(lease)
    q.cancel(q.enqueue("unwanted", 7))
    q.reprioritise(q.enqueue("moves", 2), priority=8)
    return q


CALLS: dict[str, Callable[[Queue, Any], object]] = {
    "enqueue": lambda q, _: q.enqueue("new", 3, unique_key="new", idempotency_key="new"),
    "enqueue later": lambda q, _: q.enqueue("new", 3, delay=1, expires=9),
    "enqueue_many": lambda q, _: q.enqueue_many(["new"] * 3),
    "deliver": lambda q, _: q.deliver_many(3),
    "ack": lambda q, lease: q.ack(lease),
    "nack": lambda q, lease: q.nack(lease, delay=3),
    "release": lambda q, lease: q.release(lease),
    "extend": lambda q, lease: q.extend(lease, 90),
    "redrive": lambda q, _: q.redrive(Filter(states="dead")),
    "cancel": lambda q, _: q.cancel(Filter(states=["ready", "scheduled"])),
    "delete": lambda q, _: q.delete(Filter(), force=True),
    "prune": lambda q, _: q.prune(),
}


def strike_at(line_number: int) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that raises KeyboardInterrupt at the n-th line run in the store."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        name = frame.f_code.co_filename
        if "/ulak/storage/" not in name or name.endswith("mend.py") or frame.f_code.co_name == "mend":
            return None
        if event == "line" and linecache.getline(name, frame.f_lineno).strip() not in UNINTERRUPTED:
            seen += 1
            if seen == line_number:
                raise KeyboardInterrupt
        return trace

    return trace


def interrupted(call: Callable[[], object], line_number: int) -> bool:
    previous = sys.gettrace()
    sys.settrace(strike_at(line_number))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return False


def lines() -> Iterator[int]:
    yield from range(1, 4000)


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_of_a_call_leaves_the_store_in_agreement(name: str) -> None:
    for line_number in lines():
        clock = ManualClock()
        q = fill(clock)
        clock.advance(6)
        lease = q.deliver()
        if not interrupted(lambda: CALLS[name](q, lease), line_number):  # noqa: B023
            break
        counts = q.counts()
        recount = {
            state: len(q.jobs(state, limit=1000)) for state in ("ready", "scheduled", "leased", "held")
        }
        assert {state: getattr(counts, state) for state in recount} == recount, line_number
        totals = counts.totals
        assert min(getattr(totals, name) for name in totals.__struct_fields__) >= 0, line_number
        assert counts.total == q.counts().total
        assert totals.processed == totals.succeeded + totals.failed
        assert totals.failed == totals.retries + totals.dead_lettered + totals.cut
        ended = totals.succeeded + totals.dead_lettered + totals.cancelled + totals.expired + totals.deleted
        assert totals.enqueued + totals.redriven == ended + counts.open
        clock.advance(3600)
        while leases := q.deliver_many(100):
            q.ack_many(leases)
        assert q.counts().open == 0, line_number
        assert q.enqueue("goes on") > 0
    else:
        raise AssertionError("the call never ended")
    assert line_number > 5


def strike_in_mend(strikes: Iterator[int]) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that raises KeyboardInterrupt in the midst of a change, then at these lines of the mending."""
    seen, at = 0, next(strikes)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen, at
        name = frame.f_code.co_filename
        if "/ulak/storage/" not in name:
            return None
        is_change = name.endswith("acts.py") and at == 0
        if event == "line" and (is_change or name.endswith(("mend.py", "shelf.py"))):
            seen += 1
            if is_change or (at > 0 and seen == at):
                seen, at = 0, next(strikes, -1)
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("lines", [(5,), (40,), (5, 12), (60, 30, 90)])
def test_an_interrupt_of_the_mending_is_mended_too(lines: tuple[int, ...]) -> None:
    clock = ManualClock()
    q = fill(clock)
    held = q.deliver_many(2)
    previous = sys.gettrace()
    sys.settrace(strike_in_mend(iter((0, *lines))))
    try:
        q.cancel(Filter(states=["ready", "scheduled"]))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(previous)
    counts = q.counts()
    assert counts.leased == len(held)
    assert (
        len(q.jobs(limit=1000))
        == counts.open + counts.acked + counts.dead + counts.cancelled + counts.expired
    )
    assert all(q.ack_many(held))
    clock.advance(3600)
    while leases := q.deliver_many(100):
        q.ack_many(leases)
    assert q.counts().open == 0
