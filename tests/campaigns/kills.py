"""Workers and producers on one SQLite file are killed (SIGKILL): `kills [KILLS [JOBS]] [--seed N]`.

Four worker processes and two producers; whoever is killed is born again. Leases are far longer than the run,
so that only presence brings back what a killed process held. The judge of histories is the oracle. A large
campaign runs in several trials, each on a new file; a small one in the other journal comes last. First a
control: where the living are taken for gone, that must be seen.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.support.processes.report import Tally, told
from tests.support.processes.trial import Sizes, run_trial
from ulak.storage.sqlite import presence

KILLS, JOBS = 500, 10_000
JOBS_A_TRIAL = 20_000
# The other journal is tried with one in so many of the kills and jobs.
TRUNCATE_PART = 10
LEASE_S = 300.0
SLOW_S = 0.02
RESTART_MEDIAN_S = 1.0


def sizes(kills: int, jobs: int) -> Sizes:
    """A trial with so many."""
    return Sizes(kills=kills, pauses=0, jobs=jobs, lease_s=LEASE_S, slow_s=SLOW_S)


def take_all_for_gone() -> None:
    """Make a process take every other for gone."""
    presence._is_free = lambda path: True


def control(seed: int) -> bool:
    """Whether it is seen when the living are taken for gone."""
    # Few kills and slow handlers: whoever looks must live long enough to look twice.
    size = Sizes(kills=4, pauses=0, jobs=300, lease_s=LEASE_S, slow_s=1.0, rest_s=10.0)
    outcome = run_trial(size, seed=seed, before=take_all_for_gone, keeps=False)
    condemned = sum(problem.startswith("condemned") for problem in outcome.problems)
    print(f"with all others taken for gone: {condemned} living processes' deliveries were ended", flush=True)
    return condemned > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=KILLS)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    trials = max(1, -(-chosen.jobs // JOBS_A_TRIAL))
    print(f"kills: {chosen.kills:,} kills, {chosen.jobs:,} jobs, seed {chosen.seed}", flush=True)
    tally = Tally()
    if not control(chosen.seed):
        tally.problems.append("the control passed: nothing was seen where the living were taken for gone")
    plans = [(sizes(chosen.kills // trials, chosen.jobs // trials), "")] * trials
    plans.append((sizes(chosen.kills // TRUNCATE_PART, chosen.jobs // TRUNCATE_PART), "?journal=truncate"))
    for number, (size, options) in enumerate(plans):
        outcome = run_trial(size, seed=chosen.seed + number, options=options)
        tally.add(outcome)
        print(f"{options or '?journal=wal'}: {told(outcome)}", flush=True)
    if (median_s := tally.restart_s(0.5)) > RESTART_MEDIAN_S:
        tally.problems.append(f"half of what killed processes held started again only after {median_s:.2f} s")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
