"""What is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

import statistics
from dataclasses import replace

from bench.kit.rounds import Spread
from bench.kit.targets import at_least, at_most, judge, judge_yardstick
from bench.tasking.plan import OURS, PEERS

MEDIAN_PEER = "the median peer"

TARGETS = [at_least("T1", 0.15, "bare pool"), at_least("T1", 3.0, "huey")]

# Reached by `def` tasks and by `async def` ones, each by itself.
TARGETS_OF_BOTH = [
    at_least("memory-100", 3.0, *PEERS),
    at_least("memory-8", 3.0, *PEERS),
    at_most("memory-idle", "p50_us", 1.0, *PEERS),
    at_most("memory-peak", "peak_mb", 1.0, MEDIAN_PEER),
    at_least("sqlite-100", 3.0, *PEERS),
    at_least("sqlite-8", 3.0, *PEERS),
    at_most("sqlite-idle", "p50_us", 1.0, *PEERS),
    at_most("sqlite-far", "p50_us", 1.0, *PEERS),
    at_most("sqlite-100", "peak_mb", 1.0, MEDIAN_PEER),
    at_most("kills-100", "problems", 0),
    at_most("kills-8", "problems", 0),
]

# A yardstick that is slow here would make everything beside it look good. So each must be as far ahead of
# huey as it was when the targets were set: (case, figure, yardstick, its figure then, peer, its figure then).
YARDSTICKS = [
    ("T1", "rate", "raw pool", 502_000, "huey", 65_800),
    ("sqlite-100", "rate", "raw", 119_000, "huey", 5800),
]


def judge_all(results):
    """All targets. Of several peers those stand that could be measured."""
    results = {case: with_median_peer(sides) for case, sides in results.items()}
    found = [judge(target, results) for target in TARGETS]
    return found + [judge_side(side, target, results) for target in TARGETS_OF_BOTH for side in OURS]


def judge_side(side, target, results):
    """As if this side were the only one of ours."""
    sides = results.get(target.case, {})
    present = tuple(peer for peer in target.against if peer in sides)
    those = {name: found for name, found in sides.items() if name not in OURS}
    if side in sides:
        those["ulak"] = sides[side]
    found = judge(replace(target, against=present or target.against), {target.case: those})
    return replace(found, text=f"{side}: {found.text}")


def with_median_peer(sides):
    """The sides, and beside them what the peer in the middle takes."""
    measured = [figures for side, figures in sides.items() if side in PEERS]
    peaks = [figures["peak_mb"].runs for figures in measured if "peak_mb" in figures]
    if not peaks:
        return sides
    middle = Spread([statistics.median(runs) for runs in zip(*peaks, strict=True)])
    return {**sides, MEDIAN_PEER: {"peak_mb": middle}}


def judge_yardsticks(results):
    return [judge_yardstick(check, results) for check in YARDSTICKS]
