"""Steps that store new jobs, and take them back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from ulak.core import rules
from ulak.core.job import FULL, Draft, Duplicate, Full
from ulak.core.rules import KeyKind
from ulak.core.store import IDEMPOTENCY_S, Settings, Until
from ulak.errors import ArgumentError
from ulak.storage.postgres.asks import ApartError, Execute, Rows, Scene, Step
from ulak.storage.postgres.due import expire
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.queues import made, to_take_room
from ulak.storage.postgres.records import CLOCK, NOW_AT, base, bytes_of, counted
from ulak.storage.postgres.turns import HAS_OVER
from ulak.storage.stored import SCHEDULED, QueueRow, text_of, to_json

# A job's column as it is given, with its type: of each job of a call, or of all of them alike.
_ALIKE = {
    "max_attempts": "bigint",
    "codec": "text",
    "task": "text",
    "delay_s": "float8",
    "run_at": "float8",
    "expires_s": "float8",
    "expires_at": "float8",
    "headers": "bytea",
    "backoff": "text",
}
_EACH = {"payload": "bytea", "priority": "bigint"}
_KEYS = {"unique_key": "bytea", "idempotency_key": "bytea"}
_FULL, _SLOW = -1, -2

BYTES_MAX = 16 * 2**20
"""So much of payloads one statement stores at most: the server takes no message beyond 1 GiB."""


def _insert(*, is_alike: bool) -> str:
    """Stores what is given in the queue of `gate`, if that says `room`."""
    each = _EACH if is_alike else {**_EACH, **_ALIKE, **_KEYS}
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in each.items())
    alike = {name: f"%({name})s::{kind}" for name, kind in _ALIKE.items()}
    alike |= {name: f"NULL::{kind}" for name, kind in _KEYS.items()}
    given = {name: f"given.{name}" if name in each else value for name, value in {**alike, **_EACH}.items()}
    run_at = f"coalesce({given['run_at']}, now_at + {given['delay_s']})"
    columns = ("priority", "max_attempts", "codec", "task", *_KEYS, "headers", "backoff", "payload")
    return (
        f"new AS (INSERT INTO jobs (id, queue, created_at, run_at, state, expires_at, {', '.join(columns)}) "
        f"SELECT nextval('job_ids'), queue, now_at, run_at, CASE WHEN run_at > now_at THEN 1 ELSE 0 END, "
        f"expires_at, {', '.join(columns)} FROM (SELECT gate.id AS queue, now_at, {run_at} AS run_at, "
        f"coalesce(now_at + {given['expires_s']}, {given['expires_at']}) AS expires_at, "
        + ", ".join(f"{given[name]} AS {name}" for name in columns)
        + f" FROM gate, clock, unnest({arrays}) WITH ORDINALITY AS given ({', '.join(each)}, place) "
        "WHERE gate.what = 'room' ORDER BY place) AS wanted "
        "RETURNING id, queue, state, idempotency_key, created_at)"
    )


# They are of one queue.
_COUNT_NEW = (
    "INSERT INTO tallies (queue, shard, entered, scheduled) "
    "SELECT min(queue), %(shard)s::bigint, count(*), count(*) FILTER (WHERE state = 1) FROM new "
    "HAVING count(*) > 0 ON CONFLICT (queue, shard) DO UPDATE "
    "SET entered = tallies.entered + excluded.entered, scheduled = tallies.scheduled + excluded.scheduled"
)


def _one() -> str:
    """The same as `_quick` for one job without keys, in as few parts: they cost as much as the job."""
    over = HAS_OVER.replace(NOW_AT, "clock.now_at")
    columns = ("priority", "max_attempts", "codec", "task", "headers", "backoff", "payload")
    kinds = _EACH | _ALIKE
    return (
        f"WITH asked AS MATERIALIZED (SELECT q.id, clock.now_at, CASE WHEN {over} THEN 'slow' "
        "WHEN capacity IS NULL THEN 'room' WHEN capacity < 1 THEN 'slow' "
        "WHEN has_room(q.id, 1) THEN 'room' ELSE 'full' END AS what FROM (SELECT "
        "coalesce(%(now_at)s::float8, date_part('epoch', clock_timestamp())) AS now_at) AS clock, "
        "queues q WHERE q.name = %(queue)s::text), "
        f"new AS (INSERT INTO jobs (id, queue, created_at, run_at, state, expires_at, {', '.join(columns)}) "
        "SELECT nextval('job_ids'), id, now_at, run_at, CASE WHEN run_at > now_at THEN 1 ELSE 0 END, "
        "coalesce(now_at + %(expires_s)s::float8, %(expires_at)s::float8), "
        f"{', '.join(f'%({name})s::{kinds[name]}' for name in columns)} FROM (SELECT id, now_at, "
        "coalesce(%(run_at)s::float8, now_at + %(delay_s)s::float8) AS run_at FROM asked "
        "WHERE what = 'room') AS gate RETURNING id, queue, state), "
        "told AS (INSERT INTO tallies (queue, shard, entered, scheduled) "
        "SELECT queue, %(shard)s::bigint, 1, state FROM new ON CONFLICT (queue, shard) DO UPDATE "
        "SET entered = tallies.entered + 1, scheduled = tallies.scheduled + excluded.scheduled) "
        "SELECT id, state::int FROM new UNION ALL "
        f"SELECT NULL, CASE what WHEN 'full' THEN {_FULL} ELSE {_SLOW} END FROM asked WHERE what <> 'room'"
    )


def _quick(*, is_alike: bool) -> str:
    """One statement for jobs that nothing stands in the way of; else it changes nothing and says so.

    In the way are: no such queue, jobs whose time is over, a key that is known, more jobs than ever fit.
    """
    slow = HAS_OVER
    remember = ""
    if not is_alike:
        slow += (
            " OR EXISTS (SELECT FROM unnest(%(idempotency_keys)s::bytea[]) AS given (name) WHERE "
            "(SELECT true FROM keys WHERE queue = q.id AND keys.name = given.name)) "
            "OR EXISTS (SELECT FROM unnest(%(unique_keys)s::bytea[]) AS given (name) WHERE "
            "(SELECT true FROM jobs WHERE queue = q.id AND unique_key = given.name))"
        )
        remember = (
            ", remembered AS (INSERT INTO keys (queue, name, job, until_at) "
            f"SELECT queue, idempotency_key, id, created_at + {IDEMPOTENCY_S} FROM new "
            "WHERE idempotency_key IS NOT NULL)"
        )
    return (
        f"WITH {CLOCK}, asked AS MATERIALIZED (SELECT id, capacity, {slow} AS is_slow FROM queues q "
        "WHERE name = %(queue)s::text), gate AS MATERIALIZED (SELECT id, CASE WHEN is_slow THEN 'slow' "
        "WHEN capacity IS NULL THEN 'room' WHEN %(wanted)s::bigint > capacity THEN 'slow' "
        "WHEN has_room(id, %(wanted)s::bigint) THEN 'room' ELSE 'full' END AS what FROM asked), "
        f"{_insert(is_alike=is_alike)}{remember}, told AS ({_COUNT_NEW}) "
        "SELECT id, state::int FROM new UNION ALL "
        f"SELECT NULL, CASE what WHEN 'full' THEN {_FULL} ELSE {_SLOW} END FROM gate WHERE what <> 'room'"
    )


_ONE, _QUICK_ALIKE, _QUICK = _one(), _quick(is_alike=True), _quick(is_alike=False)
_STORE = (
    f"WITH {CLOCK}, gate AS MATERIALIZED (SELECT %(queue_id)s::bigint AS id, 'room' AS what), "
    f"{_insert(is_alike=False)} SELECT id, state::int FROM new"
)
# Each key is looked up by itself: among many, the server would look for each in the list of all.
_KNOWN = (
    f"WITH {CLOCK} SELECT * FROM (SELECT 'idempotency', name, (SELECT job FROM keys "
    f"WHERE queue = %(queue_id)s::bigint AND keys.name = given.name AND until_at > {NOW_AT}) AS id "
    "FROM unnest(%(idempotency_keys)s::bytea[]) AS given (name) UNION ALL "
    "SELECT 'unique', name, (SELECT id FROM jobs WHERE queue = %(queue_id)s::bigint "
    "AND unique_key = given.name) FROM unnest(%(unique_keys)s::bytea[]) AS given (name)) AS found "
    "WHERE id IS NOT NULL"
)
_FORGET_KEYS = (
    f"WITH {CLOCK} DELETE FROM keys WHERE queue = %(queue_id)s::bigint "
    f"AND name = ANY(%(names)s::bytea[]) AND until_at <= {NOW_AT}"
)
_REMEMBER = (
    f"WITH {CLOCK} INSERT INTO keys (queue, name, job, until_at) "
    f"SELECT %(queue_id)s::bigint, name, job, {NOW_AT} + {IDEMPOTENCY_S} "
    "FROM unnest(%(names)s::bytea[], %(jobs)s::bigint[]) AS given (name, job)"
)


def add(
    scene: Scene, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
) -> Step[list[int] | Full]:
    """Store jobs, all or none."""
    is_large = len(drafts) > 1 and len(_portions(drafts)) > 1
    if not known_only and drafts and not is_large and not _names_a_key_twice(drafts):
        answer = yield from _add_quickly(scene, queue, drafts)
        if answer is not None:
            return answer
    return (yield from _add_with_care(scene, queue, drafts, known_only=known_only))


def _add_quickly(scene: Scene, queue: str, drafts: Sequence[Draft]) -> Step[list[int] | Full | None]:
    """One statement; None, and nothing has changed, if more has to be looked at."""
    params = {**base(scene), "queue": queue, "wanted": len(drafts)}
    if not _is_alike(drafts):
        text = _QUICK
        params |= _columns(drafts, is_alike=False)
    elif len(drafts) > 1:
        text = _QUICK_ALIKE
        params |= _columns(drafts, is_alike=True)
    else:
        text, (draft,) = _ONE, drafts
        params |= {"payload": draft.payload, "priority": draft.priority, **_values(draft)}
    rows = yield Execute(text, params, alone=True)
    if rows and rows[0][0] is not None:
        _ring(scene, queue, rows)
        return sorted(job_id for job_id, _ in rows)
    return FULL if rows and rows[0][1] == _FULL else None


def _is_alike(drafts: Sequence[Draft]) -> bool:
    """Whether they have no keys, and differ in no more than payload and priority."""
    first = drafts[0]
    if first.unique_key is not None or first.idempotency_key is not None:
        return False
    return all(
        draft.codec == first.codec
        and draft.task == first.task
        and draft.max_attempts == first.max_attempts
        and draft.unique_key is None
        and draft.idempotency_key is None
        and draft.headers == first.headers
        and draft.backoff == first.backoff
        and draft.delay_s == first.delay_s
        and draft.run_at == first.run_at
        and draft.expires_s == first.expires_s
        and draft.expires_at == first.expires_at
        for draft in islice(drafts, 1, None)
    )


def _names_a_key_twice(drafts: Sequence[Draft]) -> bool:
    for keys in ([draft.unique_key for draft in drafts], [draft.idempotency_key for draft in drafts]):
        given = [key for key in keys if key is not None]
        if len(set(given)) < len(given):
            return True
    return False


def _columns(drafts: Sequence[Draft], *, is_alike: bool) -> dict[str, Any]:
    """The parameters of `_insert`, and the keys that are looked for."""
    columns: dict[str, Any] = {
        "payload": [draft.payload for draft in drafts],
        "priority": [draft.priority for draft in drafts],
    }
    if is_alike:
        return columns | _values(drafts[0])
    values = [_values(draft) for draft in drafts]
    columns |= {name: [value[name] for value in values] for name in _ALIKE}
    for name in _KEYS:
        columns[name] = [bytes_of(getattr(draft, name)) for draft in drafts]
        columns[f"{name}s"] = [key for key in columns[name] if key is not None]
    return columns


def _values(draft: Draft) -> dict[str, Any]:
    return {
        "max_attempts": draft.max_attempts,
        "codec": draft.codec,
        "task": draft.task,
        "delay_s": float(draft.delay_s),
        "run_at": _float(draft.run_at),
        "expires_s": _float(draft.expires_s),
        "expires_at": _float(draft.expires_at),
        "headers": None if draft.headers is None else to_json(draft.headers),
        "backoff": text_of(draft.backoff),
    }


def _float(value: float | None) -> float | None:
    # Arrays are of one type.
    return None if value is None else float(value)


def _ring(scene: Scene, queue: str, rows: Rows) -> None:
    scheduled = sum(state == SCHEDULED for _, state in rows)
    if scheduled:
        scene.rings[Until.DUE, queue] += 1
    if scheduled < len(rows):
        scene.rings[Until.READY, queue] += len(rows) - scheduled


def _add_with_care(
    scene: Scene, queue: str, drafts: Sequence[Draft], *, known_only: bool
) -> Step[list[int] | Full]:
    """The long way: several statements, in which everything is looked at."""
    ledger = Ledger(scene)
    row = yield from made(scene, queue, Settings())
    if row.capacity is not None:
        # Before anything else: who takes room may wait for the others, but not the other way round.
        row = yield from to_take_room(scene, row.id)
    keys = {name: [bytes_of(getattr(draft, name)) for draft in drafts] for name in _KEYS}
    asked = {f"{name}s": [key for key in found if key is not None] for name, found in keys.items()}
    # In a transaction of a caller's only if one is in the way: it may hold them for long.
    if scene.shard is not None or asked["unique_keys"]:
        yield from expire(ledger, row)
    known: dict[tuple[str, bytes], int] = {}
    if any(asked.values()):
        rows = yield Execute(_KNOWN, {**base(scene), "queue_id": row.id, **asked})
        known = {(kind, key): job_id for kind, key, job_id in rows}

    def stored(kind: KeyKind, key: str) -> int | None:
        return known.get((kind, bytes_of(key) or b""))

    # The ids are given by the server: until then, new jobs count from below zero.
    answers, new = rules.number(drafts, -len(drafts) - 1, stored)
    if new and not (yield from _has_room(ledger, row, new)):
        return FULL
    if new and known_only:
        yield from ledger.flush()
        return FULL
    if new:
        answers = yield from _store(ledger, row, drafts, answers)
    yield from _remember(scene, row, drafts, answers, known)
    yield from ledger.flush()
    return answers


def _has_room(ledger: Ledger, row: QueueRow, new: int) -> Step[bool]:
    if row.capacity is None:
        return True
    if new > row.capacity:
        raise ArgumentError(
            f"{new:,} new jobs can never fit queue {row.name!r}, whose capacity is {row.capacity:,}\n"
            f"  enqueue fewer at once, or raise it with q.configure(capacity=...)"
        )
    # No answer of FULL while jobs stand in the way whose time is over, however many they are.
    while True:
        yield from ledger.flush()
        ((has_room,),) = yield Execute("SELECT has_room(%s::bigint, %s::bigint)", (row.id, new))
        if has_room or not (yield from expire(ledger, row)):
            return bool(has_room)


def _store(ledger: Ledger, row: QueueRow, drafts: Sequence[Draft], answers: Sequence[int]) -> Step[list[int]]:
    """Store what is new of them; the answers with the ids that it has got."""
    scene = ledger.scene
    new = [draft for draft, answer in zip(drafts, answers, strict=True) if not isinstance(answer, Duplicate)]
    rows: Rows = []
    for portion in _portions(new):
        params = {**base(scene), "queue_id": row.id, **_columns(portion, is_alike=False)}
        rows += yield Execute(_STORE, params)
    _ring(scene, row.name, rows)
    scheduled = sum(state == SCHEDULED for _, state in rows)
    ledger.add(row.id, row.name, entered=len(rows), scheduled=scheduled)
    ids = sorted(job_id for job_id, _ in rows)
    # The first new one was given -len(drafts), the next one more.
    first = -len(drafts)

    def real(answer: int) -> int:
        if answer >= 0:
            return answer
        job_id = ids[answer - first]
        return Duplicate(job_id) if isinstance(answer, Duplicate) else job_id

    return [real(answer) for answer in answers]


def _portions(drafts: Sequence[Draft]) -> list[Sequence[Draft]]:
    """What one statement stores each, in order."""
    found, start, size = [], 0, 0
    for place, draft in enumerate(drafts):
        size += len(draft.payload)
        if size > BYTES_MAX and place > start:
            found.append(drafts[start:place])
            start, size = place, len(draft.payload)
    return [*found, drafts[start:]]


def _remember(
    scene: Scene,
    row: QueueRow,
    drafts: Sequence[Draft],
    answers: Sequence[int],
    known: dict[tuple[str, bytes], int],
) -> Step[None]:
    """Remember what each idempotency key stands for; one that is remembered already stays.

    If somebody else was quicker, the key is there twice, and the step is run again.
    """
    names: dict[bytes, int] = {}
    for draft, answer in zip(drafts, answers, strict=True):
        name = bytes_of(draft.idempotency_key)
        if name is not None and ("idempotency", name) not in known:
            names.setdefault(name, int(answer))
    if names:
        params = {**base(scene), "queue_id": row.id, "names": list(names), "jobs": list(names.values())}
        yield Execute(_FORGET_KEYS, params)
        yield Execute(_REMEMBER, params)


_UNADD = (
    "WITH gone AS (DELETE FROM jobs WHERE id = ANY(%(ids)s::bigint[]) AND state < 2 AND delivery = 0 "
    "AND unique_key IS NULL AND idempotency_key IS NULL RETURNING id, queue, state), "
    f"told AS ({counted('gone', entered='-count(*)', scheduled='-count(*) FILTER (WHERE state = 1)')}) "
    "SELECT gone.id, queues.name FROM gone JOIN queues ON queues.id = gone.queue"
)


def unadd(scene: Scene, ids: Sequence[int]) -> Step[None]:
    """Take back jobs whose caller was cancelled meanwhile, unless somebody has touched them.

    Not those with a key: somebody else may have been told that they are stored. It is as if the others had
    never come, in the totals too.
    """
    rows = yield Execute(_UNADD, {**base(scene), "ids": sorted(ids)}, alone=True)
    for job_id, name in rows:
        scene.ended_ids.append(job_id)
        scene.rings[Until.ROOM, name] += 1


def add_together(scene: Scene, queue: str, calls: Sequence[Sequence[Draft]]) -> Step[list[list[int] | Full]]:
    """Several calls of `add` in one; each is answered as if it had come alone.

    Raises ApartError, and has changed nothing, if something stands in the way of one of them.
    """
    drafts = [draft for call in calls for draft in call]
    answer = None
    if drafts and not _names_a_key_twice(drafts):
        answer = yield from _add_quickly(scene, queue, drafts)
    if not isinstance(answer, list):
        raise ApartError
    rest = iter(answer)
    return [list(islice(rest, len(call))) for call in calls]
