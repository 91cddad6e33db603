"""One worker process of a demo: takes jobs until its stdin is closed and nothing is open, or is killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from ulak import Context, Queue, UlakError
from ulak.cli import logs
from ulak.cli.demo_meter import InjectedFailure, Payload
from ulak.cli.demo_plan import Plan
from ulak.cli.demo_run import END_LOOK_EVERY_S, Note
from ulak.cli.output import say, visible
from ulak.cli.stops import Stops
from ulak.failures import fails
from ulak.worker.supervisor import Tie


def main(order: str) -> int:
    """Work until the end; 0 then, and also when a signal has ended it in time.

    order: JSON with `plan`, `log_format` and `log_level`.
    """
    inbox: SimpleQueue[Note] = SimpleQueue()
    with Stops(inbox):
        tie = Tie(lambda: inbox.put(None))
        settings = json.loads(order)
        plan, log_level = Plan(**settings["plan"]), int(settings["log_level"])
        with logs.shown(settings["log_format"], log_level):
            try:
                _work(plan, inbox, _Notes(tie, log_level))
            except UlakError as error:
                say(f"process {os.getpid()}: error {error.code}: {visible(str(error))}", to=sys.stderr)
                return 1
    return 0


def crashes(plan: Plan, ordinal: int, delivery: int) -> bool:
    """Whether this delivery of a job kills its process: drawn apart from whether its attempt fails."""
    # No job has a negative ordinal, so these draws are none of those.
    return fails(plan.seed, -ordinal, delivery, plan.crash_rate)


def _work(plan: Plan, inbox: SimpleQueue[Note], notes: _Notes) -> None:
    def handle(payload: Payload, context: Context) -> None:
        ordinal = payload["ordinal"]
        if crashes(plan, ordinal, context.delivery):
            os.kill(os.getpid(), signal.SIGKILL)
        if fails(plan.seed, ordinal, context.attempt, plan.fail_rate):
            raise InjectedFailure(f"seed {plan.seed} fails attempt {context.attempt} of job {ordinal}")

    with notes.listening(), Queue(plan.url, "demo", max_attempts=plan.max_attempts) as queue:
        pool = queue.workers(handle, count=plan.workers)
        pool.start()
        try:
            note = inbox.get()
            if note is None:
                queue.mark_producer_finished()
            while note is None and pool.size:
                try:
                    note = inbox.get(timeout=END_LOOK_EVERY_S)
                except Empty:
                    continue
        finally:
            notes.is_ending = True
            pool.shutdown()


class _Notes(logging.Filter):
    """Hears from the pool's log that a first job is settled, and tells the parent.

    Of what the pool says it keeps back what would bury all else: the failures that the run itself injects,
    and at the end the jobs that are left open; both are in the summary.
    """

    def __init__(self, tie: Tie, log_level: int) -> None:
        super().__init__()
        self._tie = tie
        self._log_level = log_level
        self.is_ending = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, listen. A success is said at DEBUG, so the logger lets that through until it came."""
        logger = logging.getLogger("ulak")
        logger.addFilter(self)
        logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logger.setLevel(self._log_level)
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Report the first settled job; whether to pass the record on."""
        if not hasattr(record, "job_id"):
            is_known = self.is_ending and record.levelno <= logging.WARNING
            return record.levelno >= self._log_level and not is_known
        self._tie.report_settled()
        logging.getLogger("ulak").setLevel(self._log_level)
        return self._log_level <= min(record.levelno, logging.INFO)
