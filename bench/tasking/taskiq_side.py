"""taskiq on its InMemoryBroker, without casting: an asyncio task for each job, and no queue.

It limits nothing by itself: as many are sent as may run at the same time, then waited for.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time

from taskiq import InMemoryBroker

from bench.inmemory.loops import LATENCY_WARM_UP_JOBS, PAUSE_S, percentiles
from bench.tasking.loop import arguments


async def drained(at_once, jobs):
    broker, calls = InMemoryBroker(cast_types=False, max_async_tasks=at_once), itertools.count()

    @broker.task
    async def no_op(argument):
        next(calls)

    send = no_op.kiq
    await broker.startup()
    gc.collect()
    start = time.perf_counter()
    made = arguments(jobs)
    while wave := list(itertools.islice(made, at_once)):
        for argument in wave:
            await send(argument)
        await broker.wait_all()
    took = time.perf_counter() - start
    await broker.shutdown()
    if (found := next(calls)) != jobs:
        raise SystemExit(f"{jobs:,} jobs were put in; {found:,} ran")
    return {"rate": jobs / took}


async def latency(jobs):
    broker, began, done = InMemoryBroker(cast_types=False), [], asyncio.Event()

    @broker.task
    async def ping(argument):
        began.append(time.perf_counter())
        done.set()

    took = []
    await broker.startup()
    for argument in arguments(LATENCY_WARM_UP_JOBS + jobs):
        await asyncio.sleep(random.uniform(*PAUSE_S))
        done.clear()
        start = time.perf_counter()
        await ping.kiq(argument)
        await done.wait()
        took.append(began[-1] - start)
    await broker.shutdown()
    return percentiles(took[-jobs:])


TASK = {
    "memory-100": lambda jobs: asyncio.run(drained(100, jobs)),
    "memory-8": lambda jobs: asyncio.run(drained(8, jobs)),
    "memory-idle": lambda jobs: asyncio.run(latency(jobs)),
    "memory-peak": lambda jobs: asyncio.run(drained(100, jobs)),
}
