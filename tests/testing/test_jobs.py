"""`ulak.testing`: the jobs of a test run by the rules of production, on a clock that it moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from unittest.mock import ANY

import pytest

from tests.support.waiting import WAIT_S
from ulak import (
    App,
    ArgumentError,
    Context,
    JobFailed,
    QueueFull,
    Reject,
    ResultTimeout,
    Retry,
    Snooze,
    State,
    WouldDeadlock,
    current_job,
)
from ulak.core.job import Cause
from ulak.testing import Jobs


@dataclass
class Order:
    number: int


# What was enqueued


def test_enqueued_jobs_are_found_by_task_and_arguments(app: App, jobs: Jobs) -> None:
    @app.task
    def welcome(email: str, lang: str = "en") -> None: ...

    @app.task
    def goodbye(email: str) -> None: ...

    welcome.enqueue("ada")
    goodbye.enqueue("ada")
    welcome.using(priority=3, delay=60).enqueue("bob", lang="tr")
    assert [job.task for job in jobs.enqueued()] == [welcome.name, goodbye.name, welcome.name]
    assert [job.arguments for job in jobs.enqueued(welcome)] == [
        {"email": "ada", "lang": "en"},
        {"email": "bob", "lang": "tr"},
    ]
    (job,) = jobs.enqueued(welcome, email="bob")
    assert (job.state, job.priority, job.queue) == (State.SCHEDULED, 3, "default")
    assert job.run_at.timestamp() == jobs.clock.calendar() + 60
    assert len(jobs.enqueued(welcome, email=ANY, lang="en")) == 1
    assert jobs.enqueued(welcome, email="eve") == []
    assert jobs.enqueued(goodbye.name) == jobs.enqueued(goodbye)


def test_arguments_are_those_that_the_task_gets(app: App, jobs: Jobs) -> None:
    @app.task
    def ship(context: Context, order: Order, at: datetime, *more: int, **rest: str) -> None: ...

    at = datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=3)))
    ship.enqueue(Order(3), at, 1, 2, note="fast")
    (job,) = jobs.enqueued(ship, order=Order(3), at=at)
    assert job.arguments == {"order": Order(3), "at": at, "more": (1, 2), "rest": {"note": "fast"}}


def test_what_has_ended_still_counts_as_enqueued(app: App, jobs: Jobs) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    double.enqueue(4)
    jobs.drain()
    jobs.advance("30d")
    (job,) = jobs.enqueued(double, n=4)
    assert (job.state, job.result) == (State.SUCCEEDED, 8)


def test_a_wrong_argument_or_name_is_no_empty_answer(app: App, jobs: Jobs) -> None:
    @app.task(name="mail.welcome")
    def welcome(email: str) -> None: ...

    with pytest.raises(ArgumentError, match="did you mean 'email'"):
        jobs.enqueued(welcome, emial="ada")
    with pytest.raises(ArgumentError, match=r"did you mean 'mail\.welcome'"):
        jobs.enqueued("mail.welcom")
    with pytest.raises(ArgumentError, match="together with the task"):
        jobs.enqueued(email="ada")


def test_jobs_without_a_task_and_of_unknown_arguments_are_enqueued_too(app: App, jobs: Jobs) -> None:
    app.queue("mail").enqueue(b"plain")
    (job,) = jobs.enqueued()
    assert (job.task, job.payload, job.arguments) == (None, b"plain", {})
    assert repr(job).startswith("EnqueuedJob(id=1, task=None, state='ready'")


def test_jobs_of_an_earlier_name_are_the_tasks() -> None:
    before, after = App("memory://shop"), App("memory://shop")

    @before.task(name="old")
    def old(email: str) -> None: ...

    @after.task(name="new", aliases=["old"])
    def new(email: str) -> None: ...

    with Jobs() as jobs:
        old.enqueue("ada")
        new.enqueue("bob")
        assert [job.arguments["email"] for job in jobs.enqueued(new)] == ["ada", "bob"]
        assert [job.arguments["email"] for job in jobs.enqueued(old)] == ["ada"]


# What a drain runs


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_drain_runs_what_is_ready_in_order_and_returns_how_many(app: App, jobs: Jobs, kind: str) -> None:
    ran: list[int] = []

    def note(n: int) -> None:
        ran.append(n)

    async def anote(n: int) -> None:
        await asyncio.sleep(0)
        note(n)

    task = app.task(note if kind == "def" else anote)
    for n in range(3):
        task.using(priority=n % 2).enqueue(n)
    task.using(delay=5).enqueue(9)
    assert jobs.drain() == 3
    assert ran == [1, 0, 2]
    assert jobs.drain() == 0


def test_a_drain_runs_def_tasks_in_the_tests_own_thread(app: App, jobs: Jobs) -> None:
    threads: list[threading.Thread] = []

    @app.task
    def note() -> None:
        threads.append(threading.current_thread())

    note.enqueue()
    jobs.drain()
    assert threads == [threading.current_thread()]


def test_async_tasks_share_one_loop_also_over_several_drains(app: App, jobs: Jobs) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @app.task
    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    @app.task
    def other() -> None: ...

    for _ in range(2):
        note.enqueue()
        jobs.drain()
    assert loops[0] is loops[1]


def test_the_first_queue_of_an_app_comes_first(app: App, jobs: Jobs) -> None:
    ran: list[str] = []

    @app.task
    def note(what: str) -> None:
        ran.append(what)

    note.using(queue="mail").enqueue("mail")
    note.enqueue("default")
    jobs.drain()
    assert ran == ["default", "mail"]


def test_what_a_job_enqueues_is_run_too(app: App, jobs: Jobs) -> None:
    @app.task
    def count_down(n: int) -> None:
        if n:
            count_down.enqueue(n - 1)

    count_down.enqueue(5)
    assert jobs.drain() == 6


def test_tasks_of_an_executor_of_processes_run_in_the_tests_own_thread_too(app: App, jobs: Jobs) -> None:
    ran: list[threading.Thread] = []

    @app.task(timeout=5, kill_after=5)
    def note() -> None:
        ran.append(threading.current_thread())

    note.enqueue()
    assert jobs.drain() == 1
    assert ran == [threading.current_thread()]


def test_a_task_that_comes_later_is_run_too(app: App, jobs: Jobs) -> None:
    @app.task
    def early() -> None: ...

    early.enqueue()
    jobs.drain()

    @app.task
    def late() -> None: ...

    late.enqueue()
    jobs.drain()
    jobs.assert_all_done()


def test_a_drain_without_an_end_fails(app: App, jobs: Jobs) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(AssertionError, match=r"drain\(\) has run 50 jobs and there are more"):
        jobs.drain(limit=50)


def test_a_limit_that_is_just_enough_is_no_failure(app: App, jobs: Jobs) -> None:
    @app.task
    def note() -> None: ...

    note.enqueue_many(note.call() for _ in range(5))
    assert jobs.drain(limit=5) == 5


def test_results_are_there_as_in_production(app: App, jobs: Jobs) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    job = double.enqueue(4)
    jobs.drain()
    assert job.result() == 8


def test_the_apps_middleware_and_events_are_production(app: App, jobs: Jobs) -> None:
    said: list[str] = []
    app.on(lambda event: said.append(type(event).__name__))

    @app.around
    def around(context: Context) -> Iterator[None]:
        said.append("before")
        yield
        said.append("after")

    @app.task
    def note() -> None:
        assert current_job() is not None
        said.append("note")

    note.enqueue()
    jobs.drain()
    assert said == ["Enqueued", "Started", "before", "note", "after", "Succeeded"]


# Failures


def test_a_failure_is_stored_and_its_retry_waits_the_whole_backoff(app: App, jobs: Jobs) -> None:
    @app.task(max_attempts=2)
    def fail() -> None:
        raise ValueError("no such user")

    job = fail.enqueue()
    assert jobs.drain() == 1
    assert job.status() is State.SCHEDULED
    jobs.advance(9)
    assert jobs.drain() == 0
    jobs.advance(1)
    assert jobs.drain() == 1
    assert job.status() is State.DEAD
    (dead,) = jobs.dead
    assert dead.error is not None
    assert (dead.error.type, dead.error.text) == ("ValueError", "no such user")
    with pytest.raises(JobFailed):
        job.result()


def test_errors_name_job_attempt_error_and_place(app: App, jobs: Jobs) -> None:
    @app.task(name="fail", max_attempts=2)
    def fail() -> None:
        raise ValueError("no such user")

    fail.enqueue()
    jobs.drain()
    jobs.advance("10s")
    jobs.drain()
    first, second = jobs.errors
    assert first.startswith("job 1 (fail), attempt 1: ValueError: no such user (tests/testing/test_jobs.py:")
    assert second.startswith("job 1 (fail), attempt 2: ValueError")


def test_what_a_job_asks_for_is_no_error(app: App, jobs: Jobs) -> None:
    @app.task
    def wait(context: Context) -> None:
        if context.delivery == 1:
            raise Snooze(60, "not yet")

    job = wait.enqueue()
    jobs.drain()
    assert jobs.errors == []
    jobs.advance(timedelta(minutes=1))
    jobs.drain()
    assert job.status() is State.SUCCEEDED


def test_assert_all_done_says_of_each_other_job_how_it_is_and_why(app: App, jobs: Jobs) -> None:
    @app.task(name="fail")
    def fail() -> None:
        raise Retry(after=30, reason="the server is away")

    @app.task(name="reject")
    def reject() -> None:
        raise Reject("never")

    @app.task(name="fine")
    def fine() -> None: ...

    jobs.assert_all_done()
    for task in (fail, reject, fine):
        task.enqueue()
    fine.using(delay=5).enqueue().cancel()
    jobs.drain()
    with pytest.raises(AssertionError) as error:
        jobs.assert_all_done()
    first, retry, why, rejected, why_rejected = str(error.value).splitlines()
    assert first == "not all jobs are done"
    assert retry == "job 1 (fail) is scheduled: due in 30.0 s"
    assert why.startswith("    attempt 1: Retry: the server is away (tests/testing/test_jobs.py:")
    assert rejected.startswith("job 2 (reject) is dead: ")
    assert why_rejected.startswith("    attempt 1: Reject: never")


def test_production_refuses_here_too(app: App, jobs: Jobs) -> None:
    @app.task
    def fill() -> None:
        for _ in range(3):
            app.queue("mail").enqueue(b"")

    fill.enqueue()
    jobs.drain()
    assert [error.split(": ")[1] for error in jobs.errors] == [WouldDeadlock.__name__]
    assert jobs.counts("mail").open == 2
    with pytest.raises(QueueFull):
        app.queue("mail").enqueue(b"", timeout=0)


def test_a_time_limit_is_on_the_tests_clock(app: App, jobs: Jobs) -> None:
    @app.task(timeout=5)
    def slow(context: Context) -> None:
        jobs.clock.advance(6)
        assert context.cancelled

    slow.enqueue()
    jobs.drain()
    (job,) = jobs.enqueued()
    assert job.history[0].cause is Cause.TIMEOUT


# Workers that die


def test_a_crash_after_the_run_delivers_the_job_again(app: App, jobs: Jobs) -> None:
    seen: list[tuple[int, bool]] = []

    @app.task
    def note(context: Context) -> None:
        seen.append((context.attempt, context.redelivered))

    jobs.crash_worker()
    first, second = note.enqueue(), note.enqueue()
    assert jobs.drain() == 3
    assert seen == [(1, False), (2, True), (1, False)]
    assert first.info().crashes == 1
    assert [first.status(), second.status()] == [State.SUCCEEDED, State.SUCCEEDED]
    assert jobs.errors == []


def test_a_crash_at_the_last_attempt_is_the_end_of_the_job(app: App, jobs: Jobs) -> None:
    @app.task(max_attempts=1)
    def note() -> None: ...

    jobs.crash_worker()
    note.enqueue()
    jobs.drain()
    assert [job.state for job in jobs.dead] == [State.DEAD]


def test_every_job_can_be_run_twice(app: App, jobs: Jobs) -> None:
    ran: list[int] = []

    @app.task
    def charge(n: int) -> None:
        ran.append(n)

    @app.task(max_attempts=1)
    def once(n: int) -> None:
        ran.append(n)

    with jobs.run_twice():
        charge.enqueue(1)
        charge.enqueue(2)
        once.enqueue(3)
        jobs.drain()
    charge.enqueue(4)
    jobs.drain()
    jobs.assert_all_done()
    assert ran == [1, 1, 2, 2, 3, 4]
    jobs.run_twice()
    charge.enqueue(5)
    jobs.drain()
    assert ran[6:] == [5, 5]


# Event loops


def test_a_drain_works_where_a_loop_runs(app: App, jobs: Jobs) -> None:
    said: list[str] = []

    @app.task
    async def acall() -> None:
        said.append("async def")

    @app.task
    def call() -> None:
        asyncio.run(asyncio.sleep(0))
        said.append("def")

    async def main() -> None:
        await acall.aenqueue()
        job = await call.aenqueue()
        assert jobs.drain() == 2
        assert await job is None

    asyncio.run(main())
    assert said == ["async def", "def"]
    assert jobs.errors == []


# What ends a test


def test_what_ends_the_test_is_not_taken_for_a_failed_job(app: App, jobs: Jobs) -> None:
    error: list[BaseException] = [KeyboardInterrupt(), pytest.fail.Exception("stop here")]

    @app.task
    def end() -> None:
        raise error.pop()

    end.enqueue()
    with pytest.raises(pytest.fail.Exception, match="stop here"):
        jobs.drain()
    end.enqueue()
    with pytest.raises(KeyboardInterrupt):
        jobs.drain()
    assert jobs.errors == []


def test_a_drain_inside_a_job_is_refused(app: App, jobs: Jobs) -> None:
    @app.task
    def drain() -> None:
        jobs.drain()

    drain.enqueue()
    jobs.drain()
    assert "drain() is called by a job" in jobs.errors[0]


def test_waiting_for_what_nobody_runs_fails_with_a_hint(
    app: App, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def note() -> None: ...

    monkeypatch.setattr(type(jobs.clock), "_patience_s", 0.01)
    with pytest.raises(AssertionError, match=r"jobs run when the test calls jobs\.drain\(\)"):
        note.enqueue().result()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_awaiting_what_nobody_runs_fails_with_the_same_hint(
    app: App, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    @app.task
    async def note() -> None: ...

    monkeypatch.setattr(type(jobs.clock), "_patience_s", 0.01)

    async def main() -> None:
        with pytest.raises(AssertionError, match=r"jobs run when the test calls jobs\.drain\(\)"):
            await (await note.aenqueue()).aresult(timeout)

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_who_waits_on_an_event_loop_is_woken_by_the_tests_time(app: App, jobs: Jobs) -> None:
    @app.task
    async def note() -> int:
        return 3

    async def main() -> int:
        job = await note.aenqueue()
        late = asyncio.create_task(job.aresult(timeout=60))
        await asyncio.sleep(0)
        assert jobs.clock.sleepers == 1
        jobs.advance(60)
        with pytest.raises(ResultTimeout):
            await late
        jobs.drain()
        return await job

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == 3


def test_a_queue_or_an_argument_that_there_is_not_is_told_the_nearest(app: App, jobs: Jobs) -> None:
    @app.task(name="send", queue="mail")
    def send(to: str) -> None: ...

    send.enqueue("ada")
    with pytest.raises(ArgumentError, match="no App has used a queue 'mial'; did you mean 'mail'"):
        jobs.counts("mial")
    with pytest.raises(ArgumentError, match="task send has no argument 'too'; did you mean 'to'"):
        jobs.enqueued(send, too="ada")
    with pytest.raises(ArgumentError, match="task send has no argument 'zzz'; there is to"):
        jobs.enqueued(send, zzz="ada")
