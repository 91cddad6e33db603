"""A fleet of `ulak work` under a steady load, killed now and then: `soak [MINUTES] [--seed N]`.

Memory, threads and files that its processes have open, and the size of the file, must be flat: of what comes
after the warm-up the last third may lie above the first by no more than the limits that are printed. The
judge of histories says whether any job was lost or run otherwise than its lease allows. First a control:
a task that keeps what it takes must be seen.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.support.soaking import LIMITS, Soak, shown, soak

MINUTES = 30.0
CONTROL_S = 15.0
SHOWN_MAX = 20


def run(duration_s: float, *, seed: int, leaks: bool = False) -> Soak:
    """One run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ulak-soak-") as folder:
        return soak(Path(folder), duration_s, seed=seed, leaks=leaks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    limits = ", ".join(f"{name} {shown(name, limit)}" for name, limit in LIMITS.items())
    print(f"soak: {chosen.minutes:g} minutes, seed {chosen.seed}; limits: {limits}", flush=True)
    grown = list(run(CONTROL_S, seed=chosen.seed, leaks=True).grown())
    print(f"a task that keeps what it takes: {'; '.join(grown) or 'not seen'}", flush=True)
    made = run(chosen.minutes * 60, seed=chosen.seed)
    for name in made.names():
        first, last = made.thirds(name)
        most = max(sample.taken[name] for sample in made.samples)
        print(f"{name}: {shown(name, first)}, then {shown(name, last)}; at most {shown(name, most)}")
    print(
        f"{made.took_s:.0f} s, {made.kills} kills, {100 * made.busy_s / made.took_s:.0f} % of a core\n"
        f"{made.verdict}"
    )
    problems = [*made.problems, *([] if grown else ["the control passed: nothing was seen to grow"])]
    for problem in problems[:SHOWN_MAX]:
        print(f"  {problem}")
    print(f"{made.verdict.jobs} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
