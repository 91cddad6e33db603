"""ulak on sqlite://, through its public calls, with its defaults: WAL, FULL, leases, attempts, retention."""

from __future__ import annotations

import functools
import statistics

from bench.inmemory.loops import Latency
from bench.onefile import disk, loops
from bench.onefile.flat import flat
from ulak import Queue

FULL = 2
FSYNCS = 300
FSYNCS_IN_A_PROMISE = 2


def opened(folder, name="default"):
    database = folder / "jobs.db"
    return Queue(f"sqlite:///{database}", name), database


def filled(loop, jobs, folder):
    """Run a loop that puts jobs in: loop(queue, jobs, database) -> (how many there are now, figures)."""
    q, database = opened(folder)
    with q:
        expected, found = loop(q, jobs, database)
        loops.check_synchronous(q._open().edge.store.link.writer, FULL)
        loops.check(q.counts().ready, expected)
    return found


def lone(jobs, folder):
    return filled(lambda q, *rest: loops.one_by_one(q.enqueue, *rest), jobs, folder)


def threaded(threads, jobs, folder):
    def loop(q, jobs, database):
        return loops.threaded(q.enqueue, jobs, threads, database)

    return filled(loop, jobs, folder)


def many(jobs, folder):
    return filled(lambda q, *rest: loops.batched(q.enqueue_many, *rest), jobs, folder)


def no_op(payload):
    pass


async def async_no_op(payload):
    pass


def drain(handler, count, jobs, folder):
    """From the start of the pool to the return of its drain, when every job is settled and kept."""
    q, _ = opened(folder)
    with q:
        loops.fill_in_batches(q.enqueue_many, jobs)
        q.mark_producer_finished()

        def run():
            with q.workers(handler, count=count) as pool:
                pool.drain()

        found = loops.drained(run, jobs)
        counts = q.counts()
        loops.check(counts.acked, jobs)
        loops.check(counts.open + counts.dead, 0)
    return found


def latency(jobs, folder):
    """Beside it, what a promise of two fsyncs leaves: measured here, since one fsync is not the next one."""
    timer = Latency()
    fsyncs = disk.fsync_times(folder, FSYNCS)
    q, _ = opened(folder)
    with q, q.workers(timer.handler, count=1):
        found = timer.measure(q.enqueue, jobs, loops.PAUSE_S)
    fsync_us = statistics.median(fsyncs + disk.fsync_times(folder, FSYNCS)) * 1e6
    return found | {
        "p99_of_p50": found["p99_us"] / found["p50_us"],
        "beyond_us": found["p50_us"] - FSYNCS_IN_A_PROMISE * fsync_us,
    }


CASES = {
    "enqueue": lone,
    "enqueue-8": functools.partial(threaded, 8),
    "enqueue-64": functools.partial(threaded, 64),
    "enqueue-many": many,
    "drain-100": functools.partial(drain, async_no_op, 100),
    "drain-8": functools.partial(drain, no_op, 8),
    "latency": latency,
    "flat": flat,
}
