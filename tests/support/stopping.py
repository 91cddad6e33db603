"""Workers of `ulak work` are stopped at chosen and at random moments; their store tells what that cost.

Every job may run once (`max_attempts=1`), so that one whose attempt a stop spends is dead, and is seen.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.leash import end_with
from tests.support.waiting import eventually
from ulak import App, Call, Job, State

COMMAND = (sys.executable, "-m", "ulak", "work", "hello:app")
LEAVE_S = 2.0
"""How long after its grace a worker may take."""

GIVE_UP_S = 60.0
NAPS_S = (0.001, 0.02, 0.1, 0.4)

HELLO = """
import time
from ulak import App, current_job

app = App("sqlite:///jobs.db", max_attempts=1)

@app.task
def nap(duration_s: float) -> None:
    # In one write, so that lines of several processes stay whole.
    with open("ran", "a") as ran:
        ran.write(f"{current_job().id}\\n")
    time.sleep(duration_s)
"""

# So that the control has something to find: it leaves without handing anything back.
CARELESS = """
import os, sys
from ulak import Pool
from ulak.cli import main
Pool.shutdown = lambda *_: os._exit(0)
sys.argv[1:] = ["work", "hello:app", *sys.argv[1:]]
sys.exit(main())
"""


@dataclass
class Tally:
    """What all stops came to. late_s: how long after their grace workers ended. blind_s: when those were
    stopped that had not run a line of Python yet, and so ended by the signal itself."""

    stops: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    late_s: list[float] = field(default_factory=list)
    blind_s: list[float] = field(default_factory=list)
    jobs: int = 0
    runs: int = 0
    handed_back: int = 0
    problems: list[str] = field(default_factory=list)

    def told(self) -> str:
        """In two lines."""
        late_s = sorted(self.late_s) or [0.0]
        blind = ""
        if self.blind_s:
            most_ms = max(self.blind_s) * 1000
            blind = f"; {len(self.blind_s)} before Python ran, the last at {most_ms:.0f} ms"
        return (
            f"{self.stops:,} stops, by status {dict(sorted(self.statuses.items()))}"
            f"{blind}; ended after the grace by {late_s[len(late_s) // 2]:.2f} s "
            f"(median), {late_s[-1]:.2f} s (most)\n"
            f"  {self.jobs:,} jobs, run {self.runs:,} times, handed back {self.handed_back:,} times; "
            f"{len(self.problems)} problems"
        )


class Service:
    """One worker, as whatever looks after services starts and stops it."""

    def __init__(self, folder: Path, *args: str, grace_s: float, command: Sequence[str] = COMMAND) -> None:
        self._grace_s = grace_s
        parent = os.getpid()
        read, write = os.pipe()
        self._err = os.fdopen(read, "rb", buffering=0)
        self._process = subprocess.Popen(
            [*command, "--grace", f"{grace_s}s", *args],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=write,
            preexec_fn=lambda: end_with(parent),  # noqa: PLW1509 - it calls into the kernel and no more
        )
        self.started_at = time.monotonic()
        os.close(write)
        self._said = b""

    def wait_until_it_works(self) -> None:
        """It has said that it works."""
        until = time.monotonic() + GIVE_UP_S
        while b"\n" not in self._said:
            assert select.select([self._err], [], [], until - time.monotonic())[0], "it does not say so"
            read = self._err.read(4096)
            assert read, self._said
            self._said += read
        assert self._said.startswith(b"ulak works on "), self._said

    def stop_after(self, passed_s: float, tally: Tally) -> int:
        """Stop it when it has lived so long; its exit status. What is not as it must be is noted."""
        # Time itself is the point here: what it has come to at that moment is left to chance.
        select.select([], [], [], max(0.0, self.started_at + passed_s - time.monotonic()))
        at_s = time.monotonic() - self.started_at
        self._process.terminate()
        began_at = time.monotonic()
        try:
            status = self._process.wait(self._grace_s + GIVE_UP_S)
        finally:
            self.close()
        late_s = max(0.0, time.monotonic() - began_at - self._grace_s)
        said = self._said.decode()
        tally.stops += 1
        tally.statuses[status] += 1
        tally.late_s.append(late_s)
        where = f"stopped after {at_s:.3f} s"
        if status == -signal.SIGTERM and not said:
            tally.blind_s.append(at_s)
        elif status != 0:
            tally.problems.append(f"{where}: status {status}: {said}")
        if late_s > LEAVE_S:
            tally.problems.append(f"{where}: it ended {late_s:.2f} s after its grace of {self._grace_s} s")
        if "Traceback" in said or "Fatal" in said:
            tally.problems.append(f"{where}: {said}")
        return status

    def ended(self) -> tuple[int, str]:
        """Wait for its end: its exit status, and what it said."""
        try:
            return self._process.wait(GIVE_UP_S), (self._said + self._err.readall()).decode()
        finally:
            self.close()

    def close(self) -> None:
        """Kill it if it still lives."""
        self._process.kill()
        self._process.wait()
        if not self._err.closed:
            self._said += self._err.readall()
            self._err.close()


class Shop:
    """A folder with an App and a store, whose jobs this process enqueues and judges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hello.py").write_text(HELLO)
        self.app = App(f"sqlite:///{folder}/jobs.db", max_attempts=1)
        self._jobs: list[Job[None]] = []

        @self.app.task(name="hello.nap")
        def nap(duration_s: float) -> None:
            raise NotImplementedError

        self._nap = nap

    def enqueue(self, draw: random.Random, count: int) -> None:
        """So many jobs of random lengths."""
        calls: list[Call] = [self._nap.call(draw.choice(NAPS_S)) for _ in range(count)]
        self._jobs += self._nap.enqueue_many(calls)

    def stock_up(self, draw: random.Random, count: int) -> None:
        """See that so many jobs are ready."""
        missing = count - self.app.queue("default").counts().ready
        if missing > 0:
            self.enqueue(draw, missing)

    def look_after_stop(self, tally: Tally) -> None:
        """Whoever has ended in order holds nothing any more."""
        counts = self.app.queue("default").counts()
        if counts.leased:
            tally.problems.append(f"{counts.leased} jobs are leased after a stop")

    def judge(self, tally: Tally) -> None:
        """Run what is left; then every job must have succeeded, with the one attempt it has."""
        service = Service(self.folder, "--drain", "--concurrency", "8", grace_s=1.0)
        status, said = service.ended()
        if status != 0:
            tally.problems.append(f"the last drain: status {status}: {said}")
        ran = Counter((self.folder / "ran").read_text().splitlines())
        for job in self._jobs:
            info = job.info()
            if (info.state, info.attempt) != (State.SUCCEEDED, 1):
                ends = [str(attempt.cause) for attempt in info.history]
                tally.problems.append(f"job {job.id}: {info.state}, attempt {info.attempt}, {ends}")
            handed_back = sum(attempt.cause == "shutdown" for attempt in info.history)
            if not 1 <= ran[str(job.id)] <= 1 + handed_back:
                tally.problems.append(
                    f"job {job.id} ran {ran[str(job.id)]} times, and was handed back {handed_back} times"
                )
            tally.handed_back += handed_back
        tally.jobs += len(self._jobs)
        tally.runs += ran.total()


@contextlib.contextmanager
def shop(folder: Path, tally: Tally) -> Iterator[Shop]:
    """A new shop, which is judged in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Shop(folder)
    with made.app:
        yield made
        made.judge(tally)


@contextlib.contextmanager
def held_back(*, held: bool) -> Iterator[None]:
    """While inside, processes are started with SIGTERM held back, as those are that watch over theirs."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if held else [])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def first_moments(
    folder: Path, *, offsets_s: Sequence[float], args: Sequence[str] = (), seed: int, held: bool = False
) -> Tally:
    """Stop workers so long after they have been started. held: SIGTERM comes only once they want it."""
    tally, draw = Tally(), random.Random(seed)
    with shop(folder, tally) as here:
        for passed_s in offsets_s:
            here.stock_up(draw, 8)
            with held_back(held=held):
                service = Service(folder, *args, grace_s=draw.choice([0.0, 0.05, 0.3]))
            service.stop_after(passed_s, tally)
            here.look_after_stop(tally)
    if held and tally.blind_s:
        tally.problems.append(f"{len(tally.blind_s)} ended by a signal that was held back")
    if not tally.statuses[0]:
        tally.problems.append("none ended in order")
    return tally


def random_points(
    folder: Path, *, stops: int, args: Sequence[str] = (), seed: int, command: Sequence[str] = COMMAND
) -> Tally:
    """Stop workers at random points of running jobs."""
    tally, draw = Tally(), random.Random(seed)
    with shop(folder, tally) as here:
        for _ in range(stops):
            here.stock_up(draw, 16)
            service = Service(
                folder, "--concurrency", "4", *args, grace_s=draw.choice([0.0, 0.05, 0.3]), command=command
            )
            service.wait_until_it_works()
            lived_s = time.monotonic() - service.started_at
            service.stop_after(lived_s + draw.uniform(0.0, 0.3), tally)
            here.look_after_stop(tally)
    return tally


def control(folder: Path, *, seed: int) -> Tally:
    """Workers that leave without handing back what they hold: that must be seen."""
    return random_points(folder, stops=3, seed=seed, command=(sys.executable, "-c", CARELESS))


def rolling(folder: Path, *, rounds: int, args: Sequence[str] = (), seed: int, workers: int = 3) -> Tally:
    """Restart several workers in turn, as a deploy does, while jobs keep coming."""
    tally, draw, over = Tally(), random.Random(seed), threading.Event()
    with shop(folder, tally) as here:

        def produce() -> None:
            load = random.Random(seed)
            while not over.wait(0.02):
                here.stock_up(load, 12)

        services = [Service(folder, *args, grace_s=0.3) for _ in range(workers)]
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for _ in range(rounds):
                for number, service in enumerate(services):
                    service.wait_until_it_works()
                    lived_s = time.monotonic() - service.started_at
                    service.stop_after(lived_s + draw.uniform(0.0, 0.2), tally)
                    services[number] = Service(folder, *args, grace_s=0.3)
        finally:
            over.set()
            producer.join()
            for service in services:
                service.stop_after(0.0, tally)
    return tally


def recycling(folder: Path, *, jobs: int, seed: int) -> Tally:
    """Processes that leave after a job each: every job runs once (S10)."""
    tally, draw = Tally(), random.Random(seed)
    args = ("--processes", "2", "--concurrency", "1", "--max-jobs", "1", "--drain")
    with shop(folder, tally) as here:
        here.enqueue(draw, jobs)
        service = Service(folder, *args, grace_s=1.0)
        eventually(lambda: here.app.queue("default").counts().open == 0, within_s=jobs * 2.0 + GIVE_UP_S)
        status, said = service.ended()
        if status != 0 or "warning" in said:
            tally.problems.append(f"status {status}: {said}")
    if tally.runs != jobs:
        tally.problems.append(f"{jobs} jobs ran {tally.runs} times")
    return tally
