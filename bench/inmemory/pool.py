"""Raw yardsticks that run handlers: a bounded worker pool, and one thread that hands a job to another."""

from __future__ import annotations

from collections import deque
from threading import Condition, Lock, Thread
from time import monotonic

from bench.inmemory.yardsticks import LEASE_S, PRIORITIES


class Pool:
    """Worker threads on one deque per priority: bounded, leased, acknowledged, counted, under one lock.

    A handler that raises is a nack: its job runs again, before the others of its priority.
    """

    def __init__(self, handler, workers, capacity, lease_s=LEASE_S):
        self.handler = handler
        self.capacity = capacity
        self.lease_s = lease_s
        self.lock = Lock()
        self.work = Condition(self.lock)
        self.room = Condition(self.lock)
        self.idle = 0  # workers that wait on `work`
        self.blocked = 0  # producers, and who drains, that wait on `room`
        self.lanes = [deque() for _ in range(PRIORITIES)]  # of ids
        self.filled = 0
        self.jobs = {}  # id -> (payload, priority), until it is done
        self.leases = {}  # id -> (token, deadline)
        self.deadlines = deque()  # (deadline, id, token)
        self.next_id = 1
        self.next_token = 1
        self.succeeded = self.failed = 0
        self.finished = False
        self.threads = [Thread(target=self.serve, daemon=True) for _ in range(workers)]
        for thread in self.threads:
            thread.start()

    def enqueue(self, payload, priority=0):
        with self.lock:
            while len(self.jobs) >= self.capacity:
                self.blocked += 1
                self.room.wait()
                self.blocked -= 1
            job_id = self.next_id
            self.next_id = job_id + 1
            self.jobs[job_id] = (payload, priority)
            self.lanes[priority].append(job_id)
            self.filled |= 1 << priority
            if self.idle:
                self.work.notify()
        return job_id

    def deliver(self):
        """Wait for a job; None once everything is done."""
        with self.lock:
            while True:
                now = monotonic()
                if self.deadlines:
                    self.take_back(now)
                if self.filled:
                    break
                if self.finished and not self.jobs:
                    return None
                self.idle += 1
                self.work.wait()
                self.idle -= 1
            priority = self.filled.bit_length() - 1
            lane = self.lanes[priority]
            job_id = lane.popleft()
            if not lane:
                self.filled ^= 1 << priority
            token = self.next_token
            self.next_token = token + 1
            deadline = now + self.lease_s
            self.leases[job_id] = (token, deadline)
            self.deadlines.append((deadline, job_id, token))
            return (job_id, token, self.jobs[job_id][0])

    def ack(self, lease):
        job_id, token, _ = lease
        with self.lock:
            current = self.leases.get(job_id)
            if current is None or current[0] != token:
                return False
            del self.leases[job_id]
            del self.jobs[job_id]
            self.succeeded += 1
            if self.blocked:
                self.room.notify()
            if self.finished and not self.jobs:
                self.work.notify_all()
                self.room.notify_all()
        return True

    def nack(self, lease):
        job_id, token, _ = lease
        with self.lock:
            current = self.leases.get(job_id)
            if current is None or current[0] != token:
                return False
            self.put_back(job_id)
            self.failed += 1
            if self.idle:
                self.work.notify()
        return True

    def put_back(self, job_id):
        del self.leases[job_id]
        priority = self.jobs[job_id][1]
        self.lanes[priority].appendleft(job_id)
        self.filled |= 1 << priority

    def take_back(self, now):
        """Forget the deadlines of leases that have ended; put back the jobs of those that ran out."""
        while self.deadlines:
            deadline, job_id, token = self.deadlines[0]
            current = self.leases.get(job_id)
            if current is not None and current[0] == token:
                if deadline > now:
                    return
                self.put_back(job_id)
            self.deadlines.popleft()

    def serve(self):
        while (lease := self.deliver()) is not None:
            try:
                self.handler(lease[2])
            except Exception:  # noqa: BLE001 - whatever a handler raises is a failed attempt
                self.nack(lease)
            else:
                self.ack(lease)

    def metrics(self):
        with self.lock:
            return {"open": len(self.jobs), "succeeded": self.succeeded, "failed": self.failed}

    def drain(self):
        """Wait until everything is done and the workers have left."""
        with self.lock:
            self.finished = True
            self.work.notify_all()
            while self.jobs:
                self.blocked += 1
                self.room.wait()
                self.blocked -= 1
        for thread in self.threads:
            thread.join()


class HandOver:
    """One thread that waits on a Condition for what another hands it, and nothing else."""

    def __init__(self, handler):
        self.handler = handler
        self.changed = Condition()
        self.jobs = deque()
        self.thread = Thread(target=self.serve, daemon=True)
        self.thread.start()

    def enqueue(self, payload):
        with self.changed:
            self.jobs.append(payload)
            self.changed.notify()

    def serve(self):
        while True:
            with self.changed:
                while not self.jobs:
                    self.changed.wait()
                payload = self.jobs.popleft()
            if payload is None:
                return
            self.handler(payload)

    def stop(self):
        self.enqueue(None)
        self.thread.join()
