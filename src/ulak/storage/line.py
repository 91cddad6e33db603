"""Lines of waiters inside one process, and the signals they sleep on."""

from __future__ import annotations

import threading

from ulak.core.store import Signal, Until


class WaitLine:
    """The waiters for one thing, first come first served. Any thread may ring.

    READY: each ring wakes as many waiters as there are jobs, in order. ROOM: only the first in line is ever
    awake; when it leaves, the next looks. So waiters get room strictly in order, and a large batch at the
    head is not overtaken by small ones. DUE, DRAINED: everybody wakes.
    """

    __slots__ = ("_lock", "_until", "_waiting")

    def __init__(self, until: Until) -> None:
        self._until = until
        self._lock = threading.Lock()
        self._waiting: dict[Signal, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def is_first(self, signal: Signal) -> bool:
        """Whether nobody stands before this waiter."""
        with self._lock:
            return next(iter(self._waiting), None) is signal

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line."""
        with self._lock:
            self._waiting[signal] = None

    def leave(self, signal: Signal) -> None:
        """Step out; a wake-up that was not used is passed on."""
        with self._lock:
            self._waiting.pop(signal, None)
        if self._until is Until.ROOM or (self._until is Until.READY and signal.is_set()):
            self.ring(1)

    def ring(self, wakeups: int) -> None:
        """Wake waiters, after what they wait for has been made visible to their next look."""
        # Read without the lock: a waiter joins before it looks, so one that is missed here sees the change.
        if not self._waiting:
            return
        with self._lock:
            for signal in self._chosen(wakeups):
                signal.set()

    def wake_all(self) -> None:
        """Make every waiter look again, whatever it waits for."""
        with self._lock:
            for signal in self._waiting:
                signal.set()

    def _chosen(self, wakeups: int) -> list[Signal]:
        match self._until:
            case Until.ROOM:
                return [next(iter(self._waiting))] if self._waiting else []
            case Until.DUE | Until.DRAINED:
                return list(self._waiting)
            case Until.READY:
                chosen: list[Signal] = []
                for signal in self._waiting:
                    if len(chosen) == wakeups:
                        break
                    if not signal.is_set():
                        chosen.append(signal)
                return chosen
