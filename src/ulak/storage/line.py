"""Lines of waiters inside one process, and the signals they sleep on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from itertools import islice

from ulak.core.store import Signal, Until


class WaitLine:
    """The waiters for one thing, first come first served. Any thread may ring.

    READY: each ring wakes as many waiters as there are jobs, in order. ROOM: only the first in line is ever
    awake; when it leaves, the next looks. So waiters get room strictly in order, and a large batch at the
    head is not overtaken by small ones. DUE, DRAINED: everybody wakes.

    waiting: those who stand in line; look at it, as cheaply as can be, before ringing. roused: all
    whom a ring could wake are awake and have yet to look, so that a ring may be left out.
    """

    __slots__ = ("_lock", "_until", "roused", "waiting")

    def __init__(self, until: Until) -> None:
        self._until = until
        self._lock = threading.Lock()
        self.waiting: dict[Signal, None] = {}
        self.roused = False

    def __len__(self) -> int:
        if self.waiting:
            with self._lock:
                self._bury()
        return len(self.waiting)

    def _bury(self) -> None:
        """Take out those whose event loop was closed under them: nobody else would ever pass them."""
        for signal in list(self.waiting):
            if isinstance(signal, LoopSignal) and signal.is_dead:
                del self.waiting[signal]

    def is_first(self, signal: Signal) -> bool:
        """Whether nobody stands before this waiter."""
        with self._lock:
            self._bury()
            return next(iter(self.waiting), None) is signal

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line."""
        if isinstance(signal, ThreadSignal | LoopSignal):
            signal.lines = (*signal.lines, self)
        with self._lock:
            self.waiting[signal] = None
            self.roused = False

    def leave(self, signal: Signal) -> None:
        """Step out; a wake-up that was not used is passed on."""
        with self._lock:
            self.waiting.pop(signal, None)
            self.roused = False
        if isinstance(signal, ThreadSignal | LoopSignal):
            signal.lines = tuple(line for line in signal.lines if line is not self)
        if self._until is Until.ROOM or (self._until is Until.READY and signal.is_set()):
            self.ring(1)

    def ring(self, wakeups: int) -> None:
        """Wake waiters, after what they wait for has been made visible to their next look."""
        # Read without the lock: a waiter joins before it looks, so one that is missed here sees the change.
        if not self.waiting or self.roused:
            return
        with self._lock:
            self._bury()
            for signal in self._chosen(wakeups):
                signal.set()
            self.roused = self._is_awake()

    def _is_awake(self) -> bool:
        if self._until is Until.ROOM:
            # Whoever is first and waits on an event loop may be gone with it, and never let others pass.
            return all(
                isinstance(signal, ThreadSignal) and signal.is_set() for signal in islice(self.waiting, 1)
            )
        return all(
            isinstance(signal, ThreadSignal | LoopSignal) and signal.is_set() for signal in self.waiting
        )

    def look_again(self) -> None:
        """One of those who were woken is about to look, and may sleep again."""
        with self._lock:
            self.roused = False

    def wake_all(self) -> None:
        """Make every waiter look again, whatever it waits for."""
        with self._lock:
            for signal in self.waiting:
                signal.set()

    def _chosen(self, wakeups: int) -> list[Signal]:
        match self._until:
            case Until.ROOM:
                return [next(iter(self.waiting))] if self.waiting else []
            case Until.DUE | Until.DRAINED:
                return list(self.waiting)
            case Until.READY:
                chosen: list[Signal] = []
                for signal in self.waiting:
                    if len(chosen) == wakeups:
                        break
                    if not signal.is_set():
                        chosen.append(signal)
                return chosen


class ThreadSignal:
    """A signal for one thread; cheaper to sleep on than a `threading.Event`, which makes a lock each time.

    lines: where its owner stands.
    """

    __slots__ = ("_is_set", "_parked", "lines")

    def __init__(self) -> None:
        self._is_set = False
        self._parked = threading.Lock()
        self._parked.acquire()
        self.lines: tuple[WaitLine, ...] = ()

    def set(self) -> None:
        """Wake the thread."""
        self._is_set = True
        # Also if it is set already: whoever set it may have been interrupted here.
        with contextlib.suppress(RuntimeError):
            self._parked.release()

    def clear(self) -> None:
        """Forget an earlier wake-up."""
        self._is_set = False
        self._parked.acquire(blocking=False)
        for line in self.lines:
            line.look_again()

    def is_set(self) -> bool:
        """Whether a wake-up was not cleared yet."""
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until set, or for `timeout_s`; whether it is set."""
        while not self._is_set:
            # Woken, but cleared meanwhile: sleep on.
            if not self._parked.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
                break
        return self._is_set


class LoopSignal:
    """A signal for one task of a running event loop; may be set from any thread."""

    __slots__ = ("_event", "_loop", "_set", "lines")

    def __init__(self) -> None:
        self.lines: tuple[WaitLine, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._set = False

    def set(self) -> None:
        """Wake the task. The loop may be gone already, and then so is the waiter."""
        if self._set:
            return
        self._set = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            assert self._loop.is_closed()

    @property
    def is_dead(self) -> bool:
        """Whether its loop is closed, so that nobody can sleep on it any more."""
        return self._loop.is_closed()

    def clear(self) -> None:
        """Forget an earlier wake-up."""
        self._set = False
        self._event.clear()
        for line in self.lines:
            line.look_again()

    def is_set(self) -> bool:
        """Whether a wake-up was not cleared yet."""
        return self._set

    async def wait(self, timeout_s: float | None) -> None:
        """Sleep until set, or for `timeout_s`."""
        if self._set:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
