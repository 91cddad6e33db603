"""The raw yardsticks, made to run the same loops as everyone else."""

from __future__ import annotations

import functools

from bench.inmemory.loops import percentiles
from bench.onefile import disk, loops
from bench.onefile.yardsticks import GroupCommitter, LeanQueue, RawQueue

FULL = 2


def filled(loop, kind, jobs, folder):
    """Run a loop that puts jobs in: loop(queue, jobs, database) -> (how many there are now, figures)."""
    database = folder / "jobs.db"
    q = kind(database)
    loops.check_synchronous(q.connection, FULL)
    expected, found = loop(q, jobs, database)
    loops.check(q.count(), expected)
    q.close()
    return found


def lone(jobs, folder):
    return filled(lambda q, *rest: loops.one_by_one(q.enqueue, *rest), RawQueue, jobs, folder)


def many(jobs, folder):
    return filled(lambda q, *rest: loops.batched(q.enqueue_many, *rest), RawQueue, jobs, folder)


def lean(jobs, folder):
    return filled(lambda q, *rest: loops.batched(q.enqueue_many, *rest), LeanQueue, jobs, folder)


def group(threads, jobs, folder):
    def loop(q, jobs, database):
        return loops.threaded(q.enqueue, jobs, threads, database)

    return filled(loop, GroupCommitter, jobs, folder)


def drain(batch, is_kept, jobs, folder):
    """Claims and acks of `batch` jobs, each in one FULL commit."""
    q = RawQueue(folder / "jobs.db")
    loops.check_synchronous(q.connection, FULL)
    loops.fill_in_batches(q.enqueue_many, jobs)
    ack = q.ack_and_keep if is_kept else q.ack
    found = loops.emptied(lambda: ack(q.claim(batch)), jobs)
    loops.check(q.count(), jobs if is_kept else 0)
    q.close()
    return found


def fsync(count, folder):
    return percentiles(disk.fsync_times(folder, count))


RAW = {
    "enqueue": lone,
    "enqueue-many": many,
    "drain-100": functools.partial(drain, 100, False),
    "drain-8": functools.partial(drain, 8, False),
}
LEAN = {"enqueue-many": lean}
KEPT = {"drain-100": functools.partial(drain, 100, True), "drain-8": functools.partial(drain, 8, True)}
GROUP = {"enqueue-8": functools.partial(group, 8), "enqueue-64": functools.partial(group, 64)}
FSYNC = {"latency": fsync}
