"""Races on the operations of a storage. For each check there is a store broken on purpose that fails it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.contract.conftest import StorageKind
from tests.contract.steps import FAIL, LEASE_S, LOST, Q, act, counts, draft, put, put_one, record, state, take
from tests.race.broken import CheckThenAct, Torn, Unfenced
from tests.race.history import History, Noted, violations
from tests.race.threads import Running, together
from ulak.clock import SYSTEM
from ulak.core import flows
from ulak.core.flows import Handling
from ulak.core.job import FULL, Cause, Dead, Done, Duplicate, Lease, Outcome, Verdict
from ulak.core.store import Cancel, Change, Fired, Redrive, Settings, Store
from ulak.local import LocalQueue
from ulak.storage.drive import Edge, run
from ulak.testing import ManualClock

PRODUCERS = CONSUMERS = 4
JOBS_EACH = 100
TINY_LEASE_S = 0.002
ROUNDS = 40
ROUNDS_MAX = 5_000
"""Where a broken store would keep a thread busy for ever."""


@pytest.fixture
def quick(kind: StorageKind) -> Iterator[Store]:
    """A fresh store on the machine's own clocks."""
    made = kind.make(SYSTEM)
    made.open()
    yield made
    made.close()


# A crowd


class Crowd:
    """Producers that wait for room; consumers that ack, ack twice, nack, extend, lose leases, ack too late;
    a reaper. Leases are so short that many end while their job is at work.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.history = History()
        self.edge = Edge(Noted(store, self.history), SYSTEM)
        self.local = LocalQueue(store, Q)
        self.lost: dict[int, Lease] = {}
        self.is_over = threading.Event()

    def work(self, *, capacity: int | None = None) -> list[str]:
        """Run until nothing is open; everything that went wrong."""
        for _ in range(PRODUCERS):
            self.local.register()
        reaper = Running(self.reap)
        try:
            together(
                *(partial(self.produce, random.Random(number)) for number in range(PRODUCERS)),
                *(partial(self.consume, random.Random(-number), f"w{number}") for number in range(CONSUMERS)),
            )
        finally:
            self.is_over.set()
        reaper.result()
        return violations(self.history, self.store, Q, capacity=capacity)

    def produce(self, draws: random.Random) -> None:
        for _ in range(JOBS_EACH):
            new = draft(priority=draws.randrange(3), max_attempts=3)
            waiting = flows.enqueue(self.local, Q, [new], timeout_s=4.0, handler=Handling.NOTHING)
            run(self.edge, waiting)
        self.local.finish(registered=True)

    def consume(self, draws: random.Random, worker: str) -> None:
        for _ in range(ROUNDS_MAX):
            leases = self.deliver(draws.randrange(1, 4), worker)
            if not leases:
                return
            for lease in leases:
                if lease.id in self.lost:
                    self.settle(self.lost[lease.id], Done())
                self.handle(lease, draws.randrange(6))
        raise AssertionError("deliveries have no end")

    def deliver(self, limit: int, worker: str) -> list[Lease]:
        waiting = flows.deliver(self.local, Q, limit, worker=worker, lease_s=TINY_LEASE_S, timeout_s=4.0)
        return run(self.edge, waiting)

    def handle(self, lease: Lease, how: int) -> None:
        match how:
            case 0:
                run(self.edge, flows.nack(self.local, lease, delay_s=None, error=None))
            case 1:
                run(self.edge, flows.extend(self.local, lease, TINY_LEASE_S))
                self.settle(lease, Done())
            case 2:
                self.lost[lease.id] = lease
            case _:
                self.settle(lease, Done())
                self.settle(lease, Done())

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        run(self.edge, flows.settle(self.local, [(lease, verdict)]))

    def reap(self) -> None:
        while not self.is_over.is_set():
            run(self.edge, flows.reclaim([Q]))


@pytest.mark.parametrize("capacity", [1, 8])
def test_a_crowd_loses_doubles_and_overfills_nothing(quick: Store, capacity: int) -> None:
    quick.declare(Q, Settings(capacity=capacity))
    crowd = Crowd(quick)
    assert crowd.work(capacity=capacity) == []
    assert len(crowd.history.added) == PRODUCERS * JOBS_EACH
    # Else the run has not tried what it is for.
    assert Cause.LOST in crowd.history.failures
    assert crowd.local.stale > 0


def test_the_checks_of_a_crowd_catch_a_store_without_the_fence(quick: Store) -> None:
    wrong = Crowd(Unfenced(quick)).work()
    assert any("after a later delivery" in text for text in wrong)
    assert any("was acked by delivery" in text for text in wrong)


def test_the_checks_of_a_crowd_catch_room_that_is_looked_for_before_the_insert(kind: StorageKind) -> None:
    # In a single run the consumers may, just once, be as quick as the producers.
    assert any(looks_overfilled(kind) for _ in range(5))


def looks_overfilled(kind: StorageKind) -> bool:
    store = kind.make(SYSTEM)
    store.open()
    wrong = Crowd(CheckThenAct(store, capacity=1, threads=PRODUCERS)).work(capacity=1)
    store.close()
    return any("at a capacity of 1" in text for text in wrong)


# Room


def fill(store: Any, threads: int) -> int:
    """Add from many threads until each is told FULL; how many jobs were taken in."""

    def add_until_full() -> int:
        for added in range(ROUNDS_MAX):
            if store.add(Q, [draft()]) is FULL:
                return added
        raise AssertionError("the queue has no end")

    return sum(together(*[add_until_full] * threads))


@pytest.mark.parametrize("capacity", [1, 3, 50])
def test_adds_at_once_fill_a_queue_exactly(store: Store, capacity: int) -> None:
    store.declare(Q, Settings(capacity=capacity))
    for _ in range(5):
        assert fill(store, 8) == capacity == counts(store).open
        store.settle([(lease, Done()) for lease in take(store, capacity)])


def test_room_that_is_looked_for_before_the_insert_is_overfilled(store: Store) -> None:
    assert fill(CheckThenAct(store, capacity=3, threads=8), 8) > 3


def test_redrives_at_once_need_room_too(store: Store) -> None:
    ids = put(store, *(draft() for _ in range(8)))
    store.settle([(lease, Dead()) for lease in take(store, 8)])
    store.configure(Q, Change(capacity=3))
    changed = together(*(partial(act, store, Redrive(), job_id) for job_id in ids))
    assert sum(len(one.done) for one in changed) == 3 == counts(store).open


# One delivery, many that would end it


def accepted(store: Any, clock: ManualClock, *verdicts: Verdict) -> int:
    """Settle one delivery with all these verdicts at once; how many were accepted."""
    put_one(store, max_attempts=5)
    (lease,) = take(store)
    clock.advance(LEASE_S)
    answers = together(*(partial(store.settle, [(lease, verdict)]) for verdict in verdicts))
    return sum(answer is not Outcome.STALE for (answer,) in answers)


RACES = {
    "two acks": (Done(), Done()),
    "many acks": (Done(),) * 8,
    "an ack and a reclaim": (Done(), LOST),
    "two reapers": (LOST, LOST),
    "a nack and a reclaim": (FAIL, LOST),
}
each_race = pytest.mark.parametrize("verdicts", RACES.values(), ids=RACES)


@each_race
def test_one_of_all_that_settle_a_delivery_at_once_wins(
    store: Store, clock: ManualClock, verdicts: tuple[Verdict, ...]
) -> None:
    for done in range(ROUNDS):
        assert accepted(store, clock, *verdicts) == 1
        assert counts(store).totals.processed == done + 1
        store.amend([lease.id for lease in take(store)], Cancel(), force=True)


@each_race
def test_a_store_that_decides_before_it_applies_lets_several_win(
    store: Store, clock: ManualClock, verdicts: tuple[Verdict, ...]
) -> None:
    assert accepted(Torn(store, threads=len(verdicts)), clock, *verdicts) == len(verdicts)


def test_an_extend_that_meets_a_reclaim_saves_the_lease_or_is_stale(store: Store, clock: ManualClock) -> None:
    for _ in range(ROUNDS):
        job_id = put_one(store)
        (lease,) = take(store)
        clock.advance(LEASE_S)
        extended, reclaimed = together(
            partial(store.extend, [lease], LEASE_S), partial(store.settle, [(lease, LOST)])
        )
        is_saved = extended == [False]
        assert is_saved == (reclaimed == [Outcome.STALE])
        assert state(store, job_id) == ("leased" if is_saved else "ready")
        act(store, Cancel(), job_id)
        store.settle([(lease, FAIL)])


def test_a_cancel_that_meets_a_claim_ends_the_job_or_reaches_its_holder(store: Store) -> None:
    for _ in range(ROUNDS):
        job_id = put_one(store)
        leases, changed = together(partial(take, store), partial(act, store, Cancel(), job_id))
        assert changed.done == (job_id,)
        job = record(store, job_id)
        assert (job.state, job.cancel_requested) == (("leased", True) if leases else ("cancelled", False))
        store.settle([(lease, Done()) for lease in leases])


# One of a kind


def test_claims_at_once_hand_out_each_job_once_each_in_order(store: Store) -> None:
    ids = put(store, *(draft(priority=number % 3) for number in range(300)))

    def claim_all(draws: random.Random) -> list[Lease]:
        mine: list[Lease] = []
        for _ in range(ROUNDS_MAX):
            leases = take(store, draws.randrange(1, 5))
            if not leases:
                return mine
            mine += leases
        raise AssertionError("deliveries have no end")

    claimed = together(*(partial(claim_all, random.Random(number)) for number in range(8)))
    assert sorted(lease.id for mine in claimed for lease in mine) == ids
    for mine in claimed:
        assert mine == sorted(mine, key=lambda lease: (-lease.priority, lease.id))


@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
def test_of_all_adds_at_once_with_one_key_one_is_new(store: Store, key: str) -> None:
    for number in range(ROUNDS):
        new = draft(**{key: f"k{number}"})
        answers = [answer for (answer,) in together(*[partial(put, store, new)] * 6)]
        assert len(set(answers)) == 1
        assert sum(not isinstance(answer, Duplicate) for answer in answers) == 1


def test_a_tick_fired_at_once_by_many_is_fired_once(store: Store) -> None:
    for tick in range(ROUNDS):
        answers = together(*[partial(store.fire, "daily", float(tick), Q, draft())] * 6)
        assert sum(isinstance(answer, int) for answer in answers) == 1
        assert answers.count(Fired.LOST) == 5
    assert counts(store).open == ROUNDS
