"""dramatiq's actors on its StubBroker, which hands on all it has, whatever prefetch it is told."""

from __future__ import annotations

import dramatiq

from bench.inmemory.dramatiq_side import broker, no_op, worker
from bench.inmemory.loops import PAUSE_S, Latency
from bench.tasking.loop import produced


def drained(threads, jobs):
    running = worker(threads)
    result = produced(no_op.send, lambda: broker.join(no_op.queue_name), jobs)
    running.stop()
    return result


def latency(threads, jobs):
    timer = Latency()
    handler = dramatiq.actor(timer.handler, actor_name="handler")
    running = worker(threads)
    result = timer.measure(handler.send, jobs, PAUSE_S, ".")
    running.stop()
    return result


TASK = {
    "memory-100": lambda jobs: drained(100, jobs),
    "memory-8": lambda jobs: drained(8, jobs),
    "memory-idle": lambda jobs: latency(8, jobs),
    "memory-peak": lambda jobs: drained(100, jobs),
}
