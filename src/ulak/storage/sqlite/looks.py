"""What a store answers without changing anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import msgspec

from ulak.core.flows import CALENDAR_SLEEP_MAX_S
from ulak.core.job import Counts, Job, State
from ulak.core.store import HELD_SORTED_MAX, Filter, Settings, Tasks, WorkerInfo
from ulak.durations import SECONDS_MAX
from ulak.storage.sqlite.records import QUEUE_COLUMNS
from ulak.storage.stored import (
    INT_MAX,
    JOB_COLUMNS,
    NUMBER,
    JobRow,
    QueueRow,
    UnreadableError,
    bare,
    job_row,
    shown,
)

_ASKED_MAX = 500
_AWAITED_MAX = 10_000


def queue_rows(db: sqlite3.Connection) -> dict[str, QueueRow]:
    """Every queue."""
    rows = db.execute(f"SELECT {QUEUE_COLUMNS} FROM queues WHERE id > 0").fetchall()  # noqa: S608 - columns of our own
    return {row.name: row for row in (QueueRow(*values) for values in rows)}


def queue_row(db: sqlite3.Connection, name: str) -> QueueRow | None:
    """One queue."""
    values = db.execute(f"SELECT {QUEUE_COLUMNS} FROM queues WHERE name = ?", (name,)).fetchone()  # noqa: S608
    return None if values is None else QueueRow(*values)


def counts(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, Counts]:
    """One snapshot of states and totals."""
    if len(names) == 1:
        row = queue_row(db, names[0])
        rows = {} if row is None else {row.name: row}
    else:
        rows = queue_rows(db)
    return {name: rows[name].counts() if name in rows else Counts() for name in names}


def settings(db: sqlite3.Connection) -> dict[str, Settings]:
    """All queues and their settings."""
    return {name: row.settings for name, row in queue_rows(db).items()}


def past(db: sqlite3.Connection, queue: QueueRow, now: float, limit: int) -> list[JobRow]:
    """Jobs whose lease has ended, has no end, or one that no call could have given it."""
    found: list[tuple[Any, ...]] = []
    for condition, values in _PAST:
        if len(found) < limit:
            found += db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE queue = ? AND state = 2 AND {condition} LIMIT ?",  # noqa: S608
                (queue.id, *(now + value for value in values), limit - len(found)),
            ).fetchall()
    return [job_row(row) for row in found]


# In seconds from now.
_PAST: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("lease_end <= ? ORDER BY lease_end", (0.0,)),
    ("lease_end IS NULL", ()),
    ("lease_end > ?", (SECONDS_MAX + 1.0,)),
)


def held_by(db: sqlite3.Connection, queue: QueueRow, holders: Collection[int], limit: int) -> list[JobRow]:
    """Jobs leased by these holders."""
    marks = ", ".join("?" * len(holders))
    found = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE queue = ? AND state = 2 AND holder IN ({marks}) LIMIT ?",  # noqa: S608
        (queue.id, *holders, limit),
    ).fetchall()
    return [job_row(values) for values in found]


def leased(
    db: sqlite3.Connection, queue: QueueRow, of: tuple[str, int | None] | None, after: int, limit: int
) -> list[JobRow]:
    """Leased jobs of a queue with id > `after`, by id. of: only those of this worker of this holder."""
    condition, values = "", list[Any]()
    if of is not None:
        condition, values = " AND worker = ? AND holder IS ?", list(of)
    found = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_leased "  # noqa: S608
        f"WHERE queue = ? AND state = 2 AND id > ?{condition} ORDER BY id LIMIT ?",
        (queue.id, after, *values, limit),
    ).fetchall()
    return [job_row(row) for row in found]


def horizon_s(db: sqlite3.Connection, queue: QueueRow, now: float, now_at: float) -> float | None:
    """Seconds until time alone makes a job of this queue claimable."""
    soonest: list[float] = []
    if queue.leased > 0:
        (end,) = db.execute(
            "SELECT min(lease_end) FROM jobs WHERE queue = ? AND state = 2", (queue.id,)
        ).fetchone()
        if end is not None:
            soonest.append(end - now)
    if queue.scheduled > 0 and not queue.paused:
        (due_at,) = db.execute(
            "SELECT min(run_at) FROM jobs WHERE queue = ? AND state = 1", (queue.id,)
        ).fetchone()
        if due_at is not None:
            soonest.append(min(due_at - now_at, CALENDAR_SLEEP_MAX_S))
    return max(0.0, min(soonest)) if soonest else None


def has_work(db: sqlite3.Connection, queue: QueueRow, now_at: float, tasks: Tasks | None) -> bool:
    """Whether a claim of these tasks would find, promote or end anything."""
    if queue.ready > 0 or (queue.held > 0 and (tasks is None or held_tasks(db, queue, tasks))):
        return True
    if queue.scheduled <= 0 and queue.held <= 0:
        return False
    due = db.execute(
        "SELECT 1 FROM jobs WHERE queue = ? AND state = 1 AND run_at <= ? LIMIT 1", (queue.id, now_at)
    ).fetchone()
    over = db.execute(
        "SELECT 1 FROM jobs WHERE queue = ? AND expires_at <= ? AND expires_at IS NOT NULL "
        "AND state IN (0, 1, 3) LIMIT 1",
        (queue.id, now_at),
    ).fetchone()
    return due is not None or over is not None


def held_tasks(db: sqlite3.Connection, queue: QueueRow, tasks: Tasks) -> list[str | None]:
    """Those of these tasks of which a queue holds jobs for whoever knows them."""
    asked = list(tasks)
    found: list[str | None] = []
    for start in range(0, len(asked), _ASKED_MAX):
        part = asked[start : start + _ASKED_MAX]
        marks = ", ".join(["(?)"] * len(part))
        rows = db.execute(
            f"WITH asked (task) AS (VALUES {marks}) SELECT task FROM asked WHERE EXISTS (SELECT 1 FROM jobs "  # noqa: S608
            "WHERE queue = ? AND state = 3 AND refused = 0 AND jobs.task IS asked.task)",
            (*part, queue.id),
        )
        found += [task for (task,) in rows]
    return found


def held_for_tasks(db: sqlite3.Connection, queue: QueueRow, limit: int) -> int:
    """How many jobs of a queue are held for whoever knows their task, counted up to `limit`."""
    if queue.held <= 0:
        return 0
    (found,) = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = ? AND state = 3 AND refused = 0 LIMIT ?)",
        (queue.id, limit),
    ).fetchone()
    return int(found)


def over(db: sqlite3.Connection, ids: Sequence[int]) -> list[int]:
    """Those of these jobs that have ended or are not stored."""
    still_open: set[int] = set()
    asked = [job_id for job_id in ids if 0 < job_id <= INT_MAX]
    for start in range(0, len(asked), _AWAITED_MAX):
        part = asked[start : start + _AWAITED_MAX]
        marks = ", ".join("?" * len(part))
        rows = db.execute(f"SELECT id FROM jobs WHERE id IN ({marks}) AND state BETWEEN 0 AND 3", part)  # noqa: S608
        still_open.update(job_id for (job_id,) in rows)
    return [job_id for job_id in ids if job_id not in still_open]


def where(which: Filter, queue: str | None = None) -> tuple[str, list[Any]]:
    """A filter as a condition on jobs, and its values."""
    conditions, values = ["1"], list[Any]()
    for name in {which.queue, queue} - {None}:
        conditions.append("queue = (SELECT id FROM queues WHERE name = ?)")
        values.append(name)
    if which.states is not None:
        numbers = sorted(NUMBER[state] for state in cast("frozenset[State]", which.states))
        # One alone by equality, as the indexes of single states are asked for.
        wanted = f"= {numbers[0]}" if len(numbers) == 1 else f"IN ({', '.join(map(str, numbers))})"
        conditions.append(f"state {wanted}")
    if which.refused:
        conditions.append("refused = 1 AND state = 3")
    for column in ("task", "worker"):
        if (wanted := getattr(which, column)) is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    return " AND ".join(conditions), values


def records(db: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> list[Job]:
    """Rows as records; one that cannot be read shows what can be."""
    names: dict[int, str] = dict(db.execute("SELECT id, name FROM queues").fetchall())
    found = []
    for values in rows:
        job = job_row(values)
        name = names.get(job.queue_id)
        if name is None:
            continue
        try:
            found.append(job.record(name))
        except UnreadableError:
            found.append(bare(job).record(name))
    return found


def get(db: sqlite3.Connection, ids: Sequence[int]) -> list[Job | None]:
    """Records by id; None where the id is unknown."""
    asked = [job_id for job_id in dict.fromkeys(ids) if 0 < job_id <= INT_MAX]
    found: dict[int, Job] = {}
    for start in range(0, len(asked), _ASKED_MAX):
        part = asked[start : start + _ASKED_MAX]
        marks = ", ".join("?" * len(part))
        rows = db.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN ({marks})", part).fetchall()  # noqa: S608
        found |= {job.id: job for job in records(db, rows)}
    return [found.get(job_id) for job_id in ids]


# The index that has all jobs of a state of one queue, and what it takes to be allowed to use it.
_ENDED = ("jobs_ended", "+state BETWEEN 4 AND 7")
_INDEX_OF = {
    State.READY: ("jobs_ready", "1"),
    State.SCHEDULED: ("jobs_due", "1"),
    State.LEASED: ("jobs_leased", "1"),
    State.HELD: ("jobs_held", "1"),
    **dict.fromkeys((State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED), _ENDED),
}

_FIRST_SORTED_MAX = 10 * HELD_SORTED_MAX
"""As `HELD_SORTED_MAX`, where only the first is asked for: no page follows that has to sort them again."""


def scan(db: sqlite3.Connection, which: Filter, after: int, limit: int) -> list[Job]:
    """Matching jobs with id > `after`, by id."""
    if after > INT_MAX:
        return []
    condition, values = where(which)
    values = [max(after, -INT_MAX), *values, limit]
    condition = f"id > ? AND {condition} ORDER BY id LIMIT ?"
    if (few := _among_few(db, which, limit)) is not None:
        # By id among themselves, before anything else is read of them.
        index, allows = few
        condition = (
            f"id IN (SELECT id FROM jobs INDEXED BY {index} "  # noqa: S608
            f"WHERE {allows} AND {condition}) ORDER BY id"
        )
    # Else by id, whatever the library thinks: it would sort all of a state anew for each page.
    rows = db.execute(f"SELECT {JOB_COLUMNS} FROM jobs NOT INDEXED WHERE {condition}", values).fetchall()  # noqa: S608
    return records(db, rows)


def _among_few(db: sqlite3.Connection, which: Filter, limit: int) -> tuple[str, str] | None:
    """The index in which to look for the jobs, if they are few of one state: so no others are walked."""
    if which.refused and which.asks_for_held:
        return "jobs_refused", "1"
    states = cast("frozenset[State]", which.states or frozenset())
    queue = queue_row(db, which.queue) if which.queue is not None and len(states) == 1 else None
    if queue is None:
        return None
    (state,) = states
    few = _FIRST_SORTED_MAX if limit == 1 else HELD_SORTED_MAX
    return _INDEX_OF[state] if getattr(queue, state.value) <= few else None


def workers(db: sqlite3.Connection) -> list[WorkerInfo]:
    """The workers that are there, by name."""
    return [
        WorkerInfo(shown(name), _info_of(info), seen_at)
        for name, info, seen_at in db.execute("SELECT name, info, seen_at FROM workers ORDER BY name")
    ]


def _info_of(text: str) -> dict[str, str]:
    """What a worker said of itself; nothing, if it cannot be read."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def schedules(db: sqlite3.Connection) -> dict[str, float]:
    """Each schedule's last tick."""
    return dict(db.execute("SELECT name, last_tick FROM schedules").fetchall())
