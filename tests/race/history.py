"""What happened in a run of many threads, and the checks that every such run must pass.

The checks judge a run from outside, by what each call was told and by what is stored at the end. They know
nothing of how a storage works, so the same checks must fail for a storage that is broken on purpose.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ulak.core.job import Cause, Counts, Done, Draft, Full, Lease, Outcome
from ulak.core.store import Filter, Settled, Settlement, Store


class History:
    """Who was told what, and when; safe to write from any thread."""

    def __init__(self) -> None:
        # One next() is one step of the interpreter, so moments have one order over all threads.
        self.moment = itertools.count(1).__next__
        self._lock = threading.Lock()
        self.peak_open = 0
        self.added: list[int] = []
        self.handed_out: list[tuple[int, Lease]] = []
        self.acks: list[tuple[int, Lease]] = []
        self.failures: list[Cause] = []

    def note_open(self, open_jobs: int) -> None:
        """How many jobs were open at some moment."""
        with self._lock:
            self.peak_open = max(self.peak_open, open_jobs)


class Noted:
    """A store that notes in a history what its callers are told."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        answer = self._store.add(queue, drafts, **options)
        if not isinstance(answer, Full):
            self._history.added += answer
        self._history.note_open(self._store.counts([queue])[queue].open)
        return answer

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        leases = self._store.claim(queues, limit, **options)
        moment = self._history.moment()
        self._history.handed_out += [(moment, lease) for lease in leases]
        return leases

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        began = self._history.moment()
        answers = self._store.settle(settlements)
        for (lease, verdict), answer in zip(settlements, answers, strict=True):
            if answer is Outcome.STALE:
                continue
            if isinstance(verdict, Done):
                self._history.acks.append((began, lease))
            else:
                self._history.failures.append(verdict.cause)
        return answers


def violations(history: History, store: Store, queue: str, *, capacity: int | None = None) -> list[str]:
    """Everything that is wrong with a run that has come to rest; empty for a correct store."""
    return [
        *_wrong_deliveries(history),
        *_wrong_acks(history),
        *_wrong_room(history, capacity),
        *_wrong_ends(history, store, queue),
        *_wrong_counts(history, store, queue),
    ]


def _wrong_deliveries(history: History) -> Iterator[str]:
    deliveries = Counter((lease.id, lease.delivery) for _, lease in history.handed_out)
    yield from (f"delivery {key} was handed out {n} times" for key, n in deliveries.items() if n > 1)
    added = Counter(history.added)
    yield from (f"id {job_id} was given {n} times" for job_id, n in added.items() if n > 1)
    yield from (f"job {job_id} was delivered, not added" for job_id, _ in deliveries if job_id not in added)
    late = [lease for _, lease in history.handed_out if lease.attempt > lease.max_attempts]
    yield from (f"{lease} is beyond its {lease.max_attempts} attempts" for lease in late)


def _wrong_acks(history: History) -> Iterator[str]:
    acked = Counter(lease.id for _, lease in history.acks)
    yield from (f"job {job_id} was acked {n} times" for job_id, n in acked.items() if n > 1)
    handed_out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for moment, lease in history.handed_out:
        handed_out[lease.id].append((moment, lease.delivery))
    for began, lease in history.acks:
        if any(delivery > lease.delivery and moment < began for moment, delivery in handed_out[lease.id]):
            yield f"{lease} was acked after a later delivery had been handed out"


def _wrong_room(history: History, capacity: int | None) -> Iterator[str]:
    if capacity is not None and history.peak_open > capacity:
        yield f"{history.peak_open} jobs were open at a capacity of {capacity}"


def _wrong_ends(history: History, store: Store, queue: str) -> Iterator[str]:
    stored = {job.id: job for job in store.scan(Filter(queue=queue), limit=100_000)}
    yield from (f"job {job_id} is lost" for job_id in history.added if job_id not in stored)
    acked = {lease.id: lease.delivery for _, lease in history.acks}
    handed_out: dict[int, list[int]] = defaultdict(list)
    for _, lease in history.handed_out:
        handed_out[lease.id].append(lease.delivery)
    for job in stored.values():
        if job.state.value not in {"succeeded", "dead"}:
            yield f"{job} has not ended"
        if (job.state.value == "succeeded") != (job.id in acked):
            yield f"{job} is not what its acks were told"
        if job.id in acked and acked[job.id] != job.delivery:
            yield f"{job} was acked by delivery {acked[job.id]}"
        if sorted(handed_out[job.id]) != list(range(1, job.delivery + 1)):
            yield f"{job} was handed out as {sorted(handed_out[job.id])}"


def _wrong_counts(history: History, store: Store, queue: str) -> Iterator[str]:
    now = store.counts([queue])[queue]
    recount = Counter(job.state.value for job in store.scan(Filter(queue=queue), limit=100_000))
    if (now.open, now.acked, now.dead) != (0, recount["succeeded"], recount["dead"]):
        yield f"{now} are not a recount: {recount}"
    told = {
        "enqueued": len(history.added),
        "succeeded": len(history.acks),
        "failed": len(history.failures),
        "reclaimed": history.failures.count(Cause.LOST),
    }
    for name, number in told.items():
        if getattr(now.totals, name) != number:
            yield f"total {name} is {getattr(now.totals, name)}, callers were told {number}"
    yield from _wrong_identities(now)


def _wrong_identities(now: Counts) -> Iterator[str]:
    t = now.totals
    ended = t.succeeded + t.dead_lettered + t.cancelled + t.expired + t.deleted
    if t.processed != t.succeeded + t.failed:
        yield f"processed is not succeeded + failed: {t}"
    if t.failed != t.retries + t.dead_lettered + t.cut:
        yield f"failed is not retries + dead_lettered + cut: {t}"
    if t.enqueued + t.redriven != ended + now.open:
        yield f"enqueued + redriven is not what has ended and what is open: {t}"
