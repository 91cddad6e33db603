"""One open transaction: the queues it has looked at, their counters as it leaves them, whom it must wake."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ulak.core.job import ENDED, State
from ulak.core.store import Settings, Until
from ulak.storage.sqlite.records import (
    CANCELLED,
    COUNTER_OF,
    COUNTERS,
    DEAD,
    EXPIRED,
    HELD,
    LEASED,
    NUMBER,
    QUEUE_COLUMNS,
    READY,
    SCHEDULED,
    STATES,
    STORE_COUNTERS,
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
_NOBODY = -1
_PLACE = {number: COUNTERS.index(name) for number, name in _COUNTED.items()}
_ENDED_NUMBERS = tuple(sorted(NUMBER[state] for state in ENDED))


class Ledger:
    """The counters of one transaction, kept in Python until `flush` writes those that changed.

    now, now_at: its instants, on the interval and the calendar clock. rings: whom to wake after the commit.
    dead_pruned: dead jobs that retention removed, by queue.
    """

    def __init__(self, db: sqlite3.Connection, now: float, now_at: float) -> None:
        self.db = db
        self.now = now
        self.now_at = now_at
        self.rings: Counter[tuple[Until, str]] = Counter()
        self.dead_pruned: Counter[str] = Counter()
        self.rows_changed = 0
        self._queues: dict[str, QueueRow] = {}
        self._names: dict[int, str] = {}
        self._before: dict[str, tuple[Any, ...]] = {}
        self._last_id: int | None = None
        self._tidied: set[str] = set()

    # Queues

    def known(self, name: str) -> QueueRow | None:
        """The queue, if there is one of that name."""
        row = self._queues.get(name)
        if row is None:
            found = self.db.execute(_FIND_QUEUE, (name,)).fetchone()
            if found is None:
                return None
            row = self._note(QueueRow(*found))
        return row

    def by_id(self, queue_id: int) -> QueueRow | None:
        """The queue of a job; None for a number that no queue has."""
        name = self._names.get(queue_id)
        if name is not None:
            return self._queues[name]
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
        self._queues[row.name] = row
        self._names[row.id] = row.name
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
        if self._last_id is None:
            (self._last_id,) = self.db.execute("SELECT last_id FROM queues WHERE id = 0").fetchone()
        return self._last_id

    @last_id.setter
    def last_id(self, last_id: int) -> None:
        self._last_id = last_id
        self.db.execute("UPDATE queues SET last_id = ? WHERE id = 0", (last_id,))

    # Counting

    def move(self, queue: QueueRow, was: int, now: int, number: int = 1) -> None:
        """Count so many jobs out of one state and into another, and note whom that wakes."""
        if was in _COUNTED:
            name = _COUNTED[was]
            setattr(queue, name, getattr(queue, name) - number)
        if now in _COUNTED:
            name = _COUNTED[now]
            setattr(queue, name, getattr(queue, name) + number)
        if now > _OPEN_MAX >= was:
            queue.left += number
            self.rings[Until.ROOM, queue.name] += number
        elif now in (READY, HELD):
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
        for name, row in self._queues.items():
            if numbers_of(row) == self._before[name]:
                continue
            self._trim(row, self._before[name])
            if row.is_drained:
                self.rings[Until.DRAINED, name] += 1
            self.db.execute(STORE_COUNTERS, (*numbers_of(row), row.id))
            self._before[name] = numbers_of(row)

    def _trim(self, row: QueueRow, before: tuple[Any, ...]) -> None:
        for number in _ENDED_NUMBERS:
            kept = getattr(row, _COUNTED[number])
            if kept > before[_PLACE[number]]:
                self.forget(row, number, kept - row.retention.of(STATES[number]).count)

    def forget(self, row: QueueRow, number: int, limit: int, *, before_at: float | None = None) -> int:
        """Remove ended jobs of a state, those that ended first before others, at most `limit`; how many."""
        if limit <= 0:
            return 0
        gone = self.db.execute(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE queue = ? AND state = ? AND state >= 4 "
            "AND ended_at <= ? ORDER BY ended_at, id LIMIT ?)",
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
            "_queues": {name: _copy(row) for name, row in self._queues.items()},
            "_names": dict(self._names),
            "_before": dict(self._before),
            "_last_id": self._last_id,
            "_tidied": set(self._tidied),
            "rings": self.rings.copy(),
            "dead_pruned": self.dead_pruned.copy(),
            "rows_changed": self.rows_changed,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Be as then."""
        for name, value in saved.items():
            setattr(self, name, value)


def _copy(row: QueueRow) -> QueueRow:
    return QueueRow(*[getattr(row, name) for name in row.__struct_fields__])


def state_number(state: State) -> int:
    """A state as it is stored."""
    return NUMBER[state]
