"""A pool's workers, keeper and end under controlled preemption: nothing is lost, run twice or left waiting.

The threads run the flows that a pool's threads run. No time passes, so nobody is rescued by a second look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.contract.steps import Q
from tests.race.controlled import Event, controlled
from tests.race.preempt import Plan, World
from tests.race.races import seeds
from ulak import Queue
from ulak.context import Context
from ulak.core.flows import Flow
from ulak.storage.drive import run as drive
from ulak.testing import ManualClock
from ulak.worker.execute import Handler
from ulak.worker.hands import ThreadHands
from ulak.worker.keeper import Keeper
from ulak.worker.report import PoolMetrics, Report
from ulak.worker.runtime import Crew
from ulak.worker.seat import Seat

LENGTH = (2_500, 100)
SEEDS = seeds(30)


class Handled:
    """What the handler does: it notes its jobs, and fails some.

    meeting: handlers wait until so many of them run at once, with this event.
    """

    def __init__(self, fails: Callable[[Context], bool], moment: Callable[[], int]) -> None:
        self.times: Counter[int] = Counter()
        self.begun: dict[int, int] = {}
        self.meeting: tuple[int, Event] | None = None
        self._moment = moment
        self._fails = fails

    def handle(self, _: object, context: Context) -> None:
        self.times[context.id] += 1
        self.begun[context.id] = self._moment()
        if self.meeting is not None:
            number, all_there = self.meeting
            if self.times.total() == number:
                all_there.set()
            all_there.wait()
        if self._fails(context):
            raise ValueError("injected")


class Shutdown(NamedTuple):
    """What a shutdown reported, and the moments at which workers knew of it and at which it was over."""

    report: Report
    told: int
    over: int


class Works:
    """A queue, a crew of two and all that its threads do."""

    def __init__(
        self, world: World, *, jobs: int = 0, fails: Callable[[Context], bool] = lambda _: False
    ) -> None:
        self.moment = world.moment
        self.clock = ManualClock()
        self.queue = Queue("memory://", Q, clock=self.clock)
        if jobs:
            self.queue.enqueue_many([b"there first"] * jobs)
        opened = self.queue._open()
        self.edge = opened.edge
        self.handled = Handled(fails, world.moment)
        self.crew = Crew(self.edge.store, [opened.queue(Q)], worker="crew", count=2, lease_s=30.0)
        self.hands = ThreadHands(self.edge, self.crew, Handler(self.handled.handle))
        self.producer = self.queue.producer()
        drive(self.edge, self.crew.tally.begin())
        self.threads: list[Callable[[], Any]] = [partial(self.work, seat) for seat in self.crew.seats]

    def work(self, seat: Seat) -> None:
        drive(self.edge, self.crew.work(seat, self.hands))
        self.crew.seat_left(seat)

    def keep(self) -> None:
        def replace_lost() -> Flow[None]:
            yield from ()

        drive(self.edge, Keeper(self.crew, replace_lost).keep())

    def produce(self, jobs: int) -> None:
        with self.producer:
            for _ in range(jobs):
                self.queue.enqueue(b"new")

    def drain(self) -> Report:
        return drive(self.edge, self.crew.drain(None, 30.0, self.hands))

    def shutdown(self, grace_s: float) -> Shutdown:
        """Shut down, noting when the workers were told and when it was over."""

        def noted() -> Flow[Shutdown]:
            flow = self.crew.shutdown(grace_s, self.hands)
            ask, told = next(flow), self.moment()
            while True:
                try:
                    ask = flow.send((yield ask))
                except StopIteration as stop:
                    return Shutdown(stop.value, told, self.moment())

        return drive(self.edge, noted())

    def metrics(self) -> list[PoolMetrics]:
        return [drive(self.edge, self.crew.tally.metrics()) for _ in range(3)]

    def check_end(self) -> None:
        """Nobody works any more, nothing is leased, and the sums hold."""
        assert self.crew.size == 0
        counts = self.queue.counts()
        totals = counts.totals
        assert counts.leased == 0
        assert (totals.processed, totals.failed) == (totals.succeeded + totals.failed, totals.retries)
        assert totals.enqueued == totals.succeeded + counts.open

    def check_stopped(self, shutdown: Shutdown) -> None:
        """Workers took nothing new once told, and no job was done that was begun after the end."""
        self.check_end()
        done = {job.id for job in self.queue.jobs("succeeded")}
        assert all(self.handled.begun[job_id] < shutdown.over for job_id in done)
        late = [job_id for job_id, begun in self.handled.begun.items() if begun > shutdown.told]
        # What a worker had just taken when it was told, it may run.
        assert len(late) <= len(self.crew.seats), late

    def check_drained(self, report: Report, jobs: int, attempts: int = 1) -> None:
        """All jobs were done, each after so many attempts."""
        self.check_end()
        assert (report.drained, report.open, report.released, report.dead) == (True, 0, 0, 0)
        assert self.handled.times == dict.fromkeys(range(1, jobs + 1), attempts)
        assert self.queue.counts().acked == jobs


Case = Callable[[World], tuple[Works, list[Callable[[], Any]], Callable[[Sequence[Any]], None]]]


def a_drain(world: World) -> Any:
    works = Works(world, jobs=1)
    threads = [*works.threads, works.drain, partial(works.produce, 2)]
    return works, threads, lambda answers: works.check_drained(answers[2], 3)


def a_drain_with_retries(world: World) -> Any:
    works = Works(world, jobs=1, fails=lambda job: job.attempt == 1)
    threads = [*works.threads, works.drain, partial(works.produce, 1)]
    return works, threads, lambda answers: works.check_drained(answers[2], 2, attempts=2)


def a_drain_with_a_keeper(world: World) -> Any:
    works = Works(world, jobs=1)
    threads = [*works.threads, works.drain, partial(works.produce, 1), works.keep]

    def check(answers: Sequence[Any]) -> None:
        works.check_drained(answers[2], 2)
        assert works.edge.store.workers() == []

    return works, threads, check


def a_shutdown_within_grace(world: World) -> Any:
    """What runs is finished, what waits is left."""
    works = Works(world, jobs=5)

    def check(answers: Sequence[Any]) -> None:
        works.check_stopped(answers[2])
        assert answers[2].report.released == 0
        assert works.queue.counts().acked == works.handled.times.total()

    return works, [*works.threads, partial(works.shutdown, 30.0), partial(works.produce, 1)], check


def a_shutdown_at_once(world: World) -> Any:
    """What runs is handed back, and its attempt with it."""
    works = Works(world, jobs=5)

    def check(answers: Sequence[Any]) -> None:
        works.check_stopped(answers[2])
        assert all(job.attempt == 0 for job in works.queue.jobs("ready"))
        # What is stale was handed back by the shutdown first.
        stale, begun = works.crew.local_queues[0].stale, works.handled.times.total()
        assert stale <= answers[2].report.released <= 2
        assert begun - stale <= works.queue.counts().acked <= begun

    return works, [*works.threads, partial(works.shutdown, 0.0), works.keep], check


def two_ends_at_once(world: World) -> Any:
    works = Works(world, jobs=1)

    def check(_: Sequence[Any]) -> None:
        works.check_end()
        assert works.queue.counts().acked == works.handled.times.total()

    return (
        works,
        [*works.threads, works.drain, partial(works.shutdown, 30.0), partial(works.produce, 1)],
        check,
    )


def metrics_while_it_works(world: World) -> Any:
    """Each figure only grows, and is off by no more than what two workers have in hand."""
    works = Works(world, jobs=2, fails=lambda job: job.attempt == 1)

    def check(answers: Sequence[Any]) -> None:
        works.check_drained(answers[2], 3, attempts=2)
        (end, *_) = works.metrics()
        assert (end.enqueued, end.processed, end.succeeded, end.failed, end.retries) == (1, 6, 3, 3, 3)
        for before, after in zip([*answers[4]], [*answers[4][1:], end], strict=True):
            assert abs(before.processed - before.succeeded - before.failed) <= 2
            for name in before.__struct_fields__:
                assert 0 <= getattr(before, name) <= getattr(after, name)

    return works, [*works.threads, works.drain, partial(works.produce, 1), works.metrics], check


def workers_leave_by_themselves(world: World) -> Any:
    works = Works(world, jobs=1)

    def check(_: Sequence[Any]) -> None:
        works.check_end()
        assert works.handled.times == {1: 1, 2: 1, 3: 1}

    return works, [*works.threads, partial(works.produce, 2)], check


def a_shutdown_while_producers_go_on(world: World) -> Any:
    """Workers that have nothing to do are woken, and leave."""
    works = Works(world, jobs=1)

    def check(answers: Sequence[Any]) -> None:
        works.check_stopped(answers[2])
        assert answers[2].report.released == 0
        assert works.queue.counts().acked == works.handled.times.total()

    return works, [*works.threads, partial(works.shutdown, 30.0), partial(works.queue.enqueue, b"new")], check


def both_are_needed(bring: Callable[[Works], Any]) -> Case:
    """Two handlers wait for each other, so each job must wake a worker of its own."""

    def case(world: World) -> Any:
        works = Works(world)
        works.handled.meeting = 2, (all_there := Event(world))

        def produce() -> None:
            with works.producer:
                bring(works)
                # Else the end of the producer wakes whom the jobs have not.
                all_there.wait()

        def check(_: Sequence[Any]) -> None:
            works.check_end()
            assert works.handled.times.total() == 2

        return works, [*works.threads, produce], check

    case.__name__ = f"both_are_needed_by_{bring.__name__.strip('_')}"
    return case


def _one_batch(works: Works) -> None:
    works.queue.enqueue_many([b"one", b"two"])


def _two_calls(works: Works) -> None:
    works.queue.enqueue(b"one")
    works.queue.enqueue(b"two")


def _two_with_options(works: Works) -> None:
    works.queue.enqueue(b"one", unique_key="one")
    works.queue.enqueue(b"two", unique_key="two")


def _a_due_job_and_a_new_one(works: Works) -> None:
    works.queue.enqueue(b"later", delay=5)
    works.clock.advance(5.0)
    works.queue.enqueue(b"now")


CASES: tuple[Case, ...] = (
    a_drain,
    a_drain_with_retries,
    a_drain_with_a_keeper,
    a_shutdown_within_grace,
    a_shutdown_at_once,
    two_ends_at_once,
    metrics_while_it_works,
    workers_leave_by_themselves,
    a_shutdown_while_producers_go_on,
    both_are_needed(_one_batch),
    both_are_needed(_two_calls),
    both_are_needed(_two_with_options),
    both_are_needed(_a_due_job_and_a_new_one),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_crew_whose_threads_meet_in_any_way_loses_nothing_and_ends(case: Case) -> None:
    with controlled() as world:
        # What the threads pass under the first seed tells where to stop them.
        _, threads, check = case(world)
        lengths = world.run(threads, Plan(0, [LENGTH] * len(threads), waiting=True)).lengths
        for seed in SEEDS:
            _, threads, check = case(world)
            run = world.run(threads, Plan(seed, lengths, waiting=True))
            run.check()
            try:
                check(run.answers)
            except AssertionError as error:
                error.add_note(run.told())
                raise
