"""What time does to jobs that wait, as parts of steps: it ends them, or makes them ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ulak.core.store import Until
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.marks import DUE, since
from ulak.storage.postgres.records import CLOCK, NOW_AT, base, counted, from_bound, moved
from ulak.storage.stored import EXPIRED, READY, SCHEDULED, QueueRow

EXPIRE_MAX = 1_000
PROMOTE_MAX = 5_000
"""How many due jobs one step makes ready; of more that are due at once, those due first."""

_EXPIRE = (
    f"WITH {CLOCK}, over AS MATERIALIZED (SELECT id FROM jobs WHERE queue = %(queue)s::bigint "
    f"AND expires_at IS NOT NULL AND state <> 2 AND expires_at <= {NOW_AT} "
    "ORDER BY expires_at LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED), "
    "gone AS (DELETE FROM jobs WHERE id = ANY(ARRAY(SELECT id FROM over)) RETURNING *), "
    f"kept AS ({moved('7', 'gone')}) SELECT id, state::int FROM gone"
)
_READY_NOW = (
    f"UPDATE jobs SET state = 0, back_at = {NOW_AT} WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING"
)
_PROMOTE = (
    f"WITH {CLOCK}, due AS MATERIALIZED (SELECT id FROM jobs WHERE queue = %(queue)s::bigint "
    f"AND state = 1 AND run_at >= {from_bound('due_since')} AND run_at <= {NOW_AT} "
    "ORDER BY run_at, id LIMIT %(limit)s::bigint "
    "FOR UPDATE SKIP LOCKED), "
    f"now_ready AS ({_READY_NOW} 1) "
    "SELECT count(*)::bigint FROM now_ready"
)
_MAKE_READY = (
    f"WITH {CLOCK}, due AS MATERIALIZED (SELECT found.id FROM queues q CROSS JOIN LATERAL (SELECT id "
    f"FROM jobs WHERE queue = q.id AND state = 1 AND run_at >= {from_bound('due_since')} "
    f"AND run_at <= {NOW_AT} ORDER BY run_at, id LIMIT {PROMOTE_MAX} FOR UPDATE SKIP LOCKED) AS found "
    "WHERE q.name = ANY(%(queues)s::text[]) AND NOT q.paused), "
    f"now_ready AS ({_READY_NOW} queue), "
    f"told AS ({counted('now_ready', scheduled='-count(*)')}) "
    "SELECT q.name, count(*)::bigint FROM now_ready JOIN queues q ON q.id = now_ready.queue GROUP BY q.name"
)


def make_ready(scene: Scene, queues: Sequence[str], *, only_alone: bool = False) -> Step[int]:
    """Make due jobs of these queues ready, in one statement; how many.

    only_alone: not in a transaction that goes on, since it would keep the tallies while it waits for jobs.
    """
    params = {**base(scene), "queues": list(queues), "due_since": since(scene, DUE, *queues)}
    rows = yield Execute(_MAKE_READY, params, alone=True, only_alone=only_alone)
    for name, number in rows:
        scene.rings[Until.READY, name] += number
    return sum(number for _, number in rows)


def expire(ledger: Ledger, row: QueueRow, limit: int = EXPIRE_MAX) -> Step[int]:
    """End waiting jobs past their `expires_at`, at most `limit`; how many."""
    rows = yield Execute(_EXPIRE, {**base(ledger.scene), "queue": row.id, "limit": limit})
    for was, number in Counter(state for _, state in rows).items():
        ledger.move(row.id, row.name, was, EXPIRED, number)
    if rows:
        ledger.count(row.id, row.name, ["expired"], len(rows))
        ledger.scene.ended_ids += [job_id for job_id, _ in rows]
    return len(rows)


def promote(ledger: Ledger, row: QueueRow) -> Step[int]:
    """Make due jobs ready; how many."""
    bounds = {"limit": PROMOTE_MAX, "due_since": since(ledger.scene, DUE, row.name)}
    ((number,),) = yield Execute(_PROMOTE, {**base(ledger.scene), "queue": row.id, **bounds})
    if number:
        ledger.move(row.id, row.name, SCHEDULED, READY, number)
    return int(number)
