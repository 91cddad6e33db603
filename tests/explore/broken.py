"""Queues that are broken on purpose: the explorer must find what is wrong with each, or it finds nothing.

Each stands before a real store and breaks one promise. It remembers nothing itself, as copies need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ulak.core.job import (
    FULL,
    Cancelled,
    Cause,
    Counts,
    Dead,
    Done,
    Draft,
    Duplicate,
    Full,
    Hold,
    Job,
    Lease,
    Outcome,
    Retry,
    State,
)
from ulak.core.rules import give_back
from ulak.core.store import UNSET, Change, Filter, Redrive, Reprioritise, Settled, Settlement, Store
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock

replace = msgspec.structs.replace


class Broken:
    """A store that does all that the real one does, until a subclass says otherwise."""

    def __init__(self, clock: ManualClock) -> None:
        self._store: Store = MemoryStore(clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _job(self, job_id: int) -> Job:
        (job,) = self._store.get([job_id])
        assert job is not None
        return job

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return [self.settle_one(*settlement) for settlement in settlements]

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        return self._store.settle([(lease, verdict)])[0]


class AckIgnoresTheFence(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if isinstance(verdict, Done):
            lease = replace(lease, delivery=self._job(lease.id).delivery)
        return super().settle_one(lease, verdict)


class NackIgnoresTheFence(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if verdict.cause is Cause.NACK:
            lease = replace(lease, delivery=self._job(lease.id).delivery)
        return super().settle_one(lease, verdict)


class ExtendIgnoresTheFence(Broken):
    def extend(self, leases: Sequence[Lease], lease_s: float, **options: Any) -> list[bool | Outcome]:
        leases = [replace(lease, delivery=self._job(lease.id).delivery) for lease in leases]
        return self._store.extend(leases, lease_s, **options)


class ReclaimIgnoresAMovedEnd(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if verdict.cause is Cause.LOST:
            lease = replace(lease, lease_end=self._job(lease.id).lease_end)
        return super().settle_one(lease, verdict)


class ReclaimIgnoresTheDelivery(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if verdict.cause is Cause.LOST:
            lease = replace(lease, delivery=self._job(lease.id).delivery)
        return super().settle_one(lease, verdict)


class SecondAckIsOk(Broken):
    """A repeated ack is answered as the first one was, instead of STALE."""

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        job = self._job(lease.id)
        if isinstance(verdict, Done) and job.state is State.SUCCEEDED and job.delivery == lease.delivery:
            return State.SUCCEEDED
        return super().settle_one(lease, verdict)


class RefundForgotten(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if isinstance(verdict, Retry) and verdict.refund and lease.attempt < lease.max_attempts:
            verdict = replace(verdict, refund=False)
        return super().settle_one(lease, verdict)


class LostAttemptsAreFree(Broken):
    """Attempts count where a worker nacks, so a job that kills its worker never dies."""

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        return super().settle_one(lease, give_back(Cause.LOST) if verdict.cause is Cause.LOST else verdict)


class NeverDead(Broken):
    """The last failed attempt is given back once more."""

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        return super().settle_one(lease, give_back() if isinstance(verdict, Dead) else verdict)


class DeadTooEarly(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        is_second = (
            isinstance(verdict, Retry) and not verdict.refund and lease.attempt == lease.max_attempts - 1
        )
        return super().settle_one(lease, Dead(cause=verdict.cause) if is_second else verdict)


class RetryNeedsRoom(Broken):
    """A failed job waits for a free place in the queue, which it takes itself."""

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        capacity = self._store.queues()[lease.queue].capacity
        is_full = capacity is not None and self._store.counts([lease.queue])[lease.queue].open >= capacity
        return Outcome.STALE if is_full and isinstance(verdict, Retry) else super().settle_one(lease, verdict)


class HeldReturnsToReady(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if isinstance(verdict, Hold):
            verdict = give_back(Cause.UNKNOWN_TASK)
        return super().settle_one(lease, verdict)


class RefusedIsForItsTask(Broken):
    """Whoever finds nothing else takes refused jobs, whatever tasks it names."""

    def claim(self, *args: Any, **options: Any) -> list[Lease]:
        return self._store.claim(*args, **options) or self._store.claim(*args, **{**options, "tasks": None})


class RedriveOfHeldBeginsAnew(Broken):
    """A held job that is redriven counts as one that had ended."""

    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        (queue,) = queues
        counts = self._store.counts(queues)[queue]
        jobs = self._store.scan(Filter(queue=queue, states="ready"))
        held = sum(job.delivery > 0 and job.history[-1].cause is Cause.UNKNOWN_TASK for job in jobs)
        totals = replace(counts.totals, redriven=counts.totals.redriven + held)
        return {queue: replace(counts, totals=totals)}


class CancelBeatsAck(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        job = self._job(lease.id)
        is_asked = job.cancel_requested and job.delivery == lease.delivery
        return super().settle_one(lease, Cancelled() if is_asked and isinstance(verdict, Done) else verdict)


class LateNackBringsBack(Broken):
    """A dead job returns when another of its workers fails late."""

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        if self._job(lease.id).state is State.DEAD:
            self._store.amend([lease.id], Redrive())
        return super().settle_one(lease, verdict)


class DelayForgotten(Broken):
    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        return super().settle_one(
            lease, replace(verdict, delay_s=0.0) if isinstance(verdict, Retry) else verdict
        )


class DeliveryNotBumped(Broken):
    """Every delivery of a job is the first one, so that no lease can be told from another."""

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        return [job and replace(job, delivery=min(job.delivery, 1)) for job in self._store.get(ids)]

    def claim(self, *args: Any, **options: Any) -> list[Lease]:
        return [replace(lease, delivery=1) for lease in self._store.claim(*args, **options)]

    def leased(self, *args: Any, **options: Any) -> list[Lease]:
        return [replace(lease, delivery=1) for lease in self._store.leased(*args, **options)]

    def settle_one(self, lease: Lease, verdict: Any) -> Settled:
        return super().settle_one(replace(lease, delivery=self._job(lease.id).delivery), verdict)


class Overtaking(Broken):
    """A claim takes the second best job where there are two."""

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        best = self._store.claim(queues, limit, **options)
        others = self._store.claim(queues, limit, **options)
        if best and others:
            self._store.settle([(lease, give_back()) for lease in best])
        return others or best


class PriorityForgotten(Broken):
    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        return self._store.add(queue, [replace(draft, priority=0) for draft in drafts], **options)


class DuplicateTakesASlot(Broken):
    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        answer = self._store.add(queue, drafts, **options)
        if not isinstance(answer, Full) and any(isinstance(one, Duplicate) for one in answer):
            plain = [replace(draft, unique_key=None, idempotency_key=None) for draft in drafts]
            self._store.add(queue, plain, **options)
        return answer


class OneTooMany(Broken):
    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        capacity = self._store.queues()[queue].capacity
        if capacity is None:
            return self._store.add(queue, drafts, **options)
        self._store.configure(queue, Change(capacity=capacity + 1))
        answer = self._store.add(queue, drafts, **options)
        self._store.configure(queue, Change(capacity=capacity))
        return answer


class FullTooEarly(Broken):
    """Ended jobs keep their places."""

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        settings, counts = self._store.queues()[queue], self._store.counts([queue])[queue]
        if settings.capacity is not None and counts.open + counts.dead >= settings.capacity:
            return FULL
        return self._store.add(queue, drafts, **options)


class TotalsCountedTwice(Broken):
    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        return {
            queue: replace(counts, totals=replace(counts.totals, retries=2 * counts.totals.retries))
            for queue, counts in self._store.counts(queues).items()
        }


class PendingTooEarly(Broken):
    """A leased job is no longer counted among the open ones."""

    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        return {queue: replace(counts, leased=0) for queue, counts in self._store.counts(queues).items()}


class ReapersSeeOne(Broken):
    def leased(self, *args: Any, **options: Any) -> list[Lease]:
        return self._store.leased(*args, **options)[:1]


class PauseForgotten(Broken):
    def configure(self, queue: str, change: Change) -> Any:
        return self._store.configure(queue, replace(change, paused=UNSET))


class ReprioritiseForgotten(Broken):
    def amend(self, which: Any, act: Any, **options: Any) -> Any:
        if isinstance(act, Reprioritise):
            (job,) = self._store.get(which)
            act = replace(act, priority=job.priority if job is not None else 0)
        return self._store.amend(which, act, **options)


class RedriveKeepsAttempts(Broken):
    """A redriven job looks as used up as it was."""

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = self._store.get(ids)
        return [
            job
            and (replace(job, attempt=job.max_attempts) if job.state is State.READY and job.history else job)
            for job in jobs
        ]


MakeBroken = Callable[[ManualClock], Broken]
