"""Raw yardsticks: what a good programmer writes with sqlite3 alone, fsynced before a call returns, no more.

No capacity, no retries, no counts. They say how much of a library's time goes into what it does beyond that.
"""

from __future__ import annotations

import itertools
import time
from threading import Lock

from bench.onefile import rows


class RawQueue:
    """One connection for one thread; leases fenced by their delivery, as ulak's are."""

    def __init__(self, database):
        self.connection = rows.connect(database)
        self.new_id = itertools.count(1).__next__

    def enqueue(self, payload):
        """One FULL commit for one job."""
        job_id = self.new_id()
        self.connection.execute(rows.INSERT, rows.values(job_id, payload))
        return job_id

    def enqueue_many(self, payloads):
        """One FULL commit for all."""
        jobs = [rows.values(self.new_id(), payload) for payload in payloads]
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(rows.INSERT, jobs)
        connection.execute("COMMIT")
        return [job[0] for job in jobs]

    def claim(self, limit):
        """Up to `limit` leases in one FULL commit: (id, delivery, payload), in order."""
        values = (time.time(), time.monotonic() + rows.LEASE_S, limit)
        claimed = self.connection.execute(rows.CLAIM, values).fetchall()
        claimed.sort()
        return claimed

    def ack(self, leases):
        """Finish jobs in one FULL commit, and delete them; how many of the leases were current."""
        return self.settle(rows.DELETE, [lease[:2] for lease in leases])

    def ack_and_keep(self, leases):
        """The same, but the rows stay."""
        now = time.time()
        return self.settle(rows.KEEP, [(now, *lease[:2]) for lease in leases])

    def settle(self, statement, leases):
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        settled = connection.executemany(statement, leases).rowcount
        connection.execute("COMMIT")
        return settled

    def count(self):
        return self.connection.execute("SELECT count(*) FROM jobs").fetchone()[0]

    def close(self):
        self.connection.close()


class LeanQueue(RawQueue):
    """The leanest table that keeps an order; for putting in, to see what a wider row costs."""

    def __init__(self, database):
        self.connection = rows.connect(database, rows.LEAN_SCHEMA)
        self.new_id = itertools.count(1).__next__

    def enqueue_many(self, payloads):
        """One FULL commit for all."""
        jobs = [(self.new_id(), payload) for payload in payloads]
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(rows.LEAN_INSERT, jobs)
        connection.execute("COMMIT")
        return [job[0] for job in jobs]


class Entry:
    """One caller's job while it waits for its commit."""

    __slots__ = ("gate", "is_leader", "job_id", "payload")

    def __init__(self, payload):
        self.payload = payload
        self.job_id = None
        self.is_leader = False
        self.gate = Lock()
        self.gate.acquire()


class GroupCommitter(RawQueue):
    """Many threads, one FULL commit for all that wait: the first leads, and hands on to the next."""

    def __init__(self, database):
        super().__init__(database)
        self.mutex = Lock()
        self.waiting = []
        self.has_leader = False

    def enqueue(self, payload):
        """Returns once the commit that has this job is in the file."""
        entry = Entry(payload)
        with self.mutex:
            self.waiting.append(entry)
            entry.is_leader = not self.has_leader
            self.has_leader = True
        if not entry.is_leader:
            entry.gate.acquire()
        if entry.is_leader:
            self.lead()
        return entry.job_id

    def lead(self):
        with self.mutex:
            entries, self.waiting = self.waiting, []
        for entry, job_id in zip(
            entries, super().enqueue_many([entry.payload for entry in entries]), strict=True
        ):
            entry.job_id = job_id
        with self.mutex:
            successor = self.waiting[0] if self.waiting else None
            self.has_leader = successor is not None
        if successor is not None:
            successor.is_leader = True
            successor.gate.release()
        for entry in entries[1:]:
            entry.gate.release()
