"""Orders of the memory store whose entries may be stale: an entry counts only while its row is in one state.

Whoever takes a row out of a state by another way than the head of its order says `discard`, and an order that
is mostly stale is rebuilt, so that jobs that were cancelled, say, do not pile up in it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from ulak.core.job import PRIORITY_MIN, State
from ulak.core.store import Tasks
from ulak.storage.row import Row

K = TypeVar("K", int, float)

_STALE_MAX = 64
_EMPTY_LANES_MAX = 16


class RowHeap(Generic[K]):
    """Rows in some states, by a key, then id; the lowest first. drop: told of each row whose entry goes."""

    __slots__ = ("_drop", "_entries", "_pushed", "_stale", "_states")

    def __init__(self, *states: State, drop: Callable[[Row], None] | None = None) -> None:
        self._states = frozenset(states)
        self._drop = drop
        self._entries: list[tuple[K, int, int, Row]] = []
        self._pushed = 0
        self._stale = 0

    def push(self, key: K, row: Row) -> None:
        """Put a row in its place."""
        self._pushed += 1
        # The running number keeps equal entries from being compared by their rows.
        heapq.heappush(self._entries, (key, row.id, self._pushed, row))

    def head(self) -> tuple[K, Row] | None:
        """The first entry that counts, or None."""
        while self._entries:
            key, _, _, row = self._entries[0]
            if row.state in self._states:
                return key, row
            self.pop()
            self._stale = max(0, self._stale - 1)
        return None

    def pop(self) -> None:
        """Take out the head."""
        row = heapq.heappop(self._entries)[3]
        if self._drop is not None:
            self._drop(row)

    def discard(self) -> None:
        """One entry counts no more."""
        self._stale += 1
        if self._stale > _STALE_MAX and 2 * self._stale > len(self._entries):
            self._sweep()

    def _sweep(self) -> None:
        entries, self._entries, self._stale = self._entries, [], 0
        for entry in entries:
            if entry[3].state in self._states:
                self._entries.append(entry)
            elif self._drop is not None:
                self._drop(entry[3])
        heapq.heapify(self._entries)

    def rows(self) -> Iterator[Row]:
        """The rows whose entries count, in no order."""
        return (entry[3] for entry in self._entries if entry[3].state in self._states)

    @property
    def is_spent(self) -> bool:
        """Whether no entry counts any more."""
        return self._stale >= len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Held:
    """The held rows of a queue: of each task, and apart from them those that workers of their task leave.

    Nothing is kept of a task without held rows: there may be ever new ones.
    """

    __slots__ = ("_by_task", "_refused")

    def __init__(self) -> None:
        self._by_task: dict[str | None, RowHeap[int]] = {}
        self._refused: RowHeap[int] = RowHeap(State.HELD)

    def _heap_of(self, row: Row) -> RowHeap[int]:
        if row.is_refused:
            return self._refused
        heap = self._by_task.get(row.spec.task)
        if heap is None:
            heap = self._by_task[row.spec.task] = RowHeap(State.HELD)
        return heap

    def push(self, row: Row) -> None:
        """Put a row in its place."""
        self._heap_of(row).push(-row.priority, row)

    def head(self, tasks: Tasks | None) -> Row | None:
        """The next row to claim for whoever knows these tasks; None: for whoever takes anything."""
        heaps = [heap for task, heap in self._by_task.items() if tasks is None or task in tasks]
        if tasks is None:
            heaps.append(self._refused)
        heads = [head[1] for heap in heaps if (head := heap.head()) is not None]
        return min(heads, key=place, default=None)

    def pop(self, row: Row) -> None:
        """Take out the row that `head` gave."""
        heap = self._heap_of(row)
        heap.pop()
        self._forget_spent(row, heap)

    def discard(self, row: Row) -> None:
        """A held row went another way than by `head`."""
        heap = self._heap_of(row)
        heap.discard()
        self._forget_spent(row, heap)

    def _forget_spent(self, row: Row, heap: RowHeap[int]) -> None:
        if heap.is_spent and heap is not self._refused:
            del self._by_task[row.spec.task]

    @property
    def refused(self) -> int:
        """How many of them workers of their task leave; those that went count too, for a while."""
        return len(self._refused)

    def rows(self, *, refused: bool) -> list[Row]:
        """All of them, or only those that workers of their task leave, by id."""
        heaps = (self._refused,) if refused else (self._refused, *self._by_task.values())
        return sorted((row for heap in heaps for row in heap.rows()), key=attrgetter("id"))


def place(row: Row) -> tuple[int, int]:
    """What rows are ordered by: higher priority first, then lower id."""
    return -row.priority, row.id


class Lanes:
    """The ready rows of a queue: higher priority first, then lower id.

    fresh: by priority, the rows whose ids came in order, which are nearly all. between: those that came back
    to a place in the midst of their lane. top: no lane of a higher priority has rows.
    """

    __slots__ = ("_listed", "_stale", "between", "fresh", "top")

    def __init__(self) -> None:
        self.fresh: dict[int, deque[Row]] = {}
        self.between: RowHeap[int] = RowHeap(State.READY)
        self.top = PRIORITY_MIN
        self._listed: list[int] = []
        self._stale = 0

    def lane(self, priority: int) -> deque[Row]:
        """The lane of a priority."""
        lane = self.fresh.get(priority)
        if lane is None:
            lane = self.fresh[priority] = deque()
            insort(self._listed, priority)
        self.top = max(self.top, priority)
        return lane

    def push(self, row: Row) -> None:
        """Put a ready row in its place."""
        lane = self.lane(row.priority)
        if not lane or lane[-1].id <= row.id:
            lane.append(row)
        elif row.id <= lane[0].id:
            lane.appendleft(row)
        else:
            self.between.push(-row.priority, row)

    def climb_down(self) -> deque[Row] | None:
        """Make `top` the highest priority that has rows in its lane; that lane, or None if all are empty."""
        listed, fresh = self._listed, self.fresh
        # A few empty lanes are kept, so that a queue that runs empty again and again does not remake them.
        while len(listed) > _EMPTY_LANES_MAX and not fresh[listed[-1]]:
            del fresh[listed.pop()]
        for priority in reversed(listed):
            if fresh[priority]:
                self.top = priority
                return fresh[priority]
        self.top = PRIORITY_MIN
        return None

    def head(self) -> Row | None:
        """The next row to claim, or None."""
        first = self._first()
        back = self.between.head()
        if back is not None and (first is None or (back[0], back[1].id) < (-first.priority, first.id)):
            return back[1]
        return first

    def _first(self) -> Row | None:
        while (lane := self.climb_down()) is not None:
            while lane and lane[0].state is not State.READY:
                lane.popleft()
                self._stale -= 1
            if lane:
                return lane[0]
        return None

    def pop(self, head: Row) -> None:
        """Take out the row that `head` gave."""
        lane = self.fresh.get(head.priority)
        if lane and lane[0] is head:
            lane.popleft()
        else:
            self.between.pop()

    def discard(self, ready: int) -> None:
        """A ready row went another way than by its head; `ready` rows are left."""
        self._stale += 1
        # Lanes count too, so that going through them all is paid by as many who left.
        if self._stale > _STALE_MAX and self._stale > ready + len(self.fresh) // 2:
            self._stale = 0
            live = {p: deque(x for x in lane if x.state is State.READY) for p, lane in self.fresh.items()}
            self.fresh = {priority: lane for priority, lane in live.items() if lane}
            self._listed = sorted(self.fresh)
            # What came back is counted apart by nobody, and is seldom much.
            self.between.discard()
