"""Copies of a live store, whatever is inside it: the only file here that knows how a store is built.

A store is pickled whole, with what its orders hidden inside still hold of jobs that moved on, and together
with the leases that others remember, since a lease points at its row. To make that fast

- what belongs to the store for good is not copied but named (`SHARED`, and the objects that are frozen),
- what never changes is kept once for all that are equal (`VALUES`),
- and rows and totals are kept once for all that look the same, and cloned when a copy is made.

A store that stands before another (`_store`) is shared as well: it must not remember anything itself.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from ulak.core.job import Attempt, Cause, Grant, Spec, State, Totals
from ulak.core.store import Retention, Settings, Until
from ulak.storage.ends import Ends
from ulak.storage.gate import Gate
from ulak.storage.line import WaitLine
from ulak.storage.order import RowHeap
from ulak.storage.row import Row
from ulak.storage.shelf import Shelf

SHARED = (type(threading.Lock()), Gate, WaitLine, Ends)
VALUES = (State, Until, Cause, Settings, Retention, Spec, Grant, Attempt)

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

_things: list[Any] = []
_numbers: dict[Any, int] = {}


class Copier:
    """Freezes a store as it is now, and later makes it be as it was.

    queue: the only one there is. others: objects that belong with it. One copier is in use at a time: a new
    one forgets what others froze.
    """

    def __init__(self, store: Any, queue: str, *others: Any) -> None:
        _things.clear()
        _numbers.clear()
        stores = [store]
        while hasattr(stores[-1], "_store"):
            stores.append(stores[-1]._store)
        inner = stores[-1]
        objects = (inner, inner.jobs, inner.shelf(queue), *others)
        self._objects = [(each, _names(each), attrgetter(*_names(each))) for each in objects]
        shared = (*SHARED, *map(type, (*stores, *objects)))
        table: dict[type, Callable[[Any], Reduced]] = dict.fromkeys(shared, _same)
        table |= dict.fromkeys(VALUES, _equal)
        self._table = table | {Row: _row, RowHeap: _heap, Totals: _totals}

    def settle_alarms(self) -> None:
        """Make the store's lower bounds of time exact."""
        for each, _, _ in self._objects:
            if isinstance(each, Shelf):
                each.set_alarm()

    def freeze(self, *memories: Any) -> bytes:
        """All that the store and the others hold now, and what somebody else remembers of it."""
        frozen = io.BytesIO()
        pickler = pickle.Pickler(frozen, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = self._table
        pickler.dump([memories, *[get(each) for each, _, get in self._objects]])
        return frozen.getvalue()

    def thaw(self, frozen: bytes) -> tuple[Any, ...]:
        """Make them hold again what they held then; the memories as they were."""
        memories: tuple[Any, ...]
        memories, *held = pickle.loads(frozen)
        for (each, names, _), values in zip(self._objects, held, strict=True):
            for name, value in zip(names, values, strict=True):
                setattr(each, name, value)
        return memories


def _names(thing: Any) -> tuple[str, ...]:
    """The attributes of an object that hold anything: neither constants nor what it shares."""
    named = vars(thing) if hasattr(thing, "__dict__") else type(thing).__slots__
    return tuple(name for name in named if not isinstance(getattr(thing, name), (str, *SHARED)))


def _same(thing: Any) -> Reduced:
    return _thing, (_number(id(thing), thing),)


def _equal(value: Any) -> Reduced:
    return _thing, (_number((type(value), value), value),)


def _totals(totals: Totals) -> Reduced:
    key = msgspec.structs.astuple(totals)
    number = _numbers.get(key)
    return _clone, (_number(key, copy.copy(totals)) if number is None else number,)


def _row(row: Row) -> Reduced:
    # A row alone has its `more`, so the two are copied as one.
    more = None if row.more is None else msgspec.structs.astuple(row.more)
    key = (more, *[getattr(row, name) for name in _ROW_BUT_MORE])
    number = _numbers.get(key)
    return _clone_row, (_number(key, _clone_of(row)) if number is None else number,)


_ROW_BUT_MORE = tuple(name for name in Row.__struct_fields__ if name != "more")


def _heap(heap: RowHeap[Any]) -> Reduced:
    # Named, because a copy of a set may come in another order, and so look like another one.
    states = _number((frozenset, heap._states), heap._states)
    return _new_heap, (states, heap._drop, heap._entries, heap._pushed, heap._stale)


def _new_heap(states: int, drop: Any, entries: Any, pushed: int, stale: int) -> RowHeap[Any]:
    heap: RowHeap[Any] = RowHeap.__new__(RowHeap)
    heap._states, heap._drop, heap._entries = _things[states], drop, entries
    heap._pushed, heap._stale = pushed, stale
    return heap


def _number(key: Any, thing: Any) -> int:
    number = _numbers.setdefault(key, len(_things))
    if number == len(_things):
        _things.append(thing)
    return number


def _thing(number: int) -> Any:
    return _things[number]


def _clone(number: int) -> Any:
    return _things[number].__copy__()


def _clone_row(number: int) -> Row:
    return _clone_of(_things[number])


def _clone_of(row: Row) -> Row:
    clone = copy.copy(row)
    if row.more is not None:
        clone.more = copy.copy(row.more)
    return clone
