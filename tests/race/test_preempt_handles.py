"""Handles that open and close while others call, under controlled preemption."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tests.contract.steps import Q
from tests.race.controlled import controlled
from tests.race.preempt import Plan
from tests.race.races import seeds
from ulak import FULL, Closed, Lease, Outcome, Queue
from ulak.testing import ManualClock

LENGTHS = ((600, 40),) * 3
SEEDS = seeds(40)

Answer: TypeAlias = Any
CLOSED = "closed"

_numbers = itertools.count(1)


def new_url() -> str:
    """Names a new, empty store each time."""
    return f"memory://preempted-{next(_numbers)}"


def test_the_first_calls_of_a_handle_open_it_once() -> None:
    def first_call() -> list[int]:
        return queue.enqueue_many([b"one", b"two"])

    with controlled() as world:
        for seed in SEEDS:
            url = new_url()
            queue = Queue(url, Q, clock=ManualClock())
            run = world.run([first_call, first_call, queue.counts], Plan(seed, LENGTHS))
            run.check()
            assert sorted(run.answers[0] + run.answers[1]) == [1, 2, 3, 4]
            queue.close()
            assert_forgotten(url)


def assert_forgotten(url: str) -> None:
    """No handle on the store is left open, so that the next one finds an empty store."""
    with Queue(url, Q, clock=ManualClock()) as fresh:
        assert fresh.counts().total == 0


class Shop:
    """Two handles on one queue: one that closes while it is called, one that stays to see what came of it."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.url = new_url()
        self.stays = Queue(self.url, Q, clock=clock, capacity=9)
        self.closes = Queue(self.url, Q, clock=clock)
        self.closes.enqueue(b"leased")
        self.lease = leased(self.closes)
        self.stays.enqueue(b"of another")
        self.others = leased(self.stays)
        # Before what the close hands back.
        self.ready = self.closes.enqueue(b"ready", 1)

    def check(self, name: str, answer: Answer) -> None:
        """What holds however a call and the close of its handle met."""
        counts = self.stays.counts()
        totals = counts.totals
        assert self.stays.jobs("leased")[0].id == self.others.id, "the close took the lease of another handle"
        assert counts.leased == 1, "a lease has outlived its handle"
        assert (counts.open, totals.failed) == (totals.enqueued - totals.succeeded, 0)
        for job in self.stays.jobs():
            assert job.attempt == int(job.id == self.others.id or job.state == "succeeded")
        CHECKS[name](self, answer)
        assert self.stays.ack(self.others) is Outcome.OK
        self.stays.close()
        assert_forgotten(self.url)

    def stored(self, new: int, answer: Answer) -> None:
        """An enqueue: refused and nothing stored, or stored."""
        assert isinstance(answer, int) or answer in (CLOSED, FULL)
        assert self.stays.counts().total == 3 + (0 if answer in (CLOSED, FULL) else new)

    def acked(self, answer: Answer) -> None:
        """An ack: the one that ended the job, or too late."""
        is_done = self.stays.jobs("succeeded") != []
        assert answer in (Outcome.OK, Outcome.STALE, CLOSED)
        assert is_done == (answer is Outcome.OK)

    def delivered(self, answer: Answer) -> None:
        """A delivery: refused, or of the best job, and handed back by the close in any case."""
        assert answer == CLOSED or answer.id in (self.ready, self.lease.id)

    def released(self, answer: Answer) -> None:
        assert answer in (Outcome.OK, Outcome.STALE, CLOSED)

    def looked(self, answer: Answer) -> None:
        assert answer == CLOSED or answer.total == 3


def leased(queue: Queue) -> Lease:
    lease = queue.deliver()
    assert lease is not None
    return lease


CALLS: dict[str, Callable[[Shop], Answer]] = {
    "enqueue": lambda shop: shop.closes.enqueue(b"new"),
    "try_enqueue": lambda shop: shop.closes.try_enqueue(b"new"),
    "enqueue_many": lambda shop: shop.closes.enqueue_many([b"new"] * 2)[0],
    "deliver": lambda shop: shop.closes.deliver(),
    "deliver for ever": lambda shop: shop.closes.deliver(None),
    "deliver_many": lambda shop: shop.closes.deliver_many(1)[0],
    "ack": lambda shop: shop.closes.ack(shop.lease),
    "ack_many": lambda shop: shop.closes.ack_many([shop.lease])[0],
    "release": lambda shop: shop.closes.release(shop.lease),
    "extend": lambda shop: shop.closes.extend(shop.lease, 60),
    "counts": lambda shop: shop.closes.counts(),
}
CHECKS: dict[str, Callable[[Shop, Answer], None]] = {
    "enqueue": lambda shop, answer: shop.stored(1, answer),
    "try_enqueue": lambda shop, answer: shop.stored(1, answer),
    "enqueue_many": lambda shop, answer: shop.stored(2, answer),
    "deliver": Shop.delivered,
    "deliver for ever": Shop.delivered,
    "deliver_many": Shop.delivered,
    "ack": Shop.acked,
    "ack_many": Shop.acked,
    "release": Shop.released,
    "extend": Shop.released,
    "counts": Shop.looked,
}


def meets(shop: Shop, name: str, closes: int) -> list[Callable[[], Answer]]:
    """A call, and one or two that close its handle."""

    def call() -> Answer:
        try:
            return CALLS[name](shop)
        except Closed:
            return CLOSED

    return [call, *[shop.closes.close] * closes]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_meets_the_close_of_its_handle_is_whole_or_refused(name: str) -> None:
    with controlled() as world:
        lengths = world.run(meets(Shop(), name, 2), Plan(0, LENGTHS)).lengths
        for seed in SEEDS:
            shop, closes = Shop(), 1 + seed % 2
            run = world.run(meets(shop, name, closes), Plan(seed, lengths[: 1 + closes]))
            run.check()
            try:
                shop.check(name, run.answers[0])
            except AssertionError as error:
                error.add_note(f"{name} -> {run.answers[0]!r}\n{run.told()}")
                raise
