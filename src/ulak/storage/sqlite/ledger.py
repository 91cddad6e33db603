"""One open transaction: the queues it has looked at, their counters as it leaves them, whom it must wake."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from ulak.core.job import ENDED
from ulak.core.store import Settings, Until
from ulak.storage.sqlite.records import QUEUE_COLUMNS, STORE_COUNTERS
from ulak.storage.stored import (
    CANCELLED,
    COUNTER_OF,
    COUNTERS,
    DEAD,
    EXPIRED,
    HELD,
    LEASED,
    NUMBER,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    QueueRow,
    numbers_of,
    text_of,
)

_FIND_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE name = ?"  # noqa: S608 - columns of our own
_FIND_QUEUE_BY_ID = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE id = ?"  # noqa: S608
_COUNTED = {
    SCHEDULED: "scheduled",
    LEASED: "leased",
    HELD: "held",
    SUCCEEDED: "succeeded",
    DEAD: "dead",
    CANCELLED: "cancelled",
    EXPIRED: "expired",
}
_OPEN_MAX = HELD

TRIM_MAX = 5_000
"""How many ended jobs of a state one transaction forgets, after a queue's retention was lowered, say."""

_NOBODY = -1
_PLACE = {number: COUNTERS.index(name) for number, name in _COUNTED.items()}
_ENDED_NUMBERS = tuple(sorted(NUMBER[state] for state in ENDED))


def _anywhere() -> None:
    """There is room."""


class Known:
    """What a process has read of its queues, while nobody else commits: `PRAGMA data_version` tells.

    is_alone: nobody had at the last look. is_sure: what it knows is what is stored; set after a commit.
    """

    __slots__ = ("holder", "is_alone", "is_sure", "last_id", "names", "queues", "version")

    def __init__(self) -> None:
        self.version = -1
        self.is_alone = self.is_sure = False
        self.forget()

    def forget(self) -> None:
        """Read everything anew, after a rollback or another's commit."""
        self.queues: dict[str, QueueRow] = {}
        self.names: dict[int, str] = {}
        self.last_id: int | None = None
        self.holder: int | None = None

    def look(self, db: sqlite3.Connection) -> None:
        """Forget what others may have changed; called inside a transaction."""
        (version,) = db.execute("PRAGMA data_version").fetchone()
        self.is_alone = version == self.version
        if not (self.is_alone and self.is_sure):
            self.version = version
            self.forget()
        # Until the commit: a rollback, or a strike anywhere, leaves it so.
        self.is_sure = False


class Ledger:
    """The counters of one transaction, kept in Python until `flush` writes those that changed.

    now, now_at: its instants, on the interval and the calendar clock. rings: whom to wake after the commit.
    ended_ids: jobs that ended or were deleted, or would have but for a rollback.
    dead_pruned: dead jobs that retention removed, by queue.
    find_room: called before new jobs are stored; raises StorageFull if there is none on the disk.
    """

    def __init__(self, db: sqlite3.Connection, now: float, now_at: float, known: Known | None = None) -> None:
        self.db = db
        self.now = now
        self.now_at = now_at
        self.rings: Counter[tuple[Until, str]] = Counter()
        self.ended_ids: list[int] = []
        self.dead_pruned: Counter[str] = Counter()
        self.rows_changed = 0
        self.find_room: Callable[[], None] = _anywhere
        self._known = known or Known()
        self._before: dict[str, tuple[Any, ...]] = {}
        self._tidied: set[str] = set()

    @property
    def holder(self) -> int | None:
        """Who takes leases in it; None if that has yet to be looked up."""
        return self._known.holder

    @holder.setter
    def holder(self, holder: int) -> None:
        self._known.holder = holder

    # Queues

    def known(self, name: str) -> QueueRow | None:
        """The queue, if there is one of that name."""
        row = self._known.queues.get(name)
        if row is None:
            found = self.db.execute(_FIND_QUEUE, (name,)).fetchone()
            if found is None:
                return None
            row = self._note(QueueRow(*found))
        elif name not in self._before:
            self._before[name] = numbers_of(row)
        return row

    def by_id(self, queue_id: int) -> QueueRow | None:
        """The queue of a job; None for a number that no queue has."""
        name = self._known.names.get(queue_id)
        if name is not None:
            return self.known(name)
        found = self.db.execute(_FIND_QUEUE_BY_ID, (queue_id,)).fetchone()
        return None if found is None or queue_id == 0 else self._note(QueueRow(*found))

    def queue(self, name: str, settings: Settings | None = None) -> QueueRow:
        """The queue, made with these settings if there is none."""
        row = self.known(name)
        if row is None:
            wanted = settings or Settings()
            self.db.execute(
                "INSERT INTO queues (name, capacity, paused, backoff, retention) VALUES (?, ?, ?, ?, ?)",
                (
                    name,
                    wanted.capacity,
                    int(wanted.paused),
                    text_of(wanted.backoff),
                    text_of(wanted.retention),
                ),
            )
            row = self.known(name)
            assert row is not None
        return row

    def configured(self, row: QueueRow, settings: Settings) -> None:
        """Store other settings with a queue."""
        row.capacity, row.paused = settings.capacity, int(settings.paused)
        row.backoff_text, row.retention_text = text_of(settings.backoff), text_of(settings.retention)
        self.db.execute(
            "UPDATE queues SET capacity = ?, paused = ?, backoff = ?, retention = ? WHERE id = ?",
            (row.capacity, row.paused, row.backoff_text, row.retention_text, row.id),
        )

    def _note(self, row: QueueRow) -> QueueRow:
        self._known.queues[row.name] = row
        self._known.names[row.id] = row.name
        self._before[row.name] = numbers_of(row)
        return row

    def tidied(self, name: str) -> bool:
        """Whether this was asked before for the queue, in this transaction."""
        if name in self._tidied:
            return True
        self._tidied.add(name)
        return False

    # Ids

    @property
    def last_id(self) -> int:
        """The last id given out."""
        last_id = self._known.last_id
        if last_id is None:
            # The larger of both: a stranger may have put in a row with an id that was yet to come.
            (last_id,) = self.db.execute(
                "SELECT max(last_id, (SELECT coalesce(max(id), 0) FROM jobs)) FROM queues WHERE id = 0"
            ).fetchone()
            self._known.last_id = last_id
        return cast("int", last_id)

    @last_id.setter
    def last_id(self, last_id: int) -> None:
        self._known.last_id = last_id
        self.db.execute("UPDATE queues SET last_id = ? WHERE id = 0", (last_id,))

    # Counting

    def move(self, queue: QueueRow, was: int, now: int, number: int = 1, *, is_refused: bool = False) -> None:
        """Count so many jobs out of one state and into another, and note whom that wakes.

        is_refused: they are held, and left by whoever knows their task.
        """
        if was in _COUNTED:
            name = _COUNTED[was]
            setattr(queue, name, getattr(queue, name) - number)
        if now in _COUNTED:
            name = _COUNTED[now]
            setattr(queue, name, getattr(queue, name) + number)
        if now > _OPEN_MAX >= was:
            queue.left += number
            self.rings[Until.ROOM, queue.name] += number
        elif now == READY or (now == HELD and not is_refused):
            self.rings[Until.READY, queue.name] += number
        elif now == SCHEDULED:
            self.rings[Until.DUE, queue.name] += 1

    def entered(self, queue: QueueRow, state: int, number: int) -> None:
        """Count new jobs in."""
        queue.entered += number
        self.move(queue, _NOBODY, state, number)

    def removed(self, queue: QueueRow, was: int, number: int = 1) -> None:
        """Count deleted rows out."""
        if was in _COUNTED:
            name = _COUNTED[was]
            setattr(queue, name, getattr(queue, name) - number)
        if was <= _OPEN_MAX:
            queue.left += number
            self.rings[Until.ROOM, queue.name] += number

    def count(self, queue: QueueRow, *totals: str) -> None:
        """Raise totals by one each."""
        for total in totals:
            name = COUNTER_OF.get(total)
            if name is not None:
                setattr(queue, name, getattr(queue, name) + 1)

    # The end

    def flush(self) -> None:
        """Forget ended jobs beyond the number that is kept, then write every counter that changed."""
        for name, before in self._before.items():
            row = self._known.queues[name]
            numbers = numbers_of(row)
            if numbers == before:
                continue
            if self._trim(row, before):
                numbers = numbers_of(row)
            if row.is_drained:
                self.rings[Until.DRAINED, name] += 1
            self.db.execute(STORE_COUNTERS, (*numbers, row.id))
            self._before[name] = numbers

    def _trim(self, row: QueueRow, before: tuple[Any, ...]) -> int:
        gone = 0
        for number in _ENDED_NUMBERS:
            kept = getattr(row, _COUNTED[number])
            if kept > before[_PLACE[number]]:
                beyond = kept - row.retention.of(STATES[number]).count
                gone += self.forget(row, number, min(beyond, TRIM_MAX))
        return gone

    def forget(self, row: QueueRow, number: int, limit: int, *, before_at: float | None = None) -> int:
        """Remove ended jobs of a state, those that ended first before others, at most `limit`; how many."""
        if limit <= 0:
            return 0
        gone = self.db.execute(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE queue = ? AND state = ? "
            "AND +state BETWEEN 4 AND 7 AND ended_at <= ? ORDER BY ended_at, id LIMIT ?)",
            (row.id, number, float("inf") if before_at is None else before_at, limit),
        ).rowcount
        if gone:
            self.removed(row, number, gone)
            row.pruned += gone
            self.rows_changed += gone
            if number == DEAD:
                self.dead_pruned[row.name] += gone
        return gone

    def saved(self) -> Mapping[str, Any]:
        """What `restore` needs to come back here, when one caller's part is rolled back."""
        return {
            "_tidied": set(self._tidied),
            "rings": self.rings.copy(),
            "dead_pruned": self.dead_pruned.copy(),
            "rows_changed": self.rows_changed,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Be as then. The queues are read anew: as the file has them, since each part is flushed."""
        self._known.forget()
        for name, value in saved.items():
            setattr(self, name, value)
        self._before.clear()
