"""Makes a queue of the memory store agree with its rows again, after an exception struck in a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ulak.core.job import ENDED, OPEN, Lease, State
from ulak.storage.row import Row
from ulak.storage.shelf import Shelf


def salvage(shelves: Iterable[Shelf]) -> dict[int, Lease]:
    """All leases, by job: what the rows alone do not tell."""
    return {lease.id: lease for shelf in shelves for lease in shelf.all_leases()}


def rebuild(shelf: Shelf, rows: list[Row], leases: Mapping[int, Lease]) -> None:
    """Make all orders and numbers anew from the rows themselves, which are given by id.

    At most the change that was interrupted is counted wrongly. May be done again, with the same leases.
    """
    shelf.clear()
    leased: list[tuple[Row, Lease]] = []
    # Ended rows in the order in which they ended, as they are kept.
    for row in sorted(rows, key=_end):
        lease = leases.get(row.id)
        _take_back(shelf, row, lease)
        if row.state is State.LEASED and lease is not None:
            leased.append((row, lease))
    for row, lease in sorted(leased, key=_lease_end):
        shelf.hold(row, lease)
    shelf.set_limits()
    _balance(shelf, sum(row.state in OPEN for row in rows), len(rows))


def _take_back(shelf: Shelf, row: Row, lease: Lease | None) -> None:
    if row.more is not None:
        row.more.watched = False
    has_lease = lease is not None and lease.delivery == row.delivery
    if row.state in OPEN and (row.state is State.LEASED) != has_lease:
        # A claim or a settlement was interrupted: the job waits again, unspent.
        row.detail().uncounted += 1
        row.state = State.READY
    if row.state in ENDED and row.ended_at is None:
        row.ended_at = row.created_at
    assert row.state is not None
    shelf.number(row.state, 1)
    if row.state in OPEN and row.spec.unique_key is not None:
        shelf.unique[row.spec.unique_key] = row.id
    if row.state is not State.LEASED:
        shelf.enter(row)


def _balance(shelf: Shelf, open_rows: int, rows: int) -> None:
    """Totals that follow from others are made to."""
    if shelf.open > open_rows:
        shelf.left = shelf.entered - open_rows
    else:
        shelf.entered = shelf.left + open_rows
    ended = shelf.left - shelf.totals.deleted - shelf.totals.redriven
    shelf.pruned = max(shelf.pruned, ended - (rows - open_rows))


def _end(row: Row) -> tuple[float, int]:
    return row.ended_at or 0.0, row.id


def _lease_end(entry: tuple[Row, Lease]) -> float:
    return entry[1].lease_end
