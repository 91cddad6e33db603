"""Speed that must not be lost: small runs beside a yardstick, judged by ratio, since machines differ."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from bench.kit.rounds import interleaved, run_apart

ROUNDS = 5
SLOWED = "ulak, slowed"
SLOWED_SHARE = 8  # a control needs no precision, so it does so much less


@dataclass(frozen=True, slots=True)
class Limit:
    """The least ratio of ulak's rate to the yardstick's, in a case done with so many jobs."""

    yardstick: str
    ratio: float
    jobs: int


# Each is below what is reached by more than the noise, and above a third of it, so that the control fails.
LIMITS = {
    "W1": Limit("heap", 0.5, 100_000),
    "W2": Limit("heap", 0.7, 100_000),
    "W4": Limit("heap", 0.55, 200_000),
    "W5-1": Limit("pool", 0.4, 100_000),
}


def reached(case, side, rounds, jobs):
    """The side's best rate over the yardstick's best, in alternating fresh processes.

    The best, not the median: whatever else runs on the machine only ever makes a run slower.
    """

    def measure(name):
        return run_apart(sys.executable, "bench.inmemory.measure", name, case, jobs)

    yardstick = LIMITS[case].yardstick
    found = interleaved(measure, [side, yardstick], rounds)
    return found[side]["rate"].high / found[yardstick]["rate"].high


def guard():
    """Print each ratio beside its limit; how many are below it."""
    broken = 0
    for case, limit in LIMITS.items():
        found = reached(case, "ulak", ROUNDS, limit.jobs)
        verdict = "ok" if found >= limit.ratio else "BROKEN"
        broken += found < limit.ratio
        lead = f"{case}, against {limit.yardstick}: {found:.3g}"
        print(f"{lead} (at least {limit.ratio:g}) {verdict}", flush=True)
    return broken


def control():
    """Hold a queue made slow on purpose against the limits; how many let it pass, which they must not."""
    missed = 0
    for case, limit in LIMITS.items():
        found = reached(case, SLOWED, 1, limit.jobs // SLOWED_SHARE)
        verdict = "noticed" if found < limit.ratio else "MISSED"
        missed += found >= limit.ratio
        print(f"{case}, slowed on purpose: {found:.3g} (below {limit.ratio:g}) {verdict}", flush=True)
    return missed
