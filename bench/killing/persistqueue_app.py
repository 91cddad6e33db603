"""persist-queue's SQLiteAckQueue: what was taken and not finished is put back when it is next opened."""

from __future__ import annotations

import functools
import threading

from persistqueue import Empty, SQLiteAckQueue

from bench.killing import by_hand
from bench.tasking import probe

_opening = threading.Lock()


@functools.cache
def opened():
    # Opened once a process: each opening takes back what others have.
    return SQLiteAckQueue(str(probe.folder()), auto_resume=True, multithreading=True)


def take_one():
    with _opening:
        q = opened()

    def take():
        try:
            job = q.get(block=False, raw=True)
        except Empty:
            return False
        probe.slow(job["data"])
        q.ack(id=job["pqid"])
        return True

    return take


class Side:
    """As the process sees it that enqueues."""

    def slow(self, argument):
        self.q().put(argument)

    def q(self):
        return SQLiteAckQueue(str(probe.folder()), auto_resume=False, multithreading=True)

    def command(self, concurrency):
        return by_hand.command(__name__, concurrency)

    def open_jobs(self):
        q = self.q()
        return q.active_size()
