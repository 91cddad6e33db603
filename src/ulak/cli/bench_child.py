"""One worker process of a benchmark: takes jobs until its stdin is closed and nothing is open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from queue import SimpleQueue

from ulak import Queue, UlakError
from ulak.cli import logs
from ulak.cli.bench_load import failures
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_records import Records
from ulak.cli.bench_work import QUEUE, pool_of
from ulak.cli.output import visible
from ulak.cli.stops import Stops, next_note
from ulak.worker.supervisor import Tie, Word


def main(order: str) -> int:
    """Work until the end; 0 then. order: JSON with `plan`, `path` of the records, and `log_level`."""
    inbox: SimpleQueue[int | None] = SimpleQueue()
    with Stops(inbox, has_parent=True):
        tie = Tie(lambda: inbox.put(None))
        settings = json.loads(order)
        plan = Plan(**settings["plan"])
        with logs.shown("console", int(settings["log_level"])):
            try:
                _work(plan, Path(settings["path"]), inbox, tie)
            except UlakError as error:
                tie.report(Word.FAILED, visible(str(error)))
                return 1
    return 0


def _work(plan: Plan, path: Path, inbox: SimpleQueue[int | None], tie: Tie) -> None:
    with (
        Records(plan.jobs_all, path) as records,
        Queue(plan.url, QUEUE, max_attempts=plan.max_attempts) as queue,
        pool_of(plan, queue, records, failures(plan)) as pool,
    ):
        tie.report(Word.WORKS)
        if next_note(inbox) is not None:
            sys.exit(0)
        queue.mark_producer_finished()
        pool.join()
