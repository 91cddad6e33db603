"""What ulak locks, waits and sleeps with, while threads run under `tests.race.preempt`."""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.race.preempt import World


class Lock:
    """A lock whose waiters the scheduler knows. Outside a run it is taken and let go as usual."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._depth = 0

    def _is_mine(self) -> bool:
        return False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it. No time passes in a run, so whoever waits with a limit waits until it is free."""
        self._world.cross("takes a lock")
        while self._depth and not self._is_mine():
            if not blocking or timeout == 0:
                return False
            if self._world.wrong is not None:
                break
            self._world.block(self)
        self._depth += 1
        return True

    def release(self) -> None:
        """Let it go."""
        if not self._depth:
            raise RuntimeError("release of a lock that nobody holds")
        self._depth -= 1
        self._world.free(self)
        self._world.cross("goes on without its lock")

    def locked(self) -> bool:
        """Whether somebody holds it. Whoever asks that and finds it held lets others run first."""
        is_held = bool(self._depth)
        if is_held:
            self._world.pause()
        return is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {id(self):x}>"


class RLock(Lock):
    """A lock that its holder may take again."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owner: object = None

    def _is_mine(self) -> bool:
        return self._owner is self._world.me()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or take it once more."""
        is_taken = super().acquire(blocking, timeout)
        if is_taken:
            self._owner = self._world.me()
        return is_taken


class Event(threading.Event):
    """An event whose waiters the scheduler knows. A wait without end is the scheduler's deadlock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        self._world.cross("looks at an event")
        return self._is_set

    def set(self) -> None:
        self._world.cross("sets an event")
        self._is_set = True
        self._world.free(self)

    def clear(self) -> None:
        self._world.cross("clears an event")
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set. No time passes in a run, so a limit above 0 is never reached."""
        self._world.cross("waits for an event")
        while not self._is_set and (timeout is None or timeout > 0) and self._world.wrong is None:
            self._world.block(self)
        return self._is_set

    def __repr__(self) -> str:
        return f"<event {id(self):x}>"


class Instead:
    """A module in whose place some names are others."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Replaced:
    """What the names of ulak's modules stand for during a run, by the identity of what they stand for now."""

    def __init__(self, world: World) -> None:
        def sleep(duration_s: float) -> None:
            world.pause() if world.me() is not None else time.sleep(duration_s)

        def lock() -> Lock:
            return Lock(world)

        def rlock() -> RLock:
            return RLock(world)

        class WorldEvent(Event):
            def __init__(self) -> None:
                super().__init__(world)

        self._rlock = rlock
        self._lock = lock
        named = {"Lock": lock, "RLock": rlock, "Event": WorldEvent}
        self._by_id: dict[int, Any] = {
            **{id(getattr(threading, name)): made for name, made in named.items()},
            id(threading): Instead(threading, **named),
            id(_thread): Instead(_thread, allocate_lock=lock, RLock=rlock),
            id(time.sleep): sleep,
            id(time): Instead(time, sleep=sleep),
        }

    def of(self, value: Any) -> Any:
        """What stands in its place; None if nothing does."""
        if isinstance(value, _LOCKS):
            # Made when the module was loaded: nobody holds it now.
            return self._lock() if isinstance(value, _LOCKS[0]) else self._rlock()
        return self._by_id.get(id(value))


_LOCKS = (type(threading.Lock()), type(threading.RLock()))


@contextlib.contextmanager
def controlled(*also: str) -> Iterator[World]:
    """A scheduler, and in ulak's modules its locks, events and sleeps; what a run uses is made inside.

    also: further modules that are stopped in and given these, by name.
    """
    modules = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == "ulak" or name in also
    ]
    world = World(*(sys.modules[name].__file__ or "" for name in also))
    replaced = _Replaced(world)
    with contextlib.ExitStack() as undo:
        for module in modules:
            for name, value in list(vars(module).items()):
                new = replaced.of(value)
                if new is not None:
                    setattr(module, name, new)
                    undo.callback(setattr, module, name, value)
        yield world
