"""litequeue: what is taken is locked until it is done; nothing takes the lock of a dead process away."""

from __future__ import annotations

import sqlite3

from litequeue import LiteQueue

from bench.killing import by_hand
from bench.tasking import probe


def opened():
    return LiteQueue(probe.folder() / "jobs.db")


def take_one():
    q = opened()

    def take():
        job = q.pop()
        if job is None:
            return False
        probe.slow(job.data)
        q.done(job.message_id)
        return True

    return take


class Side:
    """As the process sees it that enqueues."""

    def slow(self, argument):
        opened().put(argument)

    def command(self, concurrency):
        return by_hand.command(__name__, concurrency)

    def open_jobs(self):
        # 0 is ready, 1 locked.
        other = sqlite3.connect(probe.folder() / "jobs.db")
        try:
            return other.execute("SELECT count(*) FROM Queue WHERE status IN (0, 1)").fetchone()[0]
        finally:
            other.close()
