"""Workers on one SQLite file are frozen (SIGSTOP) for longer than their lease: `pauses [N] [--seed N]`.

As many kills come between. What a frozen worker held is given to another; what it settles when it goes on
must be refused. First the same without the fence, as a control: there the judge must see problems.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.support.processes.report import Tally, told
from tests.support.processes.trial import Sizes, run_trial
from ulak.storage.sqlite import book

PAUSES = 100
PAUSES_A_TRIAL = 200
CONTROL_PAUSES = 60
JOBS_A_PAUSE = 40
LEASE_S = 0.25
SLOW_S = 0.3
RED = frozenset({"stale accepted", "settled twice", "acked twice", "after end", "terminal changed"})


def sizes(pauses: int, kills: int) -> Sizes:
    """A trial with so many events."""
    return Sizes(
        kills=kills,
        pauses=pauses,
        jobs=JOBS_A_PAUSE * pauses,
        lease_s=LEASE_S,
        slow_s=SLOW_S,
        mean_gap_s=0.05,
    )


def remove_fence() -> None:
    """Make the store take any ack of a leased job, whatever delivery it names."""
    fenced = "AND delivery = ?"
    assert fenced in book._ACK
    book._ACK = book._ACK.replace(fenced, "AND ? > 0")


def control(seed: int) -> bool:
    """Whether the judge sees what goes wrong without the fence."""
    outcome = run_trial(sizes(CONTROL_PAUSES, 0), seed=seed, before=remove_fence, keeps=False)
    kinds = RED.intersection(outcome.verdict.kinds)
    print(
        f"without the fence: {len(outcome.verdict.problems)} problems, {', '.join(sorted(kinds)) or 'none'}"
    )
    return bool(kinds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="pauses", description=__doc__)
    parser.add_argument("pauses", nargs="?", type=int, default=PAUSES)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    trials = max(1, -(-chosen.pauses // PAUSES_A_TRIAL))
    print(f"pauses: {chosen.pauses:,} pauses, as many kills, seed {chosen.seed}, {trials} trials", flush=True)
    tally = Tally()
    if not control(chosen.seed):
        tally.problems.append("the control passed: nothing was seen where the fence was removed")
    for number in range(trials):
        pauses = chosen.pauses // trials
        outcome = run_trial(sizes(pauses, pauses), seed=chosen.seed + number)
        tally.add(outcome)
        print(told(outcome), flush=True)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
