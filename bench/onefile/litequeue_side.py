"""litequeue: WAL and NORMAL, a commit for each put, pop and done; text payload, no priorities.

It has no worker loop: one thread pops and finishes by hand. It has no bulk call.
"""

from __future__ import annotations

from litequeue import LiteQueue

from bench.onefile import loops

NORMAL = 1


def opened(folder):
    database = folder / "jobs.db"
    q = LiteQueue(database)
    loops.check_synchronous(q.conn, NORMAL)
    return q, database


def lone(jobs, folder):
    q, database = opened(folder)
    expected, found = loops.one_by_one(q.put, jobs, database, ".")
    loops.check(q.qsize(), expected)
    return found


def drain(jobs, folder):
    q, _ = opened(folder)
    loops.fill(q.put, jobs, ".")

    def take():
        job = q.pop()
        if job is None:
            return 0
        q.done(job.message_id)
        return 1

    return loops.emptied(take, jobs)


CASES = {"enqueue": lone, "drain-100": drain, "drain-8": drain}
