"""A PostgreSQL store keeps a rate beside an old snapshot: `pgsoak [MINUTES] [--rate N] [--fail-rate F]`.

Somebody else keeps it open, and the server may clear away nothing of what jobs leave behind meanwhile. Jobs
come at a fixed rate, whether those before are done or not, and a pool of the same process does them; of so
many the first attempt fails, and another comes within a second. Each tenth, beginning with the second, has to
do as many as came in it, and may never be behind by more than a second's jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

import msgspec

from tests.campaigns.pgsnapshot import snapshot
from tests.support.postgres import fresh_url
from ulak import AsyncQueue, Backoff, Context

MINUTES, RATE = 10.0, 1_000
PARTS, PART_MIN = 10, 0.98
_STEP_S = 0.05
_WORKERS = 20


class Part(msgspec.Struct):
    """A part of the time: how long it was, what was done in it, how many jobs were open at most, and how long
    an enqueue took at most.
    """

    took_s: float
    done: int
    open_max: int
    put_s: float

    def __str__(self) -> str:
        return (
            f"{self.done / self.took_s:,.0f} jobs/s, at most {self.open_max:,} open, "
            f"an enqueue took at most {self.put_s:.2f} s"
        )


async def work(url: str, minutes: float, rate: int, fail_rate: float) -> tuple[list[Part], int, int]:
    """What each part of the time came to, how many jobs were put in, and how many were done in the end."""
    parts: list[Part] = []
    put = done = 0
    rng = random.Random(0)

    async def handle(_payload: bytes, context: Context) -> None:
        nonlocal done
        if context.attempt == 1 and rng.random() < fail_rate:
            raise ValueError
        done += 1

    backoff = Backoff(base=1.0, cap=1.0)
    async with AsyncQueue(url, "jobs") as q, q.workers(handle, count=_WORKERS, backoff=backoff) as pool:
        start = time.monotonic()
        for number in range(PARTS):
            began, before, part = time.monotonic(), done, Part(0.0, 0, 0, 0.0)
            while (now := time.monotonic()) < start + (number + 1) * minutes * 60 / PARTS:
                due = int((now - start) * rate)
                if due > put:
                    await q.enqueue_many([b"x"] * (due - put))
                    put = due
                    part.put_s = max(part.put_s, time.monotonic() - now)
                part.open_max = max(part.open_max, put - done)
                await asyncio.sleep(_STEP_S)
            part.took_s, part.done = time.monotonic() - began, done - before
            parts.append(part)
            print(part, flush=True)
        q.mark_producer_finished()
        await pool.drain()
        succeeded = (await q.counts()).totals.succeeded
    return parts, put, succeeded


def judge(parts: list[Part], rate: int, put: int, acked: int) -> list[str]:
    """What is wrong."""
    problems = [] if put == acked else [f"{put:,} jobs were put in, and {acked:,} done"]
    for number, part in enumerate(parts[1:], start=2):
        if part.done < PART_MIN * rate * part.took_s:
            problems.append(f"part {number} did less than came: {part}")
        if part.open_max > rate:
            problems.append(f"part {number} was behind by more than a second: {part}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="pgsoak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=MINUTES)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--fail-rate", type=float, default=0.0)
    chosen = parser.parse_args()
    url = fresh_url()
    with snapshot(url):
        parts, put, acked = asyncio.run(work(url, chosen.minutes, chosen.rate, chosen.fail_rate))
    problems = judge(parts, chosen.rate, put, acked)
    print("\n".join(problems))
    print(f"{acked} passed, {len(problems)} failed")
    return 1 if problems or not acked else 0


if __name__ == "__main__":
    sys.exit(main())
