"""The only place that reads time, and the only place that sleeps.

Two clocks, never mixed: the *interval* clock for leases, time-outs and waits, which no setting of the wall
clock moves; the *calendar* clock for due times, expiry and history, read anew each time.
"""

from __future__ import annotations

import functools
import random
import sys
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


class MachineClock(SystemClock):
    """As the machine's processes share it: its interval clock counts from the machine's boot, in all of them.

    Time in which the machine sleeps counts too, where the system can say so.
    """

    if sys.platform == "linux":

        @staticmethod
        def interval() -> float:
            """Seconds since the boot."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)


def pause(duration_s: float, longest_s: float | None = None) -> None:
    """Sleep in this thread, in real time: for a lock that another process holds.

    longest_s: sleep any time up to this, so that those who wait for the same do not come back together.
    """
    time.sleep(duration_s if longest_s is None else random.uniform(duration_s, longest_s))


@functools.cache
def boot_id() -> str:
    """What names the machine's present run, until it boots again."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - as below
            return file.read().strip()
    except OSError:
        import subprocess

        told = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        return told.stdout.strip() or "unknown"


SYSTEM = SystemClock()
MACHINE = MachineClock()
