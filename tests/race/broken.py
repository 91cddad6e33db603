"""Stores that are broken on purpose: the checks of this folder must catch them, or they catch nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.race.threads import PATIENCE_S
from ulak.core.job import FULL, Done, Draft, Full, Outcome, State
from ulak.core.store import Settled, Settlement, Store


class Unfenced:
    """A store whose ack asks only whether the job is leased, not to whom."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        forged: list[Settlement] = []
        for lease, verdict in settlements:
            (job,) = self._store.get([lease.id])
            if job is not None and isinstance(verdict, Done):
                forged.append((msgspec.structs.replace(lease, delivery=job.delivery), verdict))
            else:
                forged.append((lease, verdict))
        return self._store.settle(forged)


class CheckThenAct:
    """A store that looks for room first and inserts then, in two steps. So that the worst case is certain,
    the first adds of so many threads meet between the two.
    """

    def __init__(self, store: Store, *, capacity: int, threads: int) -> None:
        self._store = store
        self._capacity = capacity
        self._meeting = threading.Barrier(threads)
        self._met = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, queue: str, drafts: Sequence[Draft], **options: Any) -> list[int] | Full:
        if self._store.counts([queue])[queue].open + len(drafts) > self._capacity:
            return FULL
        if not getattr(self._met, "once", False):
            self._met.once = True
            self._meeting.wait(PATIENCE_S)
        return self._store.add(queue, drafts, **options)


class Torn:
    """A store that decides a settlement first and applies it then, in two steps, between which so many
    threads meet: each of them is told what was true when it looked.
    """

    def __init__(self, store: Store, *, threads: int) -> None:
        self._store = store
        self._meeting = threading.Barrier(threads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        ((lease, verdict),) = settlements
        (job,) = self._store.get([lease.id])
        assert job is not None
        is_current = job.state is State.LEASED and job.delivery == lease.delivery
        self._meeting.wait(PATIENCE_S)
        self._store.settle([(lease, verdict)])
        return [State.READY if is_current else Outcome.STALE]
