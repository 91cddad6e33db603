"""Celery's tasks on memory://, in its threads, polling every 0.1 ms (by default it is a second).

Acknowledged late, one a thread is taken at a time, results ignored.
"""

from __future__ import annotations

from celery.contrib.testing.worker import start_worker

from bench.inmemory.celery_side import app
from bench.inmemory.loops import PAUSE_S, Latency
from bench.onefile.loops import CountDown
from bench.tasking.loop import produced

app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)


def worker(threads):
    options = {"perform_ping_check": False, "shutdown_timeout": 30}
    return start_worker(app, concurrency=threads, pool="threads", **options)


def drained(threads, jobs):
    handler = CountDown(jobs)

    @app.task(name="counted")
    def counted(argument):
        handler(argument)

    with worker(threads):
        return produced(counted.delay, handler.last.wait, jobs)


def latency(threads, jobs):
    timer = Latency()

    @app.task(name="timed")
    def timed(argument):
        timer.handler(argument)

    with worker(threads):
        return timer.measure(timed.delay, jobs, PAUSE_S, ".")


TASK = {
    "memory-100": lambda jobs: drained(100, jobs),
    "memory-8": lambda jobs: drained(8, jobs),
    "memory-idle": lambda jobs: latency(8, jobs),
    "memory-peak": lambda jobs: drained(100, jobs),
}
