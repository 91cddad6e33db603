"""What a store does to jobs, as steps of one open transaction.

A step may be run again from the start after a rollback, so it changes nothing but the file and the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ulak.core import rules
from ulak.core.job import (
    ENDED,
    FULL,
    Cause,
    Done,
    Draft,
    Duplicate,
    Failure,
    Full,
    Grant,
    Lease,
    Outcome,
    State,
    Verdict,
)
from ulak.core.store import IDEMPOTENCY_S, Fired, Settled, Settlement, Tasks
from ulak.errors import ArgumentError
from ulak.storage.sqlite.due import expire, expire_one, promote, tidy
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.looks import held_tasks
from ulak.storage.sqlite.records import INSERT, inserted
from ulak.storage.stored import (
    DEAD,
    HELD,
    INT_MAX,
    JOB_COLUMNS,
    LEASED,
    NUMBER,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WORK_COLUMNS,
    JobRow,
    QueueRow,
    UnreadableError,
    history_bytes,
    history_of,
    job_row,
    landed,
    work_of,
)

PAGE_BYTES = 4_000

_ACK = "UPDATE jobs SET state = 4, ended_at = ? WHERE id = ? AND delivery = ? AND state = 2"
_TAKE = (
    "UPDATE jobs SET state = 2, attempt = attempt + 1, delivery = delivery + 1, holder = ?, worker = ?, "
    "started_at = ?, lease_s = ?, lease_end = ? WHERE id = ?"
)
_LAND = (
    "UPDATE jobs SET state = ?, attempt = ?, crashes = ?, run_at = ?, ended_at = ?, history = ?, result = ?, "
    "refused = ? WHERE id = ?"
)
_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"  # noqa: S608 - columns of our own
_READY = (
    f"SELECT {WORK_COLUMNS} FROM jobs WHERE queue = ? AND state = 0 "  # noqa: S608
    "ORDER BY priority DESC, id LIMIT ?"
)
_HELD = (
    f"SELECT {WORK_COLUMNS} FROM jobs WHERE queue = ? AND state = 3 "  # noqa: S608
    "ORDER BY priority DESC, id LIMIT ?"
)
_HELD_OF = (
    f"SELECT {WORK_COLUMNS} FROM jobs WHERE queue = ? AND state = 3 AND refused = 0 AND task IS ? "  # noqa: S608
    "ORDER BY priority DESC, id LIMIT ?"
)


# Enqueue


def add(ledger: Ledger, queue: str, drafts: Sequence[Draft], *, known_only: bool = False) -> list[int] | Full:
    """Store jobs, all or none."""
    row = ledger.queue(queue)
    tidy(ledger, row)
    answers, new = rules.number(drafts, ledger.last_id, partial(_stored, ledger, row))
    if new and not _has_room(ledger, row, new):
        return FULL
    if new and known_only:
        return FULL
    if new:
        ledger.find_room()
        ledger.last_id += new
        now_at, queue_id = ledger.now_at, row.id
        rows = [
            inserted(answer, queue_id, draft, now_at)
            for draft, answer in zip(drafts, answers, strict=True)
            if type(answer) is not Duplicate
        ]
        _insert(ledger, row, rows)
    _remember_keys(ledger, row, drafts, answers)
    return answers


def _has_room(ledger: Ledger, row: QueueRow, new: int) -> bool:
    if row.capacity is None:
        return True
    if new > row.capacity:
        raise ArgumentError(
            f"{new:,} new jobs can never fit queue {row.name!r}, whose capacity is {row.capacity:,}\n"
            f"  enqueue fewer at once, or raise it with q.configure(capacity=...)"
        )
    # No answer of FULL while jobs stand in the way whose time is over, however many they are.
    while row.open + new > row.capacity:
        if not expire(ledger, row):
            return False
    return True


def _insert(ledger: Ledger, row: QueueRow, rows: Sequence[tuple[Any, ...]]) -> None:
    if len(rows) == 1:
        ledger.db.execute(INSERT, rows[0])
    else:
        ledger.db.executemany(INSERT, rows)
    scheduled = sum(values[2] == SCHEDULED for values in rows)
    if scheduled:
        row.due_from = None
        ledger.entered(row, SCHEDULED, scheduled)
    if any(values[7] is not None for values in rows):
        row.expires_from = None
    if scheduled < len(rows):
        ledger.entered(row, READY, len(rows) - scheduled)
    ledger.rows_changed += len(rows) + sum(len(values[-1]) for values in rows) // PAGE_BYTES


def _stored(ledger: Ledger, row: QueueRow, kind: str, key: str) -> int | None:
    """The id that already stands for a key."""
    if kind == "idempotency":
        found = ledger.db.execute(
            "SELECT job FROM keys WHERE queue = ? AND name = ? AND until_at > ?", (row.id, key, ledger.now_at)
        ).fetchone()
    else:
        found = ledger.db.execute(
            "SELECT id FROM jobs WHERE queue = ? AND unique_key = ? AND unique_key IS NOT NULL AND state < 4",
            (row.id, key),
        ).fetchone()
    return found[0] if found else None


def _remember_keys(ledger: Ledger, row: QueueRow, drafts: Sequence[Draft], answers: Sequence[int]) -> None:
    """Remember what each idempotency key stands for; one that is remembered already stays."""
    until_at = ledger.now_at + IDEMPOTENCY_S
    for draft, answer in zip(drafts, answers, strict=True):
        if draft.idempotency_key is not None:
            ledger.db.execute(
                "INSERT INTO keys (queue, name, job, until_at) VALUES (?, ?, ?, ?) ON CONFLICT (queue, name) "
                "DO UPDATE SET job = excluded.job, until_at = excluded.until_at WHERE until_at <= ?",
                (row.id, draft.idempotency_key, int(answer), until_at, ledger.now_at),
            )


def unadd(ledger: Ledger, ids: Sequence[int]) -> None:
    """Take back jobs whose caller was cancelled meanwhile, unless somebody has touched them.

    Not those with a key: somebody else may have been told that they are stored.
    """
    for job_id in ids:
        job = find(ledger, job_id)
        row = None if job is None else ledger.by_id(job.queue_id)
        if job is None or row is None or job.number not in (READY, SCHEDULED) or job.delivery:
            continue
        if job.unique_key is not None or job.idempotency_key is not None:
            continue
        ledger.db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        # As if it had never come, in the totals too.
        ledger.removed(row, job.number)
        ledger.ended_ids.append(job_id)
        row.left -= 1
        row.entered -= 1


def fire(
    ledger: Ledger, schedule: str, tick_at: float, queue: str, draft: Draft | None
) -> int | Duplicate | Fired | Full:
    """Insert the job, if there is one, and move the schedule's last tick, in one step."""
    found = ledger.db.execute("SELECT last_tick FROM schedules WHERE name = ?", (schedule,)).fetchone()
    if found is not None and found[0] >= tick_at:
        return Fired.LOST
    answer = [] if draft is None else add(ledger, queue, [draft])
    if isinstance(answer, Full):
        return answer
    ledger.db.execute("INSERT OR REPLACE INTO schedules (name, last_tick) VALUES (?, ?)", (schedule, tick_at))
    return next(iter(answer), Fired.FIRED)


# Claim


def claim(ledger: Ledger, queue: str, limit: int, grant: Grant, *, tasks: Tasks | None) -> list[Lease]:
    """Lease up to `limit` due jobs of one queue, in order."""
    row = ledger.known(queue)
    if row is None or row.paused or limit <= 0:
        return []
    tidy(ledger, row)
    promote(ledger, row)
    leases: list[Lease] = []
    while len(leases) < limit:
        wanted = limit - len(leases)
        found = _candidates(ledger, row, wanted, tasks)
        leases += _lease(ledger, row, found, grant)
        # Fewer than asked for: there are no more. Else some could not be leased, and others take their place.
        if len(found) < wanted:
            break
    return leases


def _candidates(
    ledger: Ledger, row: QueueRow, limit: int, tasks: Tasks | None
) -> list[tuple[int, tuple[Any, ...]]]:
    """The next rows to lease with the state they are in: the best of what is ready, and of held jobs."""
    found = []
    if row.ready > 0:
        found = [(READY, values) for values in ledger.db.execute(_READY, (row.id, limit))]
    if row.held > 0:
        if tasks is None:
            held = ledger.db.execute(_HELD, (row.id, limit)).fetchall()
        else:
            known = held_tasks(ledger.db, row, tasks)
            held = [values for task in known for values in ledger.db.execute(_HELD_OF, (row.id, task, limit))]
        found += [(HELD, values) for values in held]
        # By priority, then id: the first two of the columns.
        found.sort(key=lambda entry: (-entry[1][1], entry[1][0]))
    return found[:limit]


def _lease(
    ledger: Ledger,
    row: QueueRow,
    found: Iterable[tuple[int, tuple[Any, ...]]],
    grant: Grant,
) -> list[Lease]:
    holder = ledger.holder
    assert holder is not None
    leases: list[Lease] = []
    taken: list[tuple[Any, ...]] = []
    lease_end, now_at, backoff = ledger.now + grant.lease_s, ledger.now_at, row.backoff
    moved: Counter[int] = Counter()
    for was, values in found:
        if values[7] is not None and values[7] <= now_at:
            expire_one(ledger, row, values[0], was)
            continue
        try:
            work = work_of(values, row.name)
        except UnreadableError as error:
            bury(ledger, row, values[0], str(error))
            continue
        _, _, attempt, delivery, _, crashes, *_ = values
        leases.append(
            Lease(
                grant,
                work,
                delivery + 1,
                attempt + 1,
                lease_end,
                now_at,
                crashes,
                work.spec.backoff or backoff,
            )
        )
        taken.append((holder, grant.worker, now_at, grant.lease_s, lease_end, work.id))
        moved[was] += 1
    for was, number in moved.items():
        ledger.move(row, was, LEASED, number)
    if len(taken) == 1:
        ledger.db.execute(_TAKE, taken[0])
    elif taken:
        ledger.db.executemany(_TAKE, taken)
    ledger.rows_changed += len(taken)
    return leases


def bury(ledger: Ledger, row: QueueRow | None, job_id: int, why: str) -> None:
    """End a job whose row cannot be read, and say why; its bytes stay as they are."""
    job = find(ledger, job_id)
    assert job is not None
    was = job.number
    try:
        history = history_of(job.history)
    except UnreadableError:
        history = ()
    failure = Failure("UnreadableRow", why)
    attempt = msgspec.structs.replace(job.ended(Cause.UNDECODABLE, ledger.now_at), error=failure)
    ledger.db.execute(
        "UPDATE jobs SET state = 5, ended_at = ?, history = ? WHERE id = ?",
        (ledger.now_at, history_bytes(rules.remember(history, attempt)), job_id),
    )
    ledger.rows_changed += 1
    ledger.ended_ids.append(job_id)
    if row is not None:
        # A state that is none of ours was open, as far as the totals know.
        ledger.move(row, was if was in range(len(STATES)) else READY, DEAD)
        ledger.count(row, "dead_lettered")


# Settle


def settle(ledger: Ledger, settlements: Sequence[Settlement]) -> list[Settled]:
    """Apply verdicts, one answer per settlement."""
    if len(settlements) > 1 and are_plain(settlements):
        ledger.db.execute("SAVEPOINT acks")
        done = ack_all(ledger, settlements)
        if not done:
            ledger.db.execute("ROLLBACK TO acks")
        ledger.db.execute("RELEASE acks")
        if done:
            return [State.SUCCEEDED] * len(settlements)
    return [_settle(ledger, lease, verdict) for lease, verdict in settlements]


def _is_plain(verdict: Verdict) -> bool:
    return isinstance(verdict, Done) and verdict.result is None and verdict.cause is Cause.ACK


def are_plain(settlements: Sequence[Settlement]) -> bool:
    """Whether these are all plain acks."""
    return all(_is_plain(verdict) for _, verdict in settlements)


def ack_all(ledger: Ledger, settlements: Sequence[Settlement]) -> bool:
    """Finish many jobs by one statement; False, and to be rolled back, if a lease is not current any more."""
    done = ledger.db.executemany(
        _ACK, [(ledger.now_at, lease.work.id, lease.delivery) for lease, _ in settlements]
    ).rowcount
    if done != len(settlements):
        return False
    for queue, number in Counter(lease.work.spec.queue for lease, _ in settlements).items():
        ledger.move(ledger.queue(queue), LEASED, SUCCEEDED, number)
    ledger.ended_ids += [lease.work.id for lease, _ in settlements]
    ledger.rows_changed += done
    return True


def _settle(ledger: Ledger, lease: Lease, verdict: Verdict) -> Settled:
    if _is_plain(verdict):
        if ledger.db.execute(_ACK, (ledger.now_at, lease.work.id, lease.delivery)).rowcount == 0:
            return Outcome.STALE
        ledger.move(ledger.queue(lease.work.spec.queue), LEASED, SUCCEEDED)
        ledger.ended_ids.append(lease.work.id)
        ledger.rows_changed += 1
        return State.SUCCEEDED
    job = find(ledger, lease.id)
    if job is None or job.number != LEASED or job.delivery != lease.delivery:
        return Outcome.STALE
    if verdict.cause is Cause.LOST and (job.lease_end or 0.0) != lease.lease_end:
        return Outcome.STALE
    return land(ledger, job, verdict)


def land(ledger: Ledger, job: JobRow, verdict: Verdict) -> State:
    """Store what a verdict makes of a leased job."""
    row = ledger.by_id(job.queue_id)
    if row is None or not (0 <= job.attempt < INT_MAX and 0 <= job.crashes < INT_MAX):
        # Not by any call of ours: here and below, somebody has changed the row since the lease was given.
        bury(ledger, row, job.id, "its queue is unknown, or its attempts or crashes are no number of such")
        return State.DEAD
    made = landed(job, verdict, now_at=ledger.now_at)
    landing = made.landing
    ledger.db.execute(
        _LAND,
        (
            NUMBER[landing.state],
            max(0, landing.attempt),
            landing.crashes,
            landing.run_at,
            ledger.now_at if landing.state in ENDED else None,
            made.history,
            verdict.result if isinstance(verdict, Done) else job.result,
            int(made.is_refused),
            job.id,
        ),
    )
    # It waits again: its times may come before those that were looked up without it.
    row.due_from = None if landing.state is State.SCHEDULED else row.due_from
    row.expires_from = None if job.expires_at is not None else row.expires_from
    ledger.move(row, LEASED, NUMBER[landing.state], is_refused=made.is_refused)
    ledger.count(row, *landing.totals)
    ledger.rows_changed += 1
    if landing.state in ENDED:
        ledger.ended_ids.append(job.id)
    return landing.state


def find(ledger: Ledger, job_id: int) -> JobRow | None:
    """One job."""
    values = ledger.db.execute(_JOB, (job_id,)).fetchone()
    return None if values is None else job_row(values)


def extend(
    ledger: Ledger, leases: Sequence[Lease], lease_s: float, progress: Mapping[int, str] | None
) -> list[bool | Outcome]:
    """Move lease ends to now + `lease_s`, never to earlier."""
    answers: list[bool | Outcome] = []
    lease_end = ledger.now + lease_s
    for lease in leases:
        found = ledger.db.execute(
            "SELECT cancel_requested, lease_end FROM jobs WHERE id = ? AND delivery = ? AND state = 2",
            (lease.id, lease.delivery),
        ).fetchone()
        if found is None:
            answers.append(Outcome.STALE)
            continue
        if lease_end > (found[1] or 0.0):
            ledger.db.execute(
                "UPDATE jobs SET lease_end = ?, lease_s = ? WHERE id = ?", (lease_end, lease_s, lease.id)
            )
            ledger.rows_changed += 1
        if progress is not None and lease.id in progress:
            text = progress[lease.id].encode("utf-8", "replace").decode()
            ledger.db.execute("UPDATE jobs SET progress = ? WHERE id = ?", (text, lease.id))
        answers.append(bool(found[0]))
    return answers
