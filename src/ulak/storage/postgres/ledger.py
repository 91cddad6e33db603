"""What one step counts: how its jobs move between states, and whom that wakes.

It is kept in Python until `flush` adds it to this process's tallies; then the queue's numbers are looked at,
and ended jobs beyond what is kept are forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ulak.core.job import State
from ulak.core.store import Until
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.marks import since
from ulak.storage.postgres.records import base
from ulak.storage.stored import (
    CANCELLED,
    COUNTER_OF,
    COUNTERS,
    DEAD,
    EXPIRED,
    HELD,
    LEASED,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
)

DRAINED_MAX = 64
"""Who waits for a drained queue is made to look when so few jobs are left: others may end the last ones."""

ENDED_NUMBERS = (SUCCEEDED, DEAD, CANCELLED, EXPIRED)

_COUNTED = {
    SCHEDULED: "scheduled",
    LEASED: "leased",
    HELD: "held",
    SUCCEEDED: "succeeded",
    DEAD: "dead",
    CANCELLED: "cancelled",
    EXPIRED: "expired",
}
_NAMES = [f'"{name}"' for name in COUNTERS]
_KEPT = ", ".join(f"q.keep_{STATES[number].value}" for number in ENDED_NUMBERS)
_ADDED = ", ".join(f"{name} = tallies.{name} + excluded.{name}" for name in _NAMES)
_PUT = (
    f"put AS (INSERT INTO tallies (queue, shard, {', '.join(_NAMES)}) "
    f"SELECT queue, %(shard)s::bigint, {', '.join(_NAMES)} FROM unnest(%(of_queue)s::bigint[], "
    f"{', '.join(f'%(c_{name})s::bigint[]' for name in COUNTERS)}) AS given (queue, {', '.join(_NAMES)}) "
    f"ORDER BY queue ON CONFLICT (queue, shard) DO UPDATE SET {_ADDED})"
)
# As they were before.
_LOOK = (
    'SELECT q.id, q.paused, coalesce(sum(t.entered - t."left"), 0)::bigint, '
    "coalesce(sum(t.leased), 0)::bigint, coalesce(sum(t.held), 0)::bigint, "
    + ", ".join(f"coalesce(sum(t.{STATES[number].value}), 0)::bigint" for number in ENDED_NUMBERS)
    + f", {_KEPT} FROM queues q LEFT JOIN tallies t ON t.queue = q.id "
    "WHERE q.id = ANY(%(of_queue)s::bigint[]) GROUP BY q.id ORDER BY q.id"
)

_FORGOTTEN = (
    "put AS (INSERT INTO tallies (queue, shard, {name}, pruned) "
    "SELECT %(queue)s::bigint, %(shard)s::bigint, -count(*), count(*) FROM gone "
    "HAVING count(*) > 0 ON CONFLICT (queue, shard) DO UPDATE SET "
    "{name} = tallies.{name} + excluded.{name}, pruned = tallies.pruned + excluded.pruned) "
    "SELECT id, ended_at FROM gone"
)
_GONE = "FOR UPDATE SKIP LOCKED)) RETURNING id, ended_at)"
_OLDEST = (
    "SELECT id FROM ended WHERE queue = %(queue)s::bigint AND state = {number} "
    "AND ended_at >= %(since)s::float8 ORDER BY ended_at, id LIMIT {limit}"
)
_FORGET = {
    number: (
        "WITH gone AS (DELETE FROM ended WHERE id = ANY(ARRAY("
        f"{_OLDEST.format(number=number, limit='%(limit)s::bigint')} {_GONE}, "
        f"{_FORGOTTEN.format(name=STATES[number].value)}"
    )
    for number in ENDED_NUMBERS
}
# The number beyond and the rows are of one snapshot: of two who do it at once both find the same rows, and
# one has them.
_TRIM = {
    number: (
        "WITH beyond AS MATERIALIZED (SELECT greatest(0, least(%(limit)s::bigint, "
        f"(SELECT coalesce(sum({name}), 0) FROM tallies WHERE queue = %(queue)s::bigint) "
        f"- keep_{name}))::bigint AS number FROM queues WHERE id = %(queue)s::bigint), "
        "gone AS (DELETE FROM ended WHERE id = ANY(ARRAY(SELECT id FROM ended WHERE id = ANY(ARRAY("
        f"{_OLDEST.format(number=number, limit='(SELECT number FROM beyond)')})) "
        f"{_GONE}, "
        f"{_FORGOTTEN.format(name=name)}"
    )
    for number, name in ((number, STATES[number].value) for number in ENDED_NUMBERS)
}


class Ledger:
    """The counters that one step changes, by queue."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._names: dict[int, str] = {}
        self._changes: dict[int, Counter[str]] = {}

    def _of(self, queue: int, name: str) -> Counter[str]:
        self._names[queue] = name
        return self._changes.setdefault(queue, Counter())

    def move(
        self, queue: int, name: str, was: int | None, now: int, number: int = 1, *, is_refused: bool = False
    ) -> None:
        """Count so many jobs out of one state (None: new) and into another, and note whom that wakes.

        is_refused: they are held, and left by whoever knows their task.
        """
        change, rings = self._of(queue, name), self.scene.rings
        if was is None:
            change["entered"] += number
        elif was in _COUNTED:
            change[_COUNTED[was]] -= number
        if now in _COUNTED:
            change[_COUNTED[now]] += number
        if now > HELD and was is not None and was <= HELD:
            change["left"] += number
            rings[Until.ROOM, name] += number
        elif now == READY or (now == HELD and not is_refused):
            rings[Until.READY, name] += number
        elif now == SCHEDULED:
            rings[Until.DUE, name] += 1

    def removed(self, queue: int, name: str, was: int, number: int = 1) -> None:
        """Count deleted rows out."""
        change = self._of(queue, name)
        if was in _COUNTED:
            change[_COUNTED[was]] -= number
        if was <= HELD:
            change["left"] += number
            self.scene.rings[Until.ROOM, name] += number

    def count(self, queue: int, name: str, totals: Iterable[str], number: int = 1) -> None:
        """Raise totals; what can be worked out from others is left out."""
        change = self._of(queue, name)
        for total in totals:
            if (counter := COUNTER_OF.get(total)) is not None:
                change[counter] += number

    def add(self, queue: int, name: str, **changes: int) -> None:
        """Raise counters."""
        self._of(queue, name).update(changes)

    def flush(self, parts: str = "", params: Mapping[str, Any] | None = None) -> Step[None]:
        """Add to the tallies what was counted, then forget what is not kept.

        parts, params: what is done in the same statement, as a list of common table expressions.
        """
        changes, self._changes = self._changes, {}
        queues = sorted(changes)
        given: dict[str, Any] = {**base(self.scene), **(params or {}), "of_queue": queues}
        for counter in COUNTERS:
            given[f"c_{counter}"] = [changes[queue][counter] for queue in queues]
        if not queues and not parts:
            return
        text = f"WITH {parts}{', ' if parts else ''}{_PUT} {_LOOK}"
        rows = yield Execute(text, given)
        for row in rows:
            yield from self._look(row, changes[row[0]])

    def _look(self, row: tuple[Any, ...], change: Counter[str]) -> Step[None]:
        """What a queue's numbers, as they were before, and a change of them ask for."""
        queue, paused, still_open, leased, held, *more = row
        name = self._names[queue]
        if change["left"] > 0:
            leased += change["leased"]
            still_open += change["entered"] - change["left"]
            if leased <= DRAINED_MAX and (paused or still_open - held - change["held"] <= DRAINED_MAX):
                self.scene.rings[Until.DRAINED, name] += 1
        if self.scene.shard is None:
            return
        for number, kept, keep in zip(ENDED_NUMBERS, more[:4], more[4:], strict=True):
            entered = change[STATES[number].value]
            # For each that comes beyond what is kept one goes, never more: as in `turns`.
            beyond = min(entered, kept + entered - keep)
            if beyond > 0:
                yield from self._forget(_FORGET[number], queue, name, number, beyond)

    def _forget(self, text: str, queue: int, name: str, number: int, limit: int) -> Step[int]:
        began = since(self.scene, STATES[number], name, renews=True)
        params = {**base(self.scene), "queue": queue, "limit": limit, "since": began}
        gone = yield Execute(text, params)
        if gone and self.scene.marks is not None:
            self.scene.marks.raise_to(STATES[number], name, max(ended_at for _, ended_at in gone), began)
        forgotten(self.scene, name, number, gone)
        return len(gone)

    def trim(self, queue: int, name: str, number: int, limit: int) -> Step[int]:
        """Forget ended jobs of a state beyond the number that is kept, the oldest first; how many."""
        return self._forget(_TRIM[number], queue, name, number, limit)


def forgotten(scene: Scene, name: str, number: int, gone: Rows) -> None:
    """Tell of ended jobs that were removed."""
    scene.ended_ids += [job_id for job_id, *_ in gone]
    if STATES[number] is State.DEAD and gone:
        scene.dead_pruned[name] += len(gone)
