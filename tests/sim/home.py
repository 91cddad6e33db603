"""A process of the simulation: its own memory, its own lines of waiters, its own view of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ulak.core.store import Line, Until
from ulak.local import LocalQueue
from ulak.storage.line import ThreadSignal, WaitLine

if TYPE_CHECKING:
    from tests.sim.world import World


class SimSignal(ThreadSignal):
    """What an actor sleeps on that is like a thread."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"SimSignal(is_set={self.is_set()})"


class TaskSignal:
    """What an actor sleeps on that is like a task of an event loop."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Wake the actor."""
        self._is_set = True

    def clear(self) -> None:
        """Forget an earlier wake-up."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether a wake-up was not cleared yet."""
        return self._is_set

    def __repr__(self) -> str:
        return f"TaskSignal(is_set={self._is_set})"


class Home:
    """One process. What it knows goes with it when it crashes.

    has_own_lines: it is one of several processes, so it hears of a change by a message that may be lost.
    """

    def __init__(self, world: World, name: str, *, has_own_lines: bool, poll_s: float | None) -> None:
        self.name = name
        self.is_alive = True
        self.deaf_until = 0.0
        self.view = HomeView(world, self, has_own_lines=has_own_lines, poll_s=poll_s)
        self._locals: dict[str, LocalQueue] = {}

    def local(self, queue: str) -> LocalQueue:
        """What this process knows of a queue and never stores."""
        if queue not in self._locals:
            self._locals[queue] = LocalQueue(self.view, queue)
        return self._locals[queue]


class HomeView:
    """The store as one process sees it."""

    def __init__(self, world: World, home: Home, *, has_own_lines: bool, poll_s: float | None) -> None:
        self._world = world
        self._home = home
        self._lines: dict[tuple[Until, str], WaitLine] | None = {} if has_own_lines else None
        self.capabilities = msgspec.structs.replace(
            world.store.capabilities, poll_s=poll_s, processes=has_own_lines
        )

    def __getattr__(self, name: str) -> Any:
        assert self._home.is_alive, f"{self._home.name} has crashed, and calls {name}"
        return getattr(self._world.store, name)

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        if self._lines is None:
            return self._world.store.line(until, queue)
        line = self._lines.get((until, queue))
        if line is None:
            line = self._lines[until, queue] = WaitLine(until)
            self._world.listen(until, queue)
        return line

    def hear(self, until: Until, queue: str) -> None:
        """Something changed in the store: whoever waits here looks again."""
        line = None if self._lines is None else self._lines.get((until, queue))
        if line is not None:
            line.ring(len(line))


class Ear:
    """Stands in a line of the store for all processes, and passes each ring on."""

    def __init__(self, world: World, until: Until, queue: str) -> None:
        self._world = world
        self._until = until
        self._queue = queue

    def set(self) -> None:
        """Tell every process that hears."""
        for home in self._world.homes:
            if home.is_alive and home.deaf_until <= self._world.clock.now:
                home.view.hear(self._until, self._queue)

    def clear(self) -> None:
        """Nothing is remembered."""

    def is_set(self) -> bool:
        """Never, so that the next ring comes here too."""
        return False
