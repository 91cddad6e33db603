"""Limits that are promises: each is measured here, and a broken one ends in exit status 1.

Speed is judged by ratio to a yardstick of the same run, in fresh processes that take turns. The other
benchmarks judge whether it is enough; this one, whether it is still there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from bench.inmemory import speed
from bench.inmemory.memory_use import rss_mb
from ulak import Queue

JOBS = 1_000_000
LOOKED_AT = 100_000


def median_us(call: Callable[[], object], repeats: int = 201) -> float:
    """Median time of a call, in µs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def import_ms() -> float:
    """Processor time of `from ulak import Queue` in a fresh interpreter, the best of 7, in ms.

    Not wall time, which says more of what else the machine does.
    """
    code = (
        "import time; start = time.process_time(); from ulak import Queue; print(time.process_time() - start)"
    )
    with compiled_once() as run:
        return min(float(run("-c", code)) * 1e3 for _ in range(7))


def command_ms(*argv: str) -> float:
    """Processor time of `ulak ARGV`, from its start to its end, the best of 7, in ms."""
    times_ms = []
    with compiled_once() as run:
        for _ in range(7):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run("-m", "ulak", *argv)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times_ms.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    return min(times_ms)


def looks() -> list[tuple[str, float, float, str]]:
    """What it takes to look into a file of 100,000 jobs, half of them ended."""
    commands = ("counts", "ls", "ls -q default --state dead", f"show {LOOKED_AT}")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        with Queue(f"{url}?durability=relaxed", max_attempts=1) as q:
            for start in range(0, LOOKED_AT, 1000):
                q.enqueue_many(["x" * 200] * 1000)
                if start < LOOKED_AT * 4 // 10:
                    q.ack_many(q.deliver_many(1000))
                elif start < LOOKED_AT // 2:
                    for lease in q.deliver_many(1000):
                        q.nack(lease, error="no")
        took_ms = {words: command_ms(*words.split(), "-u", url) for words in commands}
    what = f"with {LOOKED_AT:,} jobs in a file, processor time"
    return [(f"ulak {words} {what}", measured, 200.0, "ms") for words, measured in took_ms.items()]


@contextlib.contextmanager
def compiled_once() -> Iterator[Callable[..., bytes]]:
    """Runs fresh interpreters that keep what they compile, as a user's do, where that is switched off too."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        env.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(*arguments: str) -> bytes:
            done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=env)
            return done.stdout

        yield run


def figures() -> list[tuple[str, float, float, str]]:
    """(what, measured, limit, unit) of every promise."""
    found = [
        ("from ulak import Queue, processor time", import_ms(), 100.0, "ms"),
        ("ulak --help, processor time", command_ms("--help"), 100.0, "ms"),
        ("ulak health --help, processor time", command_ms("health", "--help"), 80.0, "ms"),
        *looks(),
    ]
    q = Queue("memory://", visibility_timeout=3600)
    q.enqueue(b"warm")
    gc.collect()
    start_mb = rss_mb()
    for number in range(JOBS):
        q.enqueue(b"%d" % number)
    found += [
        ("counts() with 1,000,000 open jobs", median_us(q.counts), 50.0, "µs"),
        ("tick_timeouts() with 1,000,000 open jobs", median_us(q.tick_timeouts), 50.0, "µs"),
    ]
    while leases := q.deliver_many(1000):
        q.ack_many(leases)
    gc.collect()
    found.append(("memory kept after 1,000,000 jobs", rss_mb() - start_mb, 60.0, "MB"))
    return found


def guard_promises() -> int:
    """Print each promise beside what was measured; how many are broken."""
    broken = 0
    for what, measured, limit, unit in figures():
        verdict = "ok" if measured <= limit else "BROKEN"
        broken += measured > limit
        print(f"{what}: {measured:.1f} {unit} (limit {limit:g} {unit}) {verdict}", flush=True)
    return broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench guard", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--control", action="store_true", help="guard a queue made slow on purpose; ends in 1, as it must"
    )
    if parser.parse_args(arguments).control:
        return 1 if speed.control() < len(speed.LIMITS) else 0
    # A limit that lets a slowed queue pass guards nothing, so the control is part of every run.
    return 1 if guard_promises() + speed.guard() + speed.control() else 0


if __name__ == "__main__":
    sys.exit(main())
