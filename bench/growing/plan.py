"""What grows, how far, and what should not grow with it."""

from __future__ import annotations

from dataclasses import dataclass

FIGURES = {"rate": "jobs/s", "p50_us": "p50 µs", "p99_us": "p99 µs", "memory_mb": "MB"}


@dataclass(frozen=True, slots=True)
class Dimension:
    """One thing of which there is more and more.

    sizes: how much of it. flat: figures that should stay as they are, a rate at least that; they may not cost
    more than so much of it: the exponent of the cost. per: the unit of a size.
    """

    title: str
    sizes: tuple[int, ...]
    per: str
    flat: dict[str, float]


BEND = 0.1
"""A cost of which a tenth power is a factor of 2 over three decades: caches and trees, but no scan."""

DIMENSIONS = {
    "waiting": Dimension(
        "waiting jobs: a cycle (enqueue, deliver, ack) with so many in the queue",
        (1_000, 10_000, 100_000, 1_000_000),
        "jobs",
        {"rate": BEND, "p50_us": BEND},
    ),
    "workers": Dimension(
        "workers of a pool that empties a backlog; latency from the call to the start, in an idle pool",
        (1, 2, 4, 8, 16),
        "workers",
        {"rate": BEND},
    ),
    "payload": Dimension(
        "bytes of a payload: a cycle with 100 such jobs in the queue",
        (10, 100, 1_024, 10_240, 65_536, 262_144),
        "bytes",
        {},
    ),
    "queues": Dimension(
        "queues in a store, ten jobs in each: cycles in one queue after the other",
        (1, 10, 100, 1_000),
        "queues",
        {"rate": BEND, "p50_us": BEND},
    ),
    "priorities": Dimension(
        "priorities among 10,000 jobs: cycles of random ones",
        (1, 10, 100, 1_000),
        "priorities",
        {"rate": BEND, "p50_us": BEND},
    ),
}
CYCLES = {"memory": 20_000, "sqlite": 1_000, "postgres": 1_000}
BACKLOG = {"memory": 100_000, "sqlite": 10_000, "postgres": 10_000}
PINGS = 300
QUICK_DIVISOR = 20
