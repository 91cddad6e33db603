"""Queues as steps find, make and change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ulak.core.job import State
from ulak.core.store import DURABLE_RETENTION, Change, Settings, Until
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.records import QUEUE_COLUMNS
from ulak.storage.stored import QueueRow, text_of

_KEPT = (State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED)
_FIND = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE name = %s::text"
_FIND_ID = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE id = %s::bigint"
_MAKE = (
    "INSERT INTO queues (name, capacity, paused, backoff, retention, keep_succeeded, keep_dead, "
    "keep_cancelled, keep_expired) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (name) DO NOTHING"
)
_SET = (
    "UPDATE queues SET capacity = %s, paused = %s, backoff = %s, retention = %s, keep_succeeded = %s, "
    "keep_dead = %s, keep_cancelled = %s, keep_expired = %s WHERE id = %s"
)


# As `has_room` does.
_TAKE_ROOMS = (
    "SELECT id, pg_advisory_xact_lock(tableoid::integer, id::integer)::text FROM (SELECT tableoid, id "
    "FROM queues WHERE id = ANY(%s::bigint[]) AND capacity IS NOT NULL ORDER BY id) AS bounded"
)


def to_take_room(scene: Scene, queue_id: int) -> Step[QueueRow]:
    """One queue by its number; nobody else takes room of it until the transaction ends."""
    yield Execute(_TAKE_ROOMS, ([queue_id],))
    ((*values,),) = yield Execute(_FIND_ID, (queue_id,))
    return QueueRow(*values)


def made(scene: Scene, queue: str, settings: Settings) -> Step[QueueRow]:
    """One queue by its name, made with these settings if there is none."""
    rows = yield Execute(_FIND, (queue,))
    if not rows:
        yield Execute(_MAKE, (queue, *_values(settings)))
        rows = yield Execute(_FIND, (queue,))
    return QueueRow(*rows[0])


def _values(settings: Settings) -> Sequence[Any]:
    retention = settings.retention or DURABLE_RETENTION
    return (
        settings.capacity,
        settings.paused,
        text_of(settings.backoff),
        text_of(settings.retention),
        *(retention.of(state).count for state in _KEPT),
    )


def declare(scene: Scene, queue: str, settings: Settings) -> Step[Settings]:
    """Make the queue unless it is there."""
    rows = yield Execute(_FIND, (queue,), alone=True)
    if rows:
        return QueueRow(*rows[0]).settings
    row = yield from made(scene, queue, settings)
    return row.settings


def configure(scene: Scene, queue: str, change: Change) -> Step[Settings]:
    """Change a queue's settings. Who takes room of it meanwhile does so as it was."""
    row = yield from made(scene, queue, Settings())
    ((*values,),) = yield Execute(f"{_FIND_ID} FOR UPDATE", (row.id,))
    settings = change.apply(QueueRow(*values).settings)
    yield Execute(_SET, (*_values(settings), row.id))
    ((still_open,),) = yield Execute(
        'SELECT coalesce(sum(entered - "left"), 0)::bigint FROM tallies WHERE queue = %s::bigint', (row.id,)
    )
    # Whoever waits looks again: there may be room, work, or nothing left to wait for.
    for until in Until:
        scene.rings[until, queue] += max(0, still_open) + 1
    return settings


def take_rooms(ids: Iterable[int]) -> Step[dict[int, int]]:
    """How much room each of these queues that have a capacity has left; nobody else takes any of it."""
    locked = [number for number, _ in (yield Execute(_TAKE_ROOMS, (sorted(ids),)))]
    # A statement of its own, so that it has seen all who had them before.
    rows = yield Execute(
        'SELECT q.id, q.capacity - coalesce((SELECT sum(entered - "left") FROM tallies '
        "WHERE queue = q.id), 0)::bigint FROM queues q WHERE id = ANY(%s::bigint[]) AND capacity IS NOT NULL",
        (locked,),
    )
    return dict(rows)
