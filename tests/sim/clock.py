"""A clock that only the simulator moves."""

from __future__ import annotations

import threading

START = 1_000.0
START_AT = 1_767_225_600.0


class SimClock:
    """Both clocks. The interval clock only grows; the calendar clock may be set at any moment.

    ahead_s: by how much the calendar clock is ahead of the interval clock.
    """

    def __init__(self) -> None:
        self.now = START
        self.ahead_s = START_AT - START

    def interval(self) -> float:
        """Seconds since some fixed moment."""
        return self.now

    def calendar(self) -> float:
        """Seconds since the epoch, as far as this clock knows."""
        return self.now + self.ahead_s

    def step_calendar(self, by_s: float) -> None:
        """Set the calendar clock, forwards or back."""
        self.ahead_s += by_s

    def wait(self, event: threading.Event, timeout_s: float | None) -> None:
        """Never called: whoever sleeps asks the simulator."""
        raise AssertionError("nothing sleeps in a simulation but by its scheduler")
