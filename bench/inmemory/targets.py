"""What is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

from bench.kit.targets import at_least, at_most

QUEUE_PEERS = ("huey", "dramatiq", "celery")  # those that keep a job until a worker comes for it

TARGETS = [
    at_least("W1", 1.0, "heap"),
    at_least("W2", 2.5, "heap"),
    at_least("W3", 4.0, "heap"),
    at_least("W3-capacity", 3.0, "heap"),
    at_least("W4", 2.0, "heap"),
    at_least("W4-prefilled", 5.0, "heap"),
    *(
        at_least(case, limit, side)
        for case in ("W5-1", "W5-4")
        for side, limit in (("huey", 6.0), ("dramatiq", 20.0), ("celery", 100.0), ("pool", 0.8))
    ),
    at_least("W6", 10.0, "taskiq", "taskiq, in place"),
    at_most("W7", "p50_us", 0.5, *QUEUE_PEERS),
    at_most("W7", "p50_us", 2.0, "condition"),
    at_most("W7", "p99_us", 500.0),
    at_most("W7-asleep", "p50_us", 0.5, "huey", "dramatiq"),
    at_most("W7-asleep", "p50_us", 2.0, "condition"),
    at_most("W7-asleep", "p99_us", 500.0),
    at_most("W8-job", "bytes", 371.0),
    at_most("W8-kept", "mb", 60.0),
]

# A yardstick that is slow here would make everything beside it look good. So each must be as far ahead of a
# peer as it was when the targets were set: (case, figure, yardstick, its figure then, peer, its figure then).
YARDSTICKS = [
    ("W2", "rate", "heap", 216_000, "huey", 60_700),
    ("W2", "rate", "deques", 461_000, "huey", 60_700),
    ("W5-1", "rate", "pool", 502_000, "huey", 65_800),
    ("W7", "p50_us", "condition", 14, "huey", 81),
    ("W7", "p50_us", "condition", 14, "dramatiq", 91),
]
