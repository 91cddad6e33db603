"""Stores, of any kind, that misbehave at the test's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ulak import AsyncQueue, Queue, StorageUnavailable
from ulak.core.store import Capabilities, Until
from ulak.storage.drive import Edge, arun, run
from ulak.storage.line import WaitLine

Decide = Callable[[str, tuple[Any, ...]], BaseException | None]


class Refusing:
    """Stands before a store and raises what `decide` says instead of passing the call on."""

    def __init__(self, store: Any, decide: Decide) -> None:
        self._store = store
        self._decide = decide

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not callable(operation):
            return operation

        def call(*args: Any, **kwargs: Any) -> Any:
            error = self._decide(name, args)
            if error is not None:
                raise error
            return operation(*args, **kwargs)

        return call

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An event loop's call."""
        error = self._decide(name, args)
        if error is not None:
            raise error
        return await self._store.acall(name, args, kwargs)


class _SilentLine(WaitLine):
    """A line whose waiters nobody wakes."""

    __slots__ = ()

    def ring(self, wakeups: int) -> None:
        """Lost."""

    def wake_all(self) -> None:
        """Lost."""


class Silent:
    """Stands before a store whose every wake-up is lost, and which says so by `capabilities.poll_s`."""

    def __init__(self, store: Any, poll_s: float) -> None:
        self._store = store
        self._lines: dict[tuple[Until, str], WaitLine] = {}
        self.capabilities: Capabilities = msgspec.structs.replace(store.capabilities, poll_s=poll_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def line(self, until: Until, queue: str) -> WaitLine:
        return self._lines.setdefault((until, queue), _SilentLine(until))


def stand_before(q: Queue | AsyncQueue, wrap: Callable[[Any], Any]) -> None:
    """Put something before the store that this queue, and every handle on its URL, uses."""
    opened = q._open()
    opened.edge = Edge(wrap(opened.edge.store), opened.edge.clock)
    # A handle's short way would pass by what stands before the store.
    if isinstance(q, Queue):
        q._take_ways(q._general_ways(run))
    else:
        q._ways = q._general_ways(arun)


def refuse(q: Queue, decide: Decide) -> None:
    """Make the queue's store refuse what `decide` says."""
    stand_before(q, lambda store: Refusing(store, decide))


def is_write(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the call settles anything."""
    return name in ("settle", "turn") and len(args[0]) > 0


def nth_write(nth: int, error: BaseException | None = None) -> Decide:
    """Refuses the n-th settlement that reaches the store, once, before it takes effect."""
    writes = 0

    def decide(name: str, args: tuple[Any, ...]) -> BaseException | None:
        nonlocal writes
        writes += is_write(name, args)
        if writes != nth or not is_write(name, args):
            return None
        return error or StorageUnavailable("the store refuses this write")

    return decide
