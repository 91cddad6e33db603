"""The store that lives inside one process: every promise but durability, under one lock."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ulak.clock import SYSTEM, Clock
from ulak.core import rules
from ulak.core.job import (
    ENDED,
    FULL,
    Attempt,
    Cause,
    Counts,
    Done,
    Draft,
    Duplicate,
    Full,
    Job,
    Lease,
    Outcome,
    State,
    Verdict,
)
from ulak.core.store import (
    MEMORY_RETENTION,
    Act,
    Capabilities,
    Change,
    Changed,
    Filter,
    Fired,
    Line,
    Refusal,
    Settings,
    Settled,
    Settlement,
    Tasks,
    Until,
    WorkerInfo,
)
from ulak.errors import ArgumentError
from ulak.storage.acts import act_on
from ulak.storage.registry import Registry
from ulak.storage.section import Mends, Wakes
from ulak.storage.shelf import Shelf

EXPIRE_MAX = 100
"""How many expired jobs an enqueue ends beyond those whose room it needs."""


class MemoryStore:
    """Jobs in this process's memory. See `ulak.core.store.Store` for what each operation promises."""

    capabilities = Capabilities(durable=False, immediate=True, processes=False, transactions=False)

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._touched: set[Shelf] = set()
        self._lock = threading.Lock()
        self._wakes = Wakes(self._lock, self._touched)
        self._mends = Mends(self._mend)
        self._jobs = Registry()
        self._shelves: dict[str, Shelf] = {}
        self._last_id = 0
        self._last_ticks: dict[str, float] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self.uid = f"memory-{os.urandom(8).hex()}"
        self.epoch = int(clock.calendar() * 1_000_000)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to let go of; the jobs go with the object."""

    def migrate(self) -> None:
        """Nothing to migrate."""

    def add(self, queue: str, drafts: Sequence[Draft], *, known_only: bool = False) -> list[int] | Full:
        """Store jobs, all or none."""
        with self._wakes, self._lock, self._mends:
            return self._add(self._shelf(queue), drafts, self._clock.calendar(), known_only=known_only)

    def _add(
        self, shelf: Shelf, drafts: Sequence[Draft], now_at: float, *, known_only: bool = False
    ) -> list[int] | Full:
        shelf.forget_keys(now_at)
        shelf.expire(now_at, limit=max(EXPIRE_MAX, len(drafts)))
        answers, new = self._plan(shelf, drafts)
        capacity = shelf.settings.capacity
        if capacity is not None:
            if new > capacity:
                raise ArgumentError(
                    f"{new:,} new jobs can never fit queue {shelf.name!r}, whose capacity is {capacity:,}\n"
                    f"  enqueue fewer at once, or raise it with q.configure(capacity=...)"
                )
            if new and shelf.open + new > capacity:
                # No answer of FULL while jobs stand in the way whose time is over, however many they are.
                shelf.expire(now_at)
            if new and shelf.open + new > capacity:
                return FULL
        if new and known_only:
            return FULL
        first_id = self._last_id + 1
        for draft, answer in zip(drafts, answers, strict=True):
            if answer == self._last_id + 1 and not isinstance(answer, Duplicate):
                self._last_id = answer
                job = _job_of(answer, shelf.name, draft, now_at)
                self._jobs.put(job)
                shelf.put(job)
            if draft.idempotency_key is not None and draft.idempotency_key not in shelf.idempotent:
                shelf.remember_key(draft.idempotency_key, answer, now_at)
        assert self._last_id == first_id + new - 1
        shelf.totals.enqueued += new
        return answers

    def _plan(self, shelf: Shelf, drafts: Sequence[Draft]) -> tuple[list[int], int]:
        """One answer per draft, as if there is room, and how many are new."""
        answers: list[int] = []
        same_key: dict[tuple[str, str], int] = {}
        next_id = self._last_id + 1
        for draft in drafts:
            known = _known(shelf, draft, same_key)
            answer = next_id if known is None else Duplicate(known)
            if draft.idempotency_key is not None:
                same_key.setdefault(("idempotency", draft.idempotency_key), answer)
            if known is None:
                next_id += 1
                if draft.unique_key is not None:
                    same_key["unique", draft.unique_key] = answer
            answers.append(answer)
        return answers, next_id - self._last_id - 1

    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> list[Lease]:
        """Lease up to `limit` due jobs, in order."""
        return self.turn((), queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)[1]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Apply verdicts, one answer per settlement."""
        return self.turn(settlements, (), 0, worker="", lease_s=0.0)[0]

    def turn(
        self,
        settlements: Sequence[Settlement],
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None = None,
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle, then claim, in one step."""
        leases: list[Lease] = []
        with self._wakes, self._lock, self._mends:
            now_at = self._clock.calendar()
            settled = [self._settle(lease, verdict, now_at) for lease, verdict in settlements]
            for queue in queues:
                shelf = self._read(queue)
                if len(leases) < limit and not shelf.settings.paused:
                    self._claim(
                        shelf, limit, leases, worker=worker, lease_s=lease_s, tasks=tasks, now_at=now_at
                    )
        return settled, leases

    def _claim(
        self,
        shelf: Shelf,
        limit: int,
        leases: list[Lease],
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None,
        now_at: float,
    ) -> None:
        shelf.expire(now_at)
        shelf.promote(now_at)
        lease_end = self._clock.interval() + lease_s
        while len(leases) < limit:
            job = shelf.take(tasks)
            if job is None:
                return
            job.attempt += 1
            job.delivery += 1
            assert job.attempt <= job.max_attempts
            job.worker, job.started_at = worker, now_at
            shelf.lease(job, lease_s, lease_end)
            shelf.served(1)
            leases.append(self._lease_of(job, shelf))

    def _settle(self, lease: Lease, verdict: Verdict, now_at: float) -> Settled:
        job = self._jobs.get(lease.id)
        if job is None or job.state is not State.LEASED or job.delivery != lease.delivery:
            return Outcome.STALE
        if verdict.cause is Cause.LOST and job.lease_end != lease.lease_end:
            return Outcome.STALE
        shelf = self._shelves[job.queue]
        landing = rules.land(job, verdict, now_at=now_at)
        error = rules.error_of(verdict)
        entry = Attempt(job.delivery, job.attempt, job.worker, job.started_at, now_at, verdict.cause, error)
        job.history = rules.remember(job.history, entry)
        job.attempt, job.crashes, job.run_at = landing.attempt, landing.crashes, landing.run_at
        if isinstance(verdict, Done):
            job.result = verdict.result
        if landing.state in ENDED:
            job.ended_at = now_at
        shelf.count(*landing.totals)
        shelf.move(job, landing.state)
        return landing.state

    def promote(self, queues: Sequence[str]) -> int:
        """Make due jobs ready; how many."""
        with self._wakes, self._lock, self._mends:
            now_at = self._clock.calendar()
            shelves = [self._read(queue) for queue in queues]
            return sum(shelf.promote(now_at) for shelf in shelves if not shelf.settings.paused)

    def extend(
        self, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
    ) -> list[bool | Outcome]:
        """Move lease ends to now + `lease_s`, never to earlier."""
        answers: list[bool | Outcome] = []
        with self._wakes, self._lock, self._mends:
            lease_end = self._clock.interval() + lease_s
            for lease in leases:
                job = self._jobs.get(lease.id)
                if job is None or job.state is not State.LEASED or job.delivery != lease.delivery:
                    answers.append(Outcome.STALE)
                    continue
                if lease_end > job.lease_end:
                    self._shelves[job.queue].lease(job, lease_s, lease_end)
                if progress is not None and job.id in progress:
                    job.progress = progress[job.id]
                answers.append(job.cancel_requested)
        return answers

    def ended(self, queues: Sequence[str], limit: int) -> list[Lease]:
        """Leases past their end."""
        found: list[Lease] = []
        with self._wakes, self._lock, self._mends:
            now = self._clock.interval()
            for queue in queues:
                shelf = self._read(queue)
                for job in shelf.past(now):
                    if len(found) == limit:
                        return found
                    found.append(self._lease_of(job, shelf))
        return found

    def leased(
        self, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Lease]:
        """The current leases of a queue, by id."""
        with self._wakes, self._lock, self._mends:
            shelf = self._read(queue)
            jobs = [job for job in shelf.leased() if job.id > after and worker in (None, job.worker)]
            return [self._lease_of(job, shelf) for job in jobs[:limit]]

    def horizon(self, queues: Sequence[str]) -> float | None:
        """Seconds until time alone makes a job claimable."""
        with self._wakes, self._lock, self._mends:
            now, now_at = self._clock.interval(), self._clock.calendar()
            horizons = [self._read(queue).horizon_s(now=now, now_at=now_at) for queue in queues]
        return min((horizon for horizon in horizons if horizon is not None), default=None)

    def amend(
        self, which: Sequence[int] | Filter, act: Act, *, queue: str | None = None, force: bool = False
    ) -> Changed:
        """An operator's act on each of these jobs."""
        done: list[int] = []
        refused: dict[Refusal, list[int]] = {}
        with self._wakes, self._lock, self._mends:
            now_at = self._clock.calendar()
            for job_id, job in self._chosen(which, queue):
                refusal: Refusal | None = Refusal.NOT_FOUND
                if job is not None:
                    refusal = act_on(self._shelves[job.queue], job, act, now_at=now_at, force=force)
                if refusal is None:
                    done.append(job_id)
                else:
                    refused.setdefault(refusal, []).append(job_id)
        return Changed(tuple(done), {reason: tuple(ids) for reason, ids in refused.items()})

    def _chosen(self, which: Sequence[int] | Filter, queue: str | None) -> list[tuple[int, Job | None]]:
        """The jobs of an operator's act, in order of priority, then id; unknown ids last."""
        if isinstance(which, Filter):
            found: list[tuple[int, Job | None]] = [
                (job.id, job)
                for job in self._jobs.all()
                if _matches(job, which) and queue in (None, job.queue)
            ]
        else:
            named = ((job_id, self._jobs.get(job_id)) for job_id in dict.fromkeys(which))
            found = [
                (job_id, job if job is not None and queue in (None, job.queue) else None)
                for job_id, job in named
            ]
        return sorted(
            found, key=lambda entry: (entry[1] is None, -entry[1].priority if entry[1] else 0, entry[0])
        )

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        """Copies of the records."""
        with self._wakes, self._lock, self._mends:
            return [copy.copy(self._jobs.get(job_id)) for job_id in ids]

    def scan(self, which: Filter, *, after: int = 0, limit: int = 100) -> list[Job]:
        """Matching jobs with id > `after`, by id."""
        found: list[Job] = []
        with self._wakes, self._lock, self._mends:
            for job in self._jobs.after(after, self._last_id):
                if len(found) == limit:
                    break
                if _matches(job, which):
                    found.append(copy.copy(job))
        return found

    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        """One snapshot of states and totals."""
        with self._wakes, self._lock, self._mends:
            return {queue: self._read(queue).counts() for queue in queues}

    def queues(self) -> dict[str, Settings]:
        """All queues and their settings."""
        with self._wakes, self._lock, self._mends:
            return {name: shelf.settings for name, shelf in self._shelves.items()}

    def declare(self, queue: str, settings: Settings) -> Settings:
        """Make the queue unless it is there."""
        with self._wakes, self._lock, self._mends:
            if queue not in self._shelves:
                self._shelf(queue).settings = settings
            return self._shelves[queue].settings

    def configure(self, queue: str, change: Change) -> Settings:
        """Change a queue's settings."""
        with self._wakes, self._lock, self._mends:
            shelf = self._shelf(queue)
            shelf.settings = change.apply(shelf.settings)
            # Whoever waits looks again: there may be room, work, or nothing left to wait for.
            for until in Until:
                shelf.ring(until, shelf.open + 1)
            return shelf.settings

    def fire(self, schedule: str, tick_at: float, queue: str, draft: Draft) -> Fired | Full | Duplicate:
        """Insert the job and move the schedule's last tick, in one step."""
        with self._wakes, self._lock, self._mends:
            last_at = self._last_ticks.get(schedule)
            if last_at is not None and last_at >= tick_at:
                return Fired.LOST
            answer = self._add(self._shelf(queue), [draft], self._clock.calendar())
            if isinstance(answer, Full):
                return answer
            self._last_ticks[schedule] = tick_at
        return answer[0] if isinstance(answer[0], Duplicate) else Fired.FIRED

    def schedules(self) -> dict[str, float]:
        """Each schedule's last tick."""
        with self._wakes, self._lock, self._mends:
            return dict(self._last_ticks)

    def beat(self, worker: str, info: Mapping[str, str]) -> None:
        """Say that a worker is there."""
        with self._wakes, self._lock, self._mends:
            self._workers[worker] = WorkerInfo(worker, dict(info), self._clock.calendar())

    def depart(self, worker: str) -> None:
        """Say that a worker has gone for good."""
        with self._wakes, self._lock, self._mends:
            self._workers.pop(worker, None)

    def workers(self) -> list[WorkerInfo]:
        """The workers that are there, by name."""
        with self._wakes, self._lock, self._mends:
            return sorted(self._workers.values(), key=lambda info: info.worker)

    def prune(self, *, limit: int = 1000) -> Mapping[State, int]:
        """End what has expired, forget what retention does not keep."""
        pruned: dict[State, int] = {}
        with self._wakes, self._lock, self._mends:
            now_at = self._clock.calendar()
            for shelf in self._shelves.values():
                for state, gone in shelf.prune(now_at, limit).items():
                    pruned[state] = pruned.get(state, 0) + gone
                    limit -= gone
        return pruned

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        with self._wakes, self._lock, self._mends:
            return self._shelf(queue).lines[until]

    def _mend(self) -> None:
        """Make every queue agree with its jobs again, after an exception struck in the midst of a change."""
        for shelf in self._shelves.values():
            shelf.rebuild([job for job in self._jobs.all() if job.queue == shelf.name])

    def _read(self, queue: str) -> Shelf:
        """The queue, or an empty one in its place: looking at a queue does not make it."""
        return self._shelves.get(queue) or self._new_shelf(queue)

    def _new_shelf(self, queue: str) -> Shelf:
        return Shelf(queue, self._jobs, MEMORY_RETENTION, self._touched)

    def _shelf(self, queue: str) -> Shelf:
        shelf = self._shelves.get(queue)
        if shelf is None:
            shelf = self._shelves[queue] = self._new_shelf(queue)
        return shelf

    def _lease_of(self, job: Job, shelf: Shelf) -> Lease:
        return Lease(
            store=self.uid,
            epoch=self.epoch,
            queue=job.queue,
            id=job.id,
            delivery=job.delivery,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            crashes=job.crashes,
            priority=job.priority,
            body=job.payload,
            codec=job.codec,
            worker=job.worker,
            lease_s=job.lease_s,
            lease_end=job.lease_end,
            created_at=job.created_at,
            task=job.task,
            headers=job.headers,
            backoff=job.backoff or shelf.settings.backoff,
        )


def _known(shelf: Shelf, draft: Draft, same_key: Mapping[tuple[str, str], int]) -> int | None:
    """The id that already stands for one of the draft's keys, stored or earlier in the same call."""
    key = draft.idempotency_key
    if key is not None:
        if key in shelf.idempotent:
            return shelf.idempotent[key][1]
        if ("idempotency", key) in same_key:
            return same_key["idempotency", key]
    key = draft.unique_key
    if key is not None:
        return shelf.unique.get(key, same_key.get(("unique", key)))
    return None


def _job_of(job_id: int, queue: str, draft: Draft, now_at: float) -> Job:
    run_at = now_at + draft.delay_s if draft.run_at is None else draft.run_at
    return Job(
        id=job_id,
        queue=queue,
        payload=draft.payload,
        codec=draft.codec,
        priority=draft.priority,
        max_attempts=draft.max_attempts,
        created_at=now_at,
        run_at=run_at,
        task=draft.task,
        # Leases and records share it, so nobody may change it.
        headers=None if draft.headers is None else MappingProxyType(dict(draft.headers)),
        unique_key=draft.unique_key,
        idempotency_key=draft.idempotency_key,
        expires_at=now_at + draft.expires_s if draft.expires_s is not None else draft.expires_at,
        backoff=draft.backoff,
        state=State.SCHEDULED if run_at > now_at else State.READY,
    )


def _matches(job: Job, which: Filter) -> bool:
    return (
        which.queue in (None, job.queue)
        and which.admits(job.state)
        and which.task in (None, job.task)
        and which.worker in (None, job.worker)
    )
