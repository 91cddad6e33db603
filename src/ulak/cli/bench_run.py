"""One run of a benchmark: workers, a load generator, and what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

from ulak import Backoff, Closed, Counts, Keep, Queue, Retention
from ulak.cli import bench_load
from ulak.cli.bench_crew import Fleet, Here, Watch, Workers
from ulak.cli.bench_figures import figures
from ulak.cli.bench_machine import Meter
from ulak.cli.bench_plan import Figures, Plan
from ulak.cli.bench_produce import BlockedClock, Generator
from ulak.cli.bench_records import Records, shared
from ulak.cli.bench_work import QUEUE
from ulak.core.job import OPEN
from ulak.core.store import Filter
from ulak.errors import ConfigError
from ulak.local import Producer, is_on_server, masked

LOOK_EVERY_S = 0.1
ENDED_KEPT = Keep(1_000, 3600.0)
"""How much of ended jobs stays stored: retention goes on, as with any user, but a file stays small."""


def measure(plan: Plan, watch: Watch, *, log_level: int = logging.WARNING) -> Figures:
    """Run the plan once. Raises ConfigError if the store's own queue for benchmarks is in use."""
    with contextlib.ExitStack() as stack:
        path = None
        if plan.processes is not None:
            path = shared(plan.jobs_all)
            stack.callback(path.unlink)
        records = stack.enter_context(Records(plan.jobs_all, path))
        failures = bench_load.failures(plan)
        if plan.rate:
            for ordinal, due_s in enumerate(bench_load.arrivals(plan)):
                records.due[ordinal] = due_s
        gc.collect()
        return _Run(plan, records, failures, path=path, watch=watch, log_level=log_level).go()


class _Run:
    def __init__(
        self,
        plan: Plan,
        records: Records,
        failures: array[int],
        *,
        path: Path | None,
        watch: Watch,
        log_level: int,
    ) -> None:
        self._plan, self._records, self._failures = plan, records, failures
        self._path, self._watch, self._log_level = path, watch, log_level
        self._clock = BlockedClock()
        self._meter = Meter()
        self._died_of: BaseException | None = None

    def go(self) -> Figures:
        with Queue(self._plan.url, QUEUE, max_attempts=self._plan.max_attempts, clock=self._clock) as queue:
            _set_up(queue, self._plan)
            before = queue.counts()
            with _emptied_if_broken_off(queue):
                lost = self._load(queue)
            after = queue.counts()
        cpu_s, others = self._meter.cpu()
        return dataclasses.replace(
            figures(self._plan, self._records),
            succeeded=after.totals.succeeded - before.totals.succeeded,
            dead_lettered=after.totals.dead_lettered - before.totals.dead_lettered,
            is_as_drawn=self._is_as_drawn(before, after),
            memory_bytes=self._meter.memory_bytes,
            cpu_s=cpu_s,
            cpu_a_job_s=cpu_s / max(1, after.totals.enqueued - before.totals.enqueued),
            # What a server does for this run cannot be told from what it does for others.
            others_cpus=None if is_on_server(self._plan.url) else others,
            lost=lost,
        )

    def _load(self, queue: Queue) -> int:
        """Have all jobs done; how many processes were lost."""
        workers: Workers
        if self._path is None:
            workers = Here(self._plan, queue, self._records, self._failures)
        else:
            workers = Fleet(self._plan, self._path, log_level=self._log_level)
        generator = Generator(self._plan, self._records, queue.enqueue)
        producer = queue.producer()
        threads = [
            threading.Thread(
                target=self._produce, args=(generator, number, producer), name=f"ulak-bench-{number}"
            )
            for number in range(self._plan.producers)
        ]
        try:
            workers.start()
            self._meter.begin(workers.look(0.0))
            generator.begin()
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                self._look(workers, generator)
            if self._died_of is not None:
                raise self._died_of
            producer.finish()
            workers.finish()
            while not workers.have_left(LOOK_EVERY_S):
                self._look(workers, generator)
            return workers.lost
        finally:
            generator.is_stopped = True
            producer.finish()
            workers.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _look(self, workers: Workers, generator: Generator) -> None:
        self._meter.look(workers.look(LOOK_EVERY_S))
        self._watch(f"{sum(generator.called):,} of {self._plan.jobs_all:,} jobs enqueued")

    def _produce(self, generator: Generator, number: int, producer: Producer) -> None:
        try:
            generator.produce(number, self._clock.watch())
        except Closed:
            pass  # the run is being stopped
        except BaseException as error:  # noqa: BLE001 - the thread that watches over the run raises it
            self._died_of = error
            generator.is_stopped = True
            producer.finish()

    def _is_as_drawn(self, before: Counts, after: Counts) -> bool:
        """Whether the jobs ended as it was drawn, each once, and none is left."""
        succeeded = after.totals.succeeded - before.totals.succeeded
        dead = after.totals.dead_lettered - before.totals.dead_lettered
        called = [each for each in range(self._plan.jobs_all) if self._records.called[each]]
        foretold = sum(self._failures[each] >= self._plan.max_attempts for each in called)
        return (succeeded, dead, after.open) == (len(called) - foretold, foretold, 0)


def _set_up(queue: Queue, plan: Plan) -> None:
    """Give the queue the plan's settings. Raises ConfigError if somebody's jobs are in it."""
    if open_jobs := queue.counts().open:
        raise ConfigError(
            f"queue {QUEUE!r} of {masked(plan.url)} has {open_jobs:,} open jobs: of another benchmark that "
            f"runs, or of one that was killed\n  ulak rm -q {QUEUE} --state ready --state scheduled "
            f"--url {masked(plan.url)} --yes removes them"
        )
    queue.configure(
        capacity=plan.capacity,
        backoff=Backoff(plan.base_s, plan.cap_s),
        retention=Retention(ENDED_KEPT, ENDED_KEPT, ENDED_KEPT, ENDED_KEPT),
    )


@contextlib.contextmanager
def _emptied_if_broken_off(queue: Queue) -> Iterator[None]:
    try:
        yield
    except BaseException:
        while queue.delete(Filter(queue=QUEUE, states=OPEN), force=True):
            pass
        raise
