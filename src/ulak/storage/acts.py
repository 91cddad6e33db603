"""What an operator does to one job of the memory store."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from ulak.core import rules
from ulak.core.job import OPEN, State
from ulak.core.rules import Event
from ulak.core.store import Act, Cancel, Delete, Edit, Redrive, Refusal, Reprioritise
from ulak.storage.row import Row
from ulak.storage.shelf import Shelf

_EVENT_OF: dict[type[Act], Event] = {
    Redrive: Event.REDRIVE,
    Cancel: Event.CANCEL,
    Reprioritise: Event.REPRIORITISE,
    Delete: Event.DELETE,
    Edit: Event.EDIT,
}


def act_on(shelf: Shelf, row: Row, act: Act, *, now_at: float, force: bool) -> Refusal | None:
    """Do it, or say why not and change nothing."""
    event, state = _EVENT_OF[type(act)], row.state
    assert state is not None
    if not rules.may(state, event, force=force):
        return Refusal.LEASED if rules.may(state, event, force=True) else Refusal.STATE
    match act:
        case Redrive():
            return _redrive(shelf, row, now_at)
        case Cancel():
            _cancel(shelf, row, now_at)
        case Reprioritise(priority):
            shelf.replace(row, _changed(row, priority=priority))
        case Delete():
            shelf.remove(row)
            shelf.count("deleted" if state in OPEN else "pruned")
        case Edit(payload, codec):
            spec = msgspec.structs.replace(row.spec, codec=codec)
            if state in OPEN:
                shelf.replace(row, _changed(row, body=payload, spec=spec))
            else:
                # An ended job keeps its place among those that ended; no delivery of it is current.
                row.body, row.spec = payload, spec
        case _:
            assert_never(act)
    return None


def _changed(row: Row, **changes: Any) -> Row:  # noqa: ANN401 - fields of a row
    """A copy with these changes; no order knows it yet."""
    more = None if row.more is None else msgspec.structs.replace(row.more, watched=False)
    return msgspec.structs.replace(row, **{"more": more, **changes})


def _redrive(shelf: Shelf, row: Row, now_at: float) -> Refusal | None:
    has_ended, expires_at = row.state is not State.HELD, row.expires_at
    if has_ended and shelf.capacity is not None and shelf.open >= shelf.capacity:
        return Refusal.FULL
    if has_ended and row.spec.unique_key is not None and row.spec.unique_key in shelf.unique:
        return Refusal.UNIQUE
    more = msgspec.structs.replace(
        row.detail(),
        run_at=now_at,
        expires_at=None if expires_at is not None and expires_at <= now_at else expires_at,
        watched=False,
    )
    if has_ended:
        # What is held has only waited, and goes on as it was; what has ended begins anew.
        more.crashes, more.uncounted, more.cancel_requested = 0, row.delivery, False
        shelf.count("redriven")
    shelf.replace(row, _changed(row, more=more, state=State.READY, ended_at=None))
    return None


def _cancel(shelf: Shelf, row: Row, now_at: float) -> None:
    if row.state is State.LEASED:
        row.detail().cancel_requested = True
        return
    row.ended_at = now_at
    shelf.move(row, State.CANCELLED)
    shelf.count("cancelled")
