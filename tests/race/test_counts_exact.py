"""What `counts()` says while many threads call, and when they have ended.

Exact whenever no call is in flight; never below 0, and off by at most what the calls in flight may move.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.race.stage import figures
from tests.race.threads import PATIENCE_S, Running, together
from ulak import FULL, Counts, Lease, NewJob, Outcome, Queue

THREADS = 8
CALLS_EACH = 600
CAPACITY = 40
ROOM_FOR_ALL = 2 * THREADS
"""The most that all threads may add between one's look and its own call."""

LAST_ATTEMPT = 2


class Books:
    """What one thread has begun, done and left behind it, in jobs and by kind of call.

    begun, over: the most that its calls may move, entered before and after each. done: what they did move.
    """

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.over: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def call(self, what: str, jobs: int, call: Callable[[], int]) -> None:
        """Make a call that moves at most so many jobs, and says how many it moved."""
        self.begun[what] += jobs
        self.done[what] += call()
        # Last, so that whoever reads this first misses nothing of what was done.
        self.over[what] += jobs


class Clerk:
    """One thread of calls on a queue."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue = queue
        self.draws = random.Random(seed)
        self.books = Books()
        self.call = self.books.call
        self.leases: list[Lease] = []

    def work(self) -> None:
        calls = (
            self.enqueue,
            self.try_enqueue,
            self.enqueue_many,
            self.deliver,
            self.deliver,
            self.deliver_many,
        )
        for _ in range(CALLS_EACH):
            if self.leases and self.draws.randrange(2):
                self.settle(self.leases.pop())
            else:
                self.draws.choice(calls)()
        while self.leases:
            self.settle(self.leases.pop())

    def try_enqueue(self) -> None:
        priority = self.draws.randrange(3)
        self.call("put", 1, lambda: int(self.queue.try_enqueue(b"x", priority) is not FULL))

    def enqueue(self) -> None:
        if self.queue.counts().open <= CAPACITY - ROOM_FOR_ALL:
            self.call("put", 1, lambda: int(self.queue.enqueue(b"y", timeout=PATIENCE_S) > 0))

    def enqueue_many(self) -> None:
        if self.queue.counts().open <= CAPACITY - ROOM_FOR_ALL:
            self.call(
                "put", 2, lambda: len(self.queue.enqueue_many([NewJob(b"y", 1), b"z"], timeout=PATIENCE_S))
            )

    def deliver(self) -> None:
        self.call(
            "take", 1, lambda: self.keep([lease for lease in [self.queue.deliver()] if lease is not None])
        )

    def deliver_many(self) -> None:
        self.call("take", 3, lambda: self.keep(self.queue.deliver_many(3)))

    def keep(self, leases: list[Lease]) -> int:
        self.leases += leases
        return len(leases)

    def settle(self, lease: Lease) -> None:
        how = self.draws.randrange(4)
        if how == 0 and lease.attempt < LAST_ATTEMPT:
            self.call("return", 1, lambda: int(self.queue.nack(lease) is Outcome.OK))
        elif how == 0:
            self.call("bury", 1, lambda: int(self.queue.nack(lease) is Outcome.OK))
        elif how == 1:
            self.call("return", 1, lambda: int(self.queue.release(lease) is Outcome.OK))
        elif how == 2:
            batch, self.leases = [lease, *self.leases], []
            self.call("ack", len(batch), lambda: self.queue.ack_many(batch).count(Outcome.OK))
        else:
            self.call("ack", 1, lambda: int(self.queue.ack(lease) is Outcome.OK))


def add_up(clerks: list[Clerk], which: str) -> Counter[str]:
    """The books of all, one clerk after the other while they go on."""
    return sum((getattr(clerk.books, which).copy() for clerk in clerks), Counter())


Bounds = dict[str, tuple[int, int]]


def bounds(least: Counter[str], most: Counter[str]) -> Bounds:
    """Where each figure lies, if at least this was done before it was counted and at most that after."""
    out = ("ack", "bury", "return")
    return {
        "total": (least["put"], most["put"]),
        "acked": (least["ack"], most["ack"]),
        "dead": (least["bury"], most["bury"]),
        "ready": (
            least["put"] + least["return"] - most["take"],
            most["put"] + most["return"] - least["take"],
        ),
        "leased": (
            least["take"] - sum(most[what] for what in out),
            most["take"] - sum(least[what] for what in out),
        ),
    }


def outside(counts: Counts, allowed: Bounds) -> list[str]:
    """The figures that are not what they may be."""
    negative = [f"{name} is {number}" for name, number in figures(counts).items() if number < 0]
    return negative + [
        f"{name} is {getattr(counts, name)}, not between {low} and {high}"
        for name, (low, high) in allowed.items()
        if not low <= getattr(counts, name) <= high
    ]


def sample(queue: Queue, clerks: list[Clerk], is_over: threading.Event) -> tuple[int, list[str]]:
    """Count again and again; how often, and what was wrong."""
    samples, wrong = 0, []
    while not is_over.is_set():
        least = add_up(clerks, "done")
        counts = queue.counts()
        # In this order: a call that ends meanwhile counts twice rather than not at all.
        over = add_up(clerks, "over")
        most = add_up(clerks, "done") + add_up(clerks, "begun")
        most.subtract(over)
        wrong += outside(counts, bounds(least, most))
        if counts.open > CAPACITY:
            wrong.append(f"{counts.open} jobs are open")
        samples += 1
    return samples, wrong


@pytest.mark.parametrize("seed", range(2))
def test_counts_are_exact_at_rest_and_close_while_others_call(seed: int) -> None:
    with Queue("memory://", capacity=CAPACITY, max_attempts=LAST_ATTEMPT) as queue:
        clerks = [Clerk(queue, 100 * seed + number) for number in range(THREADS)]
        is_over = threading.Event()
        sampling = Running(partial(sample, queue, clerks, is_over))
        try:
            together(*(clerk.work for clerk in clerks))
        finally:
            is_over.set()
        samples, wrong = sampling.result()
        done = add_up(clerks, "done")
        counts = queue.counts()
        assert wrong == []
        assert samples > 10
        assert outside(counts, bounds(done, done)) == []
        assert min(done[what] for what in ("put", "take", "ack", "bury", "return")) > 0
        recount = Counter(job.state for job in queue.jobs(limit=100_000))
        assert (counts.ready, counts.acked, counts.dead) == tuple(
            recount[s] for s in ("ready", "succeeded", "dead")
        )
