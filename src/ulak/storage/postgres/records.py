"""How jobs and queues stand in the tables, and the parts that statements are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ulak.storage.postgres.asks import Scene
from ulak.storage.stored import COUNTERS, JOB_COLUMNS, JobRow, job_row, text_from

_BYTES = tuple(
    JOB_COLUMNS.split(", ").index(name)
    for name in ("worker", "unique_key", "idempotency_key", "headers", "progress")
)

COLUMNS = JOB_COLUMNS
"""A whole job, in the order of `JobRow`."""

LOOK_COLUMNS = JOB_COLUMNS.replace(", payload", ", ''::bytea")
"""The same without its payload."""

QUEUE_COLUMNS = "id, name, capacity, paused, backoff, retention"

# Parts of statements. Their parameters: now, now_at (None: the server's clock), shard.

CLOCK = (
    "clock AS MATERIALIZED (SELECT "
    "coalesce(%(now)s::float8, date_part('epoch', clock_timestamp())) AS now, "
    "coalesce(%(now_at)s::float8, date_part('epoch', clock_timestamp())) AS now_at)"
)
NOW = "(SELECT now FROM clock)"
NOW_AT = "(SELECT now_at FROM clock)"


def from_bound(name: str) -> str:
    """A bound on the calendar, as a parameter; none, where the clock has been set to before it."""
    return f"CASE WHEN %({name})s::float8 <= {NOW_AT} THEN %({name})s::float8 ELSE '-Infinity' END"


_MOVED = [name for name in JOB_COLUMNS.split(", ") if name not in ("state", "ended_at")]
MOVED_COLUMNS = ", ".join(_MOVED)


def moved(state: str, source: str) -> str:
    """Puts rows that were deleted from `jobs` among those that have ended."""
    return (
        f"INSERT INTO ended ({MOVED_COLUMNS}, state, ended_at) "
        f"SELECT {MOVED_COLUMNS}, {state}, {NOW_AT} FROM {source}"
    )


def counted(source: str, **columns: str) -> str:
    """Adds to this shard's tallies what each column comes to over rows that have a `queue`."""
    names = [f'"{name}"' for name in columns]
    sums = ", ".join(f"{value}::bigint" for value in columns.values())
    added = ", ".join(f"{name} = tallies.{name} + excluded.{name}" for name in names)
    return (
        f"INSERT INTO tallies (queue, shard, {', '.join(names)}) "
        f"SELECT queue, %(shard)s::bigint, {sums} FROM {source} GROUP BY queue ORDER BY queue "
        f"ON CONFLICT (queue, shard) DO UPDATE SET {added}"
    )


SUMS = ", ".join(f'coalesce(sum("{name}"), 0)::bigint' for name in COUNTERS)
"""Of the tallies of a queue, in the order of `COUNTERS`."""


def base(scene: Scene) -> dict[str, Any]:
    """The parameters that every statement may need."""
    return {"now": scene.now, "now_at": scene.now_at, "shard": scene.shard}


def job_of(values: Sequence[Any]) -> JobRow:
    """A row of `COLUMNS`, or `LOOK_COLUMNS`."""
    found = list(values)
    for place in _BYTES:
        if found[place] is not None:
            found[place] = text_from(found[place])
    return job_row(tuple(found))


def bytes_of(text: str | None) -> bytes | None:
    """As a text that anybody may choose is stored."""
    return None if text is None else text.encode("utf-8", "surrogateescape")
