"""Raw yardsticks: what a good programmer writes in plain Python, with leases, tokens and timeouts, no more.

Each queue has enqueue(payload, priority) -> id, deliver() -> lease or None, and ack(lease) -> whether the
lease was still current. A lease is `(id, token, payload)`. One whose time is over is put back by a later
deliver, and is then worth nothing. They say how much of a library's time goes into what it does beyond that.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from time import monotonic

PRIORITIES = 10
LEASE_S = 30.0


class HeapQueue:
    """One heap of waiting jobs, one dict of leases, one lock around everything."""

    def __init__(self, lease_s=LEASE_S):
        self.lease_s = lease_s
        self.lock = Lock()
        self.ready = []  # (-priority, id, payload)
        self.leases = {}  # id -> (token, deadline, job)
        self.deadlines = deque()  # (deadline, id, token), in order, since all leases last equally long
        self.next_id = 1
        self.next_token = 1

    def enqueue(self, payload, priority):
        with self.lock:
            job_id = self.next_id
            self.next_id = job_id + 1
            heappush(self.ready, (-priority, job_id, payload))
        return job_id

    def deliver(self):
        now = monotonic()
        with self.lock:
            if self.deadlines:
                self.take_back(now)
            if not self.ready:
                return None
            job = heappop(self.ready)
            job_id = job[1]
            token = self.next_token
            self.next_token = token + 1
            deadline = now + self.lease_s
            self.leases[job_id] = (token, deadline, job)
            self.deadlines.append((deadline, job_id, token))
        return (job_id, token, job[2])

    def ack(self, lease):
        job_id, token, _ = lease
        with self.lock:
            current = self.leases.get(job_id)
            if current is None or current[0] != token:
                return False
            del self.leases[job_id]
        return True

    def take_back(self, now):
        """Forget the deadlines of leases that have ended; put back the jobs of those that ran out."""
        deadlines, leases = self.deadlines, self.leases
        while deadlines:
            deadline, job_id, token = deadlines[0]
            current = leases.get(job_id)
            if current is not None and current[0] == token:
                if deadline > now:
                    return
                del leases[job_id]
                heappush(self.ready, current[2])
            deadlines.popleft()


class DequeQueue:
    """One deque per priority, a bit for each that is not empty, one lock around everything."""

    def __init__(self, lease_s=LEASE_S):
        self.lease_s = lease_s
        self.lock = Lock()
        self.lanes = [deque() for _ in range(PRIORITIES)]  # of (id, payload, priority)
        self.filled = 0  # bit p is set while lanes[p] holds a job
        self.leases = {}  # id -> (token, deadline, job)
        self.deadlines = deque()
        self.next_id = 1
        self.next_token = 1

    def enqueue(self, payload, priority):
        with self.lock:
            job_id = self.next_id
            self.next_id = job_id + 1
            self.lanes[priority].append((job_id, payload, priority))
            self.filled |= 1 << priority
        return job_id

    def deliver(self):
        now = monotonic()
        with self.lock:
            if self.deadlines:
                self.take_back(now)
            filled = self.filled
            if not filled:
                return None
            priority = filled.bit_length() - 1
            lane = self.lanes[priority]
            job = lane.popleft()
            if not lane:
                self.filled = filled ^ 1 << priority
            job_id = job[0]
            token = self.next_token
            self.next_token = token + 1
            deadline = now + self.lease_s
            self.leases[job_id] = (token, deadline, job)
            self.deadlines.append((deadline, job_id, token))
        return (job_id, token, job[1])

    def ack(self, lease):
        job_id, token, _ = lease
        with self.lock:
            current = self.leases.get(job_id)
            if current is None or current[0] != token:
                return False
            del self.leases[job_id]
        return True

    def take_back(self, now):
        deadlines, leases = self.deadlines, self.leases
        while deadlines:
            deadline, job_id, token = deadlines[0]
            current = leases.get(job_id)
            if current is not None and current[0] == token:
                if deadline > now:
                    return
                del leases[job_id]
                priority = current[2][2]
                self.lanes[priority].appendleft(current[2])
                self.filled |= 1 << priority
            deadlines.popleft()


class LocklessQueue:
    """The same without a lock: each step is one call into C, which no other thread can come between.

    Taking a lease out of the dict is what decides between an ack and the end of its time.
    """

    def __init__(self, lease_s=LEASE_S):
        self.lease_s = lease_s
        self.lanes = [deque() for _ in range(PRIORITIES)]  # of (id, payload, priority)
        self.highest_first = self.lanes[::-1]
        self.leases = {}  # token -> (deadline, job)
        self.deadlines = deque()  # (deadline, token)
        self.new_id = count(1).__next__
        self.new_token = count(1).__next__

    def enqueue(self, payload, priority):
        job_id = self.new_id()
        self.lanes[priority].append((job_id, payload, priority))
        return job_id

    def deliver(self):
        now = monotonic()
        if self.deadlines:
            self.take_back(now)
        for lane in self.highest_first:
            if lane:
                try:
                    job = lane.popleft()
                except IndexError:  # Another thread took the last one.
                    continue
                token = self.new_token()
                deadline = now + self.lease_s
                self.leases[token] = (deadline, job)
                self.deadlines.append((deadline, token))
                return (job[0], token, job[1])
        return None

    def ack(self, lease):
        return self.leases.pop(lease[1], None) is not None

    def take_back(self, now):
        deadlines, leases = self.deadlines, self.leases
        while deadlines:
            try:
                entry = deadlines.popleft()
            except IndexError:
                return
            deadline, token = entry
            if token in leases:
                if deadline > now:
                    deadlines.appendleft(entry)
                    return
                ended = leases.pop(token, None)
                if ended is not None:
                    job = ended[1]
                    self.lanes[job[2]].appendleft(job)
