"""What time does to jobs that wait, as steps of one open transaction: it ends them, or makes them ready."""

from __future__ import annotations

import math

from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.stored import EXPIRED, READY, SCHEDULED, QueueRow

EXPIRE_MAX = 1_000
PROMOTE_MAX = 5_000
"""How many due jobs one step makes ready; of more that are due at once, those due first."""

_NEVER = math.inf


def tidy(ledger: Ledger, row: QueueRow) -> None:
    """End what has expired in a queue; once a transaction, since its time stands still."""
    if ledger.tidied(row.name):
        return
    if row.expires_from is None:
        (first,) = ledger.db.execute(
            "SELECT min(expires_at) FROM jobs WHERE queue = ? AND expires_at IS NOT NULL "
            "AND state IN (0, 1, 3)",
            (row.id,),
        ).fetchone()
        row.expires_from = _NEVER if first is None else first
    if row.expires_from <= ledger.now_at:
        expire(ledger, row)


def expire(ledger: Ledger, row: QueueRow, limit: int = EXPIRE_MAX) -> int:
    """End waiting jobs past their `expires_at`, at most `limit`; how many."""
    ended = ledger.db.execute(
        "SELECT id, state FROM jobs WHERE queue = ? AND expires_at <= ? AND expires_at IS NOT NULL "
        "AND state IN (0, 1, 3) ORDER BY expires_at LIMIT ?",
        (row.id, ledger.now_at, limit),
    ).fetchall()
    for job_id, was in ended:
        expire_one(ledger, row, job_id, was)
    row.expires_from = None
    return len(ended)


def expire_one(ledger: Ledger, row: QueueRow, job_id: int, was: int) -> None:
    """End one waiting job past its `expires_at`. was: the number of its state."""
    ledger.db.execute("UPDATE jobs SET state = 7, ended_at = ? WHERE id = ?", (ledger.now_at, job_id))
    ledger.move(row, was, EXPIRED)
    ledger.count(row, "expired")
    ledger.ended_ids.append(job_id)
    ledger.rows_changed += 1


def promote(ledger: Ledger, row: QueueRow) -> int:
    """Make due jobs ready; how many."""
    if row.scheduled <= 0:
        return 0
    if row.due_from is None:
        (first,) = ledger.db.execute(
            "SELECT min(run_at) FROM jobs WHERE queue = ? AND state = 1", (row.id,)
        ).fetchone()
        row.due_from = _NEVER if first is None else first
    if row.due_from > ledger.now_at:
        return 0
    row.due_from = None
    promoted = ledger.db.execute(
        "UPDATE jobs SET state = 0 WHERE id IN (SELECT id FROM jobs WHERE queue = ? AND state = 1 "
        "AND run_at <= ? ORDER BY run_at, id LIMIT ?)",
        (row.id, ledger.now_at, PROMOTE_MAX),
    ).rowcount
    if promoted:
        ledger.move(row, SCHEDULED, READY, promoted)
        ledger.rows_changed += promoted
    return promoted
