"""What an operator does to jobs, and what retention does, as steps of one open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ulak.core import rules
from ulak.core.job import OPEN, State
from ulak.core.rules import Event
from ulak.core.store import (
    Act,
    Cancel,
    Changed,
    Delete,
    Edit,
    Filter,
    Redrive,
    Refusal,
    Reprioritise,
)
from ulak.storage.sqlite.book import find
from ulak.storage.sqlite.due import EXPIRE_MAX, expire
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.looks import where
from ulak.storage.sqlite.mend import mend
from ulak.storage.stored import (
    CANCELLED,
    HELD,
    INT_MAX,
    LEASED,
    NUMBER,
    READY,
    JobRow,
    QueueRow,
    UnreadableError,
    shown,
)

_EVENT_OF: dict[type[Act], Event] = {
    Redrive: Event.REDRIVE,
    Cancel: Event.CANCEL,
    Reprioritise: Event.REPRIORITISE,
    Delete: Event.DELETE,
    Edit: Event.EDIT,
}


def amend(
    ledger: Ledger,
    which: Sequence[int] | Filter,
    act: Act,
    *,
    queue: str | None,
    states: frozenset[State] | None,
    force: bool,
) -> Changed:
    """An operator's act on each of these jobs, in order of priority, then id; unknown ids last."""
    done: list[int] = []
    refused: dict[Refusal, list[int]] = {}
    for job_id in _chosen(ledger, which, queue):
        refusal = _act_on(ledger, job_id, act, queue, states, force=force)
        if refusal is None:
            done.append(job_id)
        else:
            refused.setdefault(refusal, []).append(job_id)
    ledger.rows_changed += len(done)
    return Changed(tuple(done), {reason: tuple(ids) for reason, ids in refused.items()})


def _chosen(ledger: Ledger, which: Sequence[int] | Filter, queue: str | None) -> list[int]:
    if isinstance(which, Filter):
        condition, values = where(which, queue)
        rows = ledger.db.execute(
            f"SELECT id FROM jobs WHERE {condition} ORDER BY priority DESC, id",  # noqa: S608
            values,
        )
        return [job_id for (job_id,) in rows]
    places: dict[int, int] = {}
    for job_id in dict.fromkeys(which):
        if 0 < job_id <= INT_MAX:
            found = ledger.db.execute("SELECT priority, queue FROM jobs WHERE id = ?", (job_id,)).fetchone()
            row = None if found is None else ledger.by_id(found[1])
            if row is not None and queue in (None, row.name):
                places[job_id] = found[0]
    asked = dict.fromkeys(which)
    return sorted(asked, key=lambda job_id: (job_id not in places, -places.get(job_id, 0), job_id))


def _act_on(
    ledger: Ledger,
    job_id: int,
    act: Act,
    queue: str | None,
    states: frozenset[State] | None,
    *,
    force: bool,
) -> Refusal | None:
    """Do it, or say why not and change nothing."""
    job = find(ledger, job_id) if 0 < job_id <= INT_MAX else None
    row = None if job is None else ledger.by_id(job.queue_id)
    if job is None or row is None or queue not in (None, row.name):
        return Refusal.NOT_FOUND
    try:
        state = job.state
    except UnreadableError:
        return Refusal.STATE
    if states is not None and state not in states:
        return Refusal.STATE
    event = _EVENT_OF[type(act)]
    if not rules.may(state, event, force=force):
        return Refusal.LEASED if rules.may(state, event, force=True) else Refusal.STATE
    match act:
        case Redrive():
            return _redrive(ledger, row, job)
        case Cancel():
            _cancel(ledger, row, job)
        case Reprioritise(priority):
            ledger.db.execute("UPDATE jobs SET priority = ? WHERE id = ?", (priority, job.id))
        case Delete():
            _delete(ledger, row, job, state)
        case Edit(payload, codec):
            ledger.db.execute("UPDATE jobs SET payload = ?, codec = ? WHERE id = ?", (payload, codec, job.id))
        case _:
            assert_never(act)
    return None


def _redrive(ledger: Ledger, row: QueueRow, job: JobRow) -> Refusal | None:
    now_at = ledger.now_at
    expires_at = None if job.expires_at is not None and job.expires_at <= now_at else job.expires_at
    if job.number == HELD:
        # It has only waited, and goes on as it was.
        ledger.db.execute(
            "UPDATE jobs SET state = 0, run_at = ?, expires_at = ? WHERE id = ?", (now_at, expires_at, job.id)
        )
        row.expires_from = None
        ledger.move(row, HELD, READY)
        return None
    if row.capacity is not None and row.open >= row.capacity:
        return Refusal.FULL
    if job.unique_key is not None:
        if shown(job.unique_key) != job.unique_key:
            return Refusal.STATE
        taken = ledger.db.execute(
            "SELECT 1 FROM jobs WHERE queue = ? AND unique_key = ? AND unique_key IS NOT NULL AND state < 4",
            (row.id, job.unique_key),
        ).fetchone()
        if taken:
            return Refusal.UNIQUE
    ledger.db.execute(
        "UPDATE jobs SET state = 0, attempt = 0, crashes = 0, run_at = ?, expires_at = ?, ended_at = NULL, "
        "cancel_requested = 0 WHERE id = ?",
        (now_at, expires_at, job.id),
    )
    row.expires_from = None
    ledger.removed(row, job.number)
    ledger.entered(row, READY, 1)
    ledger.count(row, "redriven")
    return None


def _cancel(ledger: Ledger, row: QueueRow, job: JobRow) -> None:
    if job.number == LEASED:
        ledger.db.execute("UPDATE jobs SET cancel_requested = 1 WHERE id = ?", (job.id,))
        return
    ledger.db.execute(
        "UPDATE jobs SET state = ?, ended_at = ? WHERE id = ?", (CANCELLED, ledger.now_at, job.id)
    )
    ledger.move(row, job.number, CANCELLED)
    ledger.ended_ids.append(job.id)
    ledger.count(row, "cancelled")


def _delete(ledger: Ledger, row: QueueRow, job: JobRow, state: State) -> None:
    ledger.db.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
    ledger.removed(row, job.number)
    ledger.ended_ids.append(job.id)
    ledger.count(row, "deleted" if state in OPEN else "pruned")


def prune(ledger: Ledger, names: Sequence[str], limit: int) -> dict[State, int]:
    """End what has expired, forget what retention does not keep, at most `limit`; how many, per state."""
    pruned: dict[State, int] = {}
    mend(ledger, limit)
    ledger.db.execute(
        "DELETE FROM keys WHERE (queue, name) IN "
        "(SELECT queue, name FROM keys WHERE until_at <= ? ORDER BY until_at LIMIT ?)",
        (ledger.now_at, limit),
    )
    for name in names:
        row = ledger.known(name)
        if row is None:
            continue
        if expired := expire(ledger, row, min(limit, EXPIRE_MAX)):
            _add(pruned, State.EXPIRED, expired)
            limit -= expired
        for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED):
            keep, number = row.retention.of(state), NUMBER[state]
            gone = ledger.forget(row, number, min(getattr(row, state.value) - keep.count, limit))
            gone += ledger.forget(row, number, limit - gone, before_at=ledger.now_at - keep.age_s)
            if gone:
                _add(pruned, state, gone)
                limit -= gone
    return pruned


def _add(numbers: dict[State, int], state: State, number: int) -> None:
    numbers[state] = numbers.get(state, 0) + number
