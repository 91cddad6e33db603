"""A fleet of `ulak work` under a steady load for a long time, and what it takes meanwhile.

Two processes of four threads on one SQLite file, leases of a second, each fifth attempt fails. The younger of
the two is killed now and then; the older one lives through, so that what it loses track of adds up.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from tests.support.history import History, Pen, Recorded, Verdict, judge, merged, stored_lines
from tests.support.leash import end_with
from tests.support.pids import children_of
from tests.support.waiting import eventually
from ulak import App, Backoff, Keep, Retention

OPTIONS = ("--processes", "2", "--concurrency", "4", "--grace", "5s")
FAIL_RATE = 0.2
LEASE_S = 1.0
KEPT = 200
GAP_S = 0.05
KILL_EACH_S = 10.0
SAMPLE_EACH_S = 1.0
WARM_UP = 0.3
"""The part of a run before which nothing is compared: caches fill, and retention begins to remove."""

END_S = 60.0
SLACK_S = 0.02
LIMITS = {"rss": 4.0 * 2**20, "threads": 1.0, "files": 1.0, "bytes": 2.0 * 2**20}
"""By how much the last third may lie above the first one, of what comes after the warm-up."""

HELLO = """
import os
import random
import time
import zlib
from pathlib import Path

from tests.support.soaking import FAIL_RATE, app_on, record
from ulak import current_job

app = app_on("sqlite:///jobs.db")
LEAKS = bool(os.environ.get("ULAK_SOAK_LEAKS"))
kept = []

@app.task
def work(number: int) -> None:
    job = current_job()
    draw = random.Random(number)
    # Some outlast their lease, and must be renewed.
    time.sleep(draw.uniform(1.2, 2.0) if draw.random() < 0.02 else draw.uniform(0.0, 0.1))
    if LEAKS:
        kept.append((bytearray(os.urandom(200_000)), open(os.devnull)))
    if zlib.crc32(f"{number} {job.delivery}".encode()) % 100 < FAIL_RATE * 100:
        raise RuntimeError("as planned")

record(app, Path(f"{os.getpid()}.history"), str(os.getpid()))
"""


def app_on(url: str) -> App:
    """The App of all processes, without its task."""
    return App(
        url,
        max_attempts=30,
        visibility_timeout=LEASE_S,
        backoff=Backoff(base=0.05, cap=0.5),
        retention=Retention(succeeded=Keep(KEPT, 3600.0)),
    )


def record(app: App, path: Path, name: str) -> None:
    """Have this process write what its store is asked and tells."""
    app.open()
    opened = app._home.queue_of("default").opened()
    pen = Pen(History(path), time.monotonic)
    store = Recorded(opened.edge.store, pen, lambda: f"{name}/{threading.current_thread().name}")
    opened.edge = type(opened.edge)(store, opened.edge.clock)


@dataclass
class Sample:
    """What was taken at one moment: by the supervisor, by the older process, by the file."""

    at_s: float
    taken: dict[str, float]


@dataclass
class Soak:
    """What a run came to."""

    took_s: float = 0.0
    busy_s: float = 0.0
    kills: int = 0
    samples: list[Sample] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)

    def thirds(self, name: str) -> tuple[float, float]:
        """What was taken in the first and in the last third after the warm-up: files and threads by their
        median, since who forks a process holds more for a moment; else the mean."""
        whole = [sample.taken[name] for sample in self.samples if name in sample.taken]
        values = whole[int(len(whole) * WARM_UP) :]
        part = max(1, len(values) // 3)
        of = median if name.endswith(("threads", "files")) else fmean
        return of(values[:part]), of(values[-part:])

    def names(self) -> list[str]:
        """Everything that was looked at."""
        return list(self.samples[0].taken) if self.samples else []

    def grown(self) -> Iterator[str]:
        """What was not flat."""
        for name in self.names():
            first, last = self.thirds(name)
            if last - first > LIMITS[name.rpartition(" ")[2]]:
                yield f"{name} grew from {shown(name, first)} to {shown(name, last)}"


def shown(name: str, value: float) -> str:
    """A value with its unit."""
    return f"{value / 2**20:.2f} MiB" if name.endswith(("rss", "bytes")) else f"{value:g}"


def taken_by(pid: int, who: str) -> dict[str, float]:
    """What a process takes now."""
    told = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        f"{who} rss": int(told["VmRSS"].split()[0]) * 1024.0,
        f"{who} threads": float(told["Threads"]),
        f"{who} files": float(len(os.listdir(f"/proc/{pid}/fd"))),  # noqa: PTH208
    }


class Fleet:
    """`ulak work --processes 2`, and whoever enqueues."""

    def __init__(self, folder: Path, *, leaks: bool) -> None:
        self.folder = folder
        (folder / "hello.py").write_text(HELLO)
        self._log = (folder / "log").open("wb")
        parent = os.getpid()
        paths = [str(Path(__file__).parents[2]), *(entry for entry in sys.path if entry)]
        leaky = {"ULAK_SOAK_LEAKS": "1"} if leaks else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ulak", "work", "hello:app", *OPTIONS],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **leaky},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            preexec_fn=lambda: end_with(parent),  # noqa: PLW1509 - it calls into the kernel and no more
        )
        eventually(lambda: len(self.workers()) == 2, END_S)
        self.oldest = self.workers()[0]

    def workers(self) -> list[int]:
        """Its processes, the oldest first."""
        return sorted(children_of(self.process.pid), key=_born)

    def kill_younger(self) -> bool:
        """Kill what is not the oldest; whether there is one."""
        younger = [pid for pid in self.workers() if pid != self.oldest]
        for pid in younger:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        return bool(younger)

    def sample(self, at_s: float) -> Sample:
        """What it takes now."""
        taken = taken_by(self.process.pid, "supervisor") | taken_by(self.oldest, "worker")
        files = [self.folder / name for name in ("jobs.db", "jobs.db-wal")]
        taken["file bytes"] = float(sum(path.stat().st_size for path in files if path.exists()))
        return Sample(at_s, taken)

    def said(self) -> str:
        """The last that it said."""
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """Kill it if it still lives."""
        self.process.kill()
        self.process.wait()
        self._log.close()


def _born(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def soak(folder: Path, duration_s: float, *, seed: int, leaks: bool = False) -> Soak:
    """Let a fleet work for so long, and judge it. leaks: its task keeps what it takes, as a control."""
    run, draw = Soak(), random.Random(seed)
    with app_on(f"sqlite:///{folder / 'jobs.db'}") as app:

        @app.task(name="hello.work")
        def work(number: int) -> None:
            raise NotImplementedError

        record(app, folder / "producer.history", "producer")
        fleet = Fleet(folder, leaks=leaks)
        began_at, before = time.monotonic(), os.times()
        try:
            number, sample_at, kill_at = 0, 0.0, KILL_EACH_S
            while (passed_s := time.monotonic() - began_at) < duration_s:
                work.enqueue(number)
                number += 1
                if passed_s >= sample_at:
                    sample_at += SAMPLE_EACH_S
                    run.samples.append(fleet.sample(passed_s))
                if passed_s >= kill_at:
                    kill_at = passed_s + draw.uniform(0.5, 1.5) * KILL_EACH_S
                    run.kills += fleet.kill_younger()
                time.sleep(GAP_S)
            queue = app.queue("default")
            eventually(lambda: queue.counts().open == 0, END_S)
            fleet.process.terminate()
            if (status := fleet.process.wait(END_S)) != 0:
                run.problems.append(f"it ended with status {status}: {fleet.said()}")
        finally:
            fleet.close()
        run.took_s = time.monotonic() - began_at
        spent = os.times()
        run.busy_s = sum(spent[:4]) - sum(before[:4])
        stored = list(stored_lines(app._home.queue_of("default").opened().edge.store, ["default"]))
    lines = merged(sorted(folder.glob("*.history")))
    run.verdict = judge([*lines, *stored], slack_s=SLACK_S)
    run.problems += _wrong(run, number)
    return run


def _wrong(run: Soak, jobs: int) -> Sequence[str]:
    verdict = run.verdict
    problems = [f"{kind}: job {job}: {text}" for kind, job, text in verdict.problems]
    if (verdict.jobs, verdict.acked) != (jobs, jobs):
        problems.append(f"{jobs} jobs were enqueued, {verdict.jobs} seen, {verdict.acked} finished")
    return [*problems, *run.grown()]
