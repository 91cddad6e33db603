"""The short way that plain calls take through a memory store: as a handle has it, for one call at a time.

Only this file and `copying` know what a store is made of. A handle's short way keeps hold of what is inside
its store, which a copy replaces, so each call here is made as by a handle that was just opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.explore.world import LEASE_S, QUEUE, World
from ulak.core.job import Draft, Grant, Lease, Outcome, Retry, Spec, State
from ulak.storage import direct
from ulak.storage.memory import MemoryStore
from ulak.storage.row import Row


def is_plain(draft: Draft) -> bool:
    """Whether a job has no options but its priority, which is what the short way is for."""
    bare = Draft(draft.payload, draft.codec, priority=draft.priority, max_attempts=draft.max_attempts)
    return draft == bare


class Short:
    """The short way of each worker and of a producer.

    otherwise: what each call does where the short way ends. A store that is not quite a memory store has
    none. What a worker takes this way bears a name of its own.
    """

    def __init__(self, world: World) -> None:
        self._store: Any = world.store
        self._has_way = type(world.store) is MemoryStore
        self._local = world.local
        self._spec = Spec(QUEUE, "bytes", world.scope.max_attempts)
        store = world.store
        self._grants = [Grant(store.uid, store.epoch, f"{name}, short", LEASE_S) for name in world.names]

    def took(self, worker: int, lease: Lease) -> bool:
        """Whether the worker took this job by the short way."""
        return lease.worker == self._grants[worker].worker

    def enqueue(self, payload: bytes, priority: int, otherwise: Callable[[], Any]) -> Any:
        """Store a plain job."""
        if not self._has_way:
            return otherwise()
        shelf, local = self._store.shelf(QUEUE), self._local
        way = direct.enqueue_way(self._store, shelf, self._spec_of, local, local, _ignoring(otherwise))
        return way(payload, priority)

    def enqueue_many(self, entries: list[tuple[bytes, int]], otherwise: Callable[[], Any]) -> Any:
        """Store plain jobs, all or none."""
        if not self._has_way:
            return otherwise()
        shelf, local = self._store.shelf(QUEUE), self._local
        way = direct.enqueue_many_way(self._store, shelf, self._rows, local, local, _ignoring(otherwise))
        return way(entries)

    def take(self, worker: int, otherwise: Callable[[], list[Lease]]) -> list[Lease]:
        """Take a job."""
        if not self._has_way:
            return otherwise()
        shelf, grant = self._store.shelf(QUEUE), self._grants[worker]
        taken = direct.deliver_way(self._store, shelf, grant, self._local, _ignoring(otherwise))(0)
        return [taken] if isinstance(taken, Lease) else taken

    def take_many(self, worker: int, limit: int, otherwise: Callable[[int], list[Lease]]) -> list[Lease]:
        """Take up to so many jobs."""
        if not self._has_way:
            return otherwise(limit)
        shelf, grant = self._store.shelf(QUEUE), self._grants[worker]
        way = direct.deliver_many_way(self._store, shelf, grant, self._local, lambda left, _: otherwise(left))
        leases: list[Lease] = way(limit)
        return leases

    def finish(self, worker: int, lease: Lease, otherwise: Callable[[Lease], Outcome]) -> Outcome:
        """Finish a job that was taken this way."""
        if not self._has_way:
            return otherwise(lease)
        shelf, grant = self._store.shelf(QUEUE), self._grants[worker]
        outcome: Outcome = direct.ack_way(self._store, shelf, grant, otherwise)(lease)
        return outcome

    def fail(self, worker: int, lease: Lease, verdict: Retry) -> State | None:
        """Put off a job that has failed; None where the short way does not go."""
        if not self._has_way:
            return None
        shelf, grant = self._store.shelf(QUEUE), self._grants[worker]
        return direct.fail_way(self._store, shelf, grant)(lease, verdict)

    def finish_many(
        self, worker: int, leases: list[Lease], otherwise: Callable[[list[Lease]], list[Outcome]]
    ) -> list[Outcome]:
        """Finish jobs, in order."""
        if not self._has_way:
            return otherwise(leases)
        shelf, grant = self._store.shelf(QUEUE), self._grants[worker]
        outcomes: list[Outcome] = direct.ack_many_way(self._store, shelf, grant, otherwise)(leases)
        return outcomes

    def _spec_of(self, payload: object) -> tuple[bytes, Spec]:
        assert isinstance(payload, bytes)
        return payload, self._spec

    def _rows(self, jobs: list[tuple[bytes, int]], now_at: float) -> list[Row]:
        return [Row(0, self._spec, body, priority, now_at) for body, priority in jobs]


def _ignoring(otherwise: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *_, **__: otherwise()
