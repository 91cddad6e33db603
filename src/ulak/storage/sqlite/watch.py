"""Wakes waiters of this process for what other processes have written: a cheap look every few milliseconds.

It looks only while somebody waits, and more often for a while after it has woken somebody for another
process's work: for this one's they have been woken already. A wake-up is a hint, so it may come too often,
and it looks at the file and not at what was told: nothing is missed when nobody rang.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ulak.clock import MACHINE, pause
from ulak.core.store import Signal, Until
from ulak.errors import UlakError
from ulak.storage.ends import Ends
from ulak.storage.line import WaitLine
from ulak.storage.sqlite import looks
from ulak.storage.sqlite.link import connect, is_busy
from ulak.storage.stored import QueueRow

POLL_S = 0.008
NEAR_POLL_S = 0.0005
NEAR_S = 0.5
"""So long after somebody was woken the next change is looked for sooner: where a job came, others follow."""
BUSY_LOOKS = 10
"""After so many looks each of which found a change it looks at them all in one, as seldom as ever."""
IDLE_S = 2.0
RESTS = 3
"""How many times as long as a look took the watcher rests, if that is longer."""

_AFTER_ERROR_S = 0.5

_log = logging.getLogger("ulak")

Lines = Mapping[tuple[Until, str], WaitLine]


class WatchedLine(WaitLine):
    """A line whose waiters are also woken for other processes."""

    __slots__ = ("_begin",)

    def __init__(self, until: Until, begin: Callable[[], None]) -> None:
        super().__init__(until)
        self._begin = begin

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line, and have the file watched."""
        super().join(signal)
        # Without it the waiter looks by itself, less often.
        with contextlib.suppress(RuntimeError):
            self._begin()


class Seen(NamedTuple):
    """What a look at a changed file found.

    held: of queues where somebody waits for work, and more jobs are held than at the last look, how many are
    held there for whoever knows their task; no more than came to them.
    over: the jobs that somebody waits for and that have ended.
    """

    rows: dict[str, QueueRow]
    held: dict[str, int]
    over: list[int]


class Watcher:
    """Looks whether the file has changed, from a thread of its own, while somebody stands in a line.

    own_commits: how often this process has committed.
    """

    def __init__(self, path: str, lines: Lines, awaited: Ends, own_commits: Callable[[], int]) -> None:
        self._path = path
        self._lines = lines
        self._awaited = awaited
        self._own_commits = own_commits
        self._mutex = threading.Lock()
        self._wanted = threading.Event()
        self._ends = False
        self._thread: threading.Thread | None = None
        self._before: dict[str, QueueRow] = {}
        # Held while the thread is inside the library.
        self.lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    # The thread ends when nobody has waited for a while, and is started again when somebody does.

    def begin(self) -> None:
        """Somebody waits from now on."""
        if self._wanted.is_set():
            return
        with self._mutex:
            self._wanted.set()
            if self._thread is None and not self._ends:
                thread = threading.Thread(target=self._main, name="ulak-watch", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:
                    # The system has no more threads. Who waits looks by itself, less often.
                    self._thread = None
                    self._wanted.clear()

    def close(self) -> None:
        """Watch no more."""
        with self._mutex:
            self._ends = True
            self._wanted.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close_inherited(self) -> None:
        """In a forked child, which has the connection but not the thread."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()

    def _main(self) -> None:
        while not self._ends and self._thread is threading.current_thread():
            try:
                with self.lock:
                    self._db = connect(self._path)
                try:
                    self._watch(self._db)
                finally:
                    with self.lock:
                        self._db.close()
                        self._db = None
            except Exception as error:  # noqa: BLE001 - whatever the file does, who waits must be woken again
                if not isinstance(error, sqlite3.Error | UlakError):
                    _log.exception("the watcher of a store was struck, and goes on")
                pause(_AFTER_ERROR_S)

    def _watch(self, db: sqlite3.Connection) -> None:
        version, rang_at, changes, own = None, -NEAR_S, 0, 0
        while True:
            if not self._wanted.wait(IDLE_S) and self._may_end():
                return
            if self._ends:
                return
            began = MACHINE.interval()
            try:
                with self.lock:
                    (now,) = db.execute("PRAGMA data_version").fetchone()
                    seen = self._look(db) if now != version else None
            except sqlite3.OperationalError as error:
                # In a rollback journal whoever commits is in the way of who looks, for a moment.
                if not is_busy(error):
                    raise
                pause(POLL_S)
                continue
            if seen is not None:
                version, before, own = now, own, self._own_commits()
                if self._ring(seen) and own == before:
                    rang_at = began
            if not self._is_awaited():
                # Whatever happens until somebody waits again counts as a change.
                version = None
                self._before, own = {}, self._own_commits()
                continue
            changes = 0 if seen is None else changes + 1
            ended = MACHINE.interval()
            pause(_rest_s(ended - began, since_ring_s=ended - rang_at, changes=changes))

    def _look(self, db: sqlite3.Connection) -> Seen:
        rows = looks.queue_rows(db)
        # Listed after these were read: who comes later looks later, and sees all that they tell.
        held = {
            queue: looks.held_for_tasks(db, rows[queue], min(more, len(line.waiting)))
            for (until, queue), line in list(self._lines.items())
            if until is Until.READY and line.waiting and (more := self._more_held(rows.get(queue))) > 0
        }
        awaited = list(self._awaited.waiting) if self._has_any_ended(rows) else []
        return Seen(rows, held, looks.over(db, awaited) if awaited else [])

    def _more_held(self, row: QueueRow | None) -> int:
        """How many more jobs a queue holds than at the last look: those from before wake nobody again."""
        was = None if row is None else self._before.get(row.name)
        return 0 if row is None or was is None else row.held - was.held

    def _has_any_ended(self, rows: Mapping[str, QueueRow]) -> bool:
        """Whether any job has ended, or been forgotten, since the last look."""
        before = self._before
        return any(
            (was := before.get(name)) is None or (was.left, was.pruned) != (row.left, row.pruned)
            for name, row in rows.items()
        )

    def _may_end(self) -> bool:
        with self._mutex:
            if self._wanted.is_set():
                return False
            self._thread = None
            return True

    def _is_awaited(self) -> bool:
        if self._is_anybody_there():
            return True
        with self._mutex:
            if not self._ends:
                self._wanted.clear()
        # One who joined just now found it set still.
        if self._is_anybody_there():
            self._wanted.set()
            return True
        return False

    def _is_anybody_there(self) -> bool:
        return any(len(line) for line in list(self._lines.values())) or bool(self._awaited.awaited())

    def _ring(self, seen: Seen) -> bool:
        """Wake who has reason to look; whether there was anybody."""
        rang = bool(seen.over)
        awaited = {key: line for key, line in list(self._lines.items()) if line.waiting}
        for (until, queue), line in awaited.items():
            row = seen.rows.get(queue)
            if row is not None and (
                wakeups := _wakeups(until, self._before.get(queue), row, seen.held.get(queue, 0))
            ):
                line.ring(wakeups)
                rang = True
        self._awaited.ring(seen.over)
        self._before = seen.rows
        return rang


def _rest_s(look_s: float, *, since_ring_s: float, changes: int) -> float:
    """How long to rest after a look; changes: how many looks in a row found one, this one included."""
    is_near = since_ring_s < NEAR_S and changes < BUSY_LOOKS
    return max(NEAR_POLL_S if is_near else POLL_S, RESTS * look_s)


def _wakeups(until: Until, was: QueueRow | None, row: QueueRow, held: int) -> int:
    """How many waiters have reason to look."""
    if was is None or (was.paused, was.capacity) != (row.paused, row.capacity):
        return 1 + max(0, row.open)
    match until:
        case Until.READY:
            return 0 if row.paused else row.ready + held
        case Until.ROOM:
            return int(was.left != row.left)
        case Until.DUE:
            return int(was.scheduled != row.scheduled or was.retries != row.retries)
        case Until.DRAINED:
            return int(row.is_drained)
