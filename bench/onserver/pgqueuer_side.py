"""pgqueuer on an asyncpg pool and uvloop, batches of 100; a finished job leaves a row in its log."""

from __future__ import annotations

import asyncio
import functools
import logging
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from bench.onserver import loops

BATCH = 100
CONNECTIONS = 10
NAME = "no_op"

logging.disable(logging.WARNING)


def run(measure, jobs, url):
    return uvloop.run(prepared(measure, jobs, url))


async def prepared(measure, jobs, url):
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        queries = Queries.from_asyncpg_pool(pool)
        await queries.install()
        return await measure(queries, pool, jobs)


async def stored(queries):
    return sum(row.count for row in await queries.queue_size())


def put_one(queries):
    return lambda payload: queries.enqueue(NAME, payload)


async def put_batch(queries, payloads):
    return await queries.enqueue([NAME] * len(payloads), payloads, [0] * len(payloads))


async def together(callers, queries, _pool, jobs):
    expected, found = await loops.together(put_one(queries), jobs, callers)
    loops.check(await stored(queries), expected)
    return found


async def many(queries, _pool, jobs):
    expected, found = await loops.abatched(functools.partial(put_batch, queries), jobs)
    loops.check(await stored(queries), expected)
    return found


def working(pool, handler):
    queuer = PgQueuer.from_asyncpg_pool(pool)

    @queuer.entrypoint(NAME)
    async def no_op(job):
        await handler(job.payload)

    return queuer


async def drain(queries, pool, jobs):
    for batch in loops.batches(jobs):
        await put_batch(queries, batch)
    handler = loops.CountDown(jobs)
    queuer = working(pool, handler)
    start = time.perf_counter()
    running = asyncio.create_task(queuer.qm.run(batch_size=BATCH))
    await handler.last.wait()
    took = time.perf_counter() - start
    queuer.shutdown.set()
    await running
    loops.check(await stored(queries), 0)
    return {"rate": jobs / took}


async def latency(queries, pool, jobs):
    timer = loops.Latency()
    queuer = working(pool, timer.handler)
    running = asyncio.create_task(queuer.qm.run(batch_size=BATCH))
    await asyncio.sleep(0.5)
    found = await timer.measure(put_one(queries), jobs)
    queuer.shutdown.set()
    await running
    return found


CASES = {
    "enqueue": functools.partial(run, functools.partial(together, 1)),
    "enqueue-8": functools.partial(run, functools.partial(together, 8)),
    "enqueue-many": functools.partial(run, many),
    "drain": functools.partial(run, drain),
    "latency": functools.partial(run, latency),
}
