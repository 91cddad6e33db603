"""The short way of plain calls does what the general way does; what both promise is in the contract suite."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.threads import Running
from tests.support.waiting import eventually
from ulak import ArgumentError, Filter, Keep, NewJob, Outcome, Queue, Retention
from ulak.core.store import Until
from ulak.storage.drive import run
from ulak.storage.line import ThreadSignal
from ulak.testing import ManualClock

KEEP = Keep(3, 60.0)


def queue(*, is_quick: bool, capacity: int | None = None) -> tuple[Queue, ManualClock]:
    """A fresh queue on a clock of its own, with or without its short way."""
    clock = ManualClock()
    retention = Retention(KEEP, KEEP, KEEP, KEEP)
    q = Queue(max_attempts=3, visibility_timeout=10, capacity=capacity, retention=retention, clock=clock)
    q._worker = "w"
    q._open()
    if not is_quick:
        q._take_ways(q._general_ways(run))
    return q, clock


class Side:
    """One queue, and the leases it gave, by number."""

    def __init__(self, *, is_quick: bool, capacity: int | None) -> None:
        self.q, self.clock = queue(is_quick=is_quick, capacity=capacity)
        self.leases: list[Any] = []

    def do(self, name: str, number: int) -> Any:
        """One call; what it answers, so that the answers of two sides compare."""
        answer = getattr(self, name)(number)
        if name != "take":
            return answer
        return [(lease.id, lease.delivery, lease.attempt, lease.lease_end) for lease in answer]

    def put(self, number: int) -> Any:
        if self.q.counts().open == self.q.settings().capacity:
            return self.q.try_enqueue(b"full", number)
        return self.q.enqueue({"n": number} if number % 2 else b"x", number % 3)

    def put_many(self, number: int) -> Any:
        try:
            return self.q.enqueue_many(
                [b"x", NewJob("y", number % 3), NewJob(1, delay=number or None)], timeout=0
            )
        except Exception as error:  # noqa: BLE001 - compared with that of the other side
            return repr(error)

    def put_special(self, number: int) -> Any:
        return self.q.try_enqueue(b"x", number % 3, unique_key=str(number % 2), delay=number % 4, expires=9)

    def take(self, number: int) -> Any:
        taken = (
            self.q.deliver_many(number) if number > 1 else [x for x in [self.q.deliver()] if x is not None]
        )
        self.leases += taken
        return taken

    def lease(self, number: int) -> Any:
        return self.leases[-1 - number % min(4, len(self.leases))] if self.leases else None

    def end(self, number: int) -> Any:
        if not self.leases:
            return None
        lease = self.lease(number)
        ends = [self.q.ack, self.q.nack, self.q.release, self.q.ack]
        return ends[number % 4](lease)

    def end_many(self, number: int) -> Any:
        return self.q.ack_many(self.leases[-number - 1 :])

    def extend(self, number: int) -> Any:
        return self.q.extend(self.lease(number), number + 1) if self.leases else None

    def cancel(self, number: int) -> Any:
        return self.q.cancel([number + 1])

    def redrive(self, number: int) -> Any:
        return self.q.redrive(Filter(states="dead"))

    def pause(self, number: int) -> Any:
        return self.q.resume() if number % 3 else self.q.pause()

    def wait(self, number: int) -> Any:
        self.clock.advance(number)

    def everything(self) -> Any:
        """All that is stored, and what is counted, once all that may have expired has."""
        self.q.prune()
        return self.q.jobs(limit=1000), self.q.counts()


CALLS = [
    "put",
    "put_many",
    "put_special",
    "take",
    "end",
    "end_many",
    "extend",
    "cancel",
    "redrive",
    "pause",
    "wait",
]
OFTEN = [*CALLS, "put", "take", "end", "end"]


@settings(max_examples=300, deadline=None)
@given(
    capacity=st.sampled_from([None, 1, 4]),
    calls=st.lists(
        st.tuples(st.sampled_from([*CALLS, "put", "take", "end"]), st.integers(0, 11)), max_size=40
    ),
)
def test_both_ways_give_the_same_answers_and_leave_the_same_behind(
    capacity: int | None, calls: list[tuple[str, int]]
) -> None:
    quick, general = Side(is_quick=True, capacity=capacity), Side(is_quick=False, capacity=capacity)
    for name, number in calls:
        assert quick.do(name, number) == general.do(name, number), name
        assert quick.everything() == general.everything(), name


@pytest.mark.parametrize("is_quick", [True, False])
def test_nobody_jumps_the_line_for_room(is_quick: bool) -> None:
    q, clock = queue(is_quick=is_quick, capacity=2)
    q.enqueue(b"warm")
    line, signal = q._open().edge.store.line(Until.ROOM, q.name), ThreadSignal()
    line.join(signal)
    late = Running(lambda: q.enqueue(b"waits"))
    eventually(lambda: clock.sleepers == 1)
    assert q.counts().open == 1
    line.leave(signal)
    assert late.result() == 2


def test_keywords_work_as_they_do_before_the_first_call() -> None:
    q, _ = queue(is_quick=True)
    assert q.enqueue_many(jobs=[b"a"], timeout=None) == [1]
    assert q.enqueue(payload=b"b", priority=1) == 2
    leases = q.deliver_many(limit=2, timeout=0)
    assert q.ack_many(leases=leases) == [Outcome.OK, Outcome.OK]
    assert q.deliver(timeout=0) is None
    assert "self" not in inspect.signature(q.enqueue).parameters


def test_a_lowered_retention_holds_at_the_next_end() -> None:
    q, _ = queue(is_quick=True)
    q.configure(retention=Retention(succeeded=Keep(100, 60.0)))
    q.enqueue_many([b"x"] * 50)
    q.ack_many(q.deliver_many(50))
    q.configure(retention=Retention(succeeded=KEEP))
    q.enqueue(b"last")
    lease = q.deliver()
    assert lease is not None
    q.ack(lease)
    assert q.counts().acked == KEEP.count


def test_what_a_test_puts_in_place_of_a_method_stays() -> None:
    q, _ = queue(is_quick=False)
    fresh = Queue()
    fresh.ack = lambda lease: Outcome.STALE  # type: ignore[method-assign]
    fresh.enqueue(b"x")
    lease = fresh.deliver()
    assert lease is not None
    assert fresh.ack(lease) is Outcome.STALE
    fresh.close()
    assert "ack" in vars(fresh)
    q.close()


@pytest.mark.parametrize("change", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_queue_cannot_be_copied(change: Any) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        change(Queue())


@pytest.mark.parametrize("call", ["enqueue_many", "ack_many", "cancel"])
def test_no_call_reads_without_an_end(call: str) -> None:
    q, _ = queue(is_quick=True)
    q.enqueue(b"x")
    endless = itertools.repeat(q.deliver() if call == "ack_many" else 1)
    with pytest.raises(ArgumentError, match="at most 100,000"):
        getattr(q, call)(endless)


def test_many_priorities_of_cancelled_jobs_cost_no_more_than_one() -> None:
    q, _ = queue(is_quick=True)
    q.enqueue(b"stays", 10)
    for number in range(2_000):
        q.cancel(q.enqueue(b"goes", -number - 1))
    shelf = q._open().edge.store.shelf(q.name)
    assert len(shelf.lanes.fresh) < 500


@pytest.mark.parametrize("seed", range(24))
def test_both_ways_go_together_through_a_long_day(seed: int) -> None:
    draw = random.Random(seed)
    capacity = [None, 4, 1][seed % 3]
    quick, general = Side(is_quick=True, capacity=capacity), Side(is_quick=False, capacity=capacity)
    for _ in range(150):
        name, number = draw.choice(OFTEN), draw.randrange(12)
        assert quick.do(name, number) == general.do(name, number), name
        assert quick.everything() == general.everything(), name


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_full_queue_is_full(is_quick: bool) -> None:
    q, clock = queue(is_quick=is_quick, capacity=2)
    q.enqueue(b"first")
    q.enqueue(b"second")
    late = Running(lambda: q.enqueue(b"waits"))
    eventually(lambda: clock.sleepers == 1)
    assert q.counts().open == 2
    lease = q.deliver()
    assert lease is not None
    q.ack(lease)
    assert late.result() == 3


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("due", [1, 2])
def test_who_takes_a_job_that_has_become_due_wakes_others_for_the_next_alone(
    is_quick: bool, due: int
) -> None:
    q, clock = queue(is_quick=is_quick)
    for _ in range(due):
        q.enqueue(b"later", delay=1.0)
    line, signal = q._open().edge.store.line(Until.READY, q.name), ThreadSignal()
    line.join(signal)
    clock.advance(1.0)
    assert q.deliver() is not None
    assert signal.is_set() is (due == 2)
    line.leave(signal)
