"""The statement that a busy worker sends: it finishes jobs and leases the next ones, in one round trip.

It is for plain acknowledgements, and for queues where nothing is to be looked at but ready jobs and due ones,
which are made ready first. Where there is more to do it changes nothing and says so; then the same is done
with care, by several statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ulak.core.job import Cause, Dead, Done, Failure, Grant, Lease, Outcome, State, Verdict
from ulak.core.store import Settled, Settlement, Tasks, Until
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.due import make_ready
from ulak.storage.postgres.ledger import DRAINED_MAX
from ulak.storage.postgres.marks import BACK, BACKS, DUE, PICKED, WALKED, since
from ulak.storage.postgres.records import CLOCK, NOW, NOW_AT, base, bytes_of, counted, from_bound, moved
from ulak.storage.stored import UnreadableError, backoff_of, text_from, work_of

_ONLY_DUE = 4
"""Where the first row says that due jobs are all that is in the way."""

AT_ONCE_MAX = 500
"""So many jobs a statement settles at most: it finds what is given for one among all that are given."""


class Want(msgspec.Struct, frozen=True):
    """What a claim asks for.

    unreadable: takes what was leased and cannot be read, with the verdict that ends it.
    """

    queues: Sequence[str]
    limit: int
    worker: str
    lease_s: float
    tasks: Tasks | None = None
    unreadable: list[Settlement] = msgspec.field(default_factory=list)

    def grant(self, scene: Scene) -> Grant:
        """What its leases share."""
        return Grant(scene.uid, scene.epoch, self.worker, self.lease_s)


# Conditions on a queue `q` under which a claim has more to do than to take ready jobs. Each looks at the
# first row of an index: asked whether there is any, the server may walk the table, hoping to meet one soon.
HAS_DUE = (
    "coalesce((SELECT min(run_at) FROM jobs WHERE queue = q.id AND state = 1 "
    f"AND run_at >= {from_bound('due_since')}) <= {NOW_AT}, false)"
)
HAS_OVER = (
    "coalesce((SELECT min(expires_at) FROM jobs WHERE queue = q.id AND expires_at IS NOT NULL "
    f"AND state <> 2) <= {NOW_AT}, false)"
)
_FIRST = "ORDER BY priority DESC, id LIMIT 1) IS NOT NULL"
_HAS_HELD = f"(SELECT id FROM jobs WHERE queue = q.id AND state = 3 {_FIRST}"
_HAS_HELD_OF = (
    "EXISTS (SELECT FROM unnest(%(tasks)s::text[]) AS known (task) WHERE (SELECT id FROM jobs "
    f"WHERE queue = q.id AND state = 3 AND NOT refused AND coalesce(task, '') = known.task {_FIRST})"
)

WORK_COLUMNS = (
    "id, priority, attempt, delivery, max_attempts, crashes, created_at, expires_at, codec, task, "
    "unique_key, idempotency_key, headers, backoff, payload"
)
_TYPES = (
    *("bigint",) * 6,
    *("float8",) * 2,
    *("text",) * 2,
    *("bytea",) * 3,
    *("text", "bytea"),
)
TAKE = (
    "UPDATE jobs SET state = 2, attempt = attempt + 1, delivery = delivery + 1, "
    "holder = %(holder)s::bigint, claim = %(claim)s::bigint, worker = %(worker)s::bytea, "
    f"started_at = {NOW_AT}, lease_s = %(lease_s)s::float8, lease_end = {NOW} + %(lease_s)s::float8"
)


def has_held(*, of_tasks: bool) -> str:
    """Whether a queue `q` holds jobs for whoever claims: of some tasks, or any."""
    return _HAS_HELD_OF if of_tasks else _HAS_HELD


def _text(*, acks: bool, claims: bool, of_tasks: bool, is_marked: bool) -> str:
    parts, clear, moves, is_due = [CLOCK], [], [], "false"
    if claims:
        care = " OR ".join((HAS_OVER, has_held(of_tasks=of_tasks)))
        parts.append(
            "asked AS MATERIALIZED (SELECT q.id, q.name, q.backoff, named.place, "
            f"{HAS_DUE} AS has_due, {care} AS needs_care "
            "FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS named (name, place) "
            "JOIN queues q ON q.name = named.name WHERE NOT q.paused ORDER BY named.place)"
        )
        clear.append("NOT EXISTS (SELECT FROM asked WHERE needs_care)")
        is_due = "EXISTS (SELECT FROM asked WHERE has_due)"
    if acks:
        parts.append(_ACKED)
        clear.append("NOT EXISTS (SELECT FROM acked WHERE number > keep_succeeded)")
    parts.append(f"seen AS MATERIALIZED (SELECT {' AND '.join(clear)} AS is_well, {is_due} AS is_due)")
    parts.append(_GATE)
    if acks:
        parts += [_DONE, f"kept AS ({moved('4', 'done')})", _FORGOTTEN]
        moves.append("SELECT queue, 1 AS gone, -1 AS taken, 0 AS forgotten FROM done")
        moves.append("SELECT queue, 0 AS gone, 0 AS taken, 1 AS forgotten FROM forgotten")
    if claims:
        parts += [BACKS, WALKED, PICKED, _TAKEN] if is_marked else [_PICKED, _TAKEN]
        moves.append("SELECT queue, 0 AS gone, 1 AS taken, 0 AS forgotten FROM taken")
    source = f"({' UNION ALL '.join(moves)}) AS moves"
    sums = {"left": "sum(gone)", "leased": "sum(taken)"}
    if acks:
        sums |= {"succeeded": "sum(gone) - sum(forgotten)", "pruned": "sum(forgotten)"}
    parts.append(f"told AS ({counted(source, **sums)})")
    return f"WITH {', '.join(parts)} {_answer(acks=acks, claims=claims)}"


def _answer(*, acks: bool, claims: bool) -> str:
    """First a row that says what was found, and done; then one for each job that is leased."""
    done = "ARRAY(SELECT id FROM done)" if acks else "NULL::bigint[]"
    drained = f"ARRAY(SELECT name FROM acked WHERE {_NEARLY_DRAINED})" if acks else "NULL::text[]"
    forgotten = "(SELECT max(ended_at) FROM forgotten)" if acks else "NULL::float8"
    nothing = ", ".join(f"NULL::{kind}" for kind in ("text", "text", *_TYPES))
    text = (
        f"SELECT NULL::bigint, is_clear, {done}, {drained}, "
        f"CASE WHEN only_due THEN 1.0::float8 END, {forgotten}, {nothing} FROM gate"
    )
    if claims:
        work = ", ".join(f"taken.{name}" for name in WORK_COLUMNS.split(", "))
        text += (
            " UNION ALL SELECT asked.place, NULL, NULL, NULL, taken.lease_end, taken.started_at, asked.name, "
            f"asked.backoff, {work} FROM taken JOIN asked ON asked.id = taken.queue"
        )
    return text


_GATE = (
    "gate AS MATERIALIZED (SELECT is_well AND NOT is_due AS is_clear, is_well AND is_due AS only_due "
    "FROM seen)"
)
_ACKED = (
    "acked AS MATERIALIZED (SELECT q.id, q.name, q.paused, q.keep_succeeded, given.number, given.since, "
    "now_open, leased, held, "
    "CASE WHEN %(shard)s::bigint IS NULL THEN 0 ELSE succeeded END AS kept "
    "FROM unnest(%(acked_queues)s::text[], %(acked_numbers)s::bigint[], %(acked_since)s::float8[]) "
    "AS given (name, number, since) "
    "JOIN queues q ON q.name = given.name CROSS JOIN LATERAL (SELECT "
    "coalesce(sum(succeeded), 0) AS succeeded, "
    'coalesce(sum(entered - "left"), 0) AS now_open, coalesce(sum(leased), 0) AS leased, '
    "coalesce(sum(held), 0) AS held FROM tallies WHERE tallies.queue = q.id) AS summed)"
)
# Jobs are found by `id = ANY(...)` alone. In a join, or where another index might do, a server that takes the
# table for all but empty walks it whole, and goes on to do so when it is not.
IS_CURRENT = (
    "delivery = (%(deliveries)s::bigint[])[array_position(%(acked)s::bigint[], id)] AND state + 0 = 2"
)
_NEARLY_DRAINED = (
    f"leased - number <= {DRAINED_MAX} AND (paused OR now_open - held - number <= {DRAINED_MAX})"
)
_DONE = (
    "done AS (DELETE FROM jobs WHERE (SELECT is_clear FROM gate) AND id = ANY(%(acked)s::bigint[]) "
    f"AND {IS_CURRENT} RETURNING *)"
)
# For each job that comes beyond what is kept one goes, never more: so of two who do it at once, each makes up
# for what it adds. Retention itself is for `prune` to see to.
_FORGOTTEN = (
    "forgotten AS (DELETE FROM ended WHERE id = ANY(ARRAY(SELECT oldest.id FROM acked "
    "CROSS JOIN LATERAL (SELECT count(*) AS number FROM done WHERE done.queue = acked.id) AS ended_now "
    "CROSS JOIN LATERAL (SELECT id FROM ended WHERE queue = acked.id AND state = 4 "
    "AND ended_at >= acked.since ORDER BY ended_at, id "
    "LIMIT greatest(0, least(ended_now.number, acked.kept + ended_now.number - acked.keep_succeeded)) "
    "FOR UPDATE SKIP LOCKED) AS oldest)) RETURNING queue, ended_at)"
)
# A lateral join goes through the queues in their order, and only as far as the limit asks for.
_PICKED = (
    "picked AS MATERIALIZED (SELECT found.id FROM gate, asked CROSS JOIN LATERAL (SELECT id FROM jobs "
    "WHERE queue = asked.id AND state = 0 ORDER BY priority DESC, id LIMIT %(limit)s::bigint "
    "FOR UPDATE SKIP LOCKED) AS found WHERE gate.is_clear LIMIT %(limit)s::bigint)"
)
TAKEN = ", ".join(f"jobs.{name}" for name in f"{WORK_COLUMNS}, queue, lease_end, started_at".split(", "))
_TAKEN = f"taken AS ({TAKE} WHERE id = ANY(ARRAY(SELECT id FROM picked)) RETURNING {TAKEN})"
_TEXTS = {
    (acks, claims, of_tasks, is_marked): _text(
        acks=acks, claims=claims, of_tasks=of_tasks, is_marked=is_marked
    )
    for acks, claims in ((True, False), (False, True), (True, True))
    for of_tasks in (False, True)
    for is_marked in (False, True)
}


def are_plain(settlements: Sequence[Settlement]) -> bool:
    """Whether these are acknowledgements and no more, of as many jobs, and not too many."""
    return (
        len(settlements) <= AT_ONCE_MAX
        and all(is_plain(verdict) for _, verdict in settlements)
        and len({lease.work.id for lease, _ in settlements}) == len(settlements)
    )


def is_plain(verdict: Verdict) -> bool:
    """Whether it is an acknowledgement and no more."""
    return isinstance(verdict, Done) and verdict.result is None and verdict.cause is Cause.ACK


def wanted(scene: Scene, want: Want) -> dict[str, Any]:
    """The parameters of a claim."""
    assert scene.holder is not None
    scene.claimed = queues = list(dict.fromkeys(want.queues))
    return {
        "queues": queues,
        "limit": want.limit,
        "tasks": _named(want.tasks),
        "holder": scene.holder,
        "claim": scene.claim,
        "worker": bytes_of(want.worker),
        "lease_s": float(want.lease_s),
        "due_since": since(scene, DUE, *queues),
    }


@lru_cache(maxsize=64)
def _named(tasks: Tasks | None) -> list[str]:
    """Tasks as jobs name them: "" stands for none. No job's name has a NUL in it, and no text may."""
    return [task or "" for task in tasks or () if task is None or "\0" not in task]


def turn_quickly(
    scene: Scene, settlements: Sequence[Settlement], want: Want | None
) -> Step[tuple[list[Settled], list[Lease]] | None]:
    """Finish jobs with these plain acknowledgements and lease others.

    None, and nothing but due jobs has changed, if more has to be looked at.
    """
    params = base(scene)
    if settlements:
        # By id, so that two who finish the same jobs do not wait for each other.
        acked = sorted((lease.work.id, lease.delivery) for lease, _ in settlements)
        numbers = Counter(lease.work.spec.queue for lease, _ in settlements)
        params |= {
            "acked": [job_id for job_id, _ in acked],
            "deliveries": [delivery for _, delivery in acked],
            "acked_queues": list(numbers),
            "acked_numbers": list(numbers.values()),
            "acked_since": [since(scene, State.SUCCEEDED, name, renews=True) for name in numbers],
        }
    if want is not None:
        params |= wanted(scene, want)
    spans = None if want is None else _spans(scene, params["queues"])
    if spans is not None:
        params |= {**spans, "back_since": since(scene, BACK, *params["queues"])}
    of_tasks = want is not None and want.tasks is not None
    text = _TEXTS[bool(settlements), want is not None, of_tasks, spans is not None]
    rows = yield from _sent(scene, text, params, settles=bool(settlements))
    told = _told(rows)
    if not told[1]:
        return None
    settled: list[Settled] = []
    if settlements:
        settled = _finished(scene, settlements, told[2])
        if scene.marks is not None and told[5] is not None and len(params["acked_queues"]) == 1:
            (name,), (was,) = params["acked_queues"], params["acked_since"]
            scene.marks.raise_to(State.SUCCEEDED, name, told[5], was)
        for name in told[3]:
            scene.rings[Until.DRAINED, name] += 1
    leases = [] if want is None else leases_of(want, scene, [row for row in rows if row[0] is not None])
    if leases and scene.marks is not None:
        for lease in (leases[0], leases[-1]):
            scene.marks.met(lease.work.spec.queue, lease.work.priority)
    return settled, leases


def is_marked(scene: Scene, want: Want) -> bool:
    """Whether the claim begins at marks."""
    return _spans(scene, want.queues) is not None


def _spans(scene: Scene, queues: Sequence[str]) -> dict[str, Any] | None:
    return None if scene.marks is None else scene.marks.spans(queues)


def _sent(scene: Scene, text: str, params: Mapping[str, Any], *, settles: bool) -> Step[Rows]:
    """What it answers; sent again, if due jobs are all that is in the way, when they are ready."""
    ask = Execute(text, params, alone=True)
    rows = yield ask
    if not _told(rows)[_ONLY_DUE]:
        return rows
    queues = params["queues"]
    if not (yield from make_ready(scene, queues, only_alone=settles or len(queues) > 1)):
        return rows
    return (yield ask)


def _told(rows: Rows) -> tuple[Any, ...]:
    """The row that says what was found, and done."""
    return next(row for row in rows if row[0] is None)


def _finished(scene: Scene, settlements: Sequence[Settlement], done: Sequence[int]) -> list[Settled]:
    left = set(done)
    answers: list[Settled] = []
    for lease, _ in settlements:
        if lease.work.id in left:
            scene.rings[Until.ROOM, lease.work.spec.queue] += 1
            answers.append(State.SUCCEEDED)
        else:
            answers.append(Outcome.STALE)
    scene.ended_ids += done
    return answers


def leases_of(want: Want, scene: Scene, rows: Sequence[tuple[Any, ...]]) -> list[Lease]:
    """Leases of rows as the statements of claims answer them, in order; not of those that cannot be read."""
    grant, leases = want.grant(scene), list[Lease]()
    for row in sorted(rows, key=_order):
        _, _, _, _, lease_end, started_at, name, queue_backoff, *values = row
        job_id, priority, attempt, delivery, most, crashes, created_at, expires_at, codec, task, *rest = (
            values
        )
        if rest[0] is not None or rest[1] is not None or rest[2] is not None:
            rest[:3] = [None if value is None else text_from(value) for value in rest[:3]]
        before = (
            job_id,
            priority,
            attempt - 1,
            delivery - 1,
            most,
            crashes,
            created_at,
            expires_at,
            codec,
            task,
        )
        try:
            work = work_of((*before, *rest), name)
        except UnreadableError as error:
            bare = (job_id, priority, 0, 0, 1, 0, created_at, expires_at, "bytes", *[None] * 5, b"")
            lease = Lease(grant, work_of(bare, name), delivery, attempt, lease_end, started_at, 0, None)
            failure = Failure("UnreadableRow", str(error))
            want.unreadable.append((lease, Dead(Cause.UNDECODABLE, error=failure)))
            continue
        policy = work.spec.backoff or _backoff_of(queue_backoff)
        leases.append(Lease(grant, work, delivery, attempt, lease_end, started_at, crashes, policy))
    return leases


def _order(row: tuple[Any, ...]) -> tuple[int, int, int]:
    return row[0], -row[9], row[8]


def _backoff_of(text: str | None) -> Any:  # noqa: ANN401 - as stored
    try:
        return backoff_of(text)
    except UnreadableError:
        return None
