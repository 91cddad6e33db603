"""huey's tasks on its MemoryHuey, polling every ms, results not kept: at most once, and no capacity."""

from __future__ import annotations

from threading import Event

from bench.inmemory.huey_side import consumer, huey
from bench.tasking.loop import produced

last = Event()


@huey.task()
def no_op(argument):
    pass


@huey.task()
def end():
    last.set()


def task(jobs):
    running = consumer(workers=1)
    running.start()

    def finish():
        end()
        last.wait()

    result = produced(no_op, finish, jobs)
    running.stop()
    return result


TASK = {"T1": task}
