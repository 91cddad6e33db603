"""taskiq on its InMemoryBroker, without casting. Text payload, since it keeps JSON; no priorities.

Twice: as it is, a task of the event loop for each job; and in place, where the job runs inside the call that
sends it and nothing is ever queued.
"""

from __future__ import annotations

import asyncio
import gc
import time

from taskiq import InMemoryBroker

from bench.inmemory.loops import CAPACITY, LATENCY_WARM_UP_JOBS, PAYLOAD_BYTES, percentiles


async def drained(broker, jobs):
    @broker.task
    async def no_op(payload):
        pass

    letter = "."
    send = no_op.kiq
    await broker.startup()
    gc.collect()
    start = time.perf_counter()
    for _ in range(jobs // CAPACITY):
        for _ in range(CAPACITY):
            await send(letter * PAYLOAD_BYTES)
        await broker.wait_all()
    took = time.perf_counter() - start
    await broker.shutdown()
    return {"rate": jobs // CAPACITY * CAPACITY / took}


async def one_at_a_time(broker, jobs):
    times = []
    done = asyncio.Event()

    @broker.task
    async def handler(payload):
        times.append(time.perf_counter())
        done.set()

    letter = "."
    took = []
    await broker.startup()
    gc.collect()
    for _ in range(LATENCY_WARM_UP_JOBS + jobs):
        done.clear()
        start = time.perf_counter()
        await handler.kiq(letter * PAYLOAD_BYTES)
        await done.wait()
        took.append(times[-1] - start)
    await broker.shutdown()
    return percentiles(took[-jobs:])


def queued():
    return InMemoryBroker(cast_types=False)


def in_place():
    return InMemoryBroker(cast_types=False, await_inplace=True)


CASES = {
    "W6": lambda jobs: asyncio.run(drained(queued(), jobs)),
    "W7": lambda jobs: asyncio.run(one_at_a_time(queued(), jobs)),
}
CASES_IN_PLACE = {
    "W6": lambda jobs: asyncio.run(drained(in_place(), jobs)),
    "W7": lambda jobs: asyncio.run(one_at_a_time(in_place(), jobs)),
}
