"""What an operator does to one job of the memory store."""

from __future__ import annotations

from typing import assert_never

from ulak.core import rules
from ulak.core.job import OPEN, Job, State
from ulak.core.rules import Event
from ulak.core.store import Act, Cancel, Delete, Edit, Redrive, Refusal, Reprioritise
from ulak.storage.shelf import Shelf

_EVENT_OF: dict[type[Act], Event] = {
    Redrive: Event.REDRIVE,
    Cancel: Event.CANCEL,
    Reprioritise: Event.REPRIORITISE,
    Delete: Event.DELETE,
    Edit: Event.EDIT,
}


def act_on(shelf: Shelf, job: Job, act: Act, *, now_at: float, force: bool) -> Refusal | None:
    """Do it, or say why not and change nothing."""
    event = _EVENT_OF[type(act)]
    if not rules.may(job.state, event, force=force):
        return Refusal.LEASED if rules.may(job.state, event, force=True) else Refusal.STATE
    match act:
        case Redrive():
            return _redrive(shelf, job, now_at)
        case Cancel():
            _cancel(shelf, job, now_at)
        case Reprioritise(priority):
            job.priority = priority
            if job.state in (State.READY, State.HELD):
                shelf.move(job, job.state)
        case Delete():
            shelf.count("deleted" if job.state in OPEN else "pruned")
            shelf.remove(job)
        case Edit(payload, codec):
            job.payload, job.codec = payload, codec
        case _:
            assert_never(act)
    return None


def _redrive(shelf: Shelf, job: Job, now_at: float) -> Refusal | None:
    capacity = shelf.settings.capacity
    if capacity is not None and shelf.open >= capacity:
        return Refusal.FULL
    if job.unique_key is not None and job.unique_key in shelf.unique:
        return Refusal.UNIQUE
    job.attempt = job.crashes = 0
    job.cancel_requested = False
    job.ended_at = None
    job.run_at = now_at
    if job.expires_at is not None and job.expires_at <= now_at:
        job.expires_at = None
    shelf.count("redriven")
    shelf.move(job, State.READY)
    return None


def _cancel(shelf: Shelf, job: Job, now_at: float) -> None:
    if job.state is State.LEASED:
        job.cancel_requested = True
        return
    job.ended_at = now_at
    shelf.count("cancelled")
    shelf.move(job, State.CANCELLED)
