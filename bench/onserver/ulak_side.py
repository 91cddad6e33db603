"""ulak on postgresql://, through its public calls, with its defaults: leases, counts, ended rows kept."""

from __future__ import annotations

import asyncio
import functools
import statistics
import time

import psycopg

from bench.onserver import loops
from ulak import AsyncQueue, Queue

ENOUGH = 10_000_000
CONCURRENCY = 100
DEPTH = 5000
SHALLOW = 1000
LOOKS = 50
WARM_UP_LOOKS = 10
MIB = 1024 * 1024


def lone(jobs, url, capacity=None):
    with Queue(url, capacity=capacity) as q:
        expected, found = loops.one_by_one(q.enqueue, jobs)
        loops.check(q.counts().ready, expected)
    return found


def together(callers, jobs, url):
    async def measure():
        async with AsyncQueue(url) as q:
            expected, found = await loops.together(q.enqueue, jobs, callers)
            loops.check((await q.counts()).ready, expected)
        return found

    return asyncio.run(measure())


def many(jobs, url):
    with Queue(url) as q:
        expected, found = loops.batched(q.enqueue_many, jobs)
        loops.check(q.counts().ready, expected)
    return found


async def no_op(payload):
    pass


def fill(q, jobs):
    for batch in loops.batches(jobs):
        q.enqueue_many(batch)


def drain(jobs, url):
    """From the start of the pool to the return of its drain, when every job is settled and kept."""
    with Queue(url) as q:
        fill(q, jobs)
        q.mark_producer_finished()
        start = time.perf_counter()
        with q.workers(no_op, count=CONCURRENCY) as pool:
            pool.drain()
        took = time.perf_counter() - start
        counts = q.counts()
        loops.check(counts.acked, jobs)
        loops.check(counts.open + counts.dead, 0)
    return {"rate": jobs / took}


def latency(jobs, url):
    async def measure():
        timer = loops.Latency()
        async with AsyncQueue(url) as q, q.workers(timer.handler, count=1):
            await asyncio.sleep(0.5)
            return await timer.measure(q.enqueue, jobs)

    return asyncio.run(measure())


def flat(jobs, url):
    with Queue(url) as q:
        fill(q, SHALLOW)
        shallow = costs(q)
        fill(q, jobs - SHALLOW)
        deep = costs(q)
    times = {name: deep[name] / shallow[name] for name in deep}
    return times | {f"{name}_us": us for name, us in deep.items()}


def costs(q):
    """Medians in microseconds; what is taken is put back."""
    took = {"claim": [], "ack": [], "counts": []}
    for number in range(WARM_UP_LOOKS + LOOKS):
        marks = [time.perf_counter()]
        lease = q.deliver()
        marks.append(time.perf_counter())
        q.ack(lease)
        marks.append(time.perf_counter())
        q.counts()
        marks.append(time.perf_counter())
        q.enqueue(loops.payload())
        if number >= WARM_UP_LOOKS:
            for name, start, end in zip(took, marks, marks[1:], strict=False):
                took[name].append((end - start) * 1e6)
    return {name: statistics.median(times) for name, times in took.items()}


def size(jobs, url):
    """How large what holds open jobs is, once `jobs` went through; drained as fast as it goes."""

    async def measure():
        handler = loops.CountDown(jobs)
        async with AsyncQueue(url) as q, q.workers(handler, count=CONCURRENCY) as pool:
            put = 0
            while put < jobs:
                waiting = (await q.counts()).open
                number = min(DEPTH - waiting, jobs - put, loops.BATCH)
                if number <= 0:
                    await asyncio.sleep(0.002)
                    continue
                await q.enqueue_many([loops.payload() for _ in range(number)])
                put += number
            await handler.last.wait()
            q.mark_producer_finished()
            await pool.drain()

    asyncio.run(measure())
    with psycopg.connect(url, autocommit=True) as connection:
        (found,) = connection.execute("SELECT pg_total_relation_size('ulak.jobs')").fetchone()
    return {"mib": found / MIB}


CASES = {
    "enqueue": lone,
    "enqueue-8": functools.partial(together, 8),
    "enqueue-64": functools.partial(together, 64),
    "enqueue-many": many,
    "drain": drain,
    "latency": latency,
    "flat": flat,
    "size": size,
}
BOUNDED = {"enqueue": functools.partial(lone, capacity=ENOUGH)}
LONE = {"enqueue-64": lone}
