"""Threads that start together, end in time and pass their errors on; a clock that knows who sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.threads import Running
from ulak.testing import ManualClock

R = TypeVar("R")

PATIENCE_S = 4.0
"""How long anything may take that should happen at once."""


def together(*calls: Callable[[], R]) -> list[R]:
    """Run all at once, each in its own thread; their answers, in order."""
    start = threading.Barrier(len(calls))
    running = [Running(call, start) for call in calls]
    return [one.result() for one in running]


class WatchedClock(ManualClock):
    """A clock moved by hand on which a test can wait until a thread has gone to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self._went_to_sleep = threading.Semaphore(0)

    def wait(self, event: Any, timeout_s: float | None) -> None:
        super().wait(_Noted(event, self._went_to_sleep), timeout_s)

    def until_asleep(self, threads: int = 1) -> None:
        """Return once so many more threads than at the last call have gone to sleep."""
        for _ in range(threads):
            assert self._went_to_sleep.acquire(timeout=PATIENCE_S), "nobody went to sleep"


class _Noted(threading.Event):
    """An event of somebody else; tells when it is waited for."""

    def __init__(self, event: threading.Event, noted: threading.Semaphore) -> None:
        super().__init__()
        self._event = event
        self._noted = noted

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._noted.release()
        return self._event.wait(timeout)
