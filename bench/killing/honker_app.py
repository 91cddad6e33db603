"""honker: a job that was taken is visible again once its visibility timeout is over."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import honker

from bench.tasking import probe

QUEUE = "bench"


def opened():
    db = honker.open(str(probe.folder() / "jobs.db"))
    return db, db.queue(QUEUE)


async def work(name):
    _, q = opened()
    async for job in q.claim(name):
        await asyncio.to_thread(probe.slow, job.payload)
        job.ack()


class Side:
    """As the process sees it that enqueues."""

    def __init__(self):
        self.db, self.q = opened()

    def slow(self, argument):
        self.q.enqueue(argument)

    def command(self, concurrency):
        return [__name__, str(concurrency)]

    def open_jobs(self):
        return self.db.query("SELECT count(*) AS n FROM _honker_live")[0]["n"]


def main(concurrency):
    for number in range(int(concurrency)):
        name = f"{os.getpid()}-{number}"
        threading.Thread(target=lambda name=name: asyncio.run(work(name))).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
