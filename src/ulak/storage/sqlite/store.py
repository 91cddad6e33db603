"""The store in one SQLite file: durable, for every process of one machine, with no server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec

from ulak.clock import MACHINE, Clock, boot_id
from ulak.core import rules
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
from ulak.errors import Closed, UlakError
from ulak.storage.line import WaitLine
from ulak.storage.sqlite import book, change, forks, looks, schema
from ulak.storage.sqlite.group import Asked, Group, Step
from ulak.storage.sqlite.helper import Helper
from ulak.storage.sqlite.joined import run_joined
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.link import FORK_WAIT_S, Link, Options, connect, with_patience
from ulak.storage.sqlite.place import check_place, create_private
from ulak.storage.sqlite.presence import GONE_AFTER_S, Presence
from ulak.storage.sqlite.watch import WatchedLine, Watcher

LOOK_AT_OTHERS_S = 0.15
"""How often a process looks whether the others still live."""

POLL_S = 1.0

_log = logging.getLogger("ulak")

P = ParamSpec("P")
R = TypeVar("R")


def _never(*_: Any, **__: Any) -> bool:  # noqa: ANN401 - whatever an operation takes
    return False


def writes(
    soft: Callable[..., bool] = _never,
) -> Callable[[Callable[Concatenate[SqliteStore, Ledger, P], R]], Callable[Concatenate[SqliteStore, P], R]]:
    """An operation that changes the file: a step of a transaction, which others may share.

    soft: whether a call need not wait for the disk.
    """

    def decorate(
        operation: Callable[Concatenate[SqliteStore, Ledger, P], R],
    ) -> Callable[Concatenate[SqliteStore, P], R]:
        def run(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return self.group.call(
                lambda ledger: operation(self, ledger, *args, **kwargs), soft=soft(*args, **kwargs)
            )

        functools.update_wrapper(run, operation)
        run.step = operation  # type: ignore[attr-defined]
        run.soft = soft  # type: ignore[attr-defined]
        return run

    return decorate


def reads(
    operation: Callable[Concatenate[SqliteStore, sqlite3.Connection, P], R],
) -> Callable[Concatenate[SqliteStore, P], R]:
    """An operation that changes nothing."""

    def run(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.link.read(lambda db: operation(self, db, *args, **kwargs))

    functools.update_wrapper(run, operation)
    return run


_left_behind: list[Link] = []
"""Connections of a parent that a child must neither use nor close."""


class StepFailedError(Exception):
    """A step of a transaction raised; the transaction was rolled back."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class SqliteStore:
    """Jobs in one file. See `ulak.core.store.Store` for what each operation promises.

    path: the database file. Making the object touches nothing; `open` does.
    """

    capabilities = Capabilities(
        durable=True, immediate=False, processes=True, transactions=True, poll_s=POLL_S
    )

    def __init__(self, path: str, clock: Clock = MACHINE, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self.clock = clock
        self.options = options
        self.uid = ""
        self.epoch = 0
        self._asked_path = path
        self._link: Link | None = None
        self._lines: dict[tuple[Until, str], WaitLine] = {}
        self._others_at = 0.0
        self._others = False
        self._is_open = False
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        """What belongs to one process."""
        self._holder: int | None = None
        self._gone: dict[int, str] = {}
        self.group = Group(self._run_all)
        self._opening = threading.RLock()
        self._reader = Helper("ulak-read")

    @property
    def link(self) -> Link:
        """The open connections. Raises Closed if there are none."""
        if self._link is None:
            if not self._is_open:
                raise Closed("this store is closed")
            # In a forked child.
            self._connect()
        assert self._link is not None
        return self._link

    # Opening and closing

    def open(self) -> None:
        """Open the file, made if it is absent. Raises ConfigError, SchemaError, StorageUnavailable."""
        with self._opening:
            if self._is_open:
                return
            self._connect()
            self._is_open = True

    def _connect(self) -> None:
        with self._opening:
            if self._link is not None:
                return
            schema.check_library()
            path = Path(self._asked_path).absolute()
            path = check_place(path)
            create_private(path)
            # Before anything is written: the file may be somebody else's.
            with contextlib.closing(connect(str(path))) as db:
                with_patience(functools.partial(schema.version_of, db, str(path)), str(path))
            link = Link(str(path), self.options)
            try:
                # Who only looks must not have to wait for a writer.
                begun = link.read(functools.partial(self._begun, str(path)))
                if begun is None:
                    begun = link.transact(functools.partial(self._begin, str(path)), soft=False)
                    link.read_anew()
                self.uid, self.epoch = begun
            except BaseException:
                link.close()
                raise
            self._presence = Presence(path.with_name(f"{path.name}-workers"))
            self._watcher = Watcher(str(path), self._lines)
            self._link = link

    def _begun(self, path: str, db: sqlite3.Connection) -> tuple[str, int] | None:
        """The store's name and epoch; None if there is something to do first."""
        if schema.version_of(db, path) == 0:
            return None
        schema.check_current(db, path)
        uid, epoch, boot = db.execute("SELECT uid, epoch, boot FROM store").fetchone()
        return (uid, epoch) if boot == boot_id() else None

    def _begin(self, path: str, db: sqlite3.Connection) -> tuple[str, int]:
        """Make the schema in an empty file; after a reboot, end every lease that came before it."""
        if schema.version_of(db, path) == 0:
            schema.migrate(db, path, boot_id(), self.clock.calendar())
        schema.check_current(db, path)
        uid, epoch, boot = db.execute("SELECT uid, epoch, boot FROM store").fetchone()
        if boot != boot_id():
            # Whoever held a lease is gone with the machine's last run. A claim that was not synced then may
            # have been lost, and its delivery's number comes again: so tokens grow by the epoch.
            epoch += 1
            db.execute("UPDATE store SET epoch = ?, boot = ?", (epoch, boot_id()))
            db.execute("UPDATE jobs SET lease_end = 0, holder = NULL WHERE state = 2")
            db.execute("DELETE FROM holders")
            db.execute("DELETE FROM workers")
        return uid, epoch

    def close(self) -> None:
        """Let go of all handles; idempotent."""
        with self._opening:
            was_open, self._is_open = self._is_open, False
            if not was_open or self._link is None:
                return
            self._watcher.close()
            if self._holder is not None:
                self._leave()
            self.group.close()
            self._reader.close()
            self._presence.drop()
            self._link.close()
            self._link = self._holder = None

    def before_fork(self) -> bool:
        """Have nobody inside the library."""
        link = self._link
        if link is None:
            return True
        if not link.stop():
            return False
        if not self._watcher.lock.acquire(timeout=FORK_WAIT_S):
            link.go_on()
            return False
        return True

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._link is not None:
            self._watcher.lock.release()
            self._link.go_on()

    def after_fork_in_child(self, *, stopped: bool) -> None:
        """Begin anew: leases, presence and waiters are the parent's; the file is opened again when needed."""
        if (link := self._link) is not None:
            if stopped:
                self._watcher.close_inherited()
                link.close_inherited()
            else:
                _log.warning(
                    "a process forked in the midst of a transaction; its child should not use the store"
                )
                _left_behind.append(link)
        self._link = None
        self._lines.clear()
        self._start()

    def _leave(self) -> None:
        """Take this process out of the file, unless it still holds leases: then others must find it gone."""
        token = self._presence.token

        def step(ledger: Ledger) -> None:
            ledger.db.execute(
                "DELETE FROM holders WHERE token = ? AND NOT EXISTS "
                "(SELECT 1 FROM jobs WHERE state = 2 AND holder = holders.id)",
                (token,),
            )

        try:
            self.group.call(step, soft=True)
        except UlakError as error:
            _log.warning("the store closes without saying so to others: %s", error)

    def migrate(self) -> None:
        """Bring the schema to this version; idempotent."""
        self.open()

    # Transactions

    def _run_all(self, batch: list[Asked]) -> None:
        """Run calls in one transaction; one that fails does so alone. Raises what strikes this thread."""
        soft = all(asked.soft for asked in batch)
        try:
            ledger = self._ledger_of(batch, soft=soft)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            for asked in batch:
                asked.error = asked.error or error
                asked.is_done = True
            return
        for asked in batch:
            asked.is_done = True
        self._tell(ledger)
        self.link.written(ledger.rows_changed)

    def _ledger_of(self, batch: list[Asked], *, soft: bool) -> Ledger:
        """Run calls in one transaction, all at once if none of them fails, else apart.

        Only what a step raised leads to the second: after a COMMIT that failed, nobody knows what is stored.
        """
        try:
            return self.link.transact(functools.partial(self._run_plainly, batch), soft=soft)
        except StepFailedError as failed:
            if len(batch) == 1:
                raise self.link.explained(failed.error) from failed.error
        return self.link.transact(functools.partial(self._run_apart, batch), soft=soft)

    def _run_plainly(self, batch: list[Asked], db: sqlite3.Connection) -> Ledger:
        ledger = Ledger(db, self.clock.interval(), self.clock.calendar())
        for asked in batch:
            try:
                asked.result = asked.step(ledger)
            except Exception as error:
                raise StepFailedError(error) from error
        ledger.flush()
        return ledger

    def _run_apart(self, batch: list[Asked], db: sqlite3.Connection) -> Ledger:
        """The same with a savepoint for each, so that what one has done is undone alone."""
        ledger = Ledger(db, self.clock.interval(), self.clock.calendar())
        for asked in batch:
            saved = ledger.saved()
            db.execute("SAVEPOINT caller")
            try:
                asked.result = asked.step(ledger)
                ledger.flush()
            except Exception as error:
                if not db.in_transaction:
                    raise
                db.execute("ROLLBACK TO caller")
                ledger.restore(saved)
                asked.error = self.link.explained(error)
            db.execute("RELEASE caller")
        return ledger

    def _tell(self, ledger: Ledger) -> None:
        """Wake waiters of this process for what a transaction has changed."""
        for (until, queue), wakeups in ledger.rings.items():
            line = self._lines.get((until, queue))
            if line is not None and wakeups > 0:
                line.ring(wakeups)
        for queue, dead in ledger.dead_pruned.items():
            _log.info("queue %s: %d dead jobs removed by retention", queue, dead)

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as the operation
        """An operation for an event loop, which it never blocks."""
        if kwargs.get("connection") is not None:
            # The connection belongs to the loop's thread.
            return getattr(self, name)(*args, **kwargs)
        kwargs.pop("connection", None)
        operation = getattr(type(self), _STEPS.get(name, name))
        step = getattr(operation, "step", None)
        if step is None:
            if name == "line":
                return self.line(*args, **kwargs)
            return await self._aread(name, args, kwargs)
        if name in _CLAIMS:
            queues = args[0] if name == "claim" else args[1]
            only_claims = name == "claim" or not args[0]
            if only_claims and not await self._aread("_has_work", (queues,), {}):
                return [] if name == "claim" else ([], [])
            if self._holder is None:
                await self._aread("_take_holder", (), {})
        return await self.group.acall(
            lambda ledger: step(self, ledger, *args, **kwargs),
            soft=operation.soft(*args, **kwargs),
            undo=_UNDO.get(name),
        )

    async def _aread(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """What is no step of a transaction, for an event loop: in a thread of the store's."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def answer(error: BaseException | None, result: Any = None) -> None:  # noqa: ANN401
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def call() -> None:
            try:
                told = functools.partial(answer, None, getattr(self, name)(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                told = functools.partial(answer, error)
            # Else the loop is closed, and so is who waited there.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        self._reader.ask(call)
        return await future

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

    @writes()
    def _add(
        self, ledger: Ledger, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
    ) -> list[int] | Full:
        return book.add(ledger, queue, drafts, known_only=known_only)

    def _joined(self, connection: object, step: Callable[[Ledger], R]) -> R:
        return run_joined(connection, self.link.path, self.clock, step)

    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> list[Lease]:
        """Lease up to `limit` due jobs, in order."""
        if not self._has_work(queues):
            return []
        self._take_holder()
        return self._claim(queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)

    @writes(soft=lambda *_, **__: True)
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
        grant = Grant(self.uid, self.epoch, worker, lease_s)
        assert self._holder is not None
        leases: list[Lease] = []
        for queue in queues:
            leases += book.claim(ledger, queue, limit - len(leases), grant, holder=self._holder, tasks=tasks)
        return leases

    def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> list[Settled]:
        """Apply verdicts, one answer per settlement."""
        if connection is None:
            return self._settle(settlements)
        return self._joined(connection, lambda ledger: book.settle(ledger, settlements))

    @reads
    def _has_work(self, db: sqlite3.Connection, queues: Sequence[str]) -> bool:
        """Whether a claim could find anything: who only waits must not take the file from who writes."""
        now_at = self.clock.calendar()
        rows = [row for row in (looks.queue_row(db, queue) for queue in queues) if row is not None]
        return any(not row.paused and looks.has_work(db, row, now_at) for row in rows)

    @writes()
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
        if not settlements and not self._has_work(queues):
            return [], []
        self._take_holder()
        return self._turn(settlements, queues, limit, worker=worker, lease_s=lease_s, tasks=tasks)

    @writes(soft=lambda settlements, *_, **__: not settlements)
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
        settled = book.settle(ledger, settlements)
        grant = Grant(self.uid, self.epoch, worker, lease_s)
        assert self._holder is not None
        leases: list[Lease] = []
        for queue in queues:
            leases += book.claim(ledger, queue, limit - len(leases), grant, holder=self._holder, tasks=tasks)
        return settled, leases

    @writes(soft=lambda *_: True)
    def promote(self, ledger: Ledger, queues: Sequence[str]) -> int:
        """Make due jobs ready; how many."""
        rows = [row for row in map(ledger.known, queues) if row is not None and not row.paused]
        return sum(book.promote(ledger, row) for row in rows)

    @writes(soft=lambda *_, **__: True)
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
        gone = self._gone_holders()
        return self._ended(queues, limit, gone)

    @reads
    def _ended(
        self, db: sqlite3.Connection, queues: Sequence[str], limit: int, gone: Mapping[int, str]
    ) -> list[Lease]:
        found: list[Lease] = []
        now = self.clock.interval()
        make = looks.Leases(self.uid, self.epoch)
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
        rows = looks.leased(db, row, None if worker is None else (worker, self._holder), after, limit)
        return looks.Leases(self.uid, self.epoch).of(row, rows, ())

    def horizon(self, queues: Sequence[str]) -> float | None:
        """Seconds until time alone makes a job claimable."""
        horizon_s = self._horizon(queues)
        if self._others:
            return LOOK_AT_OTHERS_S if horizon_s is None else min(horizon_s, LOOK_AT_OTHERS_S)
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
        force: bool = False,
    ) -> Changed:
        """An operator's act on each of these jobs."""
        return change.amend(ledger, which, act, queue=queue, force=force)

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

    @writes()
    def declare(self, ledger: Ledger, queue: str, settings: Settings) -> Settings:
        """Make the queue unless it is there."""
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
        self, ledger: Ledger, schedule: str, tick_at: float, queue: str, draft: Draft
    ) -> Fired | Full | Duplicate:
        """Insert the job and move the schedule's last tick, in one step."""
        return book.fire(ledger, schedule, tick_at, queue, draft)

    @reads
    def schedules(self, db: sqlite3.Connection) -> dict[str, float]:
        """Each schedule's last tick."""
        return looks.schedules(db)

    @writes(soft=lambda *_: True)
    def beat(self, ledger: Ledger, worker: str, info: Mapping[str, str]) -> None:
        """Say that a worker is there."""
        text = msgspec.json.encode(dict(info)).decode()
        ledger.db.execute(
            "INSERT OR REPLACE INTO workers (name, info, seen_at, holder) VALUES (?, ?, ?, ?)",
            (worker, text, ledger.now_at, self._holder),
        )

    @writes(soft=lambda *_: True)
    def depart(self, ledger: Ledger, worker: str) -> None:
        """Say that a worker has gone for good."""
        ledger.db.execute("DELETE FROM workers WHERE name = ?", (worker,))

    @reads
    def workers(self, db: sqlite3.Connection) -> list[WorkerInfo]:
        """The workers that are there, by name."""
        return looks.workers(db)

    def prune(self, *, limit: int = 1000) -> Mapping[State, int]:
        """End what has expired, forget what retention does not keep, and processes that are gone."""
        self._forget_gone()
        return self._prune(list(self.queues()), limit)

    @writes(soft=lambda *_: True)
    def _prune(self, ledger: Ledger, names: Sequence[str], limit: int) -> dict[State, int]:
        return change.prune(ledger, names, limit)

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        line = self._lines.get((until, queue))
        if line is None:
            line = self._lines.setdefault((until, queue), WatchedLine(until, self._watcher.begin))
        return line

    # Presence

    def _take_holder(self) -> None:
        """Be present before the first lease is taken."""
        if self._holder is None:
            self._presence.take()
            self._holder = self._hold(self._presence.token)

    @writes(soft=lambda *_: True)
    def _hold(self, ledger: Ledger, token: str) -> int:
        ledger.db.execute(
            "INSERT OR IGNORE INTO holders (token, pid, since_at) VALUES (?, ?, ?)",
            (token, os.getpid(), ledger.now_at),
        )
        (holder,) = ledger.db.execute("SELECT id FROM holders WHERE token = ?", (token,)).fetchone()
        return cast("int", holder)

    def _gone_holders(self) -> Mapping[int, str]:
        """Processes that held leases and are gone; a new look not more often than it tells anything new."""
        now = MACHINE.interval()
        if now - self._others_at >= LOOK_AT_OTHERS_S:
            self._others_at = now
            if self._holder is not None:
                # Somebody may have removed the file, and then this process looks gone.
                self._presence.take()
            known = self._known_holders()
            if self._holder is not None and all(holder != self._holder for holder, _, _ in known):
                # Somebody took this process for gone while it held no lease.
                self._holder = self._hold(self._presence.token)
            absent = {holder for holder, token, _ in known if not self._presence.is_present(token)}
            if any((holder in absent) is (since is None) for holder, _, since in known):
                self._note_absent(absent, now)
            self._gone = {
                holder: token
                for holder, token, since in known
                if holder in absent and since is not None and now - since >= GONE_AFTER_S
            }
            self._others = any(holder != self._holder for holder, _, _ in known)
        return self._gone

    @reads
    def _known_holders(self, db: sqlite3.Connection) -> list[tuple[int, str, float | None]]:
        return db.execute("SELECT id, token, absent_since FROM holders").fetchall()

    @writes(soft=lambda *_: True)
    def _note_absent(self, ledger: Ledger, absent: set[int], now: float) -> None:
        """Store who was found absent, so that the second look may be another process's."""
        for holder, since in ledger.db.execute("SELECT id, absent_since FROM holders").fetchall():
            if (holder in absent) is (since is None):
                ledger.db.execute(
                    "UPDATE holders SET absent_since = ? WHERE id = ?",
                    (now if holder in absent else None, holder),
                )

    def _forget_gone(self) -> None:
        gone = self._gone_holders()
        if gone:
            for token in self._drop_holders(dict(gone)):
                self._presence.forget(token)

    @writes(soft=lambda *_: True)
    def _drop_holders(self, ledger: Ledger, gone: dict[int, str]) -> list[str]:
        """Take out those who hold no lease any more."""
        dropped = []
        for holder, token in gone.items():
            done = ledger.db.execute(
                "DELETE FROM holders WHERE id = ? AND token = ? AND absent_since IS NOT NULL AND NOT EXISTS "
                "(SELECT 1 FROM jobs WHERE state = 2 AND holder = holders.id)",
                (holder, token),
            ).rowcount
            ledger.db.execute("DELETE FROM workers WHERE holder = ?", (holder,))
            if done:
                dropped.append(token)
        return dropped


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


_STEPS = {"add": "_add", "claim": "_claim", "settle": "_settle", "turn": "_turn"}
_CLAIMS = frozenset({"claim", "turn"})
_UNDO: Mapping[str, Callable[[Any], Step | None]] = {
    "add": _taken_back,
    "claim": _given_back,
    "turn": lambda answer: _given_back(answer[1]),
}
