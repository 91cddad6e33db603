"""The timed loops, the same for every side: each makes the payload of every job anew, and only that."""

from __future__ import annotations

import gc
import random
import time
from itertools import cycle, islice
from threading import Barrier, Lock, Thread

PAYLOAD_BYTES = 100
THREADS = 4
CAPACITY = 1000  # of a bounded queue
LATENCY_WARM_UP_JOBS = 100
# Drawn anew for each job, so that no side's polling falls into step with it.
PAUSE_S = (0.001, 0.002)


def priorities(jobs):
    return islice(cycle(range(10)), jobs)


def cycles(enqueue, deliver, ack, jobs):
    """Put in, take, finish, one job after the other."""
    byte = b"."
    for priority in priorities(jobs):
        enqueue(byte * PAYLOAD_BYTES, priority)
        while (lease := deliver()) is None:
            pass  # Another thread took this thread's job, and has not put in its next one yet.
        ack(lease)


def single(enqueue, deliver, ack, jobs):
    """One thread, at most one job waiting."""
    gc.collect()
    start = time.perf_counter()
    cycles(enqueue, deliver, ack, jobs)
    return {"rate": jobs / (time.perf_counter() - start)}


def prefilled(enqueue, deliver, ack, jobs):
    """One thread puts in everything, then takes and finishes everything."""
    byte = b"."
    gc.collect()
    start = time.perf_counter()
    for priority in priorities(jobs):
        enqueue(byte * PAYLOAD_BYTES, priority)
    filled = time.perf_counter()
    while (lease := deliver()) is not None:
        ack(lease)
    return filled_and_drained(jobs, start, filled)


def filled_and_drained(jobs, start, filled):
    """The rates of a run whose backlog was full at `filled` and is empty now."""
    end = time.perf_counter()
    return {
        "rate": jobs / (end - start),
        "enqueue_rate": jobs / (filled - start),
        "drain_rate": jobs / (end - filled),
    }


def threaded(enqueue, deliver, ack, jobs):
    """Four threads on one queue, each with its own cycles."""
    ready = Barrier(THREADS + 1)

    def run():
        ready.wait()
        cycles(enqueue, deliver, ack, jobs // THREADS)

    threads = [Thread(target=run) for _ in range(THREADS)]
    gc.collect()
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return {"rate": jobs // THREADS * THREADS / (time.perf_counter() - start)}


def produced(enqueue, finish, jobs, unit=b"."):
    """The main thread produces for workers that run already; `finish` waits for the last job."""
    gc.collect()
    start = time.perf_counter()
    for priority in priorities(jobs):
        enqueue(unit * PAYLOAD_BYTES, priority)
    finish()
    return {"rate": jobs / (time.perf_counter() - start)}


class Latency:
    """From the start of the call that puts a job in to the start of its handler, one job at a time."""

    def __init__(self):
        self.started = 0.0
        self.done = Lock()
        self.done.acquire()

    def handler(self, payload):
        self.started = time.perf_counter()
        self.done.release()

    def measure(self, enqueue, jobs, pause_s, unit=b"."):
        """Put in `jobs` jobs; each waits for the one before and, if asked, for the workers to fall asleep."""
        took = []
        gc.collect()
        for _ in range(LATENCY_WARM_UP_JOBS + jobs):
            if pause_s is not None:
                time.sleep(random.uniform(*pause_s))
            start = time.perf_counter()
            enqueue(unit * PAYLOAD_BYTES)
            self.done.acquire()
            took.append(self.started - start)
        return percentiles(took[-jobs:])


def percentiles(seconds):
    ordered = sorted(seconds)
    return {
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
    }
