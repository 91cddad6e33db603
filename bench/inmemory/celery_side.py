"""Celery on memory://, polling every 0.1 ms (by default it is a second), solo pool, no results.

The payload is text, since it keeps JSON. Its solo pool is faster than its threads, so it stands for any
number of workers. This transport has no priorities.
"""

from __future__ import annotations

import logging
import threading

from celery import Celery
from celery.contrib.testing.worker import start_worker

from bench.inmemory.loops import Latency, produced

logging.disable(logging.WARNING)
app = Celery("bench", broker="memory://")
app.conf.update(
    broker_transport_options={"polling_interval": 0.0001},
    task_ignore_result=True,
    task_default_queue="bench",
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)
last = threading.Event()


@app.task(name="no_op")
def no_op(payload):
    pass


@app.task(name="end")
def end(payload):
    last.set()


def put(payload, priority):
    no_op.delay(payload)


def worker():
    return start_worker(app, concurrency=1, pool="solo", perform_ping_check=False, shutdown_timeout=30)


def pool(jobs):
    def finish():
        end.delay("")
        last.wait()

    with worker():
        return produced(put, finish, jobs, ".")


def latency(jobs):
    timer = Latency()

    @app.task(name="handler")
    def handler(payload):
        timer.handler(payload)

    with worker():
        return timer.measure(handler.delay, jobs, None, ".")


CASES = {"W5-1": pool, "W5-4": pool, "W7": latency}
