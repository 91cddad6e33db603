"""huey on its SqliteHuey, polling every ms, results not kept. At most once: what is taken is gone.

It opens a connection for each thread, by WAL and FULL, and commits each call on its own.
"""

from __future__ import annotations

import functools
import logging

from huey import SqliteHuey

from bench.inmemory.loops import Latency
from bench.onefile import loops

POLL_S = 0.001
FULL = 2
# Many threads on one file wait long for one another; the default of 5 s is not enough for 100.
BUSY_TIMEOUT_S = 60

logging.disable(logging.WARNING)


class Side:
    """A huey on a file, and a task of it."""

    def __init__(self, folder, handler=None):
        self.database = folder / "jobs.db"
        self.huey = SqliteHuey(filename=str(self.database), results=False, timeout=BUSY_TIMEOUT_S)
        loops.check_synchronous(self.huey.storage.conn, FULL)
        self.task = self.huey.task()(handler or no_op)

    def put(self, payload):
        self.huey.enqueue(self.task.s(payload))

    def consumer(self, workers):
        return self.huey.create_consumer(
            workers=workers, periodic=False, initial_delay=POLL_S, max_delay=POLL_S, backoff=1.0
        )


def no_op(payload):
    pass


def lone(jobs, folder):
    side = Side(folder)
    expected, found = loops.one_by_one(side.put, jobs, side.database)
    loops.check(side.huey.pending_count(), expected)
    return found


def threaded(threads, jobs, folder):
    side = Side(folder)
    expected, found = loops.threaded(side.put, jobs, threads, side.database)
    loops.check(side.huey.pending_count(), expected)
    return found


def drain(workers, jobs, folder):
    handler = loops.CountDown(jobs)
    side = Side(folder, handler.__call__)  # a bound method, since huey asks a task for its name
    loops.fill(side.put, jobs)
    consumer = side.consumer(workers)

    def run():
        consumer.start()
        handler.last.wait()

    found = loops.drained(run, jobs)
    consumer.stop()
    loops.check(side.huey.pending_count(), 0)
    return found


def latency(jobs, folder):
    timer = Latency()
    side = Side(folder, timer.handler)
    consumer = side.consumer(1)
    consumer.start()
    found = timer.measure(side.put, jobs, loops.PAUSE_S)
    consumer.stop()
    return found


CASES = {
    "enqueue": lone,
    "enqueue-8": functools.partial(threaded, 8),
    "enqueue-64": functools.partial(threaded, 64),
    "drain-100": functools.partial(drain, 100),
    "drain-8": functools.partial(drain, 8),
    "latency": latency,
}
CASES_LONE = {"enqueue-8": lone, "enqueue-64": lone, "enqueue-many": lone}
