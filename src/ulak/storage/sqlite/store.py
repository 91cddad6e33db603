"""The store in one SQLite file: durable, for every process of one machine, with no server."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ulak.core import rules
from ulak.core.history import Grain, Moment, Took
from ulak.core.job import Counts, Draft, Duplicate, Full, Grant, Job, Lease, Outcome, State
from ulak.core.store import (
    Act,
    Capabilities,
    Change,
    Changed,
    Filter,
    Fired,
    Line,
    Settings,
    Settled,
    Settlement,
    Tasks,
    Until,
    WorkerInfo,
)
from ulak.storage.group import LoopAsked, Merge, Step
from ulak.storage.sqlite import book, change, due, looks, past, together
from ulak.storage.sqlite.engine import Engine, always, reads, writes
from ulak.storage.sqlite.joined import run_joined
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.link import connect, explained, with_patience
from ulak.storage.sqlite.others import LOOK_S
from ulak.storage.sqlite.watch import WatchedLine
from ulak.storage.stored import Leases

POLL_S = 1.0

R = TypeVar("R")


def _given_back(leases: Sequence[Lease]) -> Step | None:
    """Hand back what was claimed for a caller that is gone."""
    if not leases:
        return None
    settlements = [(lease, rules.give_back()) for lease in leases]
    return lambda ledger: book.settle(ledger, settlements)


def _taken_back(answer: list[int] | Full) -> Step | None:
    """Take back what was stored for a caller that is gone."""
    ids = [] if isinstance(answer, Full) else [x for x in answer if not isinstance(x, Duplicate)]
    return (lambda ledger: book.unadd(ledger, ids)) if ids else None


def _settles_nothing(settlements: Sequence[Settlement], *_: Any, **__: Any) -> bool:  # noqa: ANN401 - as `_turn`
    return not settlements


def _adds(_: SqliteStore, queue: str, drafts: Sequence[Draft], *, known_only: bool = False) -> Merge | None:
    if known_only:
        return None
    return Merge(("add", queue), drafts, lambda ledger, calls: together.add_together(ledger, queue, calls))


def _settles(_: SqliteStore, settlements: Sequence[Settlement]) -> Merge:
    return Merge("settle", settlements, together.settle_together)


def _turns(
    self: SqliteStore,
    settlements: Sequence[Settlement],
    queues: Sequence[str],
    limit: int,
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
) -> Merge:
    def at_once(ledger: Ledger, calls: list[Any]) -> list[tuple[list[Settled], list[Lease]]]:
        grant = self.grant_in(ledger, worker, lease_s)
        return together.turn_together(ledger, calls, queues, grant, tasks)

    return Merge(("turn", *queues, worker, lease_s, tasks), (settlements, limit), at_once)


class SqliteStore(Engine):
    """Jobs in one file. See `ulak.core.store.Store` for what each operation promises."""

    capabilities = Capabilities(
        durable=True, immediate=False, processes=True, transactions=True, poll_s=POLL_S
    )

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as the operation
        """An operation for an event loop, which it never blocks."""
        if name in ("line", "ends") or kwargs.get("connection") is not None:
            # Never blocks; or the connection belongs to the loop's thread.
            return getattr(self, name)(*args, **kwargs)
        kwargs.pop("connection", None)
        operation: Any = getattr(type(self), _STEPS.get(name, name))
        if not hasattr(operation, "ask"):
            return await self.in_reader(functools.partial(getattr(self, name), *args, **kwargs))
        if name in _CLAIMS:
            queues = args[0] if name == "claim" else args[1]
            only_claims, tasks = name == "claim" or not args[0], kwargs.get("tasks")
            if only_claims and not await self.in_reader(lambda: self._has_work(queues, tasks)):
                return [] if name == "claim" else ([], [])
            if self.others.own is None:
                await self.in_reader(self.others.join)
        return await self.group.acall(operation.ask(self, LoopAsked, args, kwargs), undo=operation.undo)

    # Operations

    def add(
        self,
        queue: str,
        drafts: Sequence[Draft],
        *,
        known_only: bool = False,
        connection: object | None = None,
    ) -> list[int] | Full:
        """Store jobs, all or none."""
        if connection is None:
            return self._add(queue, drafts, known_only=known_only)
        return self._joined(connection, lambda ledger: book.add(ledger, queue, drafts))

    @writes(merge=_adds, undo=_taken_back)
    def _add(
        self, ledger: Ledger, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
    ) -> list[int] | Full:
        return book.add(ledger, queue, drafts, known_only=known_only)

    def _joined(self, connection: object, step: Callable[[Ledger], R]) -> R:
        link = self.link

        def counted(ledger: Ledger) -> R:
            ledger.find_room = self.find_room
            answer = step(ledger)
            if link.fill(ledger.rows_changed):
                # Later and in another thread: while this transaction is open, nothing can be written back.
                self.in_background(link.checkpoint)
            return answer

        return run_joined(connection, link.path, self.clock, counted)

    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> list[Lease]:
        """Lease up to `limit` due jobs, in order."""
        if not self._has_work(queues, tasks):
            return []
        self.others.join()
        return self._claim(queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)

    @writes(soft=always, undo=_given_back)
    def _claim(
        self,
        ledger: Ledger,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None = None,
    ) -> list[Lease]:
        grant = self.grant_in(ledger, worker, lease_s)
        return together.turn_together(ledger, [((), limit)], queues, grant, tasks)[0][1]

    def grant_in(self, ledger: Ledger, worker: str, lease_s: float) -> Grant:
        """What leases that are taken in this transaction share, by this process's number in it."""
        if ledger.holder is None:
            ledger.holder = self.others.number_in(ledger)
        return Grant(self.uid, self.epoch, worker, lease_s)

    def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> list[Settled]:
        """Apply verdicts, one answer per settlement."""
        if connection is None:
            return self._settle(settlements)
        return self._joined(connection, lambda ledger: book.settle(ledger, settlements))

    @reads
    def _has_work(self, db: sqlite3.Connection, queues: Sequence[str], tasks: Tasks | None) -> bool:
        """Whether a claim could find anything: who only waits must not take the file from who writes."""
        now_at = self.clock.calendar()
        rows = [row for row in (looks.queue_row(db, queue) for queue in queues) if row is not None]
        return any(not row.paused and looks.has_work(db, row, now_at, tasks) for row in rows)

    @writes(merge=_settles)
    def _settle(self, ledger: Ledger, settlements: Sequence[Settlement]) -> list[Settled]:
        return book.settle(ledger, settlements)

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
        if not settlements and not self._has_work(queues, tasks):
            return [], []
        self.others.join()
        return self._turn(settlements, queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)

    @writes(soft=_settles_nothing, merge=_turns, undo=lambda answer: _given_back(answer[1]))
    def _turn(
        self,
        ledger: Ledger,
        settlements: Sequence[Settlement],
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None = None,
    ) -> tuple[list[Settled], list[Lease]]:
        grant = self.grant_in(ledger, worker, lease_s)
        return together.turn_together(ledger, [(settlements, limit)], queues, grant, tasks)[0]

    @writes(soft=always)
    def promote(self, ledger: Ledger, queues: Sequence[str]) -> int:
        """Make due jobs ready; how many."""
        rows = [row for row in map(ledger.known, queues) if row is not None and not row.paused]
        return sum(due.promote(ledger, row) for row in rows)

    @writes(soft=always)
    def extend(
        self,
        ledger: Ledger,
        leases: Sequence[Lease],
        lease_s: float,
        *,
        progress: Mapping[int, str] | None = None,
    ) -> list[bool | Outcome]:
        """Move lease ends to now + `lease_s`, never to earlier."""
        return book.extend(ledger, leases, lease_s, progress)

    def ended(self, queues: Sequence[str], limit: int) -> list[Lease]:
        """Leases past their end, or whose process is gone."""
        gone = self.others.ends_of_gone()
        return self._ended(queues, limit, gone)

    @reads
    def _ended(
        self, db: sqlite3.Connection, queues: Sequence[str], limit: int, gone: Mapping[int, str]
    ) -> list[Lease]:
        found: list[Lease] = []
        now = self.clock.interval()
        make = Leases(self.uid, self.epoch)
        for queue in queues:
            row = looks.queue_row(db, queue)
            if row is None or len(found) >= limit:
                continue
            rows = looks.past(db, row, now, limit - len(found))
            if gone and len(rows) < limit - len(found):
                known = {job.id for job in rows}
                held = looks.held_by(db, row, gone, limit - len(found) - len(rows))
                rows += [job for job in held if job.id not in known]
            found += make.of(row, rows, gone)
        return found

    @reads
    def leased(
        self,
        db: sqlite3.Connection,
        queue: str,
        *,
        worker: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[Lease]:
        """The current leases of a queue, by id; of one worker of this process, if given."""
        row = looks.queue_row(db, queue)
        if row is None:
            return []
        rows = looks.leased(db, row, None if worker is None else (worker, self.others.own), after, limit)
        return Leases(self.uid, self.epoch).of(row, rows, ())

    def horizon(self, queues: Sequence[str]) -> float | None:
        """Seconds until time alone makes a job claimable."""
        horizon_s = self._horizon(queues)
        if self.others.any:
            return LOOK_S if horizon_s is None else min(horizon_s, LOOK_S)
        return horizon_s

    @reads
    def _horizon(self, db: sqlite3.Connection, queues: Sequence[str]) -> float | None:
        now, now_at = self.clock.interval(), self.clock.calendar()
        rows = [row for row in (looks.queue_row(db, queue) for queue in queues) if row is not None]
        horizons = [looks.horizon_s(db, row, now, now_at) for row in rows]
        return min((horizon for horizon in horizons if horizon is not None), default=None)

    @writes()
    def amend(
        self,
        ledger: Ledger,
        which: Sequence[int] | Filter,
        act: Act,
        *,
        queue: str | None = None,
        states: frozenset[State] | None = None,
        force: bool = False,
    ) -> Changed:
        """An operator's act on each of these jobs."""
        return change.amend(ledger, which, act, queue=queue, states=states, force=force)

    @reads
    def get(self, db: sqlite3.Connection, ids: Sequence[int]) -> list[Job | None]:
        """Copies of the records."""
        return looks.get(db, ids)

    @reads
    def scan(self, db: sqlite3.Connection, which: Filter, *, after: int = 0, limit: int = 100) -> list[Job]:
        """Matching jobs with id > `after`, by id."""
        return looks.scan(db, which, after, limit)

    @reads
    def counts(self, db: sqlite3.Connection, queues: Sequence[str]) -> dict[str, Counts]:
        """One snapshot of states and totals."""
        return looks.counts(db, queues)

    @reads
    def queues(self, db: sqlite3.Connection) -> dict[str, Settings]:
        """All queues and their settings."""
        return looks.settings(db)

    def declare(self, queue: str, settings: Settings) -> Settings:
        """Make the queue unless it is there."""
        # Who opens a handle on a queue that is there need not wait for a writer.
        return self.queues().get(queue) or self._declare(queue, settings)

    @writes()
    def _declare(self, ledger: Ledger, queue: str, settings: Settings) -> Settings:
        return ledger.queue(queue, settings).settings

    @writes()
    def configure(self, ledger: Ledger, queue: str, change: Change) -> Settings:
        """Change a queue's settings."""
        row = ledger.queue(queue)
        ledger.configured(row, change.apply(row.settings))
        # Whoever waits looks again: there may be room, work, or nothing left to wait for.
        for until in Until:
            ledger.rings[until, queue] += max(0, row.open) + 1
        return row.settings

    @writes()
    def fire(
        self, ledger: Ledger, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
    ) -> int | Duplicate | Fired | Full:
        """Insert the job, if there is one, and move the schedule's last tick, in one step."""
        return book.fire(ledger, schedule, tick_at, queue, draft)

    @reads
    def schedules(self, db: sqlite3.Connection) -> dict[str, float]:
        """Each schedule's last tick."""
        return looks.schedules(db)

    @writes(soft=always)
    def beat(self, ledger: Ledger, worker: str, info: Mapping[str, str]) -> None:
        """Say that a worker is there."""
        text = msgspec.json.encode(dict(info)).decode()
        ledger.db.execute(
            "INSERT OR REPLACE INTO workers (name, info, seen_at, holder) VALUES (?, ?, ?, ?)",
            (worker, text, ledger.now_at, self.others.own),
        )

    @writes(soft=always)
    def depart(self, ledger: Ledger, worker: str) -> None:
        """Say that a worker has gone for good."""
        ledger.db.execute("DELETE FROM workers WHERE name = ?", (worker,))

    @reads
    def workers(self, db: sqlite3.Connection) -> list[WorkerInfo]:
        """The workers that are there, by name."""
        return looks.workers(db)

    def prune(self, *, limit: int = 1000) -> Mapping[State, int]:
        """End what has expired, forget what retention does not keep, and processes that are gone."""
        self.others.forget_gone()
        return self._prune(list(self.queues()), limit)

    @writes(soft=always)
    def _prune(self, ledger: Ledger, names: Sequence[str], limit: int) -> dict[State, int]:
        return change.prune(ledger, names, limit)

    @writes(soft=always)
    def record(self, ledger: Ledger, took: Mapping[str, Took]) -> None:
        """Note how queues' counts stand, and how long jobs took."""
        past.record(ledger, took)

    @reads
    def history(
        self, db: sqlite3.Connection, queues: Sequence[str], since_at: float, *, grain: Grain
    ) -> dict[str, list[Moment]]:
        """What was noted since then."""
        return past.since(db, queues, since_at, grain)

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        line = self._lines.get((until, queue))
        if line is None:
            line = self._lines.setdefault((until, queue), WatchedLine(until, self.begin_watch))
        return line

    def ends(self, job_id: int) -> Line:
        """Where waiters of this process stand for the end of one job."""
        return self._awaited.line(job_id)

    # Transactions of handlers, each on a connection of its own

    def open_transaction(self) -> sqlite3.Connection:
        """A connection to the file in a transaction that has begun. Raises StorageBusy if others write."""
        db = connect(self.link.path)
        db.text_factory = str
        try:
            with_patience(functools.partial(db.execute, "BEGIN IMMEDIATE"), self.link.path)
        except BaseException:
            db.close()
            raise
        return db

    def commit_transaction(self, db: sqlite3.Connection) -> None:
        """Commit what was begun so."""
        try:
            db.commit()
        except sqlite3.Error as error:
            raise explained(error, self.link.path) from error

    async def aopen_transaction(self) -> sqlite3.Connection:
        """As `open_transaction`, which may wait for others, and so in another thread."""
        return await self.in_reader(self.open_transaction)

    async def acommit_transaction(self, db: sqlite3.Connection) -> None:
        """As `commit_transaction`."""
        await self.in_reader(functools.partial(self.commit_transaction, db))


_STEPS = {"add": "_add", "claim": "_claim", "settle": "_settle", "turn": "_turn"}
_CLAIMS = frozenset({"claim", "turn"})
