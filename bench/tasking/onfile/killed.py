"""The very command that is measured, killed (SIGKILL) again and again: every job ends, acknowledged once.

Its store is recorded, and the judge of histories that the tests use says what was wrong.
"""

from __future__ import annotations

import os
import random
import sys
import time

from bench.tasking import probe
from bench.tasking.loop import ARGUMENT_CHARS
from bench.tasking.onfile.worker import Worker, side_of, wait_until, working

QUEUE = "default"
JOBS_A_KILL = 1000
KILLS_MIN = 2
ALIVE_S = (0.02, 0.3)
SLACK_S = 0.05  # of the clocks


def killed(name, concurrency, jobs, folder):
    """How many kills found jobs running, how many deliveries that cost, and how much was wrong."""
    # Only the project's own environment has what reads histories.
    from tests.support.history import judge, merged, stored_lines

    os.environ[probe.HISTORIES] = "1"
    side = side_of(name, folder)
    # Each job is another one, so that none can stand for a job that was lost.
    side.fill_with(str(number).zfill(ARGUMENT_CHARS) for number in range(jobs))
    kills = max(KILLS_MIN, jobs // JOBS_A_KILL)
    at_work = sum(kill_one(side, concurrency, folder) for _ in range(kills))
    with working(side, concurrency, folder) as worker:
        wait_until(lambda: side.open_jobs() == 0, worker, "drained")
    store = side.app.queue(QUEUE)._open().edge.store
    lines = [*merged(folder.glob("*.history")), *stored_lines(store, [QUEUE])]
    verdict = judge(lines, slack_s=SLACK_S)
    problems = len(verdict.problems) + abs(jobs - side.finished()) + abs(jobs - verdict.jobs)
    if problems:
        print(verdict, file=sys.stderr)
    again = sum(verdict.again.values())
    return {"at_work": at_work, "again": again, "once": side.finished(), "problems": problems}


def kill_one(side, concurrency, folder):
    """Start a worker and kill it at its work; whether jobs were running then."""
    before = side.finished()
    worker = Worker(side, concurrency, folder)
    try:
        wait_until(lambda: side.finished() > before or side.open_jobs() == 0, worker, "at work")
        time.sleep(random.uniform(*ALIVE_S))
    finally:
        worker.kill()
    return side.app.queue(QUEUE).counts().leased > 0
