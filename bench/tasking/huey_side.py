"""huey's tasks on its MemoryHuey, polling every ms, results not kept: at most once, and no capacity."""

from __future__ import annotations

from threading import Event

from bench.inmemory.huey_side import consumer, huey
from bench.inmemory.loops import PAUSE_S, Latency
from bench.onefile.loops import CountDown
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


def counted(workers, jobs):
    """The last job to start may have others beside it, so they are counted."""
    handler = CountDown(jobs)
    running = consumer(workers)
    running.start()
    # A bound method, since huey asks a task for its name.
    result = produced(huey.task()(handler.__call__), handler.last.wait, jobs)
    running.stop()
    return result


def latency(workers, jobs):
    timer = Latency()
    running = consumer(workers)
    running.start()
    result = timer.measure(huey.task()(timer.handler), jobs, PAUSE_S, ".")
    running.stop()
    return result


TASK = {
    "T1": task,
    "memory-100": lambda jobs: counted(100, jobs),
    "memory-8": lambda jobs: counted(8, jobs),
    "memory-idle": lambda jobs: latency(8, jobs),
    "memory-peak": lambda jobs: counted(100, jobs),
}
ONE_THREAD = {"memory-idle": lambda jobs: latency(1, jobs)}
