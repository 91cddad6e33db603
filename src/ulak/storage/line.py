"""Lines of waiters inside one process, and the signals they sleep on."""

from __future__ import annotations

import asyncio
import threading

from ulak.core.store import Signal, Until


class WaitLine:
    """The waiters for one thing, first come first served. Any thread may ring.

    READY: each ring wakes as many waiters as there are jobs, in order. ROOM: only the first in line is ever
    awake; when it leaves, the next looks. So waiters get room strictly in order, and a large batch at the
    head is not overtaken by small ones. DUE, DRAINED: everybody wakes.

    waiting: those who stand in line; look at it, as cheaply as can be, before ringing. roused: the first in a
    line for room, a thread, has been woken and has not looked yet, so nobody need ring.
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
            self.roused = False
            return next(iter(self.waiting), None) is signal

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line."""
        with self._lock:
            self.waiting[signal] = None

    def leave(self, signal: Signal) -> None:
        """Step out; a wake-up that was not used is passed on."""
        with self._lock:
            self.waiting.pop(signal, None)
        if self._until is Until.ROOM or (self._until is Until.READY and signal.is_set()):
            self.ring(1)

    def ring(self, wakeups: int) -> None:
        """Wake waiters, after what they wait for has been made visible to their next look."""
        # Read without the lock: a waiter joins before it looks, so one that is missed here sees the change.
        if not self.waiting:
            return
        with self._lock:
            self._bury()
            for signal in self._chosen(wakeups):
                signal.set()
                # Whoever waits on an event loop may be gone with it, and would never look.
                self.roused = self._until is Until.ROOM and not isinstance(signal, LoopSignal)

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


class LoopSignal:
    """A signal for one task of a running event loop; may be set from any thread."""

    __slots__ = ("_event", "_loop", "_set")

    def __init__(self) -> None:
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
