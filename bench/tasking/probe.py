"""What the tasks of a worker tell the process that measures it: when the last one ran, or each began.

The worker is a command of its own, so it is told by the environment, and tells by files.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import time
from pathlib import Path

FOLDER, JOBS, HISTORIES = "ULAK_BENCH_FOLDER", "ULAK_BENCH_JOBS", "ULAK_BENCH_HISTORIES"
DRAINED, BEGUN, SLOW = "drained.json", "begun.fifo", "slow.jsonl"
SLOW_S = 1.0
MOMENT = struct.Struct("d")


def folder():
    return Path(os.environ[FOLDER])


def peak_mb():
    """The most memory this process has had resident so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024 / 1e6


def slow(argument):
    """A task that takes a while, and notes down when it begins and when it has ended."""
    note("begun", argument)
    time.sleep(SLOW_S)
    note("ended", argument)


def note(what, argument):
    """Append a line to what all workers of a folder have noted down; each is written at once."""
    line = json.dumps({"what": what, "job": argument, "at": time.monotonic(), "pid": os.getpid()})
    with (folder() / SLOW).open("a") as file:
        file.write(line + "\n")


class Count:
    """Counts calls of a task that does nothing else; the last one says how long all took."""

    def __init__(self):
        self.jobs = int(os.environ.get(JOBS, "0"))
        self.calls = itertools.count(1)
        self.began = 0.0

    def __call__(self):
        number = next(self.calls)
        if number == 1:
            self.began = time.perf_counter()
        if number == self.jobs:
            self.tell(time.perf_counter() - self.began)

    def tell(self, took_s):
        path = folder() / DRAINED
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps({"took_s": took_s, "peak_mb": peak_mb()}))
        unfinished.rename(path)


class Bell:
    """Tells when a job has begun, on the clock that all processes of a machine share."""

    def __init__(self):
        self.fifo = None

    def __call__(self):
        now = time.perf_counter()
        if self.fifo is None:
            self.fifo = os.open(folder() / BEGUN, os.O_WRONLY)
        os.write(self.fifo, MOMENT.pack(now))
