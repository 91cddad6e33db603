"""Rows of a SQLite store broken by a plain client: `corruption [PLANTINGS] [--seed N] [--shown N]`.

Random rows of random jobs are broken in one to three columns at once, before and while a pool works on them.
Bad ones must end with a reason, their bytes kept, good ones run, no worker may die, no call may raise, and
the counts must equal a recount. A control breaks a good job's row as well, and must be seen.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.faults.place import FAST
from tests.sqlite.planting import (
    INT_MAX,
    INT_MIN,
    MOVED,
    PLANTINGS,
    STARTS,
    Fate,
    NotUtf8,
    Planted,
    Planting,
    Plot,
    plot,
)
from ulak import Lease, Queue

PLANTINGS_MAX = 600
A_FILE = 12
GOOD = 6
WITHIN_S = 15.0
SHOWN = 20
MIXED = 0.5
HELD = 0.2
_CALLS = ("ack", "nack", "release")


def drawn(rng: random.Random) -> Planting:
    """A row to plant: one of those that are known, or a mixture with values of chance."""
    if rng.random() > MIXED:
        return rng.choice((*PLANTINGS, *MOVED))
    columns: dict[str, Planted] = {}
    for _ in range(rng.randint(1, 3)):
        columns |= _of_chance(rng) if rng.random() < HELD else rng.choice((*PLANTINGS, *MOVED)).columns
    # Where all parts run, or all wait, so may the whole; of a mixture only that it ends is known.
    waits = "task" in columns or "run_at" in columns or _is_refused(columns)
    shown = ", ".join(f"{name}={value!r:.40}" for name, value in columns.items())
    return Planting(shown, columns, Fate.WAITS if waits else Fate.ENDS)


def _is_refused(columns: dict[str, Planted]) -> bool:
    """Whether it is held for who knows its task to look at, and there is nobody."""
    return (columns.get("state"), columns.get("refused")) == (3, 1)


def _of_chance(rng: random.Random) -> dict[str, Planted]:
    """A column with a value that nobody chose."""
    number = rng.choice((rng.randint(-3, 3), rng.randint(INT_MIN, INT_MAX), rng.choice((INT_MIN, INT_MAX))))
    some = rng.randbytes(rng.choice((0, 1, 8, 300)))
    columns: tuple[dict[str, Planted], ...] = (
        {"payload": some},
        {"history": some},
        {"result": some},
        {"codec": NotUtf8(some)},
        {"headers": NotUtf8(some)},
        {"backoff": NotUtf8(some)},
        {"attempt": number},
        {"max_attempts": number},
        {"delivery": number},
        {"crashes": number},
        {"state": number},
        {"priority": number},
        {"holder": number},
        {"queue": number},
        {"lease_end": float(number)},
        {"expires_at": float(number)},
    )
    return rng.choice(columns)


def strike(field: Plot, rng: random.Random, number: int) -> Iterator[str]:
    """Break so many rows of one file, in whatever state they are; what callers got that they must not."""
    field.add_good(GOOD)
    begun = [(start, field.begin(start)) for start in rng.choices(STARTS, k=number)]
    held = [field.take(job_id) for start, job_id in begun if start == "ready" and rng.random() < HELD]
    leased = {lease.id for lease in held}
    for start, job_id in begun:
        # Two rows cannot have one unique key, whoever writes them.
        with contextlib.suppress(sqlite3.IntegrityError):
            field.plant(job_id, "leased" if job_id in leased else start, drawn(rng))
    for lease in held:
        yield from _settle(field.q, lease, rng.choice(_CALLS), field)


def _settle(q: Queue, lease: Lease, call: str, field: Plot) -> Iterator[str]:
    try:
        getattr(q, call)(lease)
    except Exception as error:  # noqa: BLE001 - whatever it is, a caller must not get it
        broken = field.planted.get(lease.id)
        yield f"{call} of a job with {'nothing' if broken is None else broken[1].name} raised {error!r}"


def run_file(seed: int, number: int) -> tuple[list[str], Counter[str]]:
    """One file: break, work, judge, then ask and do all that an operator can."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="ulak-", dir=FAST) as name, plot(Path(name)) as field:
        problems = list(strike(field, rng, number))
        field.work(WITHIN_S)
        problems += field.judge()
        fates = Counter(str(field.state(job_id)) for job_id in field.planted)
        for what in (field.look_at_all, field.act_on_all):
            try:
                what()
            except Exception as error:  # noqa: BLE001 - as above
                problems.append(f"{what.__name__} raised {error!r}")
        return problems, fates


def control() -> bool:
    """Whether it is seen when a good job is broken too, and a bad one's bytes change."""
    with tempfile.TemporaryDirectory(prefix="ulak-", dir=FAST) as name, plot(Path(name)) as field:
        field.add_good(2)
        field.plain.execute("UPDATE jobs SET codec = 'none' WHERE id = ?", (field.good[0],))
        job_id = field.begin("ready")
        field.plant(job_id, "ready", PLANTINGS[0])
        field.work(WITHIN_S)
        field.plain.execute("UPDATE jobs SET payload = x'00' WHERE id = ?", (job_id,))
        return len(field.judge()) == 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="corruption", description=__doc__)
    parser.add_argument("plantings", nargs="?", type=int, default=PLANTINGS_MAX)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--shown", type=int, default=SHOWN, help="how many problems are printed")
    chosen = parser.parse_args()
    print(f"corruption: {chosen.plantings:,} rows, seed {chosen.seed}", flush=True)
    start = time.monotonic()
    failed, shown, ends = 0, 0, Counter[str]()
    if not control():
        print("the control passed: nothing was seen where a good job was broken")
        failed += 1
    files = max(1, -(-chosen.plantings // A_FILE))
    for number in range(files):
        rows = min(A_FILE, chosen.plantings - number * A_FILE)
        problems, fates = run_file(chosen.seed + number, rows)
        ends += fates
        failed += bool(problems)
        for problem in problems[: max(0, chosen.shown - shown)]:
            print(f"  --seed {chosen.seed + number}, file 1: {problem}", flush=True)
            shown += 1
    names = {"4": "acked", "5": "dead", "6": "cancelled", "7": "expired", "None": "pruned"}
    told = ", ".join(f"{names.get(state, f'in state {state}')} {n:,}" for state, n in sorted(ends.items()))
    print(f"rows that were broken: {told}; {time.monotonic() - start:.0f} s")
    print(f"{files + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
