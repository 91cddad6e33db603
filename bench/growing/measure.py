"""One measurement, printed as JSON: `python -m bench.growing.measure STORE DIMENSION SIZE DIVISOR URL`."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import random
import sys
import time
from threading import Event

from bench.growing.plan import BACKLOG, CYCLES, PINGS
from bench.inmemory.memory_use import rss_mb
from ulak import NewJob, Queue

PAYLOAD_BYTES = 100
STEP = 1000
FEW, SOME = 100, 10_000
JOBS_A_QUEUE = 10
PAUSE_S = 0.001
KEPT_BYTES_MAX = 2**28


class Bench:
    """A store, and how much is done in it."""

    def __init__(self, store, divisor, url):
        # By its name, so that all queues are in the same one.
        self.url = "memory://growing" if store == "memory" else url
        self.cycles, self.backlog = CYCLES[store] // divisor, BACKLOG[store] // divisor
        self.pings = PINGS // divisor
        self.before_mb = rss_mb()

    def queue(self, name="default"):
        return Queue(self.url, name, visibility_timeout=3600)

    def memory_mb(self):
        gc.collect()
        return max(0.1, rss_mb() - self.before_mb)


def fill(q, jobs, priorities=10, payload_bytes=PAYLOAD_BYTES):
    numbers = iter(range(jobs))
    while batch := list(itertools.islice(numbers, STEP)):
        q.enqueue_many([NewJob(b"." * payload_bytes, priority=number % priorities) for number in batch])


def cycled(bench, turns, payload_bytes=PAYLOAD_BYTES):
    """Cycles, each a (queue, priority) of `turns`; the first tenth only warms up."""
    byte, took = b".", []
    clock = time.perf_counter
    warm_up = bench.cycles // 10
    for _ in range(warm_up + bench.cycles):
        q, priority = next(turns)
        start = clock()
        q.enqueue(byte * payload_bytes, priority)
        lease = q.deliver()
        q.ack(lease)
        took.append(clock() - start)
    return figures(took[warm_up:]) | {"memory_mb": bench.memory_mb()}


def figures(took):
    rate = len(took) / sum(took)
    took.sort()
    return {"rate": rate, "p50_us": took[len(took) // 2] * 1e6, "p99_us": took[len(took) * 99 // 100] * 1e6}


def waiting(bench, size):
    with bench.queue() as q:
        fill(q, size)
        return cycled(bench, ((q, number % 10) for number in itertools.count()))


def payload(bench, size):
    # Finished jobs are kept for a while, with all that they weigh.
    bench.cycles = min(bench.cycles, KEPT_BYTES_MAX // size)
    with bench.queue() as q:
        fill(q, FEW, payload_bytes=size)
        return cycled(bench, itertools.repeat((q, 0)), size)


def priorities(bench, size):
    draw = random.Random(size)
    with bench.queue() as q:
        fill(q, SOME, priorities=size)
        return cycled(bench, ((q, draw.randrange(size)) for _ in itertools.count()))


def queues(bench, size):
    with contextlib.ExitStack() as stack:
        handles = [stack.enter_context(bench.queue(f"q{number}")) for number in range(size)]
        for q in handles:
            fill(q, JOBS_A_QUEUE)
        return cycled(bench, ((q, 0) for q in itertools.cycle(handles)))


def workers(bench, size):
    """A backlog emptied by so many, then single jobs for the idle pool."""
    begun = Event()
    at = [0.0]

    def handler(job):
        if job == b"ping":
            at[0] = time.perf_counter()
            begun.set()

    with bench.queue() as q:
        fill(q, bench.backlog)
        producer = q.producer()
        with q.workers(handler, count=size) as pool:
            start = time.perf_counter()
            while q.counts().open:
                time.sleep(PAUSE_S)
            rate = bench.backlog / (time.perf_counter() - start)
            took = [ping(q, begun, at) for _ in range(bench.pings)]
            producer.finish()
            pool.drain()
        return figures(took) | {"rate": rate, "memory_mb": bench.memory_mb()}


def ping(q, begun, at):
    time.sleep(random.uniform(PAUSE_S, 2 * PAUSE_S))
    begun.clear()
    start = time.perf_counter()
    q.enqueue(b"ping")
    begun.wait()
    return at[0] - start


MEASURED = {
    "waiting": waiting,
    "workers": workers,
    "payload": payload,
    "queues": queues,
    "priorities": priorities,
}


def main(store, dimension, size, divisor, url):
    bench = Bench(store, int(divisor), url)
    print(json.dumps(MEASURED[dimension](bench, int(size))))


if __name__ == "__main__":
    main(*sys.argv[1:])
