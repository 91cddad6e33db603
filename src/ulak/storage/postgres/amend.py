"""What an operator does to jobs, as a step: all are locked and looked at, decided on, and written at once.

A running job is not locked where the act leaves it alone: whoever settles or extends it does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

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
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.looks import condition
from ulak.storage.postgres.queues import take_rooms
from ulak.storage.postgres.records import CLOCK, MOVED_COLUMNS, NOW_AT, base, moved
from ulak.storage.stored import CANCELLED, HELD, INT_MAX, LEASED, READY, STATES

_EVENT_OF: dict[type[Act], Event] = {
    Redrive: Event.REDRIVE,
    Cancel: Event.CANCEL,
    Reprioritise: Event.REPRIORITISE,
    Delete: Event.DELETE,
    Edit: Event.EDIT,
}
_COLUMNS = "id, queue, state::int, priority, unique_key"
_IDS = "id = ANY(%(ids)s::bigint[])"
_NAMES = "SELECT id, name FROM queues WHERE id = ANY(%s::bigint[])"
_TAKEN = "SELECT queue, unique_key FROM jobs WHERE unique_key IS NOT NULL AND unique_key = ANY(%s::bytea[])"

_MARK = f"UPDATE jobs SET cancel_requested = true WHERE {_IDS}"
_END = (
    f"{CLOCK}, gone AS (DELETE FROM jobs WHERE {_IDS} RETURNING jobs.*), "
    f"kept AS ({moved(str(CANCELLED), 'gone')})"
)
_PRIORITISE = f"WITH {CLOCK} UPDATE jobs SET priority = %(priority)s::bigint, back_at = {NOW_AT} WHERE {_IDS}"
_EXPIRES = f"expires_at = CASE WHEN expires_at <= {NOW_AT} THEN NULL ELSE expires_at END"
_RELEASE = (
    f"WITH {CLOCK} UPDATE jobs SET state = 0, refused = false, run_at = {NOW_AT}, back_at = {NOW_AT}, "
    f"{_EXPIRES} WHERE {_IDS}"
)
_AGAIN = {
    "run_at": NOW_AT,
    "expires_at": f"CASE WHEN expires_at <= {NOW_AT} THEN NULL ELSE expires_at END",
    "attempt": "0",
    "crashes": "0",
    "cancel_requested": "false",
}
_BRING_BACK = (
    f"{CLOCK}, back AS (DELETE FROM ended WHERE {_IDS} RETURNING *), "
    f"stored AS (INSERT INTO jobs ({MOVED_COLUMNS}, state, back_at) "
    f"SELECT {', '.join(_AGAIN.get(name, name) for name in MOVED_COLUMNS.split(', '))}, 0, {NOW_AT} "
    "FROM back)"
)


class _Row(msgspec.Struct, frozen=True):
    """What is looked at in a job."""

    id: int
    queue: int
    number: int
    priority: int
    unique_key: bytes | None

    @property
    def state(self) -> State:
        """Where it is."""
        return STATES[self.number]


def amend(
    scene: Scene,
    which: Sequence[int] | Filter,
    act: Act,
    *,
    queue: str | None = None,
    states: frozenset[State] | None = None,
    force: bool = False,
) -> Step[Changed]:
    """An operator's act on each of these jobs, in order of priority, then id; unknown ids last."""
    wanted, ended_ones, params = _wanted(which, queue)
    rooms: dict[int, int] = {}
    known: set[int] | None = None
    if isinstance(act, Redrive):
        # Queues before jobs: who takes room has its queue first. Jobs that are still open may end meanwhile.
        found = yield Execute(_queues_of(wanted, ended_ones), params)
        known = {number for (number,) in found}
        rooms = yield from take_rooms(known)
    may_lease = rules.may(State.LEASED, _EVENT_OF[type(act)], force=force)
    by_id = not isinstance(which, Filter)
    rows = yield from _looked_at(wanted, ended_ones, params, by_id=by_id, may_lease=may_lease)
    # What is of a queue that had none of these jobs has come since: it is as if it came after this.
    jobs = {row.id: row for row in (_Row(*values) for values in rows) if known is None or row.queue in known}
    names: dict[int, str] = dict((yield Execute(_NAMES, (sorted({row.queue for row in jobs.values()}),))))
    jobs = {job_id: row for job_id, row in jobs.items() if queue in (None, names.get(row.queue))}
    taken = yield from _taken(act, jobs.values())
    done: list[_Row] = []
    refused: dict[Refusal, list[int]] = {}
    for job_id in _in_order(which, jobs):
        row = jobs.get(job_id)
        refusal = Refusal.NOT_FOUND if row is None else _refusal(row, act, states, force=force)
        if refusal is None and row is not None and isinstance(act, Redrive):
            refusal = _take_place(row, rooms, taken)
        if refusal is None and row is not None:
            done.append(row)
        else:
            refused.setdefault(refusal or Refusal.NOT_FOUND, []).append(job_id)
    yield from _write(Ledger(scene), act, done, names)
    return Changed(tuple(row.id for row in done), {reason: tuple(ids) for reason, ids in refused.items()})


def _wanted(which: Sequence[int] | Filter, queue: str | None) -> tuple[str, str, dict[str, Any]]:
    if isinstance(which, Filter):
        return condition(which, queue)
    return _IDS, _IDS, {"ids": sorted({job_id for job_id in which if 0 < job_id <= INT_MAX})}


def _queues_of(wanted: str, ended_ones: str) -> str:
    # An index that has ids too would be walked whole, where it alone tells all that is asked; so it does not.
    of_ended = f"SELECT queue FROM ended WHERE ({ended_ones}) AND (crashes >= 0) IS NOT NULL"
    return f"SELECT queue FROM jobs WHERE {wanted} UNION {of_ended}"


def _looked_at(
    wanted: str, ended_ones: str, params: Mapping[str, Any], *, by_id: bool, may_lease: bool
) -> Step[Rows]:
    """The jobs, locked, and as they are then; those that are leased only if the act may change them.

    Those that end meanwhile are waited for, and then found among the others.
    """
    locked = f"SELECT {_COLUMNS} FROM {{}} WHERE {{}} ORDER BY id + 0 FOR UPDATE"
    rows: Rows = []
    if may_lease:
        rows += yield Execute(locked.format("jobs", wanted), params)
    else:
        # What is not locked by the next statement was leased, or is since.
        running = f"SELECT id, queue, {LEASED}, priority, unique_key FROM jobs WHERE {wanted}"
        rows += yield Execute(running if by_id else f"{running} AND state = {LEASED}", params)
        rows += yield Execute(locked.format("jobs", f"{wanted} AND state + 0 <> {LEASED}"), params)
    rows += yield Execute(locked.format("ended", ended_ones), params)
    return rows


def _taken(act: Act, rows: Iterable[_Row]) -> Step[set[tuple[int, bytes]]]:
    """The unique keys, by queue, that open jobs have of those that a redrive would need."""
    keys = {row.unique_key for row in rows if row.unique_key is not None and row.number > HELD}
    if not isinstance(act, Redrive) or not keys:
        return set()
    found = yield Execute(_TAKEN, (sorted(keys),))
    return {(queue, key) for queue, key in found}


def _in_order(which: Sequence[int] | Filter, jobs: Mapping[int, _Row]) -> list[int]:
    if isinstance(which, Filter):
        return sorted(jobs, key=lambda job_id: (-jobs[job_id].priority, job_id))

    def place(job_id: int) -> tuple[bool, int, int]:
        row = jobs.get(job_id)
        return row is None, 0 if row is None else -row.priority, job_id

    return sorted(dict.fromkeys(which), key=place)


def _refusal(row: _Row, act: Act, states: frozenset[State] | None, *, force: bool) -> Refusal | None:
    if states is not None and row.state not in states:
        return Refusal.STATE
    event = _EVENT_OF[type(act)]
    if rules.may(row.state, event, force=force):
        return None
    return Refusal.LEASED if rules.may(row.state, event, force=True) else Refusal.STATE


def _take_place(row: _Row, rooms: dict[int, int], taken: set[tuple[int, bytes]]) -> Refusal | None:
    """Take what a job that has ended needs to be open again; a held one has it all."""
    if row.number == HELD:
        return None
    if rooms.get(row.queue, 1) <= 0:
        return Refusal.FULL
    if row.unique_key is not None:
        if (row.queue, row.unique_key) in taken:
            return Refusal.UNIQUE
        taken.add((row.queue, row.unique_key))
    if row.queue in rooms:
        rooms[row.queue] -= 1
    return None


def _write(ledger: Ledger, act: Act, done: Sequence[_Row], names: Mapping[int, str]) -> Step[None]:
    if not done:
        return
    match act:
        case Redrive():
            yield from _redrive(ledger, done, names)
        case Cancel():
            yield from _cancel(ledger, done, names)
        case Reprioritise(priority):
            params = {**base(ledger.scene), "ids": _ids(done), "priority": priority}
            yield Execute(_PRIORITISE, params)
        case Delete():
            yield from _delete(ledger, done, names)
        case Edit(payload, codec):
            params = {"ids": _ids(done), "payload": payload, "codec": codec}
            for table in ("jobs", "ended"):
                yield Execute(
                    f"UPDATE {table} SET payload = %(payload)s::bytea, codec = %(codec)s::text WHERE {_IDS}",
                    params,
                )


def _ids(rows: Iterable[_Row]) -> list[int]:
    return sorted(row.id for row in rows)


def _redrive(ledger: Ledger, done: Sequence[_Row], names: Mapping[int, str]) -> Step[None]:
    params = base(ledger.scene)
    held = [row for row in done if row.number == HELD]
    others = [row for row in done if row.number != HELD]
    for row in held:
        ledger.move(row.queue, names[row.queue], HELD, READY)
    for row in others:
        ledger.removed(row.queue, names[row.queue], row.number)
        ledger.move(row.queue, names[row.queue], None, READY)
        ledger.count(row.queue, names[row.queue], ["redriven"])
    if held:
        # It has only waited, and goes on as it was.
        yield Execute(_RELEASE, {**params, "ids": _ids(held)})
    yield from ledger.flush(*((_BRING_BACK, {"ids": _ids(others)}) if others else ()))


def _cancel(ledger: Ledger, done: Sequence[_Row], names: Mapping[int, str]) -> Step[None]:
    marked = [row for row in done if row.number == LEASED]
    others = [row for row in done if row.number != LEASED]
    if marked:
        yield Execute(_MARK, {"ids": _ids(marked)})
    for row in others:
        ledger.move(row.queue, names[row.queue], row.number, CANCELLED)
        ledger.count(row.queue, names[row.queue], ["cancelled"])
    ledger.scene.ended_ids += [row.id for row in others]
    if others:
        yield from ledger.flush(_END, {"ids": _ids(others)})


def _delete(ledger: Ledger, done: Sequence[_Row], names: Mapping[int, str]) -> Step[None]:
    for table in ("jobs", "ended"):
        yield Execute(f"DELETE FROM {table} WHERE {_IDS}", {"ids": _ids(done)})
    for row in done:
        ledger.removed(row.queue, names[row.queue], row.number)
        ledger.count(row.queue, names[row.queue], ["deleted" if row.state in OPEN else "pruned"])
    ledger.scene.ended_ids += _ids(done)
    yield from ledger.flush()
