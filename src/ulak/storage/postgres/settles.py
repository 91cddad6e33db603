"""Verdicts that need a look at the job: all are looked up, decided by the rules, and written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ulak.core import rules
from ulak.core.job import ENDED, Attempt, Cause, Done, Failure, Lease, Outcome, State, Verdict
from ulak.core.store import Settled, Settlement
from ulak.storage.postgres.asks import Execute, Step
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.records import CLOCK, LOOK_COLUMNS, MOVED_COLUMNS, NOW_AT, base, job_of
from ulak.storage.postgres.turns import AT_ONCE_MAX, is_plain
from ulak.storage.stored import (
    INT_MAX,
    LEASED,
    NUMBER,
    JobRow,
    Landed,
    UnreadableError,
    history_bytes,
    history_of,
    landed,
)

# By id, so that two who settle the same jobs do not wait for each other.
_LOOK = (
    f"WITH {CLOCK} SELECT {NOW_AT}, {LOOK_COLUMNS} FROM jobs WHERE id = ANY(%(ids)s::bigint[]) "
    "AND state + 0 = 2 ORDER BY id + 0 FOR UPDATE"
)
# A reclaim leaves alone what somebody settles just then, in a transaction that may stay open for long.
_LOOK_UNLESS_LOCKED = f"{_LOOK} SKIP LOCKED"
_COLUMNS = {
    "id": "bigint",
    "state": "bigint",
    "attempt": "bigint",
    "crashes": "bigint",
    "run_at": "float8",
    "refused": "boolean",
    "history": "bytea",
    "result": "bytea",
}
_LANDED = ("attempt", "crashes", "run_at", "history", "result")
_GONE = ", ".join(f"{'given' if name in _LANDED else 'gone'}.{name}" for name in MOVED_COLUMNS.split(", "))
_GIVEN = "SELECT {} FROM given WHERE given.id = jobs.id"
_LAND = (
    f"{CLOCK}, given AS MATERIALIZED (SELECT * FROM unnest("
    f"{', '.join(f'%(l_{name})s::{kind}[]' for name, kind in _COLUMNS.items())}) "
    f"AS given ({', '.join(_COLUMNS)})), "
    f"back AS (UPDATE jobs SET back_at = {NOW_AT}, (state, refused, {', '.join(_LANDED)}) = "
    f"({_GIVEN.format(', '.join(f'given.{name}' for name in ('state', 'refused', *_LANDED)))}) "
    "WHERE id = ANY(%(back)s::bigint[])), "
    "gone AS (DELETE FROM jobs WHERE id = ANY(%(gone)s::bigint[]) RETURNING *), "
    f"kept AS (INSERT INTO ended ({MOVED_COLUMNS}, state, ended_at) "
    f"SELECT {_GONE}, given.state, {NOW_AT} FROM gone JOIN given ON given.id = gone.id)"
)


def settle_with_care(
    ledger: Ledger, settlements: Sequence[Settlement], *, flushes: bool = True
) -> Step[list[Settled]]:
    """Apply verdicts, one answer per settlement; of the same lease twice, the first wins.

    flushes: False if the ledger is flushed later.
    """
    answers: list[Settled] = []
    for start in range(0, len(settlements), AT_ONCE_MAX):
        part = settlements[start : start + AT_ONCE_MAX]
        is_last = start + AT_ONCE_MAX >= len(settlements)
        answers += yield from _settle(ledger, part, flushes=flushes and is_last)
    return answers


def _settle(ledger: Ledger, settlements: Sequence[Settlement], *, flushes: bool) -> Step[list[Settled]]:
    params = base(ledger.scene)
    jobs: dict[int, JobRow] = {}
    now_at = 0.0
    reclaimed = {lease.work.id for lease, verdict in settlements if verdict.cause is Cause.LOST}
    others = {lease.work.id for lease, verdict in settlements if verdict.cause is not Cause.LOST}
    for ids, text in ((reclaimed - others, _LOOK_UNLESS_LOCKED), (others, _LOOK)):
        rows = (yield Execute(text, {**params, "ids": sorted(ids)})) if ids else []
        jobs |= {job.id: job for job in (job_of(values) for _, *values in rows)}
        now_at = rows[0][0] if rows else now_at
    landings: dict[int, tuple[JobRow, Landed, Verdict]] = {}
    answers: list[Settled] = []
    for lease, verdict in settlements:
        job = jobs.get(lease.work.id)
        if job is None or not _is_current(job, lease, verdict):
            answers.append(Outcome.STALE)
            continue
        made = _landed(job, verdict, now_at)
        landings[job.id] = (jobs.pop(job.id), made, verdict)
        _count(ledger, lease.work.spec.queue, job, made)
        answers.append(made.landing.state)
    if flushes:
        yield from ledger.flush(*((_LAND, _values(landings)) if landings else ()))
    elif landings:
        yield Execute(f"WITH {_LAND} SELECT 1", {**params, **_values(landings)})
    return answers


def _is_current(job: JobRow, lease: Lease, verdict: Verdict) -> bool:
    """Whether this delivery of a leased job may be settled so; a reclaim, if its end has not moved."""
    return job.delivery == lease.delivery and (
        verdict.cause is not Cause.LOST or (job.lease_end or 0.0) == lease.lease_end
    )


def _landed(job: JobRow, verdict: Verdict, now_at: float) -> Landed:
    if is_plain(verdict):
        # The row itself tells it all.
        landing = rules.land(job, verdict, now_at=now_at)
        return Landed(landing, is_refused=False, history=job.history)
    if 0 <= job.attempt < INT_MAX and 0 <= job.crashes < INT_MAX:
        return landed(job, verdict, now_at=now_at)
    return _buried(job, "its attempts or crashes are no number of such", now_at)


def _buried(job: JobRow, why: str, now_at: float) -> Landed:
    """A row that no call of ours can have left so."""
    try:
        history = history_of(job.history)
    except UnreadableError:
        history = ()
    entry = job.ended(Cause.UNDECODABLE, now_at)
    entry = Attempt(
        entry.delivery,
        entry.attempt,
        entry.worker,
        entry.started_at,
        entry.ended_at,
        entry.cause,
        Failure("UnreadableRow", why),
    )
    landing = rules.Landing(State.DEAD, job.run_at, job.attempt, job.crashes, ("dead_lettered",))
    return Landed(landing, is_refused=False, history=history_bytes(rules.remember(history, entry)))


def _count(ledger: Ledger, name: str, job: JobRow, made: Landed) -> None:
    landing = made.landing
    ledger.move(job.queue_id, name, LEASED, NUMBER[landing.state], is_refused=made.is_refused)
    ledger.count(job.queue_id, name, landing.totals)
    if landing.state in ENDED:
        ledger.scene.ended_ids.append(job.id)


def _values(landings: Mapping[int, tuple[JobRow, Landed, Verdict]]) -> dict[str, Any]:
    found = [landings[job_id] for job_id in sorted(landings)]
    return {
        "back": [job.id for job, made, _ in found if made.landing.state not in ENDED],
        "gone": [job.id for job, made, _ in found if made.landing.state in ENDED],
        "l_id": [job.id for job, _, _ in found],
        "l_state": [NUMBER[made.landing.state] for _, made, _ in found],
        "l_attempt": [max(0, made.landing.attempt) for _, made, _ in found],
        "l_crashes": [made.landing.crashes for _, made, _ in found],
        "l_run_at": [float(made.landing.run_at) for _, made, _ in found],
        "l_refused": [made.is_refused for _, made, _ in found],
        "l_history": [made.history for _, made, _ in found],
        "l_result": [
            verdict.result if isinstance(verdict, Done) else job.result for job, _, verdict in found
        ],
    }
