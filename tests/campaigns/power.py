"""Power losses of the SQLite store: `power [IMAGES] [--seed N] [--processes N]`.

Lives of a queue are recorded, write by write, and cut at write and sync boundaries, with all that was not
synced dropped, a random subset of it kept, or torn at 512 bytes; some images are cut again while they
recover. The real store is opened on each. It must hold every operation that had returned, nothing else but
those under way, and work. The control runs with durability=relaxed, and must be seen to lose.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.faults.library import HiddenLibrary, load
from tests.faults.losses import CONTROL, WAYS, Tally, Way, run_way

IMAGES = 2_000
PER_LIFE = 500
CONTROL_IMAGES = 200
PROCESSES = 2
SHOWN_MAX = 20


def _run(part: tuple[Way, int, int]) -> Tally:
    way, seed, _ = part
    try:
        return run_way(*part)
    except Exception as error:  # noqa: BLE001 - a life that cannot even be lived is a failure like others
        told = f"{way.name}, seed {seed}: not lived to its end: {error!r}"
        return Tally(images=1, kinds=Counter({way.name: 1}), failed=[told])


def run_all(images: int, first_seed: int, processes: int) -> tuple[Tally, Tally]:
    """Judge so many images, in lives of all ways in turn, and the control's."""
    lives = max(len(WAYS), -(-images // PER_LIFE))
    parts = [(WAYS[n % len(WAYS)], first_seed + n, -(-images // lives)) for n in range(lives)]
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        control = pool.apply_async(_run, ((CONTROL, first_seed, CONTROL_IMAGES),))
        for part in pool.imap(_run, parts):
            for failure in part.failed[: max(0, SHOWN_MAX - len(tally.failed))]:
                print(failure, flush=True)
            tally.add(part)
        return tally, control.get()


def main() -> int:
    parser = argparse.ArgumentParser(prog="power", description=__doc__)
    parser.add_argument("images", nargs="?", type=int, default=IMAGES)
    parser.add_argument("--seed", type=int, default=0, help="the first life's; each life has the next one")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    chosen = parser.parse_args()
    try:
        load()
    except HiddenLibrary as hidden:
        print(f"power: {hidden}")
        return 1
    start = time.monotonic()
    tally, control = run_all(chosen.images, chosen.seed, chosen.processes)
    took_s = time.monotonic() - start
    kinds = ", ".join(f"{name} {n:,}" for name, n in tally.kinds.items())
    print(f"power: seed {chosen.seed}, {tally.images:,} images in {took_s:.0f} s ({kinds})")
    print(
        f"{tally.during_recovery:,} of them during recovery; {tally.used_up:,} worked on until all was done"
    )
    is_blind = not control.failed
    print(
        f"control, durability=relaxed: {len(control.failed)} of {control.images} images lost something"
        + ("; it must lose, so this campaign sees nothing" if is_blind else "")
    )
    failed = len(tally.failed)
    print(f"{tally.images - failed:,} passed, {failed:,} failed")
    return 1 if failed or is_blind else 0


if __name__ == "__main__":
    sys.exit(main())
