"""What becomes of one side's jobs, as JSON: `python -m bench.killing.measure SIDE WAIT_S FOLDER`.

A worker is killed (SIGKILL, with all its processes) in the middle of some jobs, and another one is started
at once, as whatever watches over workers would.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.killing.plan import ALIVE_S, CONCURRENCY, JOBS, SIDES
from bench.tasking import probe
from bench.tasking.onfile.worker import Worker, wait_until

LOOK_S = 0.02
SETTLE_S = 1.0
"""How long the last job may take from its end to being finished in the store."""


def killed(side, folder, wait_s):
    for number in range(JOBS):
        side.slow(str(number))
    worker = Worker(side, CONCURRENCY, folder)
    try:
        wait_until(lambda: len(noted(folder, "begun")) >= CONCURRENCY, worker, "at work")
        time.sleep(ALIVE_S)
    finally:
        worker.kill()
    killed_at = time.monotonic()
    at_work = set(noted(folder, "begun")) - set(noted(folder, "ended"))
    worker = Worker(side, JOBS, folder)
    try:
        watch(folder, worker, killed_at + wait_s)
        time.sleep(SETTLE_S)
        stored = side.open_jobs()
    finally:
        worker.stop()
    return judged(events(folder), at_work, killed_at, stored)


def watch(folder, worker, until):
    """Wait until every job has ended, or for so long."""
    while time.monotonic() < until and len(set(noted(folder, "ended"))) < JOBS:
        worker.check()
        time.sleep(LOOK_S)


def events(folder):
    path = folder / probe.SLOW
    # What was killed while it wrote has left no whole line.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def noted(folder, what):
    return [event["job"] for event in events(folder) if event["what"] == what]


def judged(events, at_work, killed_at, stored):
    """at_work: jobs that ran when their worker was killed. stored: jobs that are still open in the end.

    again_s: when each of those began again, since the kill. lost: neither done nor stored any more.
    stuck: stored, and not done. twice: done more than once.
    """
    ended = [event["job"] for event in events if event["what"] == "ended"]
    again = {}
    for event in events:
        if event["what"] == "begun" and event["at"] > killed_at:
            again.setdefault(event["job"], event["at"] - killed_at)
    missing = JOBS - len(set(ended))
    stuck = min(missing, stored)
    return {
        "killed": len(at_work),
        "again": sum(job in again for job in at_work),
        "again_s": sorted(again[job] for job in at_work if job in again),
        "others_s": min((at for job, at in again.items() if job not in at_work), default=None),
        "done": len(set(ended)),
        "twice": len(ended) - len(set(ended)),
        "stuck": stuck,
        "lost": missing - stuck,
    }


def main(name, wait_s, parent):
    with tempfile.TemporaryDirectory(prefix="ulak-bench-", dir=parent, ignore_cleanup_errors=True) as folder:
        os.environ[probe.FOLDER] = folder
        module, *told = SIDES[name]
        side = importlib.import_module(module).Side(*told)
        print(json.dumps(killed(side, Path(folder), float(wait_s))))


if __name__ == "__main__":
    main(*sys.argv[1:])
