"""Finds and ends what no call of ours can have stored, and counts anew what does not agree with its rows."""

from __future__ import annotations

from ulak.storage.sqlite.book import bury
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.stored import DEAD, EXPIRED, HELD, LEASED, READY, SCHEDULED, STATES, SUCCEEDED, QueueRow

RUN_AT_MAX = 300e9
"""Later than any instant that can be given: beyond the year 9999."""

QUEUES_MAX = 50
"""How many queues one step looks at."""

COUNTED_MAX = 200
"""As far a queue's open jobs are counted to see whether its counters agree with them."""


def mend(ledger: Ledger, limit: int) -> None:
    """End jobs that no call could have left as they are, and count anew what does not agree with its rows.

    Only by looks into indexes that are empty, or short, in a file that nobody else has written to.
    """
    (last,) = ledger.db.execute("SELECT max(id) FROM queues").fetchone()
    for job_id, queue_id in _wrong(ledger, last, limit):
        row = ledger.by_id(queue_id)
        bury(ledger, row, job_id, "its state is unknown" if row else "its queue is unknown")
    ids = [queue_id for (queue_id,) in ledger.db.execute("SELECT id FROM queues WHERE id > 0")]
    # Of many queues some each second, others the next.
    start = int(ledger.now) * QUEUES_MAX % max(1, len(ids)) if len(ids) > QUEUES_MAX else 0
    for queue_id in (ids + ids)[start : start + min(QUEUES_MAX, len(ids))]:
        row = ledger.by_id(queue_id)
        if row is not None:
            for (job_id,) in ledger.db.execute(
                "SELECT id FROM jobs WHERE queue = ? AND state = 1 AND run_at > ? LIMIT ?",
                (row.id, RUN_AT_MAX, limit),
            ).fetchall():
                bury(ledger, row, job_id, "its time to run is none")
            if _is_off(ledger, row):
                recount(ledger, row)


def _wrong(ledger: Ledger, last: int, limit: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = ledger.db.execute(
        "SELECT id, queue FROM jobs WHERE (state < 0 OR state > 7) LIMIT ?", (limit,)
    ).fetchall()
    for state in (READY, SCHEDULED, LEASED, HELD):
        for beyond in ("queue < 1", f"queue > {last:d}"):
            found += ledger.db.execute(
                f"SELECT id, queue FROM jobs WHERE state = {state:d} AND {beyond} LIMIT ?",  # noqa: S608
                (limit,),
            ).fetchall()
    return found


def _is_off(ledger: Ledger, row: QueueRow) -> bool:
    """Whether a counter does not agree with its rows, as far as a few of them tell."""
    waiting = (row.ready, row.scheduled, row.leased, row.held)
    counters = (*waiting, row.succeeded, row.dead, row.cancelled, row.expired)
    for state, counter in enumerate(counters):
        more = " AND +state BETWEEN 4 AND 7" if state > HELD else ""
        found = ledger.db.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = ? AND state = {state:d}{more} LIMIT ?)",  # noqa: S608
            (row.id, COUNTED_MAX),
        ).fetchone()[0]
        if found != min(counter, COUNTED_MAX):
            return True
    return False


def recount(ledger: Ledger, row: QueueRow) -> None:
    """Make a queue's numbers of stored jobs agree with what is stored; totals stay, but `entered` follows."""
    numbers = dict.fromkeys(range(len(STATES)), 0)
    for state, number in ledger.db.execute(
        "SELECT state, count(*) FROM jobs WHERE queue = ? AND state BETWEEN 0 AND 7 GROUP BY state", (row.id,)
    ):
        numbers[state] = number
    row.scheduled, row.leased, row.held = numbers[SCHEDULED], numbers[LEASED], numbers[HELD]
    row.succeeded, row.dead = numbers[SUCCEEDED], numbers[DEAD]
    row.cancelled, row.expired = numbers[6], numbers[EXPIRED]
    row.entered = row.left + sum(numbers[state] for state in (READY, SCHEDULED, LEASED, HELD))
