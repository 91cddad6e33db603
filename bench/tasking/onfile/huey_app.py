"""huey on a file: WAL, FULL, a commit a call; results off. At most once: what is taken is gone."""

from __future__ import annotations

import logging

from huey import SqliteHuey

from bench.onefile.loops import check_synchronous
from bench.tasking import probe
from bench.tasking.loop import arguments

POLL_S = "0.001"
FULL = 2
# Many threads on one file wait long for one another; the default of 5 s is not enough for 100.
BUSY_TIMEOUT_S = 60

logging.disable(logging.WARNING)
huey = SqliteHuey(filename=str(probe.folder() / "jobs.db"), results=False, timeout=BUSY_TIMEOUT_S)
count, ring = probe.Count(), probe.Bell()


@huey.task()
def no_op(argument):
    count()


@huey.task()
def ping(argument):
    ring()


@huey.task()
def slow(argument):
    probe.slow(argument)


class Side:
    """As the process sees it that enqueues."""

    def __init__(self):
        check_synchronous(huey.storage.conn, FULL)

    def fill(self, jobs):
        for argument in arguments(jobs):
            no_op(argument)

    def ping(self, argument):
        ping(argument)

    def slow(self, argument):
        slow(argument)

    def command(self, concurrency):
        """The interval is the same however long nothing came: no backoff, no schedule to look after."""
        poll = ["-d", POLL_S, "-m", POLL_S, "-b", "1", "--no-periodic"]
        return ["huey.bin.huey_consumer", f"{__name__}.huey", "-w", str(concurrency), "-k", "thread", *poll]

    def open_jobs(self):
        return huey.pending_count()

    def finished(self):
        """It does not say."""
        return
