"""Many seeds of the simulation: `simulate [SEEDS] [--first N] [--steps N]`, or one: `simulate --seed N`.

One seed in fifty is run twice, and must have the same history byte for byte.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

import msgspec

from tests.sim.faults import PER_CALL, PER_STEP, PROFILES
from tests.sim.stage import STEPS, simulate

SEEDS = 2_000
CHUNK = 25
AGAIN_EACH = 50
SHOWN_MAX = 20
PROCESSES = 2

# How often each must have happened in so many seeds; a campaign whose faults never strike is blind.
PER_SEEDS = 100
LEAST = dict.fromkeys((*PER_CALL, *PER_STEP, "outage", "stalled handler"), 5) | {
    "in flight": 2,
    "crashing handler": 1,
    "cut off by its deadline": 1,
    "fired": 10,
    "hurried by a second signal": 4,
    "killed by a halt": 2,
    "left after its last job": 1,
    "left since the store was away": 4,
    "ended by shutdown": 20,
    "ended by undecodable": 5,
    "stopped by a signal": 50,
    "after expiry": 10,
    "after failure": 10,
    "after crash": 10,
    "after release": 10,
    "after redrive": 5,
    "after lost reply": 2,
    "closed": 5,
    "cut off by an end": 5,
    "duplicate": 5,
    "full": 5,
    "full in the end": 5,
    "killed its worker, and is dead": 1,
    "left as all was done": 5,
    "recovered": 5,
    "stale": 5,
    "stored as cancelled": 5,
    "stored as dead": 5,
    "stored as expired": 5,
    "went the short way": 50,
    "would deadlock": 1,
}


class Tally(msgspec.Struct):
    """What came of some seeds. failed: seed, profile and first problems of those that failed."""

    seeds: int = 0
    steps: int = 0
    compared: int = 0
    jobs: int = 0
    deliveries: int = 0
    profiles: Counter[str] = msgspec.field(default_factory=Counter)
    happened: Counter[str] = msgspec.field(default_factory=Counter)
    failed: list[tuple[int, str, list[str]]] = msgspec.field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count others in."""
        for name in ("seeds", "steps", "compared", "jobs", "deliveries"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.profiles += other.profiles
        self.happened += other.happened
        self.failed += other.failed


def run_chunk(chunk: tuple[int, int, int]) -> Tally:
    """Run the seeds from first up to, not including, last."""
    first, last, steps = chunk
    tally = Tally()
    for seed in range(first, last):
        result = simulate(seed, steps=steps)
        problems = result.problems
        if seed % AGAIN_EACH == 0:
            tally.compared += 1
            if simulate(seed, steps=steps).history != result.history:
                problems = [*problems, "another run of this seed had another history"]
        if problems:
            tally.failed.append((seed, result.profile, problems[:3]))
        tally.seeds += 1
        tally.steps += result.steps
        tally.jobs += result.done.jobs
        tally.deliveries += result.done.deliveries
        tally.profiles[result.profile] += 1
        tally.happened += result.struck + result.seen + result.done.again
        tally.happened["after lost reply"] += result.told.again["after lost reply"]
        tally.happened["recovered"] += result.told.recovered
    return tally


def run_all(first: int, seeds: int, steps: int, processes: int) -> Tally:
    """Run many seeds in several processes; failures are told as they come."""
    chunks = [
        (start, min(start + CHUNK, first + seeds), steps) for start in range(first, first + seeds, CHUNK)
    ]
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap(run_chunk, chunks):
            tally.add(part)
            for seed, profile, problems in part.failed[: max(0, SHOWN_MAX - len(tally.failed) + 1)]:
                again = f"python3 dev.py campaign simulate --seed {seed}"
                print(f"seed {seed} ({profile}) failed; see it with: {again}", flush=True)
                print("\n".join(f"  {problem}" for problem in problems), flush=True)
    return tally


def too_rare(tally: Tally) -> Iterator[str]:
    """What did not happen as often as it must, for so many seeds."""
    for name, least in LEAST.items():
        if tally.happened[name] < least * tally.seeds // PER_SEEDS:
            yield f"{name!r} happened {tally.happened[name]} times only"


def show_seed(seed: int, steps: int) -> int:
    """Run one seed and tell what happened."""
    result = simulate(seed, steps=steps, traced=True)
    print("\n".join(result.trace))
    print(f"\nseed {seed}, {result.profile}, {result.steps} asks answered; faults: {dict(result.struck)}")
    print(f"what the store did: {result.done}\nwhat callers were told: {result.told}")
    print("\n".join(result.problems))
    return 1 if result.problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="asks answered before faults stop")
    parser.add_argument("--seed", type=int, help="run this one seed and show its trace")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return show_seed(chosen.seed, chosen.steps)
    start = time.monotonic()
    tally = run_all(chosen.first, chosen.seeds, chosen.steps, chosen.processes)
    took_s = time.monotonic() - start
    print(
        f"simulate: seeds {chosen.first} to {chosen.first + tally.seeds - 1} in {took_s:.0f} s; "
        f"{tally.steps / tally.seeds:.0f} asks answered a seed, {tally.jobs:,} jobs, "
        f"{tally.deliveries:,} deliveries, {tally.compared} seeds run twice and compared"
    )
    for name, counted in (("profiles", tally.profiles), ("happened", tally.happened)):
        print(f"{name}: " + ", ".join(f"{what} {n:,}" for what, n in sorted(counted.items()) if n))
    rare = list(too_rare(tally))
    rare += [f"profile {name!r} never ran" for name in PROFILES if not tally.profiles[name]]
    print("\n".join(rare) if rare else "every fault struck often enough")
    failed = len(tally.failed)
    print(f"{tally.seeds - failed} passed, {failed} failed")
    return 1 if failed or rare else 0


if __name__ == "__main__":
    sys.exit(main())
