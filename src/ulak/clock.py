"""The only place that reads time, and the only place that sleeps.

Two clocks, never mixed: the *interval* clock for leases, time-outs and waits, which no setting of the wall
clock moves; the *calendar* clock for due times, expiry and history, read anew each time.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Reads both clocks. Tests pass their own."""

    def interval(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def calendar(self) -> float:
        """Seconds since the epoch; may step both ways."""

    def wait(self, event: threading.Event, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed on the interval clock."""


class SystemClock:
    """The machine's clocks."""

    interval = staticmethod(time.monotonic)
    calendar = staticmethod(time.time)

    def wait(self, event: threading.Event, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed."""
        event.wait(timeout_s)


SYSTEM = SystemClock()
