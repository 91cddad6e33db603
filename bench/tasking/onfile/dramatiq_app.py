"""dramatiq on a file by a broker of others: WAL, NORMAL; when nothing is there it sleeps 0.1 s, always."""

from __future__ import annotations

import os
import sqlite3

import dramatiq
from dramatiq_sqlite import SQLiteBroker

from bench.tasking import probe
from bench.tasking.loop import arguments

PREFETCH = "dramatiq_queue_prefetch"
DATABASE = probe.folder() / "jobs.db"

broker = SQLiteBroker(url=f"sqlite://{DATABASE}")
dramatiq.set_broker(broker)
count, ring = probe.Count(), probe.Bell()


@dramatiq.actor
def no_op(argument):
    count()


@dramatiq.actor
def ping(argument):
    ring()


@dramatiq.actor
def slow(argument):
    probe.slow(argument)


class Side:
    """As the process sees it that enqueues."""

    def fill(self, jobs):
        for argument in arguments(jobs):
            no_op.send(argument)

    def ping(self, argument):
        ping.send(argument)

    def slow(self, argument):
        slow.send(argument)

    def command(self, concurrency):
        # No more than run at the same time; its default is twice as many.
        os.environ[PREFETCH] = str(concurrency)
        return ["dramatiq", __name__, "--processes", "1", "--threads", str(concurrency)]

    def open_jobs(self):
        return self.jobs("state NOT IN ('done', 'rejected')")

    def finished(self):
        return self.jobs("state = 'done'")

    def jobs(self, where):
        other = sqlite3.connect(DATABASE)
        try:
            return other.execute(f"SELECT count(*) FROM dramatiq_messages WHERE {where}").fetchone()[0]
        finally:
            other.close()
