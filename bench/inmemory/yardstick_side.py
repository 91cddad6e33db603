"""The raw yardsticks, made to run the same loops as everyone else."""

from __future__ import annotations

import functools

from bench.inmemory import loops, memory_use
from bench.inmemory.pool import HandOver, Pool
from bench.inmemory.yardsticks import DequeQueue, HeapQueue, LocklessQueue


def looped(loop, kind, jobs):
    q = kind()
    result = loop(q.enqueue, q.deliver, q.ack, jobs)
    check(q.leases, {}, jobs)
    return result


def check(found, expected, jobs):
    """A figure counts only if every job was finished."""
    if found != expected:
        raise SystemExit(f"{jobs:,} jobs were put in; {found} in place of {expected}")


def no_op(payload):
    pass


def pool(jobs, workers):
    running = Pool(no_op, workers, loops.CAPACITY)
    result = loops.produced(running.enqueue, running.drain, jobs)
    check(running.metrics(), {"open": 0, "succeeded": jobs, "failed": 0}, jobs)
    return result


def latency(jobs, pause_s):
    timer = loops.Latency()
    receiver = HandOver(timer.handler)
    result = timer.measure(receiver.enqueue, jobs, pause_s)
    receiver.stop()
    return result


def mb_kept(kind, jobs):
    q = kind()

    def drain():
        while (lease := q.deliver()) is not None:
            q.ack(lease)

    return memory_use.mb_kept(q.enqueue, drain, jobs)


def queue_cases(kind):
    """The cases of a queue with single calls; the batches of others are compared with its single calls."""
    single = functools.partial(looped, loops.single, kind)
    prefilled = functools.partial(looped, loops.prefilled, kind)
    return {
        "W1": single,
        "W2": prefilled,
        "W3": functools.partial(looped, loops.threaded, kind),
        "W4": single,
        "W4-prefilled": prefilled,
        "W8-job": lambda jobs: memory_use.bytes_per_job(kind().enqueue, jobs),
        "W8-kept": functools.partial(mb_kept, kind),
    }


HEAP = queue_cases(HeapQueue)
HEAP["W3-capacity"] = HEAP["W3"]  # the heap has none, so it is compared as it is
DEQUES = queue_cases(DequeQueue)
LOCKLESS = queue_cases(LocklessQueue)
POOL = {
    "W5-1": functools.partial(pool, workers=1),
    "W5-4": functools.partial(pool, workers=4),
}
CONDITION = {
    "W7": functools.partial(latency, pause_s=None),
    "W7-asleep": functools.partial(latency, pause_s=loops.PAUSE_S),
}
