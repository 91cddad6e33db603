"""flexiq: WAL and NORMAL, polling every ms, 100 jobs a poll; its own worker threads, results not kept."""

from __future__ import annotations

import functools
import logging
from threading import Thread

from flexiq import Queue

from bench.inmemory.loops import Latency
from bench.onefile import loops

POLL_MS = 1
BATCH = 100

logging.disable(logging.WARNING)


class Side:
    """A flexiq queue on a file, and a task of it."""

    def __init__(self, folder, handler=None, workers=8):
        self.database = folder / "jobs.db"
        self.q = Queue(
            db_path=str(self.database),
            workers=workers,
            scheduler_poll_interval_ms=POLL_MS,
            scheduler_batch_size=BATCH,
        )

        @self.q.task(name="bench")
        def task(payload):
            if handler is not None:
                handler(payload)

        self.task = task
        self.worker = Thread(target=self.q.run_worker)

    def put_batch(self, payloads):
        self.task.map([(payload,) for payload in payloads])

    def count(self):
        return self.q.stats()["pending"]

    def stop(self):
        self.q.shutdown()
        self.worker.join()


def lone(jobs, folder):
    side = Side(folder)
    expected, found = loops.one_by_one(side.task.delay, jobs, side.database)
    loops.check(side.count(), expected)
    return found


def many(jobs, folder):
    side = Side(folder)
    expected, found = loops.batched(side.put_batch, jobs, side.database)
    loops.check(side.count(), expected)
    return found


def drain(workers, jobs, folder):
    handler = loops.CountDown(jobs)
    side = Side(folder, handler, workers)
    loops.fill_in_batches(side.put_batch, jobs)

    def run():
        side.worker.start()
        handler.last.wait()

    found = loops.drained(run, jobs)
    side.stop()
    return found


def latency(jobs, folder):
    timer = Latency()
    side = Side(folder, timer.handler, workers=1)
    side.worker.start()
    found = timer.measure(side.task.delay, jobs, loops.PAUSE_S)
    side.stop()
    return found


CASES = {
    "enqueue": lone,
    "enqueue-many": many,
    "drain-100": functools.partial(drain, 100),
    "drain-8": functools.partial(drain, 8),
    "latency": latency,
}
