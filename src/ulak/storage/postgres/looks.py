"""What a store answers without changing anything, as steps of one statement each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ulak.core.job import Counts, Job, State
from ulak.core.store import HELD_SORTED_MAX, Filter, Settings, WorkerInfo
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.records import COLUMNS, QUEUE_COLUMNS, SUMS, bytes_of, job_of
from ulak.storage.stored import HELD, INT_MAX, NUMBER, QueueRow, UnreadableError, bare, text_from

_QUEUES = f"SELECT {QUEUE_COLUMNS} FROM queues"
_COUNTS = (
    f"SELECT q.id, q.name, q.capacity, q.paused, q.backoff, q.retention, {SUMS} "
    "FROM queues q LEFT JOIN tallies t ON t.queue = q.id WHERE q.name = ANY(%(queues)s::text[]) GROUP BY q.id"
)
_NAMED = ", ".join(f"j.{name}" for name in COLUMNS.split(", "))
_GET = (
    f"WITH j AS MATERIALIZED (SELECT {COLUMNS} FROM jobs WHERE id = ANY(%(ids)s::bigint[]) UNION ALL "
    f"SELECT {COLUMNS} FROM ended WHERE id = ANY(%(ids)s::bigint[])) "
    f"SELECT q.name, {_NAMED} FROM j JOIN queues q ON q.id = j.queue"
)
_OPEN_ONES = "SELECT id FROM jobs WHERE id = ANY(%s::bigint[])"


def counts(scene: Scene, queues: Sequence[str]) -> Step[dict[str, Counts]]:
    """One snapshot of states and totals."""
    rows = yield Execute(_COUNTS, {"queues": list(queues)}, alone=True)
    found = {row.name: row.counts() for row in (QueueRow(*values) for values in rows)}
    return {name: found.get(name) or Counts() for name in queues}


def queues(scene: Scene) -> Step[dict[str, Settings]]:
    """All queues and their settings."""
    rows = yield Execute(_QUEUES, alone=True)
    return {row.name: row.settings for row in (QueueRow(*values) for values in rows)}


def records(rows: Rows) -> list[Job]:
    """Rows of a queue's name and a job, as records; one that cannot be read shows what can be."""
    found = []
    for name, *values in rows:
        job = job_of(values)
        try:
            found.append(job.record(name))
        except UnreadableError:
            found.append(bare(job).record(name))
    return found


def get(scene: Scene, ids: Sequence[int]) -> Step[list[Job | None]]:
    """Records by id; None where the id is unknown."""
    asked = [job_id for job_id in dict.fromkeys(ids) if 0 < job_id <= INT_MAX]
    rows = (yield Execute(_GET, {"ids": asked}, alone=True)) if asked else []
    found = {job.id: job for job in records(rows)}
    return [found.get(job_id) for job_id in ids]


def over(scene: Scene, ids: Sequence[int]) -> Step[list[int]]:
    """Those of these jobs that have ended or are not stored."""
    asked = [job_id for job_id in ids if 0 < job_id <= INT_MAX]
    rows = (yield Execute(_OPEN_ONES, (asked,), alone=True)) if asked else []
    still_open = {job_id for (job_id,) in rows}
    return [job_id for job_id in ids if job_id not in still_open]


def condition(which: Filter, queue: str | None = None) -> tuple[str, str, dict[str, Any]]:
    """A filter as a condition on open jobs and one on those that ended, and their parameters."""
    both, params = ["true"], dict[str, Any]()
    for place, name in enumerate(sorted({which.queue, queue} - {None}, key=str)):
        both.append(f"queue = (SELECT id FROM queues WHERE name = %(queue{place})s::text)")
        params[f"queue{place}"] = name
    if which.task is not None:
        both.append("task = %(task)s::text")
        params["task"] = which.task
    if which.worker is not None:
        both.append("worker = %(worker)s::bytea")
        params["worker"] = bytes_of(which.worker)
    if any(isinstance(value, str) and "\0" in value for value in params.values()):
        # No text of the database holds one.
        return "false", "false", {}
    states = frozenset(State) if which.states is None else cast("frozenset[State]", which.states)
    numbers = sorted(NUMBER[state] for state in states)
    conditions = []
    for part in ([n for n in numbers if n <= HELD], [n for n in numbers if n > HELD and not which.refused]):
        # One alone by equality, as the indexes of single states are asked for.
        wanted = f"state = {part[0]}" if len(part) == 1 else f"state IN ({', '.join(map(str, part))})"
        conditions.append(" AND ".join([*both, wanted]) if part else "false")
    if which.refused:
        conditions[0] += " AND refused AND state = 3"
    return conditions[0], conditions[1], params


# How many jobs of a state a queue has. Of the other states there is an index by id.
_NUMBER_OF = {
    State.READY: 'entered - "left" - scheduled - leased - held',
    State.SCHEDULED: "scheduled",
    State.LEASED: "leased",
    State.SUCCEEDED: "succeeded",
}


def scan(scene: Scene, which: Filter, *, after: int = 0, limit: int = 100) -> Step[list[Job]]:
    """Matching jobs with id > `after`, by id."""
    *conditions, params = condition(which)
    states = frozenset[State]() if which.states is None else cast("frozenset[State]", which.states)
    only = next(iter(states & _NUMBER_OF.keys()), None)
    if which.queue is None or len(states) != 1:
        only = None
    parts: list[str] = []
    for table, wanted in zip(("jobs", "ended"), conditions, strict=True):
        if wanted != "false":
            parts += [_page(table, wanted)] if only is None else _pages(table, wanted, NUMBER[only])
    if not parts or after > INT_MAX or limit <= 0:
        return []
    text = (
        f"{'' if only is None else _few(only)}SELECT q.name, {_NAMED} "
        f"FROM ({' UNION ALL '.join(parts)}) AS j JOIN queues q ON q.id = j.queue "
        "ORDER BY j.id LIMIT %(limit)s::bigint"
    )
    params |= {"after": max(after, -INT_MAX), "limit": min(limit, INT_MAX), "few": HELD_SORTED_MAX}
    return records((yield Execute(text, params, alone=True)))


def _page(table: str, wanted: str) -> str:
    return (
        f"(SELECT {COLUMNS} FROM {table} WHERE id > %(after)s::bigint AND {wanted} "
        "ORDER BY id LIMIT %(limit)s::bigint)"
    )


def _few(state: State) -> str:
    return (
        f"WITH few AS MATERIALIZED (SELECT coalesce(sum({_NUMBER_OF[state]}), 0) <= %(few)s::bigint AS are "
        "FROM tallies WHERE queue = (SELECT id FROM queues WHERE name = %(queue0)s::text)) "
    )


def _pages(table: str, wanted: str, number: int) -> list[str]:
    """Both ways of finding a page: few jobs of a state are sorted by id; among many, all are walked by id.

    Sums hide from the server what would let it go the other way.
    """
    hidden = wanted.replace("queue = ", "queue + 0 = ").replace(f"state = {number}", f"state + 0 = {number}")
    return [
        f"(SELECT {COLUMNS} FROM {table} WHERE id IN (SELECT id FROM {table} WHERE (SELECT are FROM few) "
        f"AND id > %(after)s::bigint AND {wanted} ORDER BY id + 0 LIMIT %(limit)s::bigint))",
        _page(table, f"NOT (SELECT are FROM few) AND {hidden}"),
    ]


def workers(scene: Scene) -> Step[list[WorkerInfo]]:
    """The workers that are there, by name."""
    rows = yield Execute("SELECT name, info, seen_at FROM workers ORDER BY name", alone=True)
    return [
        WorkerInfo(text_from(name).encode("utf-8", "replace").decode(), _info_of(info), seen_at)
        for name, info, seen_at in rows
    ]


def _info_of(stored: bytes) -> Mapping[str, str]:
    """What a worker said of itself; nothing, if it cannot be read."""
    try:
        return msgspec.json.decode(stored, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def schedules(scene: Scene) -> Step[dict[str, float]]:
    """Each schedule's last tick."""
    rows = yield Execute("SELECT name, last_tick FROM schedules", alone=True)
    return dict(rows)
