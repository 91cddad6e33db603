"""The timed loops, the same for every side: each makes the payload of every job anew, and only that."""

from __future__ import annotations

import gc
import itertools
import time
from threading import Barrier, Event, Thread

from bench.inmemory.loops import PAYLOAD_BYTES
from bench.onefile.disk import warm

BATCH = 100
# Drawn anew for each job, so that no side's polling falls into step with it; long enough to settle meanwhile.
PAUSE_S = (0.002, 0.004)


def one_by_one(put, jobs, database, unit=b"."):
    """Single calls of one thread; returns how many jobs are stored then, and the figures."""
    warmed = warm(lambda: put(unit * PAYLOAD_BYTES), database)
    gc.collect()
    start = time.perf_counter()
    for _ in range(jobs):
        put(unit * PAYLOAD_BYTES)
    return warmed + jobs, {"rate": jobs / (time.perf_counter() - start)}


def threaded(put, jobs, threads, database, unit=b"."):
    """Single calls of several threads at once; as `one_by_one`."""
    warmed = warm(lambda: put(unit * PAYLOAD_BYTES), database)
    each = jobs // threads
    ready = Barrier(threads + 1)

    def run():
        put(unit * PAYLOAD_BYTES)  # opens this thread's connection, where a side has one for each
        ready.wait()
        for _ in range(each):
            put(unit * PAYLOAD_BYTES)

    running = [Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    gc.collect()
    ready.wait()
    start = time.perf_counter()
    for thread in running:
        thread.join()
    took = time.perf_counter() - start
    return warmed + (each + 1) * threads, {"rate": each * threads / took}


def batched(put_batch, jobs, database, unit=b"."):
    """Batches of 100 payloads from one thread; as `one_by_one`."""

    def batch():
        return [unit * PAYLOAD_BYTES for _ in range(BATCH)]

    warmed = warm(lambda: put_batch(batch()), database) * BATCH
    gc.collect()
    start = time.perf_counter()
    for _ in range(jobs // BATCH):
        put_batch(batch())
    return warmed + jobs // BATCH * BATCH, {"rate": jobs // BATCH * BATCH / (time.perf_counter() - start)}


def fill(put, jobs, unit=b"."):
    for _ in range(jobs):
        put(unit * PAYLOAD_BYTES)


def fill_in_batches(put_batch, jobs, unit=b"."):
    for start in range(0, jobs, BATCH):
        put_batch([unit * PAYLOAD_BYTES for _ in range(min(BATCH, jobs - start))])


def drained(drain, jobs):
    """The rate at which `drain` finishes a backlog of `jobs`."""
    gc.collect()
    start = time.perf_counter()
    drain()
    return {"rate": jobs / (time.perf_counter() - start)}


def emptied(take, jobs):
    """Call `take` until it says that nothing is left; it returns how many it finished."""
    finished = 0

    def drain():
        nonlocal finished
        while taken := take():
            finished += taken

    found = drained(drain, jobs)
    check(finished, jobs)
    return found


class CountDown:
    """A handler that does nothing but notice the last job."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.calls = itertools.count(1)
        self.last = Event()

    def __call__(self, payload):
        if next(self.calls) == self.jobs:
            self.last.set()


def check(stored, expected):
    """A figure counts only if every job was stored, or finished."""
    if stored != expected:
        raise SystemExit(f"{expected:,} jobs were put in; {stored:,} are there")


def check_synchronous(connection, expected):
    """A figure counts only for the durability it is shown with: 2 is FULL, 1 NORMAL; the log is a WAL."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    if (mode, synchronous) != ("wal", expected):
        raise SystemExit(f"journal_mode={mode} synchronous={synchronous}, not wal and {expected}")
