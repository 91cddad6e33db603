"""The world of an exploration: the real store, and what everybody who uses it remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.explore.copying import Copier
from tests.explore.scope import Scope
from ulak.core.backoff import Backoff
from ulak.core.job import ENDED, Counts, Draft, Job, Lease, State
from ulak.core.store import Keep, Retention, Settings, Store
from ulak.local import LocalQueue
from ulak.storage.drive import Edge
from ulak.testing import ManualClock

QUEUE = "q"
QUEUES = (QUEUE,)
LEASE_S = 10.0
"""How long a lease is; an extension asks for a multiple."""
TICK_S = 1.0
"""Delays, expiry and the steps of the calendar clock are multiples of it."""

HOLDS, UNSURE, UNSURE_WON = 0, 1, 2
"""What a worker knows: that its job runs; that its ack was sent, and (it does not know) was STALE, or OK."""

WAITING = frozenset({State.READY, State.SCHEDULED, State.HELD})

MakeStore = Callable[[ManualClock], Store]


class Grip(NamedTuple):
    """One delivery as its worker remembers it. is_short: it was taken by the short way."""

    lease: Lease
    extends: int = 0
    knows: int = HOLDS
    is_short: bool = False


Hand = tuple[Grip, ...] | None
"""What a worker remembers; None: it has left."""


class Fact(NamedTuple):
    """What the world was told of one job so far, whatever the store says now."""

    handed: int = 0
    attempts: int = 0
    refunds: int = 0
    redrives: int = 0
    acks: int = 0


class Seen(NamedTuple):
    """What can be read of the queue at one moment: the job of each id (None: not stored), and its counts."""

    jobs: tuple[Job | None, ...]
    counts: Counts


class Rest(NamedTuple):
    """What else the world knows.

    Whether it paused the queue, how many producers have not finished, and which job each idempotency key was
    told to stand for (0: none yet).
    """

    is_paused: bool = False
    producers: int = 0
    keys: tuple[int, ...] = ()


Memory = tuple[tuple[Hand, ...], tuple[Lease | None, ...]]
Saved = tuple[bytes, tuple[Fact, ...], Rest]


class World:
    """A store in its clock's time, and the memories of its workers, reapers and producers."""

    def __init__(self, scope: Scope, make_store: MakeStore) -> None:
        self.scope = scope
        self.clock = ManualClock()
        self.store: Store = make_store(self.clock)
        self.local = LocalQueue(self.store, QUEUE)
        self.u = 0.0
        self.edge = Edge(self.store, self.clock, lambda: self.u)
        keep = scope.retention
        rule = None if keep is None else Retention(*[Keep(keep, 86_400.0)] * 4)
        self.store.declare(QUEUE, Settings(capacity=scope.capacity, retention=rule))
        for _ in range(scope.producers or 0):
            self.local.register()
        self.hands: tuple[Hand, ...] = ((),) * scope.workers
        self.reapers: tuple[Lease | None, ...] = (None,) * scope.reapers
        self.facts: tuple[Fact, ...] = ()
        self.rest = Rest(producers=scope.producers or 0, keys=(0,) * scope.jobs if scope.idempotent else ())
        self.names = tuple(f"worker {number}" for number in range(scope.workers))
        self._policy = Backoff(base=TICK_S, cap=2 * TICK_S) if scope.draws else None
        self._ids = [range(1, count + 2) for count in range(scope.jobs + 2)]
        self._copier = Copier(self.store, QUEUE, self.local, self.clock)
        self._loaded: Memory = (self.hands, self.reapers)
        self.seen = self.look()

    # Copies

    def freeze(self) -> bytes:
        """All that is stored, hidden orders included, and the leases that are remembered."""
        if self.scope.exact:
            # When a taker must look closer is a lower bound; two stores that differ in it alone are the same.
            self._copier.settle_alarms()
        return self._copier.freeze(self.hands, self.reapers)

    def save(self, frozen: bytes | None = None) -> Saved:
        """Everything, as it is now. frozen: what `freeze` gives, if that is known already."""
        return frozen or self.freeze(), self.facts, self.rest

    def load(self, saved: Saved) -> None:
        """Make everything as it was then."""
        frozen, self.facts, self.rest = saved
        self.hands, self.reapers = self._loaded = self._copier.thaw(frozen)

    def reload(self, saved: Saved) -> None:
        """Make everything as it was then, where the store still is as it was then."""
        _, self.facts, self.rest = saved
        self.hands, self.reapers = self._loaded

    # Reading

    def look(self) -> Seen:
        """Read the jobs, and one id beyond them."""
        ids = self._ids[min(len(self.facts), self.scope.jobs + 1)]
        return Seen(tuple(self.store.get(ids)), self.store.counts(QUEUES)[QUEUE])

    @property
    def is_closed(self) -> bool:
        """Whether every producer has finished."""
        return self.scope.producers is not None and self.rest.producers == 0

    @property
    def is_full(self) -> bool:
        """Whether a new job must be refused: the open ones, without those past their time, fill the queue."""
        capacity, at = self.scope.capacity, self.clock.calendar()
        return capacity is not None and capacity <= sum(
            job is not None and job.state not in ENDED and not is_overdue(job, at) for job in self.seen.jobs
        )

    def is_final(self) -> bool:
        """Whether nothing is left to do: every job that could come has ended, or all workers have left."""
        is_all_in = len(self.facts) == self.scope.jobs or self.is_closed
        # Its key stands for another job by now, so this one will never be stored.
        is_all_in = is_all_in or any(self.rest.keys[len(self.facts) :])
        is_all_over = all(job is None or job.state in ENDED for job in self.seen.jobs)
        return is_all_in and (is_all_over or not any(hand is not None for hand in self.hands))

    def draft(self, number: int) -> Draft:
        """The job that is enqueued as number `number`, from 0."""
        scope = self.scope
        return Draft(
            b"job %d" % number,
            "bytes",
            priority=_nth(scope.priorities, number),
            max_attempts=scope.max_attempts,
            task=_nth(scope.tasks, number) if scope.strangers else None,
            delay_s=_nth(scope.start_delays, number),
            expires_s=_nth(scope.expires_s, number),
            unique_key=_nth(scope.uniques, number),
            idempotency_key=f"key {number}" if number < len(self.rest.keys) else None,
            backoff=self._policy,
        )

    # What the workers and the world remember

    def hold(self, worker: int, hand: Hand) -> None:
        """This is what the worker remembers now."""
        self.hands = (*self.hands[:worker], hand, *self.hands[worker + 1 :])

    def drop(self, worker: int, slot: int) -> None:
        """The worker is done with one of its deliveries."""
        hand = self.hands[worker]
        assert hand is not None
        self.hold(worker, hand[:slot] + hand[slot + 1 :])

    def note(self, reaper: int, lease: Lease | None) -> None:
        """This is the lease that the reaper saw."""
        self.reapers = (*self.reapers[:reaper], lease, *self.reapers[reaper + 1 :])

    def learn(self, job_id: int, **changes: int) -> None:
        """Add to what is known of one job, so many each."""
        fact = self.facts[job_id - 1]
        grown = fact._replace(**{name: getattr(fact, name) + more for name, more in changes.items()})
        self.facts = (*self.facts[: job_id - 1], grown, *self.facts[job_id:])


def new_priority(job_id: int) -> int:
    """What an operator makes of a job's priority: every second job goes up, the others down."""
    return 9 if job_id % 2 else 0


def is_overdue(job: Job, at: float) -> bool:
    """Whether a job waits, and must not start any more."""
    return job.expires_at is not None and job.expires_at <= at and job.state in WAITING


def is_refused(job: Job) -> bool:
    """Whether a job is held because its payload did not fit its task."""
    return job.state is State.HELD and job.history[-1].cause.value == "undecodable"


def _nth(values: Sequence[Any], number: int) -> Any:
    return values[number % len(values)]
