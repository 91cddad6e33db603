"""The timed loops, the same for every side: each makes the payload of every job anew, and only that."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time

from bench.inmemory.loops import PAYLOAD_BYTES, percentiles

BATCH = 1000
WARM_UP_JOBS = 200
LATENCY_WARM_UP_JOBS = 50
# Drawn anew for each job, so that no side's polling falls into step with it; long enough to settle meanwhile.
PAUSE_S = (0.004, 0.008)


def payload(unit=b"."):
    return unit * PAYLOAD_BYTES


def one_by_one(put, jobs):
    """Single calls of one thread; returns how many are stored then, and the figures."""
    for _ in range(WARM_UP_JOBS):
        put(payload())
    gc.collect()
    start = time.perf_counter()
    for _ in range(jobs):
        put(payload())
    return WARM_UP_JOBS + jobs, {"rate": jobs / (time.perf_counter() - start)}


async def together(put, jobs, callers):
    """Single calls of several tasks of one event loop; as `one_by_one`."""
    each = jobs // callers

    async def call(times):
        for _ in range(times):
            await put(payload())

    warm_up = WARM_UP_JOBS // callers + 1
    await asyncio.gather(*(call(warm_up) for _ in range(callers)))
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*(call(each) for _ in range(callers)))
    took = time.perf_counter() - start
    return (each + warm_up) * callers, {"rate": each * callers / took}


def batches(jobs):
    for start in range(0, jobs, BATCH):
        yield [payload() for _ in range(min(BATCH, jobs - start))]


def batched(put_batch, jobs):
    """Batches of 1,000 from one thread; as `one_by_one`."""
    put_batch([payload() for _ in range(BATCH)])
    gc.collect()
    start = time.perf_counter()
    for batch in batches(jobs):
        put_batch(batch)
    return BATCH + jobs, {"rate": jobs / (time.perf_counter() - start)}


async def abatched(put_batch, jobs):
    """As `batched`, awaited."""
    await put_batch([payload() for _ in range(BATCH)])
    gc.collect()
    start = time.perf_counter()
    for batch in batches(jobs):
        await put_batch(batch)
    return BATCH + jobs, {"rate": jobs / (time.perf_counter() - start)}


class CountDown:
    """An async handler that does nothing but notice the last job."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.calls = itertools.count(1)
        self.last = asyncio.Event()

    async def __call__(self, _payload):
        if next(self.calls) == self.jobs:
            self.last.set()


class Latency:
    """From the start of the call that puts a job in to the start of its handler, one job at a time."""

    def __init__(self):
        self.started = 0.0
        self.ran = asyncio.Event()

    async def handler(self, _payload):
        self.started = time.perf_counter()
        self.ran.set()

    async def measure(self, put, jobs):
        took = []
        gc.collect()
        for _ in range(LATENCY_WARM_UP_JOBS + jobs):
            await asyncio.sleep(random.uniform(*PAUSE_S))
            self.ran.clear()
            start = time.perf_counter()
            await put(payload())
            await self.ran.wait()
            took.append(self.started - start)
        return percentiles(took[-jobs:])


def check(stored, expected):
    """A figure counts only if every job was stored, or finished."""
    if stored != expected:
        raise SystemExit(f"{expected:,} jobs were put in; {stored:,} are there")
