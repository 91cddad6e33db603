"""What is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.inmemory.plan import LATENCY

QUEUE_PEERS = ("huey", "dramatiq", "celery")  # those that keep a job until a worker comes for it


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for ulak's figure: for its ratio to the best of the sides named, or for itself if none is."""

    case: str
    figure: str
    limit: float
    against: tuple[str, ...] = ()
    is_upper: bool = False

    @property
    def text(self):
        bound = "at most" if self.is_upper else "at least"
        if not self.against:
            return f"{self.figure} {bound} {self.limit:g}"
        best = self.against[0] if len(self.against) == 1 else f"the best of {', '.join(self.against)}"
        return f"{self.figure} {bound} {self.limit:g} x {best}"


def at_least(case, limit, *against):
    return Target(case, "rate", limit, against)


def at_most(case, figure, limit, *against):
    return Target(case, figure, limit, against, is_upper=True)


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
YARDSTICK_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was reached; low and high: over the single rounds. All are None where it was not measured."""

    text: str
    case: str
    is_ok: bool | None
    reached: float | None = None
    low: float | None = None
    high: float | None = None


def judge(target, results):
    """Compare with the target what was measured: case -> side -> figure -> Spread."""
    sides = results.get(target.case, {})
    if any(side not in sides for side in ("ulak", *target.against)):
        return Judgement(target.text, target.case, None)
    runs = sides["ulak"][target.figure].runs
    reached = statistics.median(runs)
    if target.against:
        best = best_of(target, sides)
        reached /= best.median
        runs = [ours / theirs for ours, theirs in zip(runs, best.runs, strict=True)]
    is_ok = reached <= target.limit if target.is_upper else reached >= target.limit
    return Judgement(target.text, target.case, is_ok, reached, min(runs), max(runs))


def best_of(target, sides):
    """The figure that is hardest to beat."""
    spreads = [sides[side][target.figure] for side in target.against]
    return (min if target.is_upper else max)(spreads, key=lambda spread: spread.median)


def judge_yardstick(check, results):
    """How far the yardstick is ahead of the peer, as a share of what it was."""
    case, figure, yardstick, yardstick_then, peer, peer_then = check
    text = f"{yardstick} against {peer}"
    sides = results.get(case, {})
    if yardstick not in sides or peer not in sides:
        return Judgement(text, case, None)
    now = sides[yardstick][figure].median / sides[peer][figure].median
    then = yardstick_then / peer_then
    share = then / now if figure in LATENCY else now / then
    return Judgement(text, case, share >= YARDSTICK_SHARE, share)
