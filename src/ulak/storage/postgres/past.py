"""What is kept of the past of queues, as `ulak.core.history` has it, as steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ulak.core import history
from ulak.core.history import Grain, Moment, Took
from ulak.storage.postgres import looks
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.records import CLOCK, NOW_AT, base

# One at a time, since what is noted is added to what is there.
_BEGIN = (
    f"WITH {CLOCK} SELECT {NOW_AT}, id, name, pg_advisory_xact_lock(hashtext('ulak history'), 0)::text "
    "FROM queues WHERE name = ANY(%(queues)s::text[]) ORDER BY id"
)
_FIND = (
    "SELECT queue, grain, body FROM history JOIN unnest(%s::bigint[], %s::bigint[], %s::bigint[]) "
    "AS wanted (queue, grain, at) USING (queue, grain, at)"
)
_PUT = (
    "INSERT INTO history (queue, grain, at, body) "
    "SELECT * FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bytea[]) "
    "ON CONFLICT (queue, grain, at) DO UPDATE SET body = excluded.body"
)
_PRUNE = (
    "DELETE FROM history h USING (SELECT queue, grain, at FROM history WHERE grain = %s AND at < %s "
    "ORDER BY at LIMIT %s) AS old WHERE h.queue = old.queue AND h.grain = old.grain AND h.at = old.at"
)
# From the last row that began by then on; from the first, if there is none.
_SINCE = (
    "SELECT q.name, h.at, h.body FROM queues q JOIN history h ON h.queue = q.id AND h.grain = %(grain)s "
    "WHERE q.name = ANY(%(queues)s::text[]) AND h.at >= coalesce((SELECT max(at) FROM history "
    "WHERE queue = q.id AND grain = %(grain)s AND at <= %(since_at)s), %(since_at)s) ORDER BY h.at"
)


def record(scene: Scene, took: Mapping[str, Took]) -> Step[None]:
    """Note how queues' counts stand in this transaction, and how long jobs took; forget what is old."""
    known = yield Execute(_BEGIN, {**base(scene), "queues": sorted(took)})
    if not known:
        return
    now_at = known[0][0]
    counts = yield from looks.counts(scene, [name for _, _, name, _ in known])
    keys = [
        (number, grain, history.began_at(now_at, grain), name)
        for _, number, name, _ in known
        for grain in history.GRAINS
    ]
    numbers, grains, ats, _ = map(list, zip(*keys, strict=True))
    found = yield Execute(_FIND, (numbers, grains, ats))
    stored = {(number, grain): body for number, grain, body in found}
    bodies = [
        history.noted(stored.get((number, grain)), counts[name], took[name], now_at)
        for number, grain, _, name in keys
    ]
    yield Execute(_PUT, (numbers, grains, ats, bodies))
    for grain in history.GRAINS:
        yield Execute(_PRUNE, (grain, int(now_at - history.KEPT_S[grain]), history.PRUNE_MAX))


def since(_: Scene, queues: Sequence[str], since_at: float, grain: Grain) -> Step[dict[str, list[Moment]]]:
    """What was noted of queues since then."""
    wanted = {"queues": list(queues), "grain": grain, "since_at": since_at}
    rows = yield Execute(_SINCE, wanted, alone=True)
    found: dict[str, list[Moment]] = {queue: [] for queue in queues}
    for name, at, body in rows:
        if (moment := history.moment_of(at, body)) is not None:
            found[name].append(moment)
    return found
