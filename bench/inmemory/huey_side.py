"""huey on its MemoryHuey, polling every ms, results not kept. At most once: what is taken is gone.

It pickles what it keeps, has priorities, and knows neither leases nor acks nor a capacity.
"""

from __future__ import annotations

import gc
import logging
import time
from threading import Event

from huey import MemoryHuey

from bench.inmemory.loops import PAUSE_S, PAYLOAD_BYTES, Latency, filled_and_drained, priorities, produced
from bench.inmemory.memory_use import bytes_per_job

POLL_S = 0.001

logging.disable(logging.WARNING)
huey = MemoryHuey(results=False)
last = Event()


@huey.task()
def no_op(payload):
    pass


@huey.task(priority=-1)
def end(payload):
    last.set()


def put(payload, priority=0):
    huey.enqueue(no_op.s(payload, priority=priority))


def consumer(workers):
    return huey.create_consumer(
        workers=workers, periodic=False, initial_delay=POLL_S, max_delay=POLL_S, backoff=1.0
    )


def single(jobs):
    dequeue, execute = huey.dequeue, huey.execute
    byte = b"."
    gc.collect()
    start = time.perf_counter()
    for priority in priorities(jobs):
        put(byte * PAYLOAD_BYTES, priority)
        execute(dequeue())
    return {"rate": jobs / (time.perf_counter() - start)}


def prefilled(jobs):
    dequeue, execute = huey.dequeue, huey.execute
    byte = b"."
    gc.collect()
    start = time.perf_counter()
    for priority in priorities(jobs):
        put(byte * PAYLOAD_BYTES, priority)
    filled = time.perf_counter()
    while (task := dequeue()) is not None:
        execute(task)
    return filled_and_drained(jobs, start, filled)


def pool(jobs, workers):
    running = consumer(workers)
    running.start()

    def finish():
        end(b"")
        last.wait()

    result = produced(put, finish, jobs)
    running.stop()
    return result


def latency(jobs, pause_s):
    timer = Latency()
    handler = huey.task()(timer.handler)
    running = consumer(1)
    running.start()
    result = timer.measure(handler, jobs, pause_s)
    running.stop()
    return result


CASES = {
    "W1": single,
    "W2": prefilled,
    "W5-1": lambda jobs: pool(jobs, 1),
    "W5-4": lambda jobs: pool(jobs, 4),
    "W7": lambda jobs: latency(jobs, None),
    "W7-asleep": lambda jobs: latency(jobs, PAUSE_S),
    "W8-job": lambda jobs: bytes_per_job(put, jobs),
}
