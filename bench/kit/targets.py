"""Targets and yardsticks: what is to be reached, and what must hold for a run to count at all."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.kit.cases import LATENCY

YARDSTICK_SHARE = 0.8
"""A yardstick whose lead over a peer is less than this share of what it was makes the run void."""


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
