"""Workers and producers on one PostgreSQL store are killed and frozen: `pgkills [KILLS [JOBS]] [--seed N]`.

As `kills` and `pauses` do it on a file. For the kills leases are far longer than the run, so that only
presence brings back what a killed process held; for a tenth as many pauses they are short. The judge of
histories is the oracle. First a control: where the living are taken for gone, that must be seen.
"""

from __future__ import annotations

import argparse
import random
import sys
from unittest import mock

from tests.campaigns.kills import LEASE_S, RESTART_MEDIAN_S
from tests.campaigns.kills import sizes as sizes_of_kills
from tests.support.postgres import fresh_url
from tests.support.processes.report import Tally, told
from tests.support.processes.trial import Sizes, run_trial
from ulak.storage.postgres import others

KILLS, JOBS = 100, 2_000
JOBS_A_TRIAL = 20_000
PAUSES_PART = 10


def sizes_of_pauses(pauses: int, jobs: int) -> Sizes:
    """A trial of pauses, each longer than the lease."""
    return Sizes(kills=pauses, pauses=pauses, jobs=jobs, lease_s=1.0, slow_s=0.02)


def control(seed: int) -> bool:
    """Whether it is seen when the living are taken for gone."""
    size = Sizes(kills=4, pauses=0, jobs=300, lease_s=LEASE_S, slow_s=1.0, rest_s=20.0)
    nobody = others._LOOK.replace("granted", "NOT granted")
    assert nobody != others._LOOK
    with mock.patch.object(others, "_LOOK", nobody):
        outcome = run_trial(size, seed=seed, url=fresh_url(), keeps=False)
    condemned = sum(problem.startswith("condemned") for problem in outcome.problems)
    print(f"with all others taken for gone: {condemned} living processes' deliveries were ended", flush=True)
    return condemned > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="pgkills", description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=KILLS)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    trials = max(1, -(-chosen.jobs // JOBS_A_TRIAL))
    print(f"pgkills: {chosen.kills:,} kills, {chosen.jobs:,} jobs, seed {chosen.seed}", flush=True)
    tally = Tally()
    if not control(chosen.seed):
        tally.problems.append("the control passed: nothing was seen where the living were taken for gone")
    plans = [sizes_of_kills(chosen.kills // trials, chosen.jobs // trials)] * trials
    for number, size in enumerate(plans):
        outcome = run_trial(size, seed=chosen.seed + number, url=fresh_url())
        tally.add(outcome)
        print(told(outcome), flush=True)
    if (median_s := tally.restart_s(0.5)) > RESTART_MEDIAN_S:
        tally.problems.append(f"half of what killed processes held started again only after {median_s:.2f} s")
    pauses = sizes_of_pauses(chosen.kills // PAUSES_PART, chosen.jobs // PAUSES_PART)
    outcome = run_trial(pauses, seed=chosen.seed, url=fresh_url())
    tally.add(outcome)
    print(told(outcome), flush=True)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
