"""What is kept of the past of queues, as `ulak.core.history` has it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from ulak.core import history
from ulak.core.history import Grain, Moment, Took
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.looks import queue_row

_FIND = "SELECT body FROM history WHERE queue = ? AND grain = ? AND at = ?"
_PUT = "INSERT OR REPLACE INTO history (queue, grain, at, body) VALUES (?, ?, ?, ?)"
_PRUNE = (
    "DELETE FROM history WHERE queue = ?1 AND grain = ?2 AND at IN "
    "(SELECT at FROM history WHERE queue = ?1 AND grain = ?2 AND at < ?3 ORDER BY at LIMIT ?4)"
)
# From the last row that began by then on; from the first, if there is none.
_SINCE = (
    "SELECT at, body FROM history WHERE queue = ?1 AND grain = ?2 AND at >= coalesce("
    "(SELECT max(at) FROM history WHERE queue = ?1 AND grain = ?2 AND at <= ?3), ?3) ORDER BY at"
)


def record(ledger: Ledger, took: Mapping[str, Took]) -> None:
    """Note how queues' counts stand in this transaction, and how long jobs took; forget what is old."""
    db, now_at = ledger.db, ledger.now_at
    # What is set aside on a disk is for finishing jobs.
    ledger.find_room()
    for name, of_queue in took.items():
        if (row := ledger.known(name)) is None:
            continue
        for grain in history.GRAINS:
            key = row.id, grain, history.began_at(now_at, grain)
            found = db.execute(_FIND, key).fetchone()
            stored = None if found is None else found[0]
            db.execute(_PUT, (*key, history.noted(stored, row.counts(), of_queue, now_at)))
            ledger.rows_changed += 1
    ids = [number for (number,) in db.execute("SELECT id FROM queues WHERE id > 0").fetchall()]
    for grain in history.GRAINS:
        before_at, left = now_at - history.KEPT_S[grain], history.PRUNE_MAX
        for number in ids:
            left -= db.execute(_PRUNE, (number, grain, before_at, left)).rowcount


def since(
    db: sqlite3.Connection, queues: Sequence[str], since_at: float, grain: Grain
) -> dict[str, list[Moment]]:
    """What was noted of queues since then."""
    found: dict[str, list[Moment]] = {}
    for queue in queues:
        row = queue_row(db, queue)
        rows = [] if row is None else db.execute(_SINCE, (row.id, grain, since_at)).fetchall()
        moments = (history.moment_of(at, body) for at, body in rows)
        found[queue] = [moment for moment in moments if moment is not None]
    return found
