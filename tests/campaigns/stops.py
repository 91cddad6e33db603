"""Workers of `ulak work` are stopped by SIGTERM: `stops [POINTS] [--rounds N] [--jobs N] [--seed N]`, or only
three that are restarted in turn under load, so many times: `stops --rolling ROUNDS`.

In their first moments, every 10 ms up to 600 ms; at so many random points of running jobs; in turn, under
load; and after every job. Judged from the store: nothing is lost, no attempt is spent, all end in order,
within their grace and 2 s. First a control: workers that do not hand back must be seen.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.stopping import Tally, control, first_moments, random_points, recycling, rolling

POINTS, ROUNDS, JOBS = 200, 3, 200
OFFSETS_S = [step / 100 for step in range(61)]
KINDS = {"alone": [], "2 processes": ["--processes", "2"], "process executor": ["--executor", "process"]}
SHOWN_MAX = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="stops", description=__doc__)
    parser.add_argument("points", nargs="?", type=int, default=POINTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rolling", type=int, metavar="ROUNDS", help="only workers restarted in turn")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    seed, rounds = chosen.seed, chosen.rounds
    turns = chosen.rolling
    if turns is None:
        print(f"stops: {chosen.points} points, {rounds} rounds, {chosen.jobs} jobs, seed {seed}", flush=True)
    else:
        print(f"stops: {turns} rounds of three workers in turn, seed {seed}", flush=True)
    failed = stops = 0

    def do(what: str, trial: Callable[[Path], Tally]) -> Tally:
        nonlocal failed, stops
        started_at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ulak-stops-") as folder:
            tally = trial(Path(folder))
        print(f"{what}: {tally.told()}, {time.monotonic() - started_at:.0f} s", flush=True)
        stops += tally.stops
        return tally

    def check(what: str, trial: Callable[[Path], Tally]) -> None:
        nonlocal failed
        for problem in do(what, trial).problems[:SHOWN_MAX]:
            failed += 1
            print(f"  {problem}", flush=True)

    if not do("without handing back", partial(control, seed=seed)).problems:
        failed += 1
        print("  the control passed: nothing was seen where workers did not hand back")
    if turns is None:
        for name in ("alone", "2 processes"):
            moments = partial(first_moments, args=KINDS[name], seed=seed)
            check(f"first moments, {name}", partial(moments, offsets_s=OFFSETS_S * rounds))
            held = f"first moments, {name}, the signal held back until it is wanted"
            check(held, partial(moments, offsets_s=OFFSETS_S, held=True))
        for number, (name, args) in enumerate(KINDS.items()):
            points = chosen.points // (2 if number == 0 else 4)
            check(f"random points, {name}", partial(random_points, stops=points, args=args, seed=seed))
        check("a process a job", partial(recycling, jobs=chosen.jobs, seed=seed))
    check("three workers in turn", partial(rolling, rounds=turns or rounds * 5, seed=seed))
    pairs = partial(rolling, rounds=turns or rounds, args=KINDS["2 processes"], seed=seed)
    check("three of 2 processes in turn", pairs)
    print(f"{stops} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
