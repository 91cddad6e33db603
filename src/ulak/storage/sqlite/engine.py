"""The machinery of a store in a file: opening, closing, forks, and transactions that callers share."""

from __future__ import annotations

import contextlib
import functools
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ulak.clock import MACHINE, Clock
from ulak.core.store import Until
from ulak.errors import Closed, StorageFull, UlakError
from ulak.storage import forks
from ulak.storage.ends import Ends
from ulak.storage.group import Asked, Group, Merge, Undo
from ulak.storage.helper import Helper
from ulak.storage.line import WaitLine
from ulak.storage.sqlite import schema
from ulak.storage.sqlite.ledger import Known, Ledger
from ulak.storage.sqlite.link import FORK_WAIT_S, Link, Options, connect_to_look, with_patience
from ulak.storage.sqlite.others import Others
from ulak.storage.sqlite.place import check_place, create_private
from ulak.storage.sqlite.presence import Presence
from ulak.storage.sqlite.reserve import JOURNAL_BYTES, WAL_BYTES, Reserve
from ulak.storage.sqlite.watch import Watcher

_log = logging.getLogger("ulak")

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound="Engine")


def _never(*_: Any, **__: Any) -> bool:  # noqa: ANN401 - whatever an operation takes
    return False


def always(*_: Any, **__: Any) -> bool:  # noqa: ANN401 - as above
    """For `writes`: the operation never needs to wait for the disk."""
    return True


def writes(
    soft: Callable[..., bool] = _never,
    merge: Callable[..., Merge | None] | None = None,
    undo: Undo | None = None,
) -> Callable[[Callable[Concatenate[E, Ledger, P], R]], Callable[Concatenate[E, P], R]]:
    """An operation that changes the file: a step of a transaction, which others may share.

    soft: whether a call need not wait for the disk. merge: how calls alike can be done in one. undo: the step
    that takes back what was done for a caller who is gone.
    """

    def decorate(operation: Callable[Concatenate[E, Ledger, P], R]) -> Callable[Concatenate[E, P], R]:
        def ask(self: E, kind: type[Asked], args: Any, kwargs: Any) -> Asked:  # noqa: ANN401 - as operation's
            return kind(
                lambda ledger: operation(self, ledger, *args, **kwargs),
                soft=soft(*args, **kwargs),
                merge=None if merge is None else merge(self, *args, **kwargs),
            )

        def run(self: E, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return self.group.call(ask(self, Asked, args, kwargs), undo=undo)  # type: ignore[no-any-return]

        functools.update_wrapper(run, operation)
        run.ask = ask  # type: ignore[attr-defined]
        run.undo = undo  # type: ignore[attr-defined]
        return run

    return decorate


def reads(
    operation: Callable[Concatenate[E, sqlite3.Connection, P], R],
) -> Callable[Concatenate[E, P], R]:
    """An operation that changes nothing."""

    def run(self: E, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.link.read(lambda db: operation(self, db, *args, **kwargs))

    functools.update_wrapper(run, operation)
    return run


class StepFailedError(Exception):
    """A step of a transaction raised; the transaction was rolled back."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


_left_behind: list[Link] = []
"""Connections of a parent that a child must neither use nor close."""


class Engine:
    """One file, open in this process.

    path: the database file. Making the object touches nothing; `open` does.
    """

    def __init__(self, path: str, clock: Clock = MACHINE, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self.clock = clock
        self.options = options
        self.uid = ""
        self.epoch = 0
        # As it is meant now, whatever directory a forked child works in.
        self._asked_path = Path(path).absolute()
        self._link: Link | None = None
        self._lines: dict[tuple[Until, str], WaitLine] = {}
        self._is_open = False
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        """What belongs to one process."""
        self.group = Group(self._run_all, self._are_stored)
        # Whose steps were the last to run to their end.
        self._worked: list[Asked] = []
        self._known = Known()
        self._reader = Helper("ulak-read")
        self._awaited = Ends(self.begin_watch)

    @property
    def link(self) -> Link:
        """The open connections. Raises Closed if there are none."""
        if self._link is None:
            if not self._is_open:
                raise Closed("this store is closed; make another handle on it")
            # In a forked child.
            self._connect()
        assert self._link is not None
        return self._link

    @property
    def others(self) -> Others:
        """Who else has the file open, as this process sees it."""
        if self._link is None:
            self._connect()
        return self._others

    @property
    def own_file(self) -> str:
        """The file that tells others that this process lives, once it holds a lease."""
        if self._link is None:
            self._connect()
        return self._presence.path

    # Opening and closing

    def open(self) -> None:
        """Open the file, made if it is absent. Raises ConfigError, SchemaError, StorageUnavailable."""
        with forks.opening:
            if self._is_open:
                return
            self._connect()
            self._is_open = True

    def _connect(self) -> None:
        with forks.opening:
            if self._link is not None:
                return
            schema.check_library()
            path = check_place(self._asked_path)
            create_private(path)
            # Before anything is written, for it may be somebody else's.
            with contextlib.closing(connect_to_look(str(path))) as db:
                with_patience(functools.partial(schema.version_of, db, str(path)), str(path))
            had_log = path.with_name(f"{path.name}-wal").exists()
            link = Link(str(path), self.options)
            try:
                self.uid, self.epoch = self._begin_in(link)
            except BaseException:
                link.close()
                raise
            self._reserve = Reserve(str(path), WAL_BYTES if link.journal == "wal" else JOURNAL_BYTES)
            self._presence = Presence(path.with_name(f"{path.name}-workers"))
            self._others = Others(self, self._presence)
            if had_log and not any(map(self._presence.is_present, link.read(_tokens))):
                # Whoever left it may have died, or closed, between a sync that failed and its repair.
                link.doubt_log()
            self._watcher = Watcher(str(path), self._lines, self._awaited, lambda: link.commits)
            self._link = link
            if self._awaited.waiting or any(line.waiting for line in list(self._lines.values())):
                self.begin_watch()

    def _begin_in(self, link: Link) -> tuple[str, int]:
        # Who only looks must not have to wait for a writer.
        begun = link.read(functools.partial(schema.begun, path=link.path))
        if begun is None:
            now_at = self.clock.calendar()
            begun = link.transact(functools.partial(schema.begin, path=link.path, now_at=now_at), soft=False)
            link.read_anew()
        link.remember_files()
        return begun

    def close(self) -> None:
        """Let go of all handles; idempotent."""
        with forks.opening:
            was_open, self._is_open = self._is_open, False
            if not was_open or self._link is None:
                return
            self._watcher.close()
            try:
                self._others.leave()
            except UlakError as error:
                _log.warning("the store closes without saying so to others: %s", error)
            self.group.close()
            self._reader.close()
            self._presence.drop()
            self._link.close()
            self._link = None
            # They are to hear of it.
            self._awaited.wake_all()

    def migrate(self) -> None:
        """Bring the schema to this version; idempotent."""
        self.open()

    # Forks

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
                link.let_go()
            else:
                _log.warning("a process forked amid a transaction; its child must not use the store")
                _left_behind.append(link)
            # Its lock is the parent's, and so is its file.
            self._presence.after_fork()
        self._link = None
        self._lines.clear()
        self._start()

    # Transactions

    def step(self, step: Callable[[Ledger], R]) -> R:
        """Run a step in a transaction, which need not be on the disk when it returns."""
        answer: R = self.group.call(Asked(step, soft=True))
        return answer

    def look(self, look: Callable[[sqlite3.Connection], R]) -> R:
        """Run a look that changes nothing."""
        return self.link.read(look)

    def _are_stored(self, batch: list[Asked]) -> bool:
        return self._worked is batch and self.link.has_committed

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
        self.link.note(ledger.rows_changed, is_alone=self._known.is_alone)

    def _ledger_of(self, batch: list[Asked], *, soft: bool) -> Ledger:
        """Run calls in one transaction; on a full disk, those that store no new jobs in what is set aside."""
        try:
            return self._shared(batch, soft=soft)
        except StorageFull:
            if all(asked.grows for asked in batch):
                raise
        self._reserve.release()
        if self.link.journal == "wal":
            with contextlib.suppress(UlakError):
                self.link.checkpoint()
        return self._transact(functools.partial(self._run_apart, batch, refuses_new=True), soft=soft)

    def _shared(self, batch: list[Asked], *, soft: bool) -> Ledger:
        """Run calls all at once if none of them fails, else apart.

        Only what a step raised leads to the second: after a COMMIT that failed, nobody knows what is stored.
        """
        try:
            return self._transact(functools.partial(self._run_plainly, batch), soft=soft)
        except StepFailedError as failed:
            if len(batch) == 1:
                raise self.link.explained(failed.error) from failed.error
        return self._transact(functools.partial(self._run_apart, batch), soft=soft)

    def _transact(self, run: Callable[[Ledger], None], *, soft: bool) -> Ledger:
        def step(db: sqlite3.Connection) -> Ledger:
            self._known.look(db)
            ledger = Ledger(db, self.clock.interval(), self.clock.calendar(), self._known)
            run(ledger)
            return ledger

        ledger = self.link.transact(step, soft=soft)
        self._known.is_sure = True
        return ledger

    def _run_plainly(self, batch: list[Asked], ledger: Ledger) -> None:
        for alike in _alike(batch):
            first = alike[0]
            ledger.find_room = functools.partial(self.find_room, alike)
            try:
                if len(alike) == 1 or first.merge is None:
                    first.result = first.step(ledger)
                else:
                    results = first.merge.together(
                        ledger, [asked.merge.part for asked in alike if asked.merge]
                    )
                    for asked, result in zip(alike, results, strict=True):
                        asked.result = result
            except Exception as error:
                raise StepFailedError(error) from error
        ledger.flush()
        self._worked = batch

    def _run_apart(self, batch: list[Asked], ledger: Ledger, *, refuses_new: bool = False) -> None:
        """The same with a savepoint for each, so that what one has done is undone alone."""
        db = ledger.db
        for asked in batch:
            ledger.find_room = functools.partial(self.find_room, [asked], refuses_new=refuses_new)
            # Whatever it was told in a pass before.
            asked.error = None
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
        self._worked = batch

    def find_room(self, askers: Sequence[Asked] = (), *, refuses_new: bool = False) -> None:
        """Called before new jobs are stored. Raises StorageFull if they would take what is set aside."""
        for asked in askers:
            asked.grows = True
        if refuses_new or not (self._reserve.is_there() or self._reserve.hold()):
            raise StorageFull(
                f'little space is left for "{self.link.path}", and that is kept for finishing jobs\n'
                f"  free some on its disk, then try again"
            )

    def _tell(self, ledger: Ledger) -> None:
        """Wake waiters of this process for what a transaction has changed."""
        for key, wakeups in ledger.rings.items():
            line = self._lines.get(key)
            if line is not None and wakeups > 0:
                line.ring(wakeups)
        if self._awaited.waiting:
            self._awaited.ring(ledger.ended_ids)
        for queue, dead in ledger.dead_pruned.items():
            _log.info("queue %s: %d dead jobs removed by retention", queue, dead)

    def begin_watch(self) -> None:
        """Somebody of this process waits from now on for what others write."""
        # Else the watcher is the one of this process's parent; its own begins when it connects.
        if self._link is not None:
            # Without it the waiter looks by itself, less often.
            with contextlib.suppress(RuntimeError):
                self._watcher.begin()

    def in_background(self, call: Callable[[], object]) -> None:
        """Have this called in a thread of the store's, where nobody waits for it."""

        def run() -> None:
            with contextlib.suppress(UlakError):
                call()

        with contextlib.suppress(RuntimeError):
            self._reader.ask(run)

    async def in_reader(self, call: Callable[[], R]) -> R:
        """What is no step of a transaction, for an event loop: in a thread of the store's."""
        return await self._reader.acall(call)


def _tokens(db: sqlite3.Connection) -> list[str]:
    return [token for (token,) in db.execute("SELECT token FROM holders")]


def _alike(batch: Sequence[Asked]) -> list[list[Asked]]:
    """The calls of a batch, those that can be done in one together, else in their order."""
    if len(batch) == 1:
        return [list(batch)]
    found: list[list[Asked]] = []
    by_key: dict[Any, list[Asked]] = {}
    for asked in batch:
        if asked.merge is None:
            found.append([asked])
        elif (alike := by_key.get(asked.merge.key)) is not None:
            alike.append(asked)
        else:
            by_key[asked.merge.key] = alike = [asked]
            found.append(alike)
    return found
