"""The timed loop, the same for every side: it makes the argument of every job anew, and only that."""

from __future__ import annotations

import gc
import time

ARGUMENT_CHARS = 100


def arguments(jobs):
    """An argument for each job, made anew."""
    unit = "."
    return (unit * ARGUMENT_CHARS for _ in range(jobs))


def produced(enqueue, finish, jobs):
    """The main thread produces for a worker that runs already; `finish` waits for the last job."""
    unit = "."
    gc.collect()
    start = time.perf_counter()
    for _ in range(jobs):
        enqueue(unit * ARGUMENT_CHARS)
    finish()
    return {"rate": jobs / (time.perf_counter() - start)}
