"""The store that lives inside one process: every promise but durability, behind one gate."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from ulak.clock import SYSTEM, Clock
from ulak.core import rules
from ulak.core.history import Grain, Moment, Took
from ulak.core.job import (
    ENDED,
    FULL,
    Cause,
    Counts,
    Done,
    Draft,
    Duplicate,
    Full,
    Grant,
    Job,
    Lease,
    Outcome,
    Spec,
    State,
    Verdict,
)
from ulak.core.store import (
    HELD_SORTED_MAX,
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
from ulak.errors import ArgumentError, UlakError
from ulak.storage.acts import act_on
from ulak.storage.ends import Ends
from ulak.storage.gate import Gate, wait_outside
from ulak.storage.line import WaitLine
from ulak.storage.mend import rebuild, salvage
from ulak.storage.past import Past
from ulak.storage.row import More, Registry, Row
from ulak.storage.shelf import Shelf

EXPIRE_MAX = 100
"""How many expired jobs an enqueue ends beyond those whose room it needs."""

_log = logging.getLogger("ulak")

P = ParamSpec("P")
R = TypeVar("R")


def exclusive(
    operation: Callable[Concatenate[MemoryStore, P], R],
) -> Callable[Concatenate[MemoryStore, P], R]:
    """Run an operation alone in its store, then wake the waiters of what has changed.

    An exception that is not ulak's own, such as Ctrl-C, may have struck in the midst of a change: then all
    orders are made anew.
    """

    def run(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        gate, tries = self.gate, 0
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                wait_outside(tries)
                tries += 1
        try:
            self.mend_rest()
            return operation(self, *args, **kwargs)
        except UlakError:
            raise
        except BaseException:
            self.mend()
            raise
        finally:
            gate.open = None
            if self.touched:
                self.wake()

    functools.update_wrapper(run, operation)
    return run


class MemoryStore:
    """Jobs in this process's memory. See `ulak.core.store.Store` for what each operation promises."""

    capabilities = Capabilities(durable=False, immediate=True, processes=False, transactions=False)

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.gate = Gate()
        self.touched: set[Shelf] = set()
        self.awaited = Ends()
        self.jobs = Registry()
        self._shelves: dict[str, Shelf] = {}
        self._last_ticks: dict[str, float] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._past = Past()
        self._salvaged: dict[int, Lease] | None = None
        self.uid = f"memory-{os.urandom(8).hex()}"
        self.epoch = int(clock.calendar() * 1_000_000)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to let go of; the jobs go with the object."""

    def migrate(self) -> None:
        """Nothing to migrate."""

    @exclusive
    def add(
        self,
        queue: str,
        drafts: Sequence[Draft],
        *,
        known_only: bool = False,
        connection: object | None = None,
    ) -> list[int] | Full:
        """Store jobs, all or none."""
        _refuse_connection(connection)
        return self._add(self._shelf(queue), drafts, self.clock.calendar(), known_only=known_only)

    def _add(
        self, shelf: Shelf, drafts: Sequence[Draft], now_at: float, *, known_only: bool = False
    ) -> list[int] | Full:
        shelf.forget_keys(now_at)
        shelf.expire(now_at, limit=max(EXPIRE_MAX, len(drafts)))
        answers, new = rules.number(drafts, self.jobs.last_id, functools.partial(_stored, shelf))
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
        for draft, answer in zip(drafts, answers, strict=True):
            if not isinstance(answer, Duplicate):
                self.jobs.last_id = answer
                row = self.jobs.rows[answer] = _row_of(answer, shelf.spec_of(draft), draft, now_at)
                shelf.put(row)
            if draft.idempotency_key is not None and draft.idempotency_key not in shelf.idempotent:
                shelf.remember_key(draft.idempotency_key, answer, now_at)
        return answers

    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> list[Lease]:
        """Lease up to `limit` due jobs, in order."""
        return self.turn((), queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)[1]

    def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> list[Settled]:
        """Apply verdicts, one answer per settlement."""
        _refuse_connection(connection)
        return self.turn(settlements, (), 0, worker="", lease_s=0.0)[0]

    @exclusive
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
        now_at = self.clock.calendar()
        settled = [self._settle(lease, verdict, now_at) for lease, verdict in settlements]
        grant = Grant(self.uid, self.epoch, worker, lease_s)
        for queue in queues:
            shelf = self._read(queue)
            if len(leases) < limit and not shelf.settings.paused:
                self._claim(shelf, limit, leases, grant, tasks=tasks, now_at=now_at)
        self.jobs.shrink()
        return settled, leases

    def _claim(
        self,
        shelf: Shelf,
        limit: int,
        leases: list[Lease],
        grant: Grant,
        *,
        tasks: Tasks | None,
        now_at: float,
    ) -> None:
        shelf.expire(now_at)
        shelf.promote(now_at)
        now = self.clock.interval()
        lease_end = now + grant.lease_s
        while len(leases) < limit and (row := shelf.next_row(tasks)) is not None:
            attempt = row.attempt + 1
            assert attempt <= row.spec.max_attempts
            lease = Lease(
                grant,
                row,
                row.delivery + 1,
                attempt,
                lease_end,
                now_at,
                row.crashes,
                row.spec.backoff or shelf.backoff,
            )
            shelf.take(row, lease)
            leases.append(lease)
        shelf.spare_rings()
        shelf.set_alarm(now)

    def _current(self, lease: Lease) -> Row | None:
        """The row, if this lease on it is current."""
        row = self.jobs.rows.get(lease.id)
        if row is None or row.state is not State.LEASED or row.delivery != lease.delivery:
            return None
        return row

    def _settle(self, lease: Lease, verdict: Verdict, now_at: float) -> Settled:
        row = self._current(lease)
        if row is None:
            return Outcome.STALE
        shelf = self._shelves[row.spec.queue]
        if verdict.cause is Cause.LOST and shelf.lease_of(row).lease_end != lease.lease_end:
            return Outcome.STALE
        landing = rules.land(row, verdict, now_at=now_at)
        more = row.detail()
        entry = msgspec.structs.replace(row.ended(verdict.cause, now_at), error=rules.error_of(verdict))
        more.history = rules.remember(more.history, entry)
        more.uncounted = row.delivery - landing.attempt
        more.crashes, more.run_at = landing.crashes, landing.run_at
        if isinstance(verdict, Done):
            more.result = verdict.result
        if landing.state in ENDED:
            row.ended_at = now_at
        # Counted last: what an interrupt leaves out looks like a success, but no total can become negative.
        shelf.move(row, landing.state)
        shelf.count(*landing.totals)
        return landing.state

    @exclusive
    def promote(self, queues: Sequence[str]) -> int:
        """Make due jobs ready; how many."""
        now, now_at = self.clock.interval(), self.clock.calendar()
        promoted = 0
        for shelf in map(self._read, queues):
            if not shelf.settings.paused and (due := shelf.promote(now_at)):
                promoted += due
                # So that the short way may go on.
                shelf.set_alarm(now)
        return promoted

    @exclusive
    def extend(
        self, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
    ) -> list[bool | Outcome]:
        """Move lease ends to now + `lease_s`, never to earlier."""
        answers: list[bool | Outcome] = []
        lease_end = self.clock.interval() + lease_s
        for lease in leases:
            row = self._current(lease)
            if row is None:
                answers.append(Outcome.STALE)
                continue
            shelf = self._shelves[row.spec.queue]
            current = shelf.lease_of(row)
            if lease_end > current.lease_end:
                grant = current.grant
                if grant.lease_s != lease_s:
                    grant = msgspec.structs.replace(grant, lease_s=lease_s)
                shelf.renew(row, msgspec.structs.replace(current, grant=grant, lease_end=lease_end))
            if progress is not None and row.id in progress:
                row.detail().progress = progress[row.id]
            answers.append(row.cancel_requested)
        return answers

    @exclusive
    def ended(self, queues: Sequence[str], limit: int) -> list[Lease]:
        """Leases past their end."""
        found: list[Lease] = []
        now = self.clock.interval()
        for queue in queues:
            for lease in self._read(queue).past(now):
                if len(found) == limit:
                    return found
                found.append(lease)
        return found

    @exclusive
    def leased(
        self, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Lease]:
        """The current leases of a queue, by id."""
        leases = self._read(queue).all_leases()
        return [x for x in leases if x.id > after and worker in (None, x.worker)][:limit]

    @exclusive
    def horizon(self, queues: Sequence[str]) -> float | None:
        """Seconds until time alone makes a job claimable."""
        now, now_at = self.clock.interval(), self.clock.calendar()
        horizons = [self._read(queue).horizon_s(now=now, now_at=now_at) for queue in queues]
        return min((horizon for horizon in horizons if horizon is not None), default=None)

    @exclusive
    def amend(
        self,
        which: Sequence[int] | Filter,
        act: Act,
        *,
        queue: str | None = None,
        states: frozenset[State] | None = None,
        force: bool = False,
    ) -> Changed:
        """An operator's act on each of these jobs."""
        done: list[int] = []
        refused: dict[Refusal, list[int]] = {}
        now_at = self.clock.calendar()
        for job_id, row in self._chosen(which, queue):
            refusal: Refusal | None = Refusal.NOT_FOUND
            if row is not None and (row.state is None or (states is not None and row.state not in states)):
                # Without a state: it had ended, and an act on another job has let retention forget it.
                refusal = Refusal.STATE
            elif row is not None:
                refusal = act_on(self._shelves[row.spec.queue], row, act, now_at=now_at, force=force)
            if refusal is None:
                done.append(job_id)
            else:
                refused.setdefault(refusal, []).append(job_id)
        return Changed(tuple(done), {reason: tuple(ids) for reason, ids in refused.items()})

    def _chosen(self, which: Sequence[int] | Filter, queue: str | None) -> list[tuple[int, Row | None]]:
        """The rows of an operator's act, in order of priority, then id; unknown ids last."""
        rows = self.jobs.rows
        asked: Iterable[tuple[int, Row | None]]
        if isinstance(which, Filter):
            asked = [
                (job_id, row)
                for job_id, row in rows.items()
                if _matches(row, which) and queue in (None, row.spec.queue)
            ]
        else:
            asked = ((job_id, rows.get(job_id)) for job_id in dict.fromkeys(which))
        ours = [
            (job_id, row if row is not None and queue in (None, row.spec.queue) else None)
            for job_id, row in asked
        ]
        return sorted(
            ours, key=lambda entry: (entry[1] is None, -entry[1].priority if entry[1] else 0, entry[0])
        )

    def _record(self, row: Row) -> Job:
        lease_end = 0.0
        if row.state is State.LEASED:
            lease_end = self._shelves[row.spec.queue].lease_of(row).lease_end
        return row.record(lease_end)

    @exclusive
    def get(self, ids: Sequence[int]) -> list[Job | None]:
        """Copies of the records."""
        rows = [self.jobs.rows.get(job_id) for job_id in ids]
        return [None if row is None else self._record(row) for row in rows]

    @exclusive
    def scan(self, which: Filter, *, after: int = 0, limit: int = 100) -> list[Job]:
        """Matching jobs with id > `after`, by id."""
        found: list[Job] = []
        for row in self._rows_for(which, after):
            if len(found) == limit:
                break
            if _matches(row, which):
                found.append(self._record(row))
        return found

    def _rows_for(self, which: Filter, after: int) -> Iterable[Row]:
        """All rows that may match, and have a higher id, by id."""
        if which.asks_for_held:
            shelf = self._read(str(which.queue))
            if (shelf.refused if which.refused else shelf.held) <= HELD_SORTED_MAX:
                return (row for row in shelf.held_rows(refused=which.refused) if row.id > after)
        return self.jobs.after(after)

    @exclusive
    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        """One snapshot of states and totals."""
        return {queue: self._read(queue).counts() for queue in queues}

    @exclusive
    def queues(self) -> dict[str, Settings]:
        """All queues and their settings."""
        return {name: shelf.settings for name, shelf in self._shelves.items()}

    @exclusive
    def declare(self, queue: str, settings: Settings) -> Settings:
        """Make the queue unless it is there."""
        if queue not in self._shelves:
            self._shelf(queue).settings = settings
        return self._shelves[queue].settings

    @exclusive
    def configure(self, queue: str, change: Change) -> Settings:
        """Change a queue's settings."""
        shelf = self._shelf(queue)
        shelf.settings = change.apply(shelf.settings)
        # Whoever waits looks again: there may be room, work, or nothing left to wait for.
        for until in Until:
            shelf.ring(until, shelf.open + 1)
        return shelf.settings

    @exclusive
    def fire(
        self, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
    ) -> int | Duplicate | Fired | Full:
        """Insert the job, if there is one, and move the schedule's last tick, in one step."""
        last_at = self._last_ticks.get(schedule)
        if last_at is not None and last_at >= tick_at:
            return Fired.LOST
        answer = [] if draft is None else self._add(self._shelf(queue), [draft], self.clock.calendar())
        if isinstance(answer, Full):
            return answer
        self._last_ticks[schedule] = tick_at
        return next(iter(answer), Fired.FIRED)

    @exclusive
    def schedules(self) -> dict[str, float]:
        """Each schedule's last tick."""
        return dict(self._last_ticks)

    @exclusive
    def beat(self, worker: str, info: Mapping[str, str]) -> None:
        """Say that a worker is there."""
        self._workers[worker] = WorkerInfo(worker, dict(info), self.clock.calendar())

    @exclusive
    def depart(self, worker: str) -> None:
        """Say that a worker has gone for good."""
        self._workers.pop(worker, None)

    @exclusive
    def workers(self) -> list[WorkerInfo]:
        """The workers that are there, by name."""
        return sorted(self._workers.values(), key=lambda info: info.worker)

    @exclusive
    def prune(self, *, limit: int = 1000) -> Mapping[State, int]:
        """End what has expired, forget what retention does not keep."""
        pruned: dict[State, int] = {}
        now_at = self.clock.calendar()
        for shelf in self._shelves.values():
            for state, gone in shelf.prune(now_at, limit).items():
                pruned[state] = pruned.get(state, 0) + gone
                limit -= gone
        self.jobs.shrink()
        return pruned

    @exclusive
    def record(self, took: Mapping[str, Took]) -> None:
        """Note how queues' counts stand, and how long jobs took."""
        counts = {queue: self._shelves[queue].counts() for queue in took if queue in self._shelves}
        self._past.record(counts, took, self.clock.calendar())

    @exclusive
    def history(self, queues: Sequence[str], since_at: float, *, grain: Grain) -> dict[str, list[Moment]]:
        """What was noted since then."""
        return {queue: self._past.since(queue, since_at, grain) for queue in queues}

    @exclusive
    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        return self._shelf(queue).lines[until]

    @exclusive
    def number_after(self, last_id: int) -> None:
        """Give no job an id up to this one."""
        self.jobs.last_id = max(self.jobs.last_id, last_id)

    def ends(self, job_id: int) -> Line:
        """Where waiters of this process stand for the end of one job."""
        return self.awaited.line(job_id)

    @exclusive
    def shelf(self, queue: str) -> Shelf:
        """One queue, for the short way."""
        return self._shelf(queue)

    def mend(self) -> None:
        """Make every queue agree with its jobs again, after an exception struck in the midst of a change.

        Struck again meanwhile, it begins anew, or at the latest the next operation does.
        """
        while True:
            try:
                self._salvaged = self._salvaged or salvage(self._shelves.values())
                rows: dict[str, list[Row]] = {name: [] for name in self._shelves}
                for row in self.jobs.rows.values():
                    rows[row.spec.queue].append(row)
                for name, shelf in self._shelves.items():
                    rebuild(shelf, rows[name], self._salvaged)
                # Which ends nobody was told of is not known any more.
                self.awaited.wake_all()
                self._salvaged = None
            except BaseException:  # noqa: BLE001 - the exception that led here is on its way already
                _log.warning("interrupted while mending after an interrupt; mending again")
            else:
                return

    def mend_rest(self) -> None:
        """Mend what an interrupted mending has left."""
        if self._salvaged is not None:
            self.mend()

    @exclusive
    def _changes(self) -> tuple[list[tuple[WaitLine, int]], list[int], list[tuple[str, int]]]:
        rings = [ring for shelf in self.touched for ring in shelf.take_rings()]
        ended = [job_id for shelf in self.touched for job_id in shelf.take_ended_ids()]
        forgotten = [(shelf.name, shelf.take_dead_pruned()) for shelf in self.touched]
        self.touched.clear()
        return rings, ended, forgotten

    @exclusive
    def wake_for(self, shelf: Shelf) -> None:
        """Wake the waiters of what has changed, but no more than there is something for."""
        shelf.spare_rings()

    def wake(self) -> None:
        """Wake the waiters of what has changed, outside the gate."""
        rings, ended, forgotten = self._changes()
        for line, wakeups in rings:
            line.ring(wakeups)
        self.awaited.ring(ended)
        for queue, dead in forgotten:
            if dead:
                _log.info("queue %s: %d dead jobs removed by retention", queue, dead)

    def _read(self, queue: str) -> Shelf:
        """The queue, or an empty one in its place: looking at a queue does not make it."""
        return self._shelves.get(queue) or self._new_shelf(queue)

    def _new_shelf(self, queue: str) -> Shelf:
        return Shelf(queue, self.jobs, MEMORY_RETENTION, self.touched, self.awaited)

    def _shelf(self, queue: str) -> Shelf:
        shelf = self._shelves.get(queue)
        if shelf is None:
            shelf = self._shelves[queue] = self._new_shelf(queue)
        return shelf


def _refuse_connection(connection: object | None) -> None:
    if connection is not None:
        raise ArgumentError(
            "a memory:// store has no transaction that connection= could join\n"
            "  keep the jobs in the database of that transaction: sqlite:///path"
        )


def _stored(shelf: Shelf, kind: str, key: str) -> int | None:
    """The id that already stands for a key."""
    if kind == "unique":
        return shelf.unique.get(key)
    return shelf.idempotent[key][1] if key in shelf.idempotent else None


def _row_of(job_id: int, spec: Spec, draft: Draft, now_at: float) -> Row:
    row = Row(job_id, spec, draft.payload, draft.priority, now_at)
    run_at = now_at + draft.delay_s if draft.run_at is None else draft.run_at
    expires_at = now_at + draft.expires_s if draft.expires_s is not None else draft.expires_at
    if run_at != now_at or expires_at is not None or draft.unique_key is not None:
        row.more = More(run_at, expires_at)
        row.state = State.SCHEDULED if run_at > now_at else State.READY
    return row


def _matches(row: Row, which: Filter) -> bool:
    return (
        which.queue in (None, row.spec.queue)
        and row.state is not None
        and which.admits(row.state)
        and not (which.refused and not (row.state is State.HELD and row.is_refused))
        and which.task in (None, row.spec.task)
        and which.worker in (None, row.worker)
    )
