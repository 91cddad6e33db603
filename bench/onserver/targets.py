"""What is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

from dataclasses import replace

from bench.kit.targets import Target, at_least, at_most, judge, judge_yardstick
from bench.onserver.plan import PEERS

TARGETS = [
    at_least("enqueue", 0.75, "raw"),
    at_least("enqueue", 1.5, *PEERS),
    at_least("enqueue-8", 2.5, *PEERS),
    at_least("enqueue-64", 8.0, "ulak, lone"),
    at_least("enqueue-many", 0.7, "raw, unnest"),
    at_least("enqueue-many", 1.5, "pgqueuer"),
    at_least("drain", 2.0, "pgqueuer"),
    at_least("drain", 15.0, "procrastinate"),
    at_least("drain", 0.5, "raw, fused"),
    at_most("latency", "p50_us", 0.6, *PEERS),
    at_most("latency", "p99_us", 0.3, *PEERS),
    at_most("latency", "p50_us", 2.0, "raw, woken"),
    at_most("flat", "claim", 3.0),
    at_most("size", "mib", 20.0),
]
BOUNDED = Target("enqueue", "rate", 0.65, ("raw",))
"""Of the side with a capacity."""

# (case, figure, yardstick, its figure when the targets were set, peer, its figure then).
YARDSTICKS = [
    ("enqueue", "rate", "raw", 5300, "pgqueuer", 2400),
    ("enqueue-many", "rate", "raw, unnest", 139_000, "pgqueuer", 77_500),
    ("drain", "rate", "raw, fused", 88_800, "pgqueuer", 23_900),
    ("latency", "p50_us", "raw, woken", 580, "pgqueuer", 1700),
]


def judge_all(results):
    """All targets; of several sides those stand that could be measured."""
    found = []
    for target in TARGETS:
        present = tuple(side for side in target.against if side in results.get(target.case, {}))
        found.append(judge(replace(target, against=present or target.against), results))
    sides = results.get("enqueue", {})
    if "ulak, bounded" in sides:
        bounded = judge(BOUNDED, {"enqueue": sides | {"ulak": sides["ulak, bounded"]}})
        found.append(replace(bounded, text=f"with a capacity, {bounded.text}"))
    return found


def judge_yardsticks(results):
    return [judge_yardstick(check, results) for check in YARDSTICKS]
