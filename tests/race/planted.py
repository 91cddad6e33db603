"""Classes with a race planted in each: what controlled preemption is for, and must find."""

from __future__ import annotations

import threading

WITHOUT_END = threading.Lock()
"""Held by whoever wants a thread to block."""


class LooksThenTakes:
    """Its claim looks which job is first, and takes what is first then, without a lock."""

    def __init__(self, jobs: int) -> None:
        self.ready = list(range(jobs))

    def claim(self) -> int | None:
        if not self.ready:
            return None
        job = self.ready[0]
        del self.ready[0]
        return job


class LooksForRoomFirst:
    """Its add looks for room before it takes the lock under which it inserts."""

    def __init__(self, capacity: int) -> None:
        self.lock = threading.Lock()
        self.capacity = capacity
        self.jobs: list[str] = []

    def add(self, job: str) -> bool:
        if len(self.jobs) >= self.capacity:
            return False
        with self.lock:
            self.jobs.append(job)
        return True


class NoGate:
    """A gate that is never shut, to be put in place of a memory store's own."""

    open = property(lambda _: None, lambda _, __: None, lambda _: None)


class ForgetsToLookAgain:
    """Its waiter looks, and only then makes the event that others may set: a wake-up between is lost."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.bell = threading.Event()

    def take(self) -> str:
        while not self.jobs:
            self.bell.clear()
            self.bell.wait()
        return self.jobs.pop()

    def put(self, job: str) -> None:
        self.jobs.append(job)
        self.bell.set()


class TwoLocks:
    """Takes two locks, in one order or the other."""

    def __init__(self) -> None:
        self.one, self.other = threading.Lock(), threading.RLock()

    def forwards(self) -> None:
        with self.one, self.other, self.other:
            pass

    def backwards(self) -> None:
        with self.other, self.one:
            pass


class Counter:
    """Adds to a number, in steps."""

    def __init__(self) -> None:
        self.number = 0

    def add(self, times: int) -> int:
        for _ in range(times):
            self.number += 1
        return self.number

    def turn_in_circles(self) -> None:
        while self.number >= 0:
            self.number += 1

    def spin(self, lock: threading.Lock) -> None:
        while lock.locked():
            pass
        with lock:
            self.number += 1
