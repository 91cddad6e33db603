"""The run of a demo with several processes: this one produces and watches, its children work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from ulak import Backoff, Closed, Counts, JobInfo, NewJob, Queue, State
from ulak.cli.child_command import child_command
from ulak.cli.demo_meter import Payload
from ulak.cli.demo_plan import Fleet, Plan, Result, Snapshot
from ulak.cli.demo_run import (
    DEAD_LETTERS_SHOWN,
    WATCH_EVERY_S,
    Note,
    dead_letter,
    ended,
    peak_rss_bytes,
    set_up,
)
from ulak.clock import SYSTEM
from ulak.core.job import OPEN, Cause
from ulak.failures import predict
from ulak.local import Producer
from ulak.worker.supervisor import Supervisor

BATCH_MAX = 100
GRACE_S = 30.0
FAILURES_MAX = 5
RESTART = Backoff(base=0.05, cap=2.0)
_SUMS = ("enqueued", "processed", "succeeded", "failed", "retries", "dead_lettered", "reclaimed")
_OTHERS = ("redriven", "cut", "cancelled", "expired", "deleted")
_PAGE = 1_000
_PAGES_MAX = 10


class FleetRun:
    """One demo in several processes. `inbox` is where signals ask for a stop.

    First it finishes what an earlier run has left open in the file, then it does its own jobs.
    """

    def __init__(
        self, plan: Plan, inbox: SimpleQueue[Note], *, log_format: str, log_level: int = logging.WARNING
    ) -> None:
        assert plan.processes is not None
        self._plan = plan
        self._inbox = inbox
        self._log_level = log_level
        self._supervisor = Supervisor(
            _command(plan, log_format, log_level), plan.processes, backoff=RESTART, failures_max=FAILURES_MAX
        )
        self._queue = Queue(plan.url, "demo", max_attempts=plan.max_attempts)
        self._stopping = threading.Event()
        self._produced = False
        self._producer_died_of: BaseException | None = None
        self._before = Counts()
        self._first_id: int | None = None
        self._peak_open = 0
        self._started_at = self._producing_at = self._watch_at = 0.0
        self._started_on = 0.0
        self._left_s: float | None = None
        self._producing_s = self._blocked_s = 0.0

    def go(self, watch: Callable[[Snapshot], None]) -> Result:
        """Run it to its end, or until a signal's number comes into the inbox.

        watch: is shown how far it is, ten times a second; what it raises stops the run at once.
        """
        queue = self._queue
        with queue, self._supervisor, _without_kills(self._log_level):
            set_up(queue, self._plan)
            self._before = queue.counts()
            self._first_id = next((job.id for job in queue.jobs(OPEN, limit=1)), None)
            self._started_at, self._started_on = SYSTEM.interval(), SYSTEM.calendar()
            producer = queue.producer()
            thread = threading.Thread(target=self._produce, args=(producer,), name="ulak-demo-producer")
            try:
                stopped = self._tend(watch, thread)
            finally:
                # In this order: a producer that waits for room hears that it is over.
                self._stopping.set()
                producer.finish()
                self._supervisor.stop(GRACE_S)
                if thread.ident is not None:
                    thread.join()
            if self._producer_died_of is not None:
                raise self._producer_died_of
            watch(self._snapshot(queue.counts()))
            return self._result(stopped=stopped)

    def _tend(self, watch: Callable[[Snapshot], None], thread: threading.Thread) -> bool:
        """Finish what was left, start the producer, let the children go; whether a signal came before."""
        if self._before.open and self._until(lambda counts: counts.open == 0, watch):
            return True
        self._left_s = SYSTEM.interval() - self._started_at if self._before.open else 0.0
        self._producing_at = SYSTEM.interval()
        thread.start()
        if self._until(lambda _: self._produced, watch):
            return True
        if self._producer_died_of is not None:
            return False
        self._supervisor.finish()
        return self._until(lambda _: self._supervisor.is_over, watch)

    def _until(self, fact: Callable[[Counts], bool], watch: Callable[[Snapshot], None]) -> bool:
        """Keep the children running until the fact holds (False), or a signal came (True)."""
        counts = self._queue.counts()
        while not fact(counts):
            self._supervisor.tend(WATCH_EVERY_S / 2)
            if SYSTEM.interval() >= self._watch_at:
                counts = self._queue.counts()
                watch(self._snapshot(counts))
                self._watch_at = SYSTEM.interval() + WATCH_EVERY_S
            with contextlib.suppress(Empty):
                if self._inbox.get_nowait() is not None:
                    return True
        return False

    def _produce(self, producer: Producer) -> None:
        """Enqueue every job, in the producer's thread."""
        try:
            ordinal = 1
            while ordinal <= self._plan.jobs:
                ordinal += self._enqueue(ordinal)
        except Closed:
            pass  # the run is being stopped
        except BaseException as error:  # noqa: BLE001 - the thread that watches over the run raises it
            self._producer_died_of = error
        self._producing_s = SYSTEM.interval() - self._producing_at
        producer.finish()
        self._produced = True

    def _enqueue(self, first: int) -> int:
        """Enqueue the jobs that are due, in one step; how many."""
        plan = self._plan
        # A quarter of the capacity: the workers are to have something left while it waits for room.
        size = min(BATCH_MAX, max(1, plan.capacity // 4), plan.jobs - first + 1)
        if plan.rate:
            wait_s = self._producing_at + (first - 1) / plan.rate - SYSTEM.interval()
            if wait_s > 0:
                SYSTEM.wait(self._stopping, wait_s)
            size = max(1, min(size, int(plan.rate * (SYSTEM.interval() - self._producing_at)) + 2 - first))
        due_at = SYSTEM.interval()
        jobs: list[object] = []
        for ordinal in range(first, first + size):
            payload: Payload = {"ordinal": ordinal, "due_at": due_at}
            jobs.append(NewJob(payload, priority=ordinal % plan.priorities))
        has_room = self._queue.counts().open + size <= plan.capacity
        ids = self._queue.enqueue_many(jobs)
        self._blocked_s += 0.0 if has_room else SYSTEM.interval() - due_at
        self._first_id = self._first_id or ids[0]
        self._peak_open = max(self._peak_open, self._queue.counts().open)
        return size

    def _snapshot(self, counts: Counts) -> Snapshot:
        now = SYSTEM.interval()
        return Snapshot(
            elapsed_s=now - self._started_at,
            ended=ended(counts) - ended(self._before),
            open=counts.open,
            retrying=counts.scheduled,
            blocked_s=self._blocked_s,
            producing_s=self._producing_s or (now - self._producing_at if self._producing_at else 0.0),
        )

    def _result(self, *, stopped: bool) -> Result:
        plan, before, counts = self._plan, self._before, self._queue.counts()
        dead = list(self._dead())
        grown = {
            name: getattr(counts.totals, name) - getattr(before.totals, name) for name in (*_SUMS, *_OTHERS)
        }
        is_foretold = not (stopped or before.open or grown["reclaimed"] or self._supervisor.ends)
        return Result(
            plan=plan,
            stopped=stopped,
            **{name: grown[name] for name in _SUMS},
            stale=0,
            rejected=0,
            open=counts.open,
            dead_kept=max(0, counts.dead - before.dead),
            dead_letters=tuple(dead_letter(job) for job in dead[:DEAD_LETTERS_SHOWN]),
            latency=None,
            predicted=predict(plan.seed, plan.jobs, plan.max_attempts, plan.fail_rate)
            if is_foretold
            else None,
            peak_open=self._peak_open,
            producing_s=self._producing_s,
            blocked_s=self._blocked_s,
            elapsed_s=SYSTEM.interval() - self._started_at,
            peak_rss_bytes=peak_rss_bytes(),
            fleet=Fleet(
                started=self._supervisor.started,
                kills=self._supervisor.killed,
                other_ends=self._supervisor.ends.total() - self._supervisor.killed,
                left=before.open,
                left_s=self._left_s,
                dead_by_crash=sum(job.history[-1].cause is Cause.LOST for job in dead),
                **{name: grown[name] for name in _OTHERS},
            ),
        )

    def _dead(self) -> Iterator[JobInfo]:
        """The dead letters of this run and of what it found open, by id."""
        after = (self._first_id or 1) - 1
        for _ in range(_PAGES_MAX):
            page = self._queue.jobs(State.DEAD, after=after, limit=_PAGE)
            if not page:
                return
            after = page[-1].id
            for job in page:
                if job.ended_at is not None and job.ended_at.timestamp() >= self._started_on:
                    yield job


def _command(plan: Plan, log_format: str, log_level: int) -> list[str]:
    order = {"plan": dataclasses.asdict(plan), "log_format": log_format, "log_level": log_level}
    return child_command("demo_child", json.dumps(order))


@contextlib.contextmanager
def _without_kills(log_level: int) -> Iterator[None]:
    """While inside, of processes that were killed nothing is said below INFO: the summary counts them."""

    def is_news(record: logging.LogRecord) -> bool:
        return getattr(record, "child_status", 0) >= 0 or log_level <= logging.INFO

    logger = logging.getLogger("ulak")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
