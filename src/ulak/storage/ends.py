"""Who in this process waits for the end of which job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ulak.core.store import Signal
from ulak.storage.line import LoopSignal


class Ends:
    """The waiters for the ends of single jobs; nothing is kept of a job that nobody waits for.

    waiting: by job, those who wait for its end. It is the same dict for good: look at it, as cheaply as can
    be, before anything else is done. begin: called after somebody has joined.
    """

    __slots__ = ("_begin", "_lock", "waiting")

    def __init__(self, begin: Callable[[], None] | None = None) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self.waiting: dict[int, dict[Signal, None]] = {}

    def line(self, job_id: int) -> EndLine:
        """Where waiters for the end of this job stand."""
        return EndLine(self, job_id)

    def ring(self, job_ids: Iterable[int]) -> None:
        """Wake all who wait for these jobs, after their ends have been made visible to the next look."""
        # Read without the lock: a waiter joins before it looks, so one that is missed here sees the end.
        for job_id in job_ids:
            for signal in tuple(self.waiting.get(job_id, ())):
                signal.set()
                if _is_dead(signal):
                    self.leave(job_id, signal)

    def wake_all(self) -> None:
        """Make everybody look again, whatever job they wait for."""
        self.ring(list(self.waiting))

    def join(self, job_id: int, signal: Signal) -> None:
        """Wait for the end of this job."""
        with self._lock:
            self.waiting.setdefault(job_id, {})[signal] = None
        if self._begin is not None:
            self._begin()

    def leave(self, job_id: int, signal: Signal) -> None:
        """Wait no longer."""
        with self._lock:
            signals = self.waiting.get(job_id)
            if signals is not None:
                signals.pop(signal, None)
                if not signals:
                    del self.waiting[job_id]

    def awaited(self) -> list[int]:
        """The jobs that somebody waits for who can still be woken."""
        for job_id, signals in list(self.waiting.items()):
            for signal in tuple(signals):
                if _is_dead(signal):
                    self.leave(job_id, signal)
        return list(self.waiting)


class EndLine:
    """The waiters for the end of one job. Everybody wakes; there is nothing to pass on."""

    __slots__ = ("_ends", "_job_id")

    def __init__(self, ends: Ends, job_id: int) -> None:
        self._ends = ends
        self._job_id = job_id

    def __len__(self) -> int:
        return len(self._ends.waiting.get(self._job_id, ()))

    def is_first(self, signal: Signal) -> bool:
        """Whether nobody stands before this waiter."""
        return next(iter(tuple(self._ends.waiting.get(self._job_id, ()))), None) is signal

    def join(self, signal: Signal) -> None:
        """Stand in line."""
        self._ends.join(self._job_id, signal)

    def leave(self, signal: Signal) -> None:
        """Step out."""
        self._ends.leave(self._job_id, signal)

    def ring(self, wakeups: int) -> None:
        """Wake everybody, however many wake-ups there are."""
        if wakeups > 0:
            self.wake_all()

    def wake_all(self) -> None:
        """Make every waiter look again."""
        self._ends.ring((self._job_id,))


def _is_dead(signal: Signal) -> bool:
    """Whether its event loop was closed under it: such a waiter never leaves by itself."""
    return isinstance(signal, LoopSignal) and signal.is_dead
