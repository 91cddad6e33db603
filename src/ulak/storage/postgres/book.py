"""What a store does to jobs, as steps: claim, settle, extend, and the looks that go with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from ulak.core.flows import CALENDAR_SLEEP_MAX_S
from ulak.core.job import Lease, Outcome
from ulak.core.store import Settled, Settlement, Tasks, Until
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.claims import claim_in, claim_with_care
from ulak.storage.postgres.due import make_ready as promote
from ulak.storage.postgres.enqueue import add, add_together, unadd
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.marks import BACK, BACK_ONES, DUE, LATE_S, LEASES, since
from ulak.storage.postgres.others import GONE_AFTER_S
from ulak.storage.postgres.records import CLOCK, COLUMNS, NOW, NOW_AT, base, bytes_of, from_bound, job_of
from ulak.storage.postgres.settles import settle_with_care
from ulak.storage.postgres.turns import AT_ONCE_MAX, Want, are_plain, is_marked, turn_quickly
from ulak.storage.stored import JobRow, Leases, QueueRow

__all__ = [
    "add",
    "add_together",
    "bury",
    "claim",
    "ended",
    "extend",
    "horizon",
    "leased",
    "promote",
    "settle",
    "settle_together",
    "turn",
    "turn_together",
    "unadd",
]

R = TypeVar("R")

_QUEUE = "q.id, q.name, q.capacity, q.paused, q.backoff, q.retention"
_JOB = ", ".join(f"j.{name}" for name in COLUMNS.split(", "))
_QUEUE_WIDTH = len(_QUEUE.split(", "))


def claim(
    scene: Scene,
    queues: Sequence[str],
    limit: int,
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
    unreadable: list[Settlement] | None = None,
) -> Step[list[Lease]]:
    """Lease up to `limit` due jobs, in order, for the scene's holder. unreadable: as of `turn`."""
    answer = yield from turn(
        scene, (), queues, limit, worker=worker, lease_s=lease_s, tasks=tasks, unreadable=unreadable
    )
    return answer[1]


def settle(scene: Scene, settlements: Sequence[Settlement]) -> Step[list[Settled]]:
    """Apply verdicts, one answer per settlement."""
    if not settlements:
        return []
    if are_plain(settlements):
        quick = yield from turn_quickly(scene, settlements, None)
        if quick is not None:
            return quick[0]
    return (yield from settle_with_care(Ledger(scene), settlements))


def turn(
    scene: Scene,
    settlements: Sequence[Settlement],
    queues: Sequence[str],
    limit: int,
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
    unreadable: list[Settlement] | None = None,
) -> Step[tuple[list[Settled], list[Lease]]]:
    """Settle, then claim. unreadable: takes what was leased and cannot be read, for `bury`."""
    if limit <= 0 or not queues:
        return (yield from settle(scene, settlements)), []
    want = Want(queues, limit, worker, lease_s, tasks, [] if unreadable is None else unreadable)
    is_plain = are_plain(settlements)
    if is_plain:
        quick = yield from turn_quickly(scene, settlements, want)
        if quick is not None:
            return quick
    ledger = Ledger(scene)
    is_of_one = len({lease.work.spec.queue for lease, _ in settlements} | set(queues)) == 1
    in_parts = is_of_one and (not is_plain or is_marked(scene, want))
    settled = yield from settle_with_care(ledger, settlements, flushes=in_parts)
    if in_parts:
        return settled, (yield from claim_in(ledger, want))
    # The tallies of all queues at once, in order: of two who did it in parts, each might wait for the other.
    return settled, (yield from claim_with_care(ledger, want))


def settle_together(scene: Scene, calls: Sequence[Sequence[Settlement]]) -> Step[list[list[Settled]]]:
    """Several calls of `settle` in one."""
    answers = yield from settle(scene, [settlement for call in calls for settlement in call])
    return list(_parts(answers, map(len, calls)))


def turn_together(
    scene: Scene,
    calls: Sequence[tuple[Sequence[Settlement], int]],
    queues: Sequence[str],
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
    unreadable: list[Settlement] | None = None,
) -> Step[list[tuple[list[Settled], list[Lease]]]]:
    """Several calls of `turn` in one, each with its settlements and limit; the first ones first."""
    settlements = [settlement for call, _ in calls for settlement in call]
    limits = [max(0, limit) for _, limit in calls]
    settled, leases = yield from turn(
        scene,
        settlements,
        queues,
        sum(limits),
        worker=worker,
        lease_s=lease_s,
        tasks=tasks,
        unreadable=unreadable,
    )
    shares = _parts(settled, (len(call) for call, _ in calls))
    return list(zip(shares, _parts(leases, limits), strict=True))


def bury(scene: Scene, unreadable: Sequence[Settlement]) -> Step[None]:
    """End jobs that were leased and cannot be read; others may have been passed by for them."""
    yield from settle_with_care(Ledger(scene), unreadable)
    for lease, _ in unreadable:
        scene.rings[Until.READY, lease.queue] += 1


def _parts(answers: Sequence[R], lengths: Iterable[int]) -> Iterator[list[R]]:
    """The answers of several calls, from those of all of them."""
    rest = iter(answers)
    for length in lengths:
        yield list(islice(rest, length))


_CURRENT = (
    "FROM jobs WHERE id = ANY(%(ids)s::bigint[]) AND state + 0 = 2 AND (SELECT count(*) FROM given "
    "WHERE given.id = jobs.id AND given.delivery = jobs.delivery) > 0"
)
# What somebody else settles just then is left alone: its transaction may stay open for long.
_EXTEND = (
    f"WITH {CLOCK}, given AS MATERIALIZED (SELECT * FROM unnest(%(ids)s::bigint[], %(deliveries)s::bigint[], "
    "%(progress)s::bytea[]) AS given (id, delivery, progress)), "
    f"free AS MATERIALIZED (SELECT id {_CURRENT} ORDER BY id + 0 FOR UPDATE SKIP LOCKED), "
    "moved AS (UPDATE jobs SET progress = coalesce((SELECT given.progress FROM given "
    "WHERE given.id = jobs.id AND given.delivery = jobs.delivery LIMIT 1), progress), "
    f"lease_s = CASE WHEN {NOW} + %(lease_s)s::float8 > coalesce(lease_end, 0) "
    "THEN %(lease_s)s::float8 ELSE lease_s END, "
    f"lease_end = greatest(lease_end, {NOW} + %(lease_s)s::float8) "
    "WHERE id = ANY(ARRAY(SELECT id FROM free))) "
    f"SELECT id, delivery, cancel_requested, id <> ALL(ARRAY(SELECT id FROM free)) {_CURRENT}"
)
_WAIT = "SELECT pg_sleep(%s)"
_WAITS_S = (0.002, 0.02, 0.1)
"""How long an extend waits for whoever settles a job just then; what is settled for longer is as it was."""


def extend(
    scene: Scene, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
) -> Step[list[bool | Outcome]]:
    """Move lease ends to now + `lease_s`, never to earlier."""
    if not leases:
        return []
    found: dict[tuple[int, int], bool] = {}
    given = sorted({(lease.work.id, lease.delivery) for lease in leases})
    for start in range(0, len(given), AT_ONCE_MAX):
        found |= yield from _extend(scene, given[start : start + AT_ONCE_MAX], lease_s, progress or {})
    return [found.get((lease.work.id, lease.delivery), Outcome.STALE) for lease in leases]


def _extend(
    scene: Scene, given: Sequence[tuple[int, int]], lease_s: float, texts: Mapping[int, str]
) -> Step[dict[tuple[int, int], bool]]:
    """Whether a cancel was requested, for those that are current."""
    params = {
        **base(scene),
        "ids": [job_id for job_id, _ in given],
        "deliveries": [delivery for _, delivery in given],
        "progress": [
            texts[job_id].encode("utf-8", "replace") if job_id in texts else None for job_id, _ in given
        ],
        "lease_s": float(lease_s),
    }
    rows = yield Execute(_EXTEND, params, alone=True)
    for wait_s in _WAITS_S:
        if not any(is_taken for *_, is_taken in rows):
            break
        # Both commit by themselves: nobody has to wait for this meanwhile.
        yield Execute(_WAIT, (wait_s,), alone=True)
        rows = yield Execute(_EXTEND, params, alone=True)
    return {(job_id, delivery): cancelled for job_id, delivery, cancelled, _ in rows}


def _ended(condition: str) -> str:
    return (
        f"WITH {CLOCK} SELECT {_QUEUE}, {_JOB} FROM unnest(%(queues)s::text[]) "
        "WITH ORDINALITY AS named (name, place) JOIN queues q ON q.name = named.name CROSS JOIN LATERAL "
        f"(SELECT {COLUMNS} FROM jobs WHERE queue = q.id AND state = 2 AND {condition} "
        "LIMIT %(limit)s::bigint FOR KEY SHARE SKIP LOCKED) AS j ORDER BY named.place LIMIT %(limit)s::bigint"
    )


_PAST = _ended(f"lease_end >= %(leases_since)s::float8 AND lease_end <= {NOW} ORDER BY lease_end")
# Who has signed again since it was taken for gone has not gone.
_GONE = _ended(
    "holder = ANY(ARRAY(SELECT id::bigint FROM holders WHERE id = ANY(%(gone)s::int[]) "
    f"AND absent_since <= date_part('epoch', clock_timestamp()) - {GONE_AFTER_S}))"
)


def ended(
    scene: Scene, queues: Sequence[str], limit: int, *, gone: Collection[int] = ()
) -> Step[list[Lease]]:
    """Leases past their end, or whose holder is one of `gone`; not what somebody settles just then."""
    params = {**base(scene), "queues": list(dict.fromkeys(queues)), "limit": limit, "gone": sorted(gone)}
    params["leases_since"] = since(scene, LEASES, *queues)
    rows = [] if limit <= 0 else (yield Execute(_PAST, params, alone=not gone))
    if gone and len(rows) < limit:
        known = {row[_QUEUE_WIDTH] for row in rows}
        more = yield Execute(_GONE, params)
        rows = [*rows, *(row for row in more if row[_QUEUE_WIDTH] not in known)][:limit]
    return _leases(scene, rows, gone)


def _leases(scene: Scene, rows: Rows, gone: Collection[int]) -> list[Lease]:
    make, found = Leases(scene.uid, scene.epoch), list[Lease]()
    for row in rows:
        queue: QueueRow = QueueRow(*row[:_QUEUE_WIDTH])
        job: JobRow = job_of(row[_QUEUE_WIDTH:])
        found += make.of(queue, [job], gone)
    return found


_LEASED = (
    "WITH current AS MATERIALIZED (SELECT id FROM jobs "
    "WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s::text) AND state = 2 "
    "AND id > %(after)s::bigint AND (%(worker)s::bytea IS NULL OR (worker = %(worker)s::bytea "
    "AND holder IS NOT DISTINCT FROM %(holder)s::bigint)) ORDER BY id + 0 LIMIT %(limit)s::bigint), "
    f"j AS MATERIALIZED (SELECT {COLUMNS} FROM jobs WHERE id = ANY(ARRAY(SELECT id FROM current))) "
    f"SELECT {_QUEUE}, {_JOB} FROM j JOIN queues q ON q.id = j.queue ORDER BY j.id"
)


def leased(
    scene: Scene, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
) -> Step[list[Lease]]:
    """The current leases of a queue, by id; of one worker of the scene's holder, if given."""
    params = {
        "queue": queue,
        "worker": bytes_of(worker),
        "holder": scene.holder,
        "after": after,
        "limit": limit,
    }
    rows = yield Execute(_LEASED, params, alone=True)
    return _leases(scene, rows, ())


# Each look is at what may end, or be due, from where the first one was; then what the first one is now.
_LEASE = "FROM jobs WHERE queue = q.id AND state = 2 AND lease_end >= %(leases_since)s::float8"
_HORIZON = (
    f"WITH {CLOCK} SELECT q.name, "
    f"CASE WHEN EXISTS (SELECT FROM (SELECT 1 {_LEASE} AND lease_end <= {NOW} "
    "LIMIT 1 FOR KEY SHARE SKIP LOCKED) AS past) THEN 0 ELSE "
    f"(SELECT min(lease_end) {_LEASE} AND lease_end > {NOW}) - {NOW} END, "
    f"CASE WHEN NOT q.paused THEN first_due - {NOW_AT} END, "
    f"least((SELECT min(lease_end) {_LEASE}), {NOW} - {LATE_S}), least(first_due, {NOW_AT} - {LATE_S}), "
    f"least((SELECT min(back_at) {BACK_ONES.format(queue='q.id')}), {NOW_AT} - {LATE_S}) "
    "FROM queues q CROSS JOIN LATERAL (SELECT min(run_at) AS first_due FROM jobs WHERE queue = q.id "
    f"AND state = 1 AND run_at >= {from_bound('due_since')}) AS waiting "
    "WHERE q.name = ANY(%(queues)s::text[])"
)


def horizon(scene: Scene, queues: Sequence[str]) -> Step[float | None]:
    """Seconds until time alone makes a job claimable; presence is not looked at."""
    began = {what: since(scene, what, *queues, renews=True) for what in (LEASES, DUE, BACK)}
    bounds = {f"{what}_since": bound for what, bound in began.items()}
    rows = yield Execute(_HORIZON, {**base(scene), **bounds, "queues": list(queues)}, alone=True)
    soonest = list[float]()
    for name, lease_s, due_s, *firsts in rows:
        soonest += [lease_s] if lease_s is not None else []
        soonest += [min(due_s, CALENDAR_SLEEP_MAX_S)] if due_s is not None else []
        if scene.marks is not None:
            for (what, bound), first in zip(began.items(), firsts, strict=True):
                scene.marks.raise_to(what, name, first, bound)
    return max(0.0, min(soonest)) if soonest else None
