"""Schedules as an App's users declare them, and as its workers fire them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract import conftest
from tests.contract.conftest import StorageKind
from tests.support.children import child
from tests.support.waiting import WAIT_S, eventually
from tests.tasks import roles
from ulak import App, ArgumentError, Context, Queue
from ulak.core.job import Draft
from ulak.events import Enqueued
from ulak.schedules import Scheduler
from ulak.storage.drive import Edge, run
from ulak.testing import ManualClock

storage = conftest.kind


def fire(app: App, clock: ManualClock, *, after_s: float) -> list[Any]:
    """Let a worker see the schedules, then let time pass and fire what is due: the jobs that came of it."""
    store = app.queue(app.queues[0])._edge.store
    scheduler = Scheduler(tuple(app.schedules), clock.calendar)
    run(Edge(store, clock), scheduler.duty())
    clock.advance(after_s)
    run(Edge(store, clock), scheduler.duty())
    return [job for queue in app.queues for job in app.queue(queue).jobs()]


# Declared


def test_a_plain_function_becomes_a_task_with_a_schedule() -> None:
    app = App(clock=ManualClock())

    @app.cron("0 9 * * 1-5", tz="Europe/Istanbul")
    def report() -> str:
        return "done"

    (schedule,) = app.schedules
    assert report() == "done"
    assert app.tasks[report.name] is report
    assert (schedule.name, schedule.task, schedule.queue) == (report.name, report.name, "default")
    assert repr(schedule.rule) == "Cron('0 9 * * 1-5', tz='Europe/Istanbul')"


def test_a_task_with_settings_keeps_them_in_the_jobs_of_its_schedule() -> None:
    clock = ManualClock()
    with App(clock=clock) as app:

        @app.every(30, kwargs={"name": "Ada"})
        @app.task(queue="mail", priority=7, max_attempts=2)
        async def greet(context: Context, name: str, loud: bool = False) -> None:
            """Never run here."""

        (job,) = fire(app, clock, after_s=30)
    assert (job.queue, job.task, job.priority, job.max_attempts) == ("mail", greet.name, 7, 2)
    assert job.payload == {"name": "Ada"}


def test_a_task_has_as_many_schedules_as_it_has_names_for() -> None:
    app = App()

    @app.every(60)
    @app.every(30, name="twice")
    @app.task
    def sweep() -> None: ...

    assert [schedule.name for schedule in app.schedules] == ["twice", sweep.name]
    with pytest.raises(ArgumentError, match="give this one a name of its own"):
        app.every(10)(sweep)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "name"),
        ((1,), {}, "name"),
        (("Ada",), {"nam": 1}, "nam"),
        (("Ada", 1, 2), {}, "arguments"),
        ((object(),), {}, "name"),
    ],
)
def test_arguments_that_the_task_does_not_take_are_refused_where_they_are_declared(
    args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    app = App()

    @app.task(name="mail.greet")
    def greet(name: str, times: int = 1) -> None: ...

    with pytest.raises(ArgumentError) as raised:
        app.every(30, args=args, kwargs=kwargs)(greet)
    assert "mail.greet" in str(raised.value)
    assert told in str(raised.value)
    assert len(app.schedules) == 0


def test_jobs_of_a_schedule_can_have_options_of_their_own() -> None:
    clock = ManualClock()
    with App(queues=["default", "slow"], clock=clock) as app:

        @app.every(30, using={"unique_key": "sweep", "queue": "slow", "priority": 3})
        def sweep() -> None: ...

        (job,) = fire(app, clock, after_s=30)
        assert (job.queue, job.unique_key, job.priority) == ("slow", "sweep", 3)
        # The job of the tick before is still there.
        assert len(fire(app, clock, after_s=30)) == 1
        assert sweep.enqueue().id == 2


@pytest.mark.parametrize("option", ["idempotency_key", "run_at", "connection", "timeout", "prio"])
def test_options_that_no_tick_could_have_are_refused(option: str) -> None:
    with pytest.raises(ArgumentError, match=f"using has {option!r}; there is delay, expires, priority"):
        App().every(30, using={option: "x"})(print_nothing)


def test_a_task_of_another_app_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a task of another App"):
        App().every(30)(App().task(print_nothing))


def print_nothing() -> None:
    """A task without arguments."""


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.cron("0 9 * *"),
        lambda app: app.cron("0 9 30 2 *"),
        lambda app: app.cron("0 9 * * *", tz="Mars"),
        lambda app: app.every(0),
        lambda app: app.every(30, catch_up="often")(print_nothing),
        lambda app: app.every(30, name="a b")(print_nothing),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_where_it_is_declared(declare: Callable[[App], object]) -> None:
    with pytest.raises(ArgumentError):
        declare(App())


# Fired by workers


def test_s9_workers_of_three_apps_run_one_job_a_tick(storage: StorageKind) -> None:
    url = storage.url()
    told: Counter[str] = Counter()
    lock = threading.Lock()

    def tick(context: Context) -> None:
        with lock:
            told[context.headers["ulak-tick"]] += 1

    with ExitStack() as stack:
        for _ in range(3):
            app = App(url)
            app.every(0.1)(app.task(name="tick")(tick))
            stack.enter_context(app)
            stack.enter_context(app.workers(2))
        eventually(lambda: len(told) >= 10)
    assert set(told.values()) == {1}


def test_s9_three_processes_make_one_job_a_tick_also_while_one_of_them_stands_still(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with ExitStack() as stack:
        q = stack.enter_context(Queue(url))
        processes = [stack.enter_context(child(roles.fires_ticks, url)) for _ in range(3)]

        def ticks() -> list[str]:
            return [job.headers["ulak-tick"] for job in q.jobs(limit=1_000)]

        def go_on(more: int, within_s: float = WAIT_S) -> None:
            wanted = len(ticks()) + more
            eventually(lambda: len(ticks()) >= wanted, within_s)

        for process in processes:
            process.hear("works")
        go_on(5)
        for _ in range(5):
            processes[0].freeze()
            # It may have been just writing; then nobody else can.
            with contextlib.suppress(AssertionError):
                go_on(5, within_s=2.0)
                break
            processes[0].thaw()
            go_on(5)
        else:
            pytest.fail("the other processes fire nothing while one stands still")
        processes[0].thaw()
        go_on(10)
        fired = ticks()
    assert set(Counter(fired).values()) == {1}
    first, last = (datetime.fromisoformat(tick) for tick in (min(fired), max(fired)))
    assert len(fired) == round((last - first) / timedelta(seconds=0.1)) + 1 >= 20


def test_a_schedule_of_an_async_app_is_fired_too(storage: StorageKind) -> None:
    ran = threading.Event()
    app = App(storage.url())

    @app.every(0.1)
    async def tick() -> None:
        ran.set()

    with app, app.workers(1):
        assert ran.wait(20)


def test_a_worker_fires_schedules_of_queues_it_does_not_serve(storage: StorageKind) -> None:
    app = App(storage.url(), queues=["fast", "slow"])

    @app.every(0.1)
    @app.task(queue="slow")
    def tick() -> None: ...

    with app, app.workers(1, queues=["fast"]):
        eventually(lambda: app.queue("slow").counts().ready >= 2)


def test_the_job_of_a_tick_is_told_as_one_that_was_enqueued(storage: StorageKind) -> None:
    app = App(storage.url(), queues=["fast", "slow"])
    told: list[Any] = []
    app.on(told.append)

    @app.every(0.1, using={"unique_key": "k"})
    @app.task(name="tick", queue="slow")
    def tick() -> None: ...

    with app, app.workers(1, queues=["fast"]):
        eventually(lambda: len(told) >= 2)
        (job,) = app.queue("slow").jobs()
    # The second one finds that the first one's job stands for its key.
    assert told[:2] == [Enqueued(job.id, "slow", "tick", existed) for existed in (False, True)]


def test_the_draft_of_a_schedule_shows_no_arguments() -> None:
    app = App()
    app.every(30, args=("secret",))(app.task(name="t")(lambda password: None))
    (schedule,) = app.schedules
    assert isinstance(schedule.draft, Draft)
    assert "secret" not in repr(schedule)
