"""What schedules, workers and retention do, as steps; and what operators do, by `amend`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ulak.core.job import Draft, Duplicate, Full, State
from ulak.core.store import Fired
from ulak.storage.postgres.amend import amend
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.due import EXPIRE_MAX, expire
from ulak.storage.postgres.enqueue import add
from ulak.storage.postgres.ledger import ENDED_NUMBERS, Ledger, forgotten
from ulak.storage.postgres.queues import configure, declare
from ulak.storage.postgres.records import CLOCK, NOW_AT, base, bytes_of
from ulak.storage.postgres.turns import HAS_OVER
from ulak.storage.stored import COUNTERS, STATES, QueueRow

__all__ = ["amend", "beat", "configure", "declare", "depart", "fire", "fold", "gather", "prune"]

_TICK = (
    "WITH was AS (SELECT last_tick FROM schedules WHERE name = %(schedule)s::text), "
    "moved AS (INSERT INTO schedules (name, last_tick) VALUES (%(schedule)s::text, %(tick_at)s::float8) "
    "ON CONFLICT (name) DO UPDATE SET last_tick = excluded.last_tick "
    "WHERE schedules.last_tick < excluded.last_tick RETURNING 1) "
    "SELECT (SELECT last_tick FROM was) FROM moved"
)
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('ulak fire'), hashtext(%s::text))"
_SET_TICK = "UPDATE schedules SET last_tick = %s::float8 WHERE name = %s::text"
_FORGET_TICK = "DELETE FROM schedules WHERE name = %s::text"


def fire(
    scene: Scene, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
) -> Step[int | Duplicate | Fired | Full]:
    """Insert the job, if there is one, and move the schedule's last tick, in one step."""
    params = {"schedule": schedule, "tick_at": float(tick_at)}
    # Of two who fire one waits for the other, and what that one has fired is seen by the next statement.
    yield Execute(_ONE_AT_A_TIME, (schedule,))
    rows = yield Execute(_TICK, params)
    if not rows:
        return Fired.LOST
    if draft is None:
        return Fired.FIRED
    answer = yield from add(scene, queue, [draft])
    if not isinstance(answer, Full):
        return answer[0]
    # The tick stays where it was, to be fired again.
    ((was,),) = rows
    if was is None:
        yield Execute(_FORGET_TICK, (schedule,))
    else:
        yield Execute(_SET_TICK, (was, schedule))
    return answer


# It need not be on the disk, nor on a standby: there is another soon.
_BEAT = (
    f"WITH {CLOCK} INSERT INTO workers (name, info, seen_at, holder) "
    f"SELECT %(name)s::bytea, %(info)s::bytea, {NOW_AT}, %(holder)s::bigint "
    "WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL "
    "ON CONFLICT (name) DO UPDATE "
    "SET info = excluded.info, seen_at = excluded.seen_at, holder = excluded.holder"
)


def beat(scene: Scene, worker: str, info: Mapping[str, str]) -> Step[None]:
    """Say that a worker is there."""
    params = {"name": bytes_of(worker), "info": msgspec.json.encode(dict(info)), "holder": scene.holder}
    yield Execute(_BEAT, {**base(scene), **params}, alone=True)


def depart(scene: Scene, worker: str) -> Step[None]:
    """Say that a worker has gone for good."""
    yield Execute("DELETE FROM workers WHERE name = %s::bytea", (bytes_of(worker),), alone=True)


# Retention

_KEYS = (
    f"WITH {CLOCK}, old AS MATERIALIZED (SELECT ctid FROM keys WHERE until_at <= {NOW_AT} "
    "ORDER BY until_at LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED) "
    "DELETE FROM keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM old))"
)
# All queues: whether jobs wait past their time, and how many are kept of those that ended, by state.
_LOOK = (
    f"WITH {CLOCK} SELECT q.id, q.name, q.capacity, q.paused, q.backoff, q.retention, {HAS_OVER}, "
    + ", ".join(f"coalesce(sum(t.{STATES[number].value}), 0)::bigint" for number in ENDED_NUMBERS)
    + " FROM queues q LEFT JOIN tallies t ON t.queue = q.id GROUP BY q.id ORDER BY q.id"
)
# Not which is the oldest: as far as that one, an index may hold nothing but what was removed before.
_HAVE_OLD = (
    f"WITH {CLOCK} SELECT given.queue, given.state FROM unnest(%(of_queue)s::bigint[], "
    "%(of_state)s::bigint[], %(age_s)s::float8[]) AS given (queue, state, age_s) "
    "WHERE (SELECT min(ended_at) FROM ended "
    f"WHERE queue = given.queue AND state = given.state AND ended_at <= {NOW_AT} - given.age_s) IS NOT NULL"
)
_OLD = (
    f"WITH {CLOCK}, old AS MATERIALIZED (SELECT id FROM ended WHERE queue = %(queue)s::bigint "
    f"AND state = %(state)s::bigint AND ended_at <= {NOW_AT} - %(age_s)s::float8 "
    "ORDER BY ended_at, id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED) "
    "DELETE FROM ended WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING id"
)


def prune(scene: Scene, *, limit: int = 1000) -> Step[Mapping[State, int]]:
    """End what has expired, forget what retention does not keep, fold differences in.

    Whatever others hold is left to them, or to the next time.
    """
    yield Execute(_KEYS, {**base(scene), "limit": limit})
    pruned: Counter[State] = Counter()
    looked = yield Execute(_LOOK, base(scene))
    rows = [(QueueRow(*values[:6]), values[6], list(values[7:])) for values in looked]
    have_old = yield from _have_old(scene, [(row, kept) for row, _, kept in rows])
    for row, has_over, kept in rows:
        ledger = Ledger(scene)
        if has_over and limit > sum(pruned.values()):
            part = min(limit - sum(pruned.values()), EXPIRE_MAX)
            pruned[State.EXPIRED] += yield from expire(ledger, row, part)
            yield from ledger.flush()
            kept[-1] += pruned[State.EXPIRED]
        for number, stored in zip(ENDED_NUMBERS, kept, strict=True):
            keep, left = row.retention.of(STATES[number]), limit - sum(pruned.values())
            if left > 0 and stored > keep.count:
                gone = yield from ledger.trim(row.id, row.name, number, left)
                pruned[STATES[number]] += gone
                left -= gone
            if left > 0 and (row.id, number) in have_old:
                pruned[STATES[number]] += yield from _forget_old(ledger, row, number, keep.age_s, left)
        yield from ledger.flush()
    # Last, since it holds the tallies of all queues.
    yield from fold(scene)
    return {state: number for state, number in pruned.items() if number}


def _have_old(scene: Scene, kept: Iterable[tuple[QueueRow, list[int]]]) -> Step[Rows]:
    """Of which queues and states some jobs have been kept for as long as they are to be."""
    asked = [
        (row.id, number, row.retention.of(STATES[number]).age_s)
        for row, stored in kept
        for number, number_kept in zip(ENDED_NUMBERS, stored, strict=True)
        if number_kept > 0
    ]
    if not asked:
        return []
    of_queue, of_state, age_s = map(list, zip(*asked, strict=True))
    return (
        yield Execute(_HAVE_OLD, {**base(scene), "of_queue": of_queue, "of_state": of_state, "age_s": age_s})
    )


def _forget_old(ledger: Ledger, row: QueueRow, number: int, age_s: float, limit: int) -> Step[int]:
    params: dict[str, Any] = {"queue": row.id, "state": number, "age_s": age_s, "limit": limit}
    gone = yield Execute(_OLD, {**base(ledger.scene), **params})
    if gone:
        ledger.removed(row.id, row.name, number, len(gone))
        ledger.add(row.id, row.name, pruned=len(gone))
        forgotten(ledger.scene, row.name, number, gone)
    return len(gone)


_NAMES = ", ".join(f'"{name}"' for name in COUNTERS)


def _folding(which: str) -> str:
    return (
        "WITH loose AS (DELETE FROM tallies WHERE ctid = ANY(ARRAY(SELECT ctid FROM tallies "
        f"WHERE {which} AND shard IS NULL FOR UPDATE SKIP LOCKED)) RETURNING *) "
        f"INSERT INTO tallies (queue, shard, {_NAMES}) SELECT queue, %(shard)s::bigint, "
        + ", ".join(f'sum("{name}")' for name in COUNTERS)
        + " FROM loose GROUP BY queue ORDER BY queue ON CONFLICT (queue, shard) DO UPDATE SET "
        + ", ".join(f'"{name}" = tallies."{name}" + excluded."{name}"' for name in COUNTERS)
    )


LOOSE_MAX = 100
"""So many differences of a queue lie there before a caller's transaction adds them up."""

_LOOSE = "queue = ANY(ARRAY(SELECT id FROM queues WHERE name = ANY(%(queues)s::text[])))"
# What a transaction of one snapshot does not see to be gone already it cannot take away.
ARE_MANY = (
    "(SELECT current_setting('transaction_isolation') = 'read committed' AND (SELECT count(*) "
    f"FROM (SELECT 1 FROM tallies WHERE {_LOOSE} AND shard IS NULL LIMIT {LOOSE_MAX + 1}) AS several) "
    f"> {LOOSE_MAX})"
)
_FOLD, _GATHER = _folding("true"), _folding(f"{_LOOSE} AND {ARE_MANY}")


def fold(scene: Scene) -> Step[None]:
    """Add the differences that callers' transactions have left to this process's tallies."""
    if scene.shard is not None:
        yield Execute(_FOLD, base(scene), alone=True)


def gather(scene: Scene, queues: Iterable[str]) -> Step[None]:
    """In a caller's transaction: make one of the differences that others have left, where they are many.

    Where no worker folds them in, whoever sums up these queues would have more to do each time.
    """
    yield Execute(_GATHER, {**base(scene), "queues": sorted(set(queues))})
