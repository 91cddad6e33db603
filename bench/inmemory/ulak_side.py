"""ulak on memory://, through its public calls and with its defaults: leases, attempts, retention, metrics."""

from __future__ import annotations

import asyncio
import functools
import gc
import time

from bench.inmemory import loops, memory_use
from ulak import AsyncQueue, NewJob, Queue

BATCH = 100
# asyncio workers of one event loop; more or fewer change little, since the handler waits for nothing.
ASYNC_WORKERS = 8
SLOWED_BY = 9
SPIN_MAX_S = 0.001


class SlowedQueue:
    """A queue each call of which takes ten times as long: what a guard of the speed must notice."""

    def __init__(self, *args, **options):
        self.q = Queue(*args, **options)
        for name in ("enqueue", "deliver", "ack", "enqueue_many", "deliver_many", "ack_many"):
            setattr(self, name, slowed(getattr(self.q, name)))

    def __getattr__(self, name):
        return getattr(self.q, name)

    def __enter__(self):
        self.q.__enter__()
        return self

    def __exit__(self, *error):
        self.q.__exit__(*error)


def slowed(call):
    def call_and_spin(*args):
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            end = time.perf_counter()
            # A call that waits for room is not made to spin as long.
            until = end + min(SLOWED_BY * (end - start), SPIN_MAX_S)
            while time.perf_counter() < until:
                pass

    return call_and_spin


def looped(loop, jobs, make=Queue, **options):
    """Run a loop of single calls."""
    with make("memory://", **options) as q:
        result = loop(q.enqueue, q.deliver, q.ack, jobs)
        check(q, jobs)
    return result


def check(q, jobs):
    """A figure counts only if every job was stored and finished."""
    check_counts(q.counts(), jobs)


def check_counts(counts, jobs):
    found = (counts.total, counts.open, counts.dead)
    if found != (jobs, 0, 0):
        raise SystemExit(f"{jobs:,} jobs were put in; total, open, dead: {found}")


def with_priorities():
    """A batch whose jobs have priorities of their own."""
    byte = b"."
    return [NewJob(byte * loops.PAYLOAD_BYTES, priority) for priority in loops.priorities(BATCH)]


def plain():
    """A batch of payloads, all of the same priority."""
    byte = b"."
    return [byte * loops.PAYLOAD_BYTES for _ in range(BATCH)]


def batches(jobs, batch, make=Queue):
    """One thread, at most one batch waiting."""
    with make("memory://") as q:
        enqueue_many, deliver_many, ack_many = q.enqueue_many, q.deliver_many, q.ack_many
        gc.collect()
        start = time.perf_counter()
        for _ in range(jobs // BATCH):
            enqueue_many(batch())
            ack_many(deliver_many(BATCH))
        took = time.perf_counter() - start
        check(q, jobs)
    return {"rate": jobs / took}


def prefilled_batches(jobs, batch):
    """One thread puts in everything, then takes and finishes everything."""
    with Queue("memory://") as q:
        enqueue_many, deliver_many, ack_many = q.enqueue_many, q.deliver_many, q.ack_many
        gc.collect()
        start = time.perf_counter()
        for _ in range(jobs // BATCH):
            enqueue_many(batch())
        filled = time.perf_counter()
        while leases := deliver_many(BATCH):
            ack_many(leases)
        result = loops.filled_and_drained(jobs, start, filled)
        check(q, jobs)
    return result


def no_op(payload):
    pass


async def async_no_op(payload):
    pass


def pool(jobs, handler, workers, make=Queue):
    """A producer and a pool at once, until the last job is done; its metrics must agree."""
    with make("memory://", capacity=loops.CAPACITY) as q, q.workers(handler, count=workers) as running:

        def finish():
            producer.finish()
            running.drain()

        with q.producer() as producer:
            result = loops.produced(q.enqueue, finish, jobs)
        check(q, jobs)
        metrics = running.metrics()
        if (metrics.enqueued, metrics.succeeded, metrics.failed) != (jobs, jobs, 0):
            raise SystemExit(f"{jobs:,} jobs were put in; {metrics}")
    return result


async def one_loop(jobs, workers):
    """The producer, the pool and its handlers on one event loop."""
    byte = b"."
    async with (
        AsyncQueue("memory://", capacity=loops.CAPACITY) as q,
        q.workers(async_no_op, count=workers) as pool,
    ):
        enqueue = q.enqueue
        gc.collect()
        start = time.perf_counter()
        async with q.producer():
            for priority in loops.priorities(jobs):
                await enqueue(byte * loops.PAYLOAD_BYTES, priority)
        await pool.drain()
        took = time.perf_counter() - start
        check_counts(await q.counts(), jobs)
    return {"rate": jobs / took}


def latency(jobs, pause_s, workers=1):
    timer = loops.Latency()
    with Queue("memory://", capacity=loops.CAPACITY) as q, q.workers(timer.handler, count=workers):
        return timer.measure(q.enqueue, jobs, pause_s)


def job_bytes(jobs):
    with Queue("memory://") as q:
        return memory_use.bytes_per_job(q.enqueue, jobs)


def mb_kept(jobs):
    with Queue("memory://", visibility_timeout=3600) as q:

        def drain():
            while leases := q.deliver_many(1000):
                q.ack_many(leases)

        return memory_use.mb_kept(q.enqueue, drain, jobs)


CASES = {
    "W1": functools.partial(looped, loops.single),
    "W2": functools.partial(looped, loops.prefilled),
    "W3": functools.partial(looped, loops.threaded),
    "W3-capacity": functools.partial(looped, loops.threaded, capacity=loops.CAPACITY),
    "W4": functools.partial(batches, batch=with_priorities),
    "W4-prefilled": functools.partial(prefilled_batches, batch=with_priorities),
    "W5-1": functools.partial(pool, handler=no_op, workers=1),
    "W5-4": functools.partial(pool, handler=no_op, workers=4),
    "W6": functools.partial(pool, handler=async_no_op, workers=ASYNC_WORKERS),
    "W7": functools.partial(latency, pause_s=None),
    "W7-asleep": functools.partial(latency, pause_s=loops.PAUSE_S),
    "W8-job": job_bytes,
    "W8-kept": mb_kept,
}
CASES_PLAIN = {
    "W4": functools.partial(batches, batch=plain),
    "W4-prefilled": functools.partial(prefilled_batches, batch=plain),
}
CASES_ONE_LOOP = {"W6": lambda jobs: asyncio.run(one_loop(jobs, ASYNC_WORKERS))}
CASES_SLOWED = {case: functools.partial(CASES[case], make=SlowedQueue) for case in ("W1", "W2", "W4", "W5-1")}
