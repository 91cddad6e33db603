"""ulak on memory://, with its defaults: tasks of an App, and the pool below it with a plain handler."""

from __future__ import annotations

from bench.inmemory.loops import PAUSE_S, Latency
from bench.inmemory.ulak_side import check
from bench.tasking.loop import produced
from ulak import App, Queue

app, looped = App("memory://"), App("memory://")
timer = Latency()


@app.task(name="no_op")
def no_op(argument: str) -> None:
    pass


@looped.task(name="no_op")
async def async_no_op(argument: str) -> None:
    pass


@app.task(name="ping")
def ping(argument: str) -> None:
    timer.handler(argument)


@looped.task(name="ping")
async def async_ping(argument: str) -> None:
    timer.handler(argument)


def run(app, workers, jobs):
    """Until the last job is settled and kept."""
    enqueue, q = app.find("no_op").enqueue, app.queue("default")
    with app, app.workers(workers) as running:
        result = produced(enqueue, running.drain, jobs)
        check(q, jobs)
    return result


def task(jobs):
    return run(app, 1, jobs)


def bare_pool(jobs):
    with Queue("memory://") as q, q.workers(no_op.function, count=1) as running:
        result = produced(q.enqueue, running.drain, jobs)
        check(q, jobs)
    return result


def latency(app, workers, jobs):
    with app, app.workers(workers):
        return timer.measure(app.find("ping").enqueue, jobs, PAUSE_S, ".")


def cases(app):
    return {
        "memory-100": lambda jobs: run(app, 100, jobs),
        "memory-8": lambda jobs: run(app, 8, jobs),
        "memory-idle": lambda jobs: latency(app, 8, jobs),
        "memory-peak": lambda jobs: run(app, 100, jobs),
    }


TASK = {"T1": task} | cases(app)
ASYNC = cases(looped)
BARE = {"T1": bare_pool}
