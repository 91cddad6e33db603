"""What a case is, and the figures that most are judged by."""

from __future__ import annotations

from dataclasses import dataclass

# The figures by which a case is judged, and what they are called in the table.
RATE = {"rate": "jobs/s"}
LATENCY = {"p50_us": "p50 µs", "p99_us": "p99 µs"}
QUICK_DIVISOR = 8
"""By how much a quick run does fewer jobs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload; sides: how many jobs each does, fewer where it is slow. The first side is ulak."""

    title: str
    figures: dict[str, str]
    sides: dict[str, int]
