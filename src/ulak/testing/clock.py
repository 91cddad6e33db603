"""A clock that tests own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from ulak.clock import Wakeable
from ulak.core.store import Signal


class ManualClock:
    """Both clocks, moved by hand. Pass it as `Queue(..., clock=clock)`.

    Threads that sleep on it wake when their time has come by `advance`, or when what they wait for happens.
    Event loops sleep in real time: on them, advance the clock and make the waiter look again.
    """

    _patience_s = 60.0
    _hint = ""

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._interval = 1_000.0
        self._calendar = at.timestamp()
        self._sleepers: dict[Wakeable | Signal, float] = {}

    def interval(self) -> float:
        """Seconds on the interval clock."""
        return self._interval

    def calendar(self) -> float:
        """Seconds since the epoch on the calendar clock."""
        return self._calendar

    def advance(self, duration_s: float) -> None:
        """Let time pass on both clocks, and wake every sleeper whose time has come."""
        with self._lock:
            self._interval += duration_s
            self._calendar += duration_s
            for event, until in list(self._sleepers.items()):
                if until <= self._interval:
                    event.set()

    def set_calendar(self, at: datetime) -> None:
        """Set the calendar clock, forwards or back, as an operator or NTP may; the interval clock goes on."""
        self._calendar = at.timestamp()

    @property
    def sleepers(self) -> int:
        """How many threads sleep on this clock now, those left out whose time has come."""
        with self._lock:
            return sum(until > self._interval for until in self._sleepers.values())

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        """Sleep until the event is set, by its owner or by `advance`."""
        if timeout_s is not None and timeout_s <= 0:
            return
        with self._sleeping(event, timeout_s):
            # A test that never moves the clock should fail with what it waited for, not hang.
            if not event.wait(self._patience_s):
                raise self._unmoved()

    @contextlib.contextmanager
    def _sleeping(self, event: Wakeable | Signal, timeout_s: float | None) -> Iterator[None]:
        """Inside, `advance` sets the event when its time has come."""
        with self._lock:
            self._sleepers[event] = float("inf") if timeout_s is None else self._interval + timeout_s
        try:
            yield
        finally:
            with self._lock:
                del self._sleepers[event]

    def _unmoved(self) -> AssertionError:
        return AssertionError(
            f"slept {self._patience_s:g} real seconds on a ManualClock that nobody moved{self._hint}"
        )
