"""Calls alike that wait for the same commit, done in one; each is answered as if it had come alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ulak.core.job import Draft, Full, Grant, Lease, State
from ulak.core.store import Settled, Settlement, Tasks
from ulak.storage.sqlite.book import ack_all, add, are_plain, claim, settle
from ulak.storage.sqlite.due import tidy
from ulak.storage.sqlite.ledger import Ledger

R = TypeVar("R")


class NotAlikeError(Exception):
    """Calls that were done in one have to be done apart: what was done is to be rolled back."""


def add_together(ledger: Ledger, queue: str, calls: Sequence[Sequence[Draft]]) -> list[list[int] | Full]:
    """Several calls of `add` in one, where that comes to the same: there is room for all, and no keys."""
    row = ledger.queue(queue)
    tidy(ledger, row)
    drafts = [draft for call in calls for draft in call]
    is_plain = all(draft.unique_key is None and draft.idempotency_key is None for draft in drafts)
    if not is_plain or (row.capacity is not None and row.open + len(drafts) > row.capacity):
        return [add(ledger, queue, call) for call in calls]
    ids = add(ledger, queue, drafts)
    assert not isinstance(ids, Full)
    return list(_parts(ids, [len(call) for call in calls]))


def _parts(answers: Sequence[R], lengths: Iterable[int]) -> Iterator[list[R]]:
    """The answers of several calls, from those of all of them."""
    start = 0
    for length in lengths:
        yield list(answers[start : start + length])
        start += length


def settle_together(ledger: Ledger, calls: Sequence[Sequence[Settlement]]) -> list[list[Settled]]:
    """Several calls of `settle` in one."""
    settlements = [settlement for call in calls for settlement in call]
    if len(calls) == 1 or len(settlements) < 2 or not are_plain(settlements):
        answers = settle(ledger, settlements)
    elif ack_all(ledger, settlements):
        answers = [State.SUCCEEDED] * len(settlements)
    else:
        raise NotAlikeError
    return list(_parts(answers, map(len, calls)))


def turn_together(
    ledger: Ledger,
    calls: Sequence[tuple[Sequence[Settlement], int]],
    queues: Sequence[str],
    grant: Grant,
    tasks: Tasks | None,
) -> list[tuple[list[Settled], list[Lease]]]:
    """Several calls of `turn` in one: all settle, then claim, those that came first before others."""
    settled = settle_together(ledger, [settlements for settlements, _ in calls])
    leases: list[Lease] = []
    limit = sum(limit for _, limit in calls)
    for queue in queues:
        leases += claim(ledger, queue, limit - len(leases), grant, tasks=tasks)
    shares = _parts(leases, [limit for _, limit in calls])
    return list(zip(settled, shares, strict=True))
