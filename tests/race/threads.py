"""Threads that start together, end in time and pass their errors on; a clock that knows who sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ulak.testing import ManualClock

R = TypeVar("R")

PATIENCE_S = 4.0
"""How long anything may take that should happen at once."""


class Running(Generic[R]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], R], start: threading.Barrier | None = None) -> None:
        self._call = call
        self._start = start
        self._answer: list[R] = []
        self._error: BaseException | None = None
        # A daemon, so that a thread which hangs fails its test and does not hang the whole run as well.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._start is not None:
                self._start.wait(PATIENCE_S)
            self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> R:
        """What the call returned. Raises what it raised, or that it hangs."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self._call} hangs"
        if self._error is not None:
            raise self._error
        return self._answer[0]


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
