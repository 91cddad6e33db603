"""dramatiq on its StubBroker, with the middleware it brings. The payload is text, since it keeps JSON.

Its priorities belong to actors, not to jobs, so there is one; it has no capacity.
"""

from __future__ import annotations

import logging

import dramatiq
from dramatiq.brokers.stub import StubBroker

from bench.inmemory.loops import PAUSE_S, Latency, produced
from bench.inmemory.memory_use import bytes_per_job

logging.disable(logging.WARNING)
broker = StubBroker()
dramatiq.set_broker(broker)


@dramatiq.actor
def no_op(payload):
    pass


def put(payload, priority):
    no_op.send(payload)


def worker(threads):
    started = dramatiq.Worker(broker, worker_threads=threads)
    started.start()
    return started


def pool(jobs, threads):
    running = worker(threads)

    result = produced(put, lambda: broker.join(no_op.queue_name), jobs, ".")
    running.stop()
    return result


def latency(jobs, pause_s):
    timer = Latency()
    handler = dramatiq.actor(timer.handler, actor_name="handler")
    running = worker(1)
    result = timer.measure(handler.send, jobs, pause_s, ".")
    running.stop()
    return result


CASES = {
    "W5-1": lambda jobs: pool(jobs, 1),
    "W5-4": lambda jobs: pool(jobs, 4),
    "W7": lambda jobs: latency(jobs, None),
    "W7-asleep": lambda jobs: latency(jobs, PAUSE_S),
    "W8-job": lambda jobs: bytes_per_job(put, jobs, "."),
}
