"""procrastinate on a psycopg pool and uvloop, concurrency 10, finished jobs kept, as is its default."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time

import procrastinate
import uvloop

from bench.onserver import loops

CONCURRENCY = 10

logging.disable(logging.WARNING)


def run(measure, jobs, url):
    return uvloop.run(prepared(measure, jobs, url))


async def prepared(measure, jobs, url):
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=CONCURRENCY, max_size=CONCURRENCY)
    app = procrastinate.App(connector=connector)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        return await measure(app, jobs)


def task_of(app, handler):
    @app.task(name="no_op")
    async def no_op(payload):
        await handler(payload)

    return no_op


async def nothing(_payload):
    pass


def put_one(task):
    """It stores arguments as JSON, so the payload is text."""
    return lambda payload: task.defer_async(payload=payload.decode())


async def stored(app):
    return sum(queue["todo"] for queue in await app.job_manager.list_queues_async())


async def put_batch(task, payloads):
    return await task.batch_defer_async(*({"payload": payload.decode()} for payload in payloads))


async def together(callers, app, jobs):
    expected, found = await loops.together(put_one(task_of(app, nothing)), jobs, callers)
    loops.check(await stored(app), expected)
    return found


async def many(app, jobs):
    expected, found = await loops.abatched(functools.partial(put_batch, task_of(app, nothing)), jobs)
    loops.check(await stored(app), expected)
    return found


async def drain(app, jobs):
    handler = loops.CountDown(jobs)
    task = task_of(app, handler)
    for batch in loops.batches(jobs):
        await put_batch(task, batch)
    start = time.perf_counter()
    running = asyncio.create_task(work(app))
    await handler.last.wait()
    took = time.perf_counter() - start
    await stopped(running)
    loops.check(await stored(app), 0)
    return {"rate": jobs / took}


async def latency(app, jobs):
    timer = loops.Latency()
    task = task_of(app, timer.handler)
    running = asyncio.create_task(work(app))
    await asyncio.sleep(0.5)
    found = await timer.measure(put_one(task), jobs)
    await stopped(running)
    return found


async def work(app):
    await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


async def stopped(running):
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


CASES = {
    "enqueue": functools.partial(run, functools.partial(together, 1)),
    "enqueue-8": functools.partial(run, functools.partial(together, 8)),
    "enqueue-many": functools.partial(run, many),
    "drain": functools.partial(run, drain),
    "latency": functools.partial(run, latency),
}
