"""I/O faults under the SQLite store: `iofaults [POINTS] [--seed N] [--processes N]`.

Each call of SQLite on its files fails in turn, once or from then on: EIO, ENOSPC, half a write, a failed
fsync, a lock that others hold, and so on. No call of the queue may answer OK falsely or let a foreign error
through; when the fault is over the queue works, holds what it said it holds, and would after a power loss.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.faults.library import HiddenLibrary, load
from tests.faults.strikes import FAULTS, Fault
from tests.faults.together import strike_together
from tests.faults.troubles import JOURNALS, Point, Tally, chosen, strike

POINTS = 400
PROCESSES = 2
SHOWN_MAX = 20
STEPS = 1, 3, 12
"""Every so many calls a fault strikes calls that share a commit."""


def run_together(part: tuple[str, Fault, bool, int]) -> Tally:
    """One fault under calls that share a commit, at every so many calls until it does not come any more."""
    journal, fault, persistent, step = part
    tally = Tally()
    for nth in itertools.count(1, step):
        is_struck, problems = strike_together(journal, fault, nth, persistent=persistent)
        if not is_struck:
            return tally
        tally.points += 1
        tally.faults[fault.name] += 1
        if problems:
            until = "and each later" if persistent else "only"
            shown = "\n".join(f"    {problem}" for problem in problems[:5])
            tally.failed.append(f"together, journal={journal}, {fault.name}, call {nth} {until}:\n{shown}")
    raise AssertionError


def run_all(points: list[Point], step: int, processes: int) -> Iterator[Tally]:
    """Strike everywhere; a tally for each."""
    parts = list(itertools.product(JOURNALS, FAULTS, (False, True), (step,)))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        together = pool.imap_unordered(run_together, parts)
        yield from pool.imap_unordered(strike, points, chunksize=20)
        yield from together


def main() -> int:
    parser = argparse.ArgumentParser(prog="iofaults", description=__doc__)
    parser.add_argument("points", nargs="?", type=int, default=POINTS, help="how many; all there are at most")
    parser.add_argument("--seed", type=int, default=0, help="chooses the points, if not all")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    wanted = parser.parse_args()
    try:
        load()
    except HiddenLibrary as hidden:
        print(f"iofaults: {hidden}")
        return 1
    start = time.monotonic()
    tally = Tally()
    step = STEPS[0] if wanted.points > 5_000 else STEPS[1] if wanted.points > POINTS else STEPS[2]
    for part in run_all(chosen(wanted.points, wanted.seed), step, wanted.processes):
        for failure in part.failed[: max(0, SHOWN_MAX - len(tally.failed))]:
            print(failure, flush=True)
        tally.add(part)
    took_s = time.monotonic() - start
    faults = ", ".join(f"{name} {n:,}" for name, n in sorted(tally.faults.items()))
    answers = ", ".join(f"{name} {n:,}" for name, n in sorted(tally.answers.items()))
    print(f"iofaults: seed {wanted.seed}, {tally.points:,} points in {took_s:.0f} s ({faults})")
    print(f"answers: {answers}; {tally.unstruck} never struck; {tally.reopened} handles had to be reopened")
    never = [fault.name for fault in FAULTS if not tally.faults[fault.name]]
    print(f"never tried: {', '.join(never)}" if never else "every fault was tried")
    failed = len(tally.failed)
    print(f"{tally.points - failed:,} passed, {failed:,} failed")
    return 1 if failed or never else 0


if __name__ == "__main__":
    sys.exit(main())
