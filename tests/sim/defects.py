"""Defects planted on purpose: the simulator must find each, or it would not find the like of it either.

Some stand before the store and falsify what passes; others take the place of a rule for as long as a run
lasts. Each names the words by which it must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import msgspec

from tests.sim import pool as sim_pool
from tests.sim.broken_workers import (
    lost_ticks,
    misfits_forgotten,
    no_halt,
    no_wait_for_claims,
    no_wait_for_halted,
)
from ulak.core import flows, rules
from ulak.core.flows import ask
from ulak.core.job import (
    FULL,
    Cause,
    Counts,
    Dead,
    Done,
    Draft,
    Full,
    Lease,
    Outcome,
    Retry,
    State,
    Verdict,
    Work,
)
from ulak.core.store import (
    Change,
    Delete,
    Filter,
    Fired,
    Reprioritise,
    Settings,
    Settled,
    Settlement,
    Store,
    Until,
)
from ulak.storage.line import WaitLine
from ulak.worker.keeper import Keeper
from ulak.worker.runtime import Crew

replace = msgspec.structs.replace


def _with(lease: Lease, *, body: bytes | None = None, priority: int | None = None) -> Lease:
    """The lease, for other work."""
    work = lease.work
    priority = work.priority if priority is None else priority
    other = Work(work.id, work.spec, work.body if body is None else body, priority, work.created_at)
    return replace(lease, work=other)


class Broken:
    """A store that does everything right; its children do one thing wrong."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return self.store.settle([self.forged(*settlement) for settlement in settlements])

    def turn(
        self, settlements: Sequence[Settlement], queues: Sequence[str], limit: int, **options: Any
    ) -> tuple[list[Settled], list[Lease]]:
        # As two calls, so that what is wrong with one of them is wrong here too.
        return self.settle(settlements), self.claim(queues, limit, **options)

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        return self.store.claim(queues, limit, **options)

    def forged(self, lease: Lease, verdict: Verdict) -> Settlement:
        return lease, verdict


class NoFence(Broken):
    """Asks whether the job is leased, not to whom."""

    def forged(self, lease: Lease, verdict: Verdict) -> Settlement:
        (job,) = self.store.get([lease.id])
        is_leased = job is not None and job.state is State.LEASED
        return (replace(lease, delivery=job.delivery) if is_leased else lease), verdict


class RetryLoses(Broken):
    """Forgets a job that is to be retried."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answers = super().settle(settlements)
        for (lease, verdict), answer in zip(settlements, answers, strict=True):
            if isinstance(verdict, Retry) and not verdict.refund and answer is not Outcome.STALE:
                self.store.amend([lease.id], Delete())
        return answers


class NoRefund(Broken):
    """Counts an attempt also where it is to be given back."""

    def forged(self, lease: Lease, verdict: Verdict) -> Settlement:
        if isinstance(verdict, Retry) and verdict.refund:
            if lease.attempt >= lease.max_attempts:
                return lease, Dead(cause=verdict.cause)
            return lease, replace(verdict, refund=False)
        return lease, verdict


class StaleReclaim(Broken):
    """Reclaims a lease also if its end has moved since somebody saw that it had passed."""

    def forged(self, lease: Lease, verdict: Verdict) -> Settlement:
        if verdict.cause is Cause.LOST:
            for now in self.store.leased(lease.queue, after=lease.id - 1, limit=1):
                if (now.id, now.delivery) == (lease.id, lease.delivery):
                    return now, verdict
        return lease, verdict


class NoBackoff(Broken):
    """Retries at once what should wait."""

    def forged(self, lease: Lease, verdict: Verdict) -> Settlement:
        return lease, replace(verdict, delay_s=0.0) if isinstance(verdict, Retry) else verdict


class AckLost(Broken):
    """Says OK to each seventh ack, and forgets it."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._acks = 0

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for _, verdict in settlements:
            self._acks += isinstance(verdict, Done)
        if settlements and isinstance(settlements[0][1], Done) and self._acks % 7 == 0:
            return [State.SUCCEEDED, *self.store.settle(settlements[1:])]
        return self.store.settle(settlements)


class EnqueueLost(Broken):
    """Forgets each ninth job at once."""

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        answer = self.store.add(queue, drafts, **options)
        if not isinstance(answer, Full):
            self.store.amend([job_id for job_id in answer if job_id % 9 == 0], Delete())
        return answer


class Overfull(Broken):
    """Counts no job that waits for its time."""

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        answer = self.store.add(queue, drafts, **options)
        scheduled, capacity = self.store.counts([queue])[queue].scheduled, self.store.queues()[queue].capacity
        if not isinstance(answer, Full) or not scheduled or options.get("known_only"):
            return answer
        self.store.configure(queue, Change(capacity=capacity + scheduled))
        try:
            return self.store.add(queue, drafts, **options)
        finally:
            self.store.configure(queue, Change(capacity=capacity))


class FalseFull(Broken):
    """Says FULL at each fifth enqueue."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._adds = 0

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        self._adds += 1
        return FULL if self._adds % 5 == 0 else self.store.add(queue, drafts, **options)


class TwoHolders(Broken):
    """Hands a current delivery out once more to whoever finds nothing else."""

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        leases = self.store.claim(queues, limit, **options)
        return leases if leases or limit == 0 else self.store.leased(queues[0], limit=1)


class LastFirst(Broken):
    """Hands out the last ready job first."""

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        which = Filter(queue=queues[0], states=State.READY) if queues else Filter(states=())
        ready = self.store.scan(which, limit=1_000)
        if len(ready) < 2:
            return self.store.claim(queues, limit, **options)
        last = ready[-1]
        self.store.amend([last.id], Reprioritise(1_000))
        leases = self.store.claim(queues, limit, **options)
        self.store.amend([last.id], Reprioritise(last.priority), force=True)
        return [_with(lease, priority=last.priority) if lease.id == last.id else lease for lease in leases]


class MixedUp(Broken):
    """Hands a job out with the payload of the one before it."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._body: bytes | None = None

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        leases = self.store.claim(queues, limit, **options)
        wrong = []
        for lease in leases:
            is_mixed_up = self._body is not None and lease.id % 5 == 0
            wrong.append(_with(lease, body=self._body) if is_mixed_up else lease)
            self._body = lease.body
        return wrong


class KeyForgotten(Broken):
    """Does not know idempotency keys."""

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        return self.store.add(queue, [replace(draft, idempotency_key=None) for draft in drafts], **options)


class UniqueForgotten(Broken):
    """Does not know unique keys."""

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        return self.store.add(queue, [replace(draft, unique_key=None) for draft in drafts], **options)


class ExtendLost(Broken):
    """Says that a lease is extended, and leaves it as it is."""

    def extend(self, leases: Sequence[Lease], lease_s: float, **options: Any) -> list[bool | Outcome]:
        return [answer and False for answer in self.store.extend(leases, 0.0, **options)]


class FiredTwice(Broken):
    """Lets every worker win each tick."""

    def fire(self, schedule: str, tick_at: float, queue: str, draft: Draft | None = None) -> Any:
        answer = self.store.fire(schedule, tick_at, queue, draft)
        if answer is not Fired.LOST or draft is None:
            return answer
        added = self.store.add(queue, [draft])
        return added if isinstance(added, Full) else added[0]

    def schedules(self) -> dict[str, float]:
        # As it was a moment ago, as whoever is slow has seen it.
        return {name: at - 1.0 for name, at in self.store.schedules().items()}


class CountedTwice(Broken):
    """Counts each success twice."""

    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        counts = self.store.counts(queues)
        for of_queue in counts.values():
            of_queue.totals.succeeded *= 2
        return counts


@contextmanager
def loss_unseen() -> Iterator[None]:
    """A keeper that renews, and tells no handler that its lease is lost."""

    renew = Keeper._renew

    def quiet(keeper: Keeper) -> Iterator[Any]:
        running = [seat.running for seat in keeper._crew.seats if seat.running is not None]
        yield from renew(keeper)
        for _, context in running:
            context.ask_to_stop(stop=False)

    with mock.patch.object(Keeper, "_renew", quiet):
        yield


def _without(duty: str) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def idle() -> Iterator[None]:
        """A keeper that leaves one duty undone."""

        def nothing(_: Keeper) -> Iterator[Any]:
            yield from ()

        with mock.patch.object(Keeper, duty, nothing):
            yield

    return idle


@contextmanager
def hasty_drain() -> Iterator[None]:
    """A drain that does not wait for what is due later."""

    def is_drained(queues: Sequence[str]) -> flows.Flow[bool]:
        counts = yield from ask(Store.counts, queues)
        return all(count.leased == 0 and count.ready == 0 for count in counts.values())

    def is_at_rest(counts: Counts, _: Settings) -> bool:
        return counts.leased == 0 and counts.ready == 0

    patched = mock.patch.object(flows, "is_drained", is_drained)
    with patched, mock.patch.object(flows, "is_at_rest", is_at_rest):
        yield


@contextmanager
def no_release() -> Iterator[None]:
    """A shutdown that leaves its leases to their deadline."""

    def release_all(*_: Any) -> flows.Flow[int]:
        yield from ()
        return 0

    with mock.patch.object(flows, "release_all", release_all):
        yield


@contextmanager
def long_grace() -> Iterator[None]:
    """A shutdown that gives ten times the grace it was given, and five seconds."""
    shutdown = Crew.shutdown

    def patient(crew: Crew, grace_s: float, hands: Any) -> Any:
        return shutdown(crew, 10 * grace_s + 5.0, hands)

    with mock.patch.object(Crew, "shutdown", patient):
        yield


@contextmanager
def dead_early() -> Iterator[None]:
    """A failure step that gives a job one attempt less."""
    failure = rules.failure

    def strict(lease: Lease, cause: Cause, **options: Any) -> Any:
        return failure(replace(lease, attempt=lease.attempt + 1), cause, **options)

    with mock.patch.object(rules, "failure", strict):
        yield


@contextmanager
def empty_seats() -> Iterator[None]:
    """A pool that does not replace its dead workers."""

    def replace_lost(*_: Any) -> flows.Flow[None]:
        yield from ()

    with mock.patch.object(sim_pool, "replace_lost", replace_lost):
        yield


def _deaf(until: Until) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def deaf() -> Iterator[None]:
        ring = WaitLine.ring

        def lost(line: WaitLine, wakeups: int) -> None:
            if line._until is not until:
                ring(line, wakeups)

        with mock.patch.object(WaitLine, "ring", lost):
            yield

    return deaf


@contextmanager
def wakeup_kept() -> Iterator[None]:
    """A waiter that leaves with a wake-up which it did not use."""
    ring, leave = WaitLine.ring, WaitLine.leave
    leaving: list[WaitLine] = []

    def leave_silently(line: WaitLine, signal: Any) -> None:
        leaving.append(line)
        try:
            leave(line, signal)
        finally:
            leaving.pop()

    def ring_unless_left(line: WaitLine, wakeups: int) -> None:
        if not leaving:
            ring(line, wakeups)

    with mock.patch.multiple(WaitLine, leave=leave_silently, ring=ring_unless_left):
        yield


class Defect(msgspec.Struct, frozen=True):
    """What is planted, the words it must be found by, and within how many seeds.

    The number is such that even after a change of the code, which changes every seed's history, less than one
    such number of seeds in a hundred would miss it.
    """

    found_by: str
    seeds: int
    store: Callable[[Any], Any] | None = None
    rule: Callable[[], AbstractContextManager[None]] = nullcontext
    profile: str | None = None


DEFECTS: dict[str, Defect] = {
    "no fence": Defect("stale accepted", 20, NoFence, profile="clock"),
    "the keeper never renews": Defect("ran out", 20, rule=_without("_renew")),
    "the keeper never reclaims": Defect("something is due", 20, rule=_without("_reclaim"), profile="crashes"),
    "the keeper never promotes": Defect("something is due", 100, rule=_without("_promote"), profile="calm"),
    "priorities are ignored": Defect("came before", 10, LastFirst),
    "a lost lease goes unseen": Defect("does not know", 120, rule=loss_unseen, profile="calm"),
    "a retry loses the job": Defect("lost", 10, RetryLoses),
    "a drain leaves early": Defect("the last drain", 20, rule=hasty_drain, profile="all"),
    "a shutdown forgets to release": Defect("still holds", 30, rule=no_release),
    "a shutdown overruns its grace": Defect("allowed were", 160, rule=long_grace),
    "a stopped process leaves its leases behind": Defect(
        "left in order, and still holds", 30, rule=no_release, profile="deploys"
    ),
    "what a stopped process held is lost": Defect("is spent by that", 60, rule=no_release, profile="deploys"),
    "a stop does not wait for claims": Defect("still holds", 200, rule=no_wait_for_claims, profile="deploys"),
    "a stop hands back what still runs": Defect(
        "while its handler runs", 200, rule=no_wait_for_halted, profile="deploys"
    ),
    "a stop leaves tasks running": Defect("handed it back", 120, rule=no_halt, profile="calm"),
    "a tick is fired twice": Defect("a tick was fired 2 times", 40, FiredTwice, profile="deploys"),
    "ticks are left out": Defect("were left out", 120, rule=lost_ticks, profile="deploys"),
    "jobs that did not fit are forgotten": Defect("no rest", 60, rule=misfits_forgotten, profile="deploys"),
    "a stop spends attempts": Defect("attempts", 10, NoRefund, profile="deploys"),
    "a refund is forgotten": Defect("attempts", 20, NoRefund),
    "a reclaim ignores that the lease's end has moved": Defect(
        "early reclaim", 120, StaleReclaim, profile="calm"
    ),
    "backoff is forgotten": Defect("early", 10, NoBackoff),
    "an ack is forgotten": Defect("lost", 20, AckLost),
    "an enqueue is forgotten": Defect("lost", 20, EnqueueLost),
    "scheduled jobs take no room": Defect("over capacity", 20, Overfull),
    "full though there is room": Defect("false full", 10, FalseFull),
    "two holders": Defect("overlap", 10, TwoHolders),
    "payloads are mixed up": Defect("payload", 10, MixedUp),
    "idempotency keys are forgotten": Defect("idempotency", 120, KeyForgotten, profile="all"),
    "unique keys are forgotten": Defect("unique", 40, UniqueForgotten, profile="clock"),
    "an extension is forgotten": Defect("early reclaim", 20, ExtendLost),
    "successes count twice": Defect("totals", 10, CountedTwice),
    "dead one attempt early": Defect("attempts", 10, rule=dead_early),
    "dead workers are not replaced": Defect("no rest", 40, rule=empty_seats),
    "idle workers are not woken": Defect("jobs are ready", 5, rule=_deaf(Until.READY), profile="calm"),
    "blocked producers are not woken": Defect("there is room", 10, rule=_deaf(Until.ROOM), profile="calm"),
    "an unused wake-up is not passed on": Defect("there is room", 200, rule=wakeup_kept, profile="calm"),
}
