"""The only place that reads time, and the only place that sleeps.

Two clocks, never mixed: the *interval* clock for leases, time-outs and waits, which no setting of the wall
clock moves; the *calendar* clock for due times, expiry and history, read anew each time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Wakeable(Protocol):
    """What a thread sleeps on: a `threading.Event`, or the like."""

    def set(self) -> None:
        """Wake the sleeper."""

    def wait(self, timeout: float | None = None, /) -> bool:
        """Sleep until set or for `timeout` seconds; whether it is set."""


class Clock(Protocol):
    """Reads both clocks. Tests pass their own."""

    def interval(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def calendar(self) -> float:
        """Seconds since the epoch; may step both ways."""

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed on the interval clock."""


class SystemClock:
    """The machine's clocks."""

    interval = staticmethod(time.monotonic)
    calendar = staticmethod(time.time)

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed."""
        event.wait(timeout_s)


SYSTEM = SystemClock()
