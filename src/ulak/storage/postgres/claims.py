"""Claims that have more to do than to take ready jobs: what time has brought, and held jobs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ulak.core.job import Lease
from ulak.storage.postgres.asks import Execute, Rows, Step
from ulak.storage.postgres.due import EXPIRE_MAX, expire, make_ready, promote
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.records import CLOCK, NOW_AT, base
from ulak.storage.postgres.turns import (
    HAS_DUE,
    HAS_OVER,
    TAKE,
    TAKEN,
    WORK_COLUMNS,
    Want,
    has_held,
    is_marked,
    leases_of,
    turn_quickly,
    wanted,
)
from ulak.storage.stored import LEASED, QueueRow


def _look(*, of_tasks: bool) -> str:
    return (
        f"WITH {CLOCK} SELECT q.id, q.name, q.capacity, q.paused, q.backoff, q.retention, "
        f"{HAS_DUE}, {HAS_OVER}, {has_held(of_tasks=of_tasks)} "
        "FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS named (name, place) "
        "JOIN queues q ON q.name = named.name WHERE NOT q.paused ORDER BY named.place"
    )


_LIVE = f"(expires_at IS NULL OR expires_at > {NOW_AT})"
_BEST = f"AND {_LIVE} ORDER BY priority DESC, id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED"
_READY = f"SELECT id, priority, 0 AS was FROM jobs WHERE queue = %(queue)s::bigint AND state = 0 {_BEST}"
_HELD = f"SELECT id, priority, 3 AS was FROM jobs WHERE queue = %(queue)s::bigint AND state = 3 {_BEST}"
_HELD_OF = (
    "SELECT found.id, found.priority, 3 AS was FROM unnest(%(tasks)s::text[]) AS known (task) "
    "CROSS JOIN LATERAL (SELECT id, priority FROM jobs WHERE queue = %(queue)s::bigint AND state = 3 "
    f"AND NOT refused AND coalesce(task, '') = known.task {_BEST}) AS found"
)


def _claim(held: str | None) -> str:
    parts = [CLOCK, f"ready AS MATERIALIZED ({_READY})"]
    found = "SELECT * FROM ready"
    if held is not None:
        parts.append(f"held AS MATERIALIZED ({held})")
        found += " UNION ALL SELECT * FROM held"
    parts += [
        f"picked AS MATERIALIZED (SELECT id, was FROM ({found}) AS found "
        "ORDER BY priority DESC, id LIMIT %(limit)s::bigint)",
        f"taken AS ({TAKE} WHERE id = ANY(ARRAY(SELECT id FROM picked)) "
        f"RETURNING {TAKEN}, (SELECT was FROM picked WHERE picked.id = jobs.id) AS was)",
    ]
    return (
        f"WITH {', '.join(parts)} SELECT 1, NULL, NULL, was, lease_end, started_at, NULL, NULL, "
        f"{WORK_COLUMNS} FROM taken"
    )


_READY_ONLY, _ANY, _OF_TASKS = _claim(None), _claim(_HELD), _claim(_HELD_OF)


def claim_in(ledger: Ledger, want: Want) -> Step[list[Lease]]:
    """Lease jobs, as a part of a step that has changed something before."""
    if want.limit <= 0:
        return []
    quick = yield from turn_quickly(ledger.scene, (), want)
    if quick is None and is_marked(ledger.scene, want):
        # The careful way begins at the head; where due jobs are all that is in the way it need not be gone.
        yield from make_ready(ledger.scene, want.queues)
        quick = yield from turn_quickly(ledger.scene, (), want)
    return quick[1] if quick is not None else (yield from claim_with_care(ledger, want))


def claim_with_care(ledger: Ledger, want: Want) -> Step[list[Lease]]:
    """End what has expired, make ready what is due, then lease the best of all that may be leased."""
    scene = ledger.scene
    params = {**base(scene), **wanted(scene, want)}
    rows = yield Execute(_look(of_tasks=want.tasks is not None), params)
    leases: list[Lease] = []
    for *values, has_due, has_over, holds in rows:
        row = QueueRow(*values)
        text = _READY_ONLY if not holds else _ANY if want.tasks is None else _OF_TASKS
        while len(leases) < want.limit:
            expired = (yield from expire(ledger, row)) if has_over else 0
            if has_due:
                yield from promote(ledger, row)
            part = {**params, "queue": row.id, "limit": want.limit - len(leases)}
            found = yield Execute(text, part)
            leases += _leases(ledger, want, row, found)
            # Of more that are over than one step ends, the others stand in the way still.
            if expired < EXPIRE_MAX:
                break
    yield from ledger.flush()
    return leases


def _leases(ledger: Ledger, want: Want, row: QueueRow, found: Rows) -> list[Lease]:
    for was, number in Counter(values[3] for values in found).items():
        ledger.move(row.id, row.name, was, LEASED, number)
    named: list[tuple[Any, ...]] = [
        (*values[:6], row.name, row.backoff_text, *values[8:]) for values in found
    ]
    return leases_of(want, ledger.scene, named)
