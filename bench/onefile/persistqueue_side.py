"""persist-queue's SQLiteAckQueue: WAL and FULL, a commit for each put, get and ack; no priorities.

It has no worker loop: one thread takes and acknowledges by hand.
"""

from __future__ import annotations

from persistqueue import Empty, SQLiteAckQueue

from bench.onefile import loops

FULL = 2


def opened(folder):
    q = SQLiteAckQueue(str(folder), auto_resume=False)
    loops.check_synchronous(q._putter, FULL)
    return q


def lone(jobs, folder):
    q = opened(folder)
    expected, found = loops.one_by_one(q.put, jobs, folder / "data.db")
    loops.check(q.qsize(), expected)
    return found


def drain(jobs, folder):
    q = opened(folder)
    loops.fill(q.put, jobs)

    def take():
        try:
            job = q.get(block=False, raw=True)
        except Empty:
            return 0
        q.ack(id=job["pqid"])
        return 1

    found = loops.emptied(take, jobs)
    loops.check(q.acked_count(), jobs)
    return found


CASES = {"enqueue": lone, "drain-100": drain, "drain-8": drain}
