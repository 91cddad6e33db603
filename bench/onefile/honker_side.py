"""honker: WAL and NORMAL, visibility timeout; text payload. Its bulk is 100 calls in one transaction.

By hand it claims and acknowledges 100 at once; its own loop, in the latency case, takes one job at a time.
"""

from __future__ import annotations

import asyncio
import functools
from threading import Thread

import honker

from bench.inmemory.loops import Latency
from bench.onefile import loops

WORKER = "bench"
NORMAL = 1


class Side:
    """A honker queue on a file."""

    def __init__(self, folder):
        self.database = folder / "jobs.db"
        self.db = honker.open(str(self.database))
        self.q = self.db.queue("bench")
        with self.db.transaction() as tx:
            (row,) = tx.query("PRAGMA synchronous")
        if list(row.values()) != [NORMAL]:
            raise SystemExit(f"synchronous is {row}, not {NORMAL}")

    def put_batch(self, payloads):
        with self.db.transaction() as tx:
            for payload in payloads:
                self.q.enqueue(payload, tx=tx)

    def count(self):
        return self.db.query("SELECT count(*) AS n FROM _honker_live")[0]["n"]


def no_op(payload):
    pass


def lone(jobs, folder):
    side = Side(folder)
    expected, found = loops.one_by_one(side.q.enqueue, jobs, side.database, ".")
    loops.check(side.count(), expected)
    return found


def many(jobs, folder):
    side = Side(folder)
    expected, found = loops.batched(side.put_batch, jobs, side.database, ".")
    loops.check(side.count(), expected)
    return found


def drain(batch, jobs, folder):
    side = Side(folder)
    loops.fill_in_batches(side.put_batch, jobs, ".")

    def take():
        claimed = side.q.claim_batch(WORKER, batch)
        for job in claimed:
            no_op(job.payload)
        return side.q.ack_batch([job.id for job in claimed], WORKER)

    found = loops.emptied(take, jobs)
    loops.check(side.count(), 0)
    return found


def latency(jobs, folder):
    side = Side(folder)
    timer = Latency()

    async def work():
        async for job in side.q.claim(WORKER):
            if job.payload is None:
                return
            timer.handler(job.payload)
            job.ack()

    worker = Thread(target=asyncio.run, args=(work(),))
    worker.start()
    found = timer.measure(side.q.enqueue, jobs, loops.PAUSE_S, ".")
    side.q.enqueue(None)
    worker.join()
    return found


CASES = {
    "enqueue": lone,
    "enqueue-many": many,
    "drain-100": functools.partial(drain, 100),
    "drain-8": functools.partial(drain, 8),
    "latency": latency,
}
