"""What is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

from dataclasses import replace

from bench.kit.targets import at_least, at_most, judge, judge_yardstick

FASTEST = ("honker", "flexiq")  # those with batch calls of their own

TARGETS = [
    at_least("enqueue", 0.8, "raw"),
    at_least("enqueue", 0.95, "huey"),
    at_least("enqueue-8", 0.7, "raw group"),
    at_least("enqueue-64", 0.7, "raw group"),
    at_least("enqueue-many", 0.6, "raw"),
    at_least("enqueue-many", 0.6, "raw, lean"),
    at_least("enqueue-many", 3.0, *FASTEST),
    at_least("drain-100", 6.0, "huey"),
    at_least("drain-100", 2.5, *FASTEST),
    at_least("drain-8", 3.0, "huey"),
    at_most("latency", "beyond_us", 150.0),
    at_most("latency", "p50_us", 1.0, "huey"),
    at_most("latency", "p99_of_p50", 5.0),
    *(
        at_most("flat", figure, 3.0)
        for figure in ("claim", "ack", "counts", "claim_held", "ack_held", "claim_paused")
    ),
]

# A yardstick that is slow here would make everything beside it look good. So each must be as far ahead of
# huey as it was when the targets were set: (case, figure, yardstick, its figure then, peer, its figure then).
YARDSTICKS = [
    ("enqueue", "rate", "raw", 9400, "huey", 7500),
    ("enqueue-8", "rate", "raw group", 24_200, "huey, one thread", 7500),
    ("enqueue-64", "rate", "raw group", 41_800, "huey, one thread", 7500),
    # Its row had no more than it needed, then; on ulak's table the same code is slower, and no worse.
    ("enqueue-many", "rate", "raw, lean", 271_000, "huey, one thread", 7500),
    ("drain-100", "rate", "raw", 119_000, "huey", 5800),
]


def judge_all(results):
    """All targets; of several sides those stand that could be measured."""
    found = []
    for target in TARGETS:
        present = tuple(side for side in target.against if side in results.get(target.case, {}))
        found.append(judge(replace(target, against=present or target.against), results))
    return found


def judge_yardsticks(results):
    return [judge_yardstick(check, results) for check in YARDSTICKS]
