"""One measurement, printed as JSON: `python -m bench.tasking.measure SIDE CASE JOBS FOLDER`."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.inmemory import yardstick_side as inmemory_yardsticks
from bench.onefile import yardstick_side as onefile_yardsticks
from bench.tasking import probe
from bench.tasking.onfile import killed, worker

# Side -> the module that has its cases in memory, and their name there.
SIDES = {
    "ulak": ("bench.tasking.ulak_side", "TASK"),
    "ulak, async": ("bench.tasking.ulak_side", "ASYNC"),
    "bare pool": ("bench.tasking.ulak_side", "BARE"),
    "huey": ("bench.tasking.huey_side", "TASK"),
    "huey, one thread": ("bench.tasking.huey_side", "ONE_THREAD"),
    "dramatiq": ("bench.tasking.dramatiq_side", "TASK"),
    "taskiq": ("bench.tasking.taskiq_side", "TASK"),
    "celery": ("bench.tasking.celery_side", "TASK"),
}

# Raw yardsticks, which know no tasks.
YARDSTICKS = {
    "raw pool": lambda jobs, folder: inmemory_yardsticks.POOL["W5-1"](jobs),
    "raw": onefile_yardsticks.RAW["drain-100"],
}

# Of a file: what is done with the side, how many jobs at the same time, and a folder.
ON_FILE = {
    "sqlite-100": partial(worker.drain, concurrency=100),
    "sqlite-8": partial(worker.drain, concurrency=8),
    "sqlite-idle": partial(worker.latency, concurrency=8, distance="near"),
    "sqlite-far": partial(worker.latency, concurrency=8, distance="far"),
    "kills-100": partial(killed.killed, concurrency=100),
    "kills-8": partial(killed.killed, concurrency=8),
}


def measured(side, case, jobs, folder):
    if side in YARDSTICKS:
        return YARDSTICKS[side](jobs, folder)
    if case in ON_FILE:
        return ON_FILE[case](side, jobs=jobs, folder=folder)
    module, cases = SIDES[side]
    found = getattr(importlib.import_module(module), cases)[case](jobs)
    return found | {"peak_mb": probe.peak_mb()}


def main(side, case, jobs, parent):
    with tempfile.TemporaryDirectory(prefix="ulak-bench-", dir=parent, ignore_cleanup_errors=True) as folder:
        print(json.dumps(measured(side, case, int(jobs), Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
