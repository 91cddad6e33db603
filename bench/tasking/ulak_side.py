"""ulak on memory://, with its defaults: a task of an App, and the pool below it with a plain handler."""

from __future__ import annotations

from bench.inmemory.ulak_side import check
from bench.tasking.loop import produced
from ulak import App, Queue

app = App("memory://")


@app.task
def no_op(argument: str) -> None:
    pass


def task(jobs):
    q = app.queue("default")
    with app, app.workers(1) as running:
        result = produced(no_op.enqueue, running.drain, jobs)
        check(q, jobs)
    return result


def bare_pool(jobs):
    with Queue("memory://") as q, q.workers(no_op.function, count=1) as running:
        result = produced(q.enqueue, running.drain, jobs)
        check(q, jobs)
    return result


TASK = {"T1": task}
BARE = {"T1": bare_pool}
