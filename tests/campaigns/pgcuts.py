"""Connections to a PostgreSQL store are cut while it works: `pgcuts [CUTS] [--seed N]`.

Two producers and three workers reach the server by a proxy, which cuts at any byte of any direction, loses
single answers, ends one direction only, holds back, drips. The judge of histories is the oracle. First a
control: where a call whose outcome is not known is simply made again, that must be seen.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from tests.support.postgres import fresh_url
from tests.support.proxy import FaultProxy, Way
from tests.support.unsteady import BACK_S, Outcome, Unsteady
from ulak.storage.postgres import attempt

CUTS = 200
CUTS_A_RUN = 500
CONTROL_CUTS = 60
_BYTES_MAX = 4_000
_WAIT_S = 0.5


def strike(proxy: FaultProxy, draw: random.Random) -> None:
    """One fault, and wait until it has struck."""
    before = proxy.cuts
    proxy.heal()
    way = draw.choice(list(Way))
    kind = draw.choice(("byte", "byte", "byte", "reply", "reply", "all", "half", "slow"))
    if kind == "byte":
        proxy.cut_after(draw.randrange(_BYTES_MAX), way)
    elif kind == "reply":
        proxy.lose_reply(draw.choice((b"COMMIT", b"", b"")))
    elif kind == "all":
        proxy.cut(reset=draw.random() < 0.5)
    elif kind == "half":
        proxy.half_close(way)
    else:
        proxy.delay_s = draw.uniform(0.0, 0.01)
        proxy.drip_s = 0.0002
        proxy.cut_after(draw.randrange(_BYTES_MAX // 10), way)
    until = time.monotonic() + _WAIT_S
    while proxy.cuts == before and time.monotonic() < until:
        time.sleep(0.005)
    proxy.heal()


def run(cuts: int, seed: int, *, keeps: bool = True) -> Outcome:
    """One run on a new store. keeps: where it failed, what was told stays, and a problem says where."""
    place = Path(tempfile.mkdtemp(prefix="ulak-cuts-"))
    url = fresh_url()
    with FaultProxy(url) as proxy:
        outcome = Unsteady(place, proxy.url(url), url, seed=seed).run(
            cuts, lambda draw: strike(proxy, draw), proxy.heal
        )
    if keeps and (outcome.problems or outcome.verdict.problems):
        outcome.problems.append(f"what was told: {place}")
    else:
        shutil.rmtree(place)
    return outcome


def repeat_what_is_unknown(seed: int) -> bool:
    """Whether the judge sees it when a call is made again whose outcome is not known."""
    sure = attempt.Tries.after

    def after(self, error, *, is_sent=False):
        return sure(self, error, is_sent=False)

    with mock.patch.object(attempt.Tries, "after", after):
        outcome = run(CONTROL_CUTS, seed, keeps=False)
    print(f"with calls repeated that were not to be: {len(outcome.verdict.problems)} problems", flush=True)
    return bool(outcome.verdict.problems)


def main() -> int:
    parser = argparse.ArgumentParser(prog="pgcuts", description=__doc__)
    parser.add_argument("cuts", nargs="?", type=int, default=CUTS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    print(f"pgcuts: {chosen.cuts:,} cuts, seed {chosen.seed}", flush=True)
    jobs, problems, longest_s = 0, [], 0.0
    if not repeat_what_is_unknown(chosen.seed):
        problems.append("the control passed: nothing was seen where unknown calls were repeated")
    runs = max(1, -(-chosen.cuts // CUTS_A_RUN))
    for number in range(runs):
        outcome = run(chosen.cuts // runs, chosen.seed + number)
        jobs += outcome.verdict.jobs
        longest_s = max(longest_s, outcome.longest_s)
        problems += outcome.problems + [str(problem) for problem in outcome.verdict.problems]
        print(f"{outcome.faults} cuts in {outcome.took_s:.0f} s: {outcome.verdict}", flush=True)
    if longest_s > BACK_S:
        problems.append(f"nothing was done for {longest_s:.1f} s after a cut")
    print(f"after a cut the next job was done within {longest_s:.2f} s")
    print("\n".join(problems[:20]))
    print(f"{jobs} passed, {len(problems)} failed")
    return 1 if problems or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
