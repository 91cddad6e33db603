"""Processes that run jobs are killed (SIGKILL), crash and hang: `executors [KILLS [JOBS]] [--seed N]`.

One pool of four processes on a file; results are near the limit of their size. At a random child, a kill
comes each time that so many jobs have ended since the last one; some are stopped (SIGSTOP) first. Jobs
themselves exit, crash, hang, or close their pipe, in their first attempt. First a control: where a lost
process counts as success, that must be seen.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.pids import children_of, open_files
from tests.support.pools import AT_ONCE
from tests.support.waiting import eventually
from ulak import App, Context
from ulak.worker import children
from ulak.worker.execute import DONE, Ending

KILLS, JOBS, SEATS = 50, 2_000, 4
RESULT_CHARS = 65_000
ATTEMPTS = 1_000
SHOWN_MAX = 20
# Of a hundred jobs.
TROUBLES = {"exit": 1, "segfault": 1, "close": 1, "hang": 1, "program": 1}
# A process that is killed while it starts has no job yet; that is handed back.
ENDINGS = {"ack", "lost", "timeout", "release"}

app = App("memory://", backoff=AT_ONCE, visibility_timeout=300.0)


@app.task(max_attempts=ATTEMPTS, timeout=2.0, kill_after=0.2)
def work(ctx: Context, number: int, trouble: str, ran: str, filler: str) -> str:
    """The text that belongs to this number; lines in the file `ran` say that it begins and ends."""
    note(ran, f"{number} {ctx.delivery} begins")
    ctx.progress(1, 2)
    if ctx.attempt == 1:
        make(trouble)
    result = text_of(number)
    note(ran, f"{number} {ctx.delivery} ends")
    return result


def note(file: str, line: str) -> None:
    # In one write, so that lines of several processes do not mix.
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def text_of(number: int) -> str:
    return f"{number}:".ljust(RESULT_CHARS, "x")


def make(trouble: str) -> None:
    match trouble:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "close":
            os.closerange(3, 256)
        case "hang":
            threading.Event().wait()
        case "program":
            # A fork outlives the process for a while.
            if os.fork() == 0:
                signal.alarm(3)
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Kills children, one each time that so many jobs have ended since the last. kills: how many so far."""

    def __init__(self, rng: random.Random, kills_max: int, every: int) -> None:
        self._rng = rng
        self._kills_max = kills_max
        self._every = every
        self._next_at = 0
        self.kills = 0

    def look(self, ended: int) -> None:
        """Kill one if it is time."""
        if self.kills < self._kills_max and ended >= self._next_at and (pids := children_of()):
            self._next_at = ended + self._every
            pid = self._rng.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                if self._rng.random() < 0.2:
                    os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGKILL)
                self.kills += 1


class Trial:
    """One pool, its jobs, and what was wrong. ended: how the deliveries ended."""

    def __init__(self, kills: int, jobs: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.killer = Killer(self.rng, kills, max(1, jobs // (2 * kills)))
        self.jobs = jobs
        self.problems: list[str] = []
        self.ended: Counter[str] = Counter()
        self.took_s = 0.0

    def run(self) -> None:
        """Run it to the end."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ulak-executors-") as folder:
            app.url = f"sqlite:///{folder}/jobs.db?durability=relaxed"
            ran = f"{folder}/ran"
            Path(ran).touch()
            open_before = open_files()
            try:
                plans = self._work(ran)
                self._judge(plans, ran)
            finally:
                app.close()
            if open_files() > open_before or children_of():
                self.problems.append(f"left open: files or processes {children_of()}")
        self.took_s = time.monotonic() - start

    def _work(self, ran: str) -> list[tuple[int, str]]:
        names, weights = [*TROUBLES, ""], [*TROUBLES.values(), 100 - sum(TROUBLES.values())]
        troubles = self.rng.choices(names, weights, k=self.jobs)
        calls = [work.call(n, trouble, ran, "y" * 10_000) for n, trouble in enumerate(troubles)]
        jobs = work.enqueue_many(calls)
        q = app.queue("default")

        def is_over() -> bool:
            counts = q.counts()
            self.killer.look(counts.acked + counts.dead)
            return counts.open == 0

        with app.workers(SEATS, executor="process") as pool:
            eventually(is_over, within_s=3600.0)
            pool.shutdown()
        return [(job.id, trouble) for job, trouble in zip(jobs, troubles, strict=True)]

    def _judge(self, plans: list[tuple[int, str]], ran: str) -> None:
        lines: Counter[tuple[int, int, str]] = Counter()
        for line in Path(ran).read_text().splitlines():
            number, delivery, what = line.split()
            lines[int(number), int(delivery), what] += 1
        q = app.queue("default")
        for number, (job_id, trouble) in enumerate(plans):
            job: Any = q.get(job_id)
            causes = [attempt.cause for attempt in job.history]
            self.ended.update(causes)
            result = work.job(job_id).result(0) if job.state == "succeeded" else None
            wrong = list(_wrong(number, trouble, causes, result))
            if any(attempt.cause == "lost" and _has_no_witness(attempt) for attempt in job.history):
                wrong.append("its worker did not see that its process was lost")
            wrong += _wrong_lines(number, job.delivery, lines)
            self.problems += [f"job {number} ({trouble}): {what}; its deliveries: {causes}" for what in wrong]
        strikes = self.killer.kills + sum(bool(trouble) for _, trouble in plans)
        if (lost := self.ended["lost"] + self.ended["timeout"]) > strikes:
            self.problems.append(f"{lost} deliveries were lost by {strikes} strikes")


def _has_no_witness(attempt: Any) -> bool:
    return attempt.error is None or attempt.error.text.startswith("its worker's process")


def _wrong(number: int, trouble: str, causes: list[str], result: str | None) -> Iterator[str]:
    if result != text_of(number):
        yield "it has not its result"
    if not ENDINGS.issuperset(causes) or causes.count("ack") != 1 or causes[-1] != "ack":
        yield "it ended otherwise"
    if trouble and not {"lost", "timeout"}.intersection(causes):
        yield "nobody saw its trouble"


def _wrong_lines(number: int, delivery: int, lines: Counter[tuple[int, int, str]]) -> Iterator[str]:
    if not lines[number, delivery, "ends"]:
        yield "it succeeded in a delivery that has not run to its end"
    if any(lines[number, earlier, "begins"] > 1 for earlier in range(1, delivery + 1)):
        yield "a delivery of it ran more than once"
    if lines[number, delivery + 1, "begins"]:
        yield "it ran again after it had succeeded"


def control(seed: int) -> bool:
    """Whether it is seen when a lost process counts as success."""
    right = children.Children._lost

    def wrong(*_: object) -> Ending:
        return DONE

    children.Children._lost = wrong  # type: ignore[method-assign, assignment]
    try:
        trial = Trial(3, 200, seed)
        trial.run()
    finally:
        children.Children._lost = right  # type: ignore[method-assign]
    print(f"with lost processes taken for success: {len(trial.problems)} problems seen", flush=True)
    return len(trial.problems) > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="executors", description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=KILLS)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    print(f"executors: {chosen.kills:,} kills, {chosen.jobs:,} jobs, seed {chosen.seed}", flush=True)
    problems = [] if control(chosen.seed) else ["the control passed: nothing was seen"]
    trial = Trial(chosen.kills, chosen.jobs, chosen.seed)
    trial.run()
    problems += trial.problems
    for problem in problems[:SHOWN_MAX]:
        print(f"  {problem}")
    ended = ", ".join(f"{n:,} {cause}" for cause, n in sorted(trial.ended.items()))
    print(f"{trial.killer.kills} kills, {trial.jobs:,} jobs in {trial.took_s:.0f} s; deliveries: {ended}")
    print(f"{trial.jobs} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
