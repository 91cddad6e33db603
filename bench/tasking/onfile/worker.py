"""Measures a side's own command: a backlog drained by one process, and how soon it begins a lone job."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time

from bench.inmemory.loops import percentiles
from bench.kit import environment
from bench.tasking import probe
from bench.tasking.loop import ARGUMENT_CHARS

GIVE_UP_S = 300.0
LOOK_S = 0.01
STOP_S = 10.0
WARM_UP_JOBS = 20
# Drawn anew for each job, so that no side's polling falls into step with it; long enough to settle meanwhile.
PAUSE_S = {"near": (0.002, 0.004), "far": (0.2, 0.3)}

# Side -> the module that has its tasks, and what its `Side` is told.
SIDES = {
    "ulak": ("ulak_app", "plain"),
    "ulak, async": ("ulak_app", "looped"),
    "huey": ("huey_app",),
    "huey, one thread": ("huey_app",),
    "dramatiq": ("dramatiq_app",),
    "celery": ("celery_app",),
}


def side_of(name, folder, jobs=0):
    """The side, with its store in this folder. Only one can be made in a process."""
    os.environ |= {probe.FOLDER: str(folder), probe.JOBS: str(jobs)}
    module, *told = SIDES[name]
    return importlib.import_module(f"bench.tasking.onfile.{module}").Side(*told)


class Worker:
    """The command of a side while it runs; what it says goes into a file."""

    def __init__(self, side, concurrency, folder):
        self.said = folder / "said"
        with self.said.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *side.command(concurrency)],
                cwd=environment.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def check(self):
        """It lives."""
        if self.process.poll() is not None:
            raise SystemExit(f"the worker ended: {self.said.read_text()[-2000:]}")

    def stop(self):
        """Ask it to end; what is left of it, and of what it has started, is killed."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.kill()

    def kill(self):
        """As by the kernel, for want of memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def working(side, concurrency, folder):
    worker = Worker(side, concurrency, folder)
    try:
        yield worker
    finally:
        worker.stop()


def wait_until(is_so, worker, what):
    give_up_at = time.monotonic() + GIVE_UP_S
    while not is_so():
        worker.check()
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not {what} within {GIVE_UP_S:g} s: {worker.said.read_text()[-2000:]}")
        time.sleep(LOOK_S)


def drain(name, concurrency, jobs, folder):
    """From the first task's start to the last one's end, in the worker; then all must be finished."""
    side = side_of(name, folder, jobs)
    side.fill(jobs)
    if (stored := side.open_jobs()) != jobs:
        raise SystemExit(f"{jobs:,} jobs were put in; {stored:,} are there")
    told = folder / probe.DRAINED
    with working(side, concurrency, folder) as worker:
        wait_until(told.exists, worker, "drained")
        wait_until(lambda: side.open_jobs() == 0, worker, "settled")
    if (finished := side.finished()) not in {jobs, None}:
        raise SystemExit(f"{jobs:,} jobs were put in; {finished:,} are finished")
    found = json.loads(told.read_text())
    return {"rate": jobs / found["took_s"], "peak_mb": found["peak_mb"]}


def latency(name, concurrency, distance, jobs, folder):
    """From the call that enqueues to the task's start in the worker, one job at a time."""
    side = side_of(name, folder)
    fifo = folder / probe.BEGUN
    os.mkfifo(fifo)
    # For writing too, so that it opens before the worker does.
    begun = os.open(fifo, os.O_RDWR)
    took = []
    with working(side, concurrency, folder) as worker:
        for number in range(WARM_UP_JOBS + jobs):
            if number >= WARM_UP_JOBS:
                time.sleep(random.uniform(*PAUSE_S[distance]))
            start = time.perf_counter()
            side.ping("." * ARGUMENT_CHARS)
            took.append(moment(begun, worker) - start)
    os.close(begun)
    return percentiles(took[-jobs:])


def moment(begun, worker):
    give_up_at = time.monotonic() + GIVE_UP_S
    while not select.select([begun], [], [], 1.0)[0]:
        worker.check()
        if time.monotonic() > give_up_at:
            raise SystemExit(f"no job began within {GIVE_UP_S:g} s: {worker.said.read_text()[-2000:]}")
    return probe.MOMENT.unpack(os.read(begun, probe.MOMENT.size))[0]
