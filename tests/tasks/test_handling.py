"""How jobs of tasks are run: contexts, endings, errors, time-outs, backoff functions, middleware, events."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.pools import Gate, causes
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import (
    App,
    ArgumentError,
    Backoff,
    Cancel,
    Context,
    Job,
    JobFailed,
    Reject,
    Retry,
    Snooze,
    State,
    current_job,
)
from ulak import events as told
from ulak.testing import ManualClock
from ulak.worker import advice

KINDS = ("def", "async def")


@pytest.fixture(params=KINDS)
def style(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


def run_all(app: App, count: int = 2) -> None:
    """Run what is ready, to the end."""
    with app.workers(count) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def outcome(app: App, work: Any, style: str = "def", **settings: Any) -> Job[Any]:
    """The job of a task that does this work, once all is done."""
    # Annotations of a function that wraps it.
    function = work if style == "def" else awaiting(work)
    task = app.task(**{"name": "t", "max_attempts": 3, **settings})(function)
    job = task.enqueue()
    run_all(app)
    return job


def awaiting(work: Any) -> Any:
    @functools.wraps(work)
    async def function(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return work(*args, **kwargs)

    return function


# Contexts


def test_a_context_knows_the_job(app: App, style: str) -> None:
    def look(ctx: Context) -> list[Any]:
        assert current_job() is ctx
        return [ctx.id, ctx.task, ctx.queue, ctx.attempt, ctx.max_attempts, ctx.delivery, ctx.redelivered]

    job = outcome(app, look, style)
    assert job.result() == [job.id, "t", "default", 1, 3, 1, False]
    assert current_job() is None


def test_a_context_that_was_kept_knows_that_its_job_has_ended(app: App, style: str) -> None:
    kept: list[Context] = []

    def keep(ctx: Context) -> bool:
        kept.append(ctx)
        return ctx.ended

    assert outcome(app, keep, style).result() is False
    assert kept[0].ended


def test_a_context_may_come_by_name(app: App, style: str) -> None:
    def look(*, job: Context | None = None) -> int:
        assert job is not None
        return job.id

    job = outcome(app, look, style)
    assert job.result() == job.id


def test_an_async_task_beside_others_runs_on_one_loop_of_the_pool(app: App) -> None:
    loops = []

    @app.task
    async def where(n: int) -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return threading.current_thread().name

    @app.task
    def thread() -> str:
        return threading.current_thread().name

    with app.workers(3):
        names = {where.enqueue(n).result(WAIT_S) for n in range(4)}
        assert thread.enqueue().result(WAIT_S) not in names
    assert len(names) == len(set(loops)) == 1
    assert names.pop().startswith("ulak-tasks-")


def test_async_tasks_alone_run_on_the_callers_loop(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    async def where() -> bool:
        return asyncio.get_running_loop() is loops[0]

    loops = []

    async def main() -> bool:
        loops.append(asyncio.get_running_loop())
        async with app.aworkers(2):
            return await (await where.aenqueue())

    assert asyncio.run(main()) is True


@pytest.mark.parametrize("how", ["aworkers", "lifespan"])
def test_async_tasks_beside_others_run_on_the_callers_loop_too(app: App, how: str) -> None:
    async def where() -> bool:
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is loops[0]

    work = app.task(name="async")(where)
    given = app.task(name="given")(lambda: where())  # noqa: PLW0108 - so that it is no async def
    thread = app.task(name="thread")(lambda: threading.current_thread() is threading.main_thread())
    loops: list[Any] = []

    async def main() -> list[Any]:
        loops[:] = [asyncio.get_running_loop()]
        async with app.aworkers(2) if how == "aworkers" else app.lifespan(count=2):
            jobs = [await task.aenqueue() for task in (work, given, thread, work)]
            return [await job.aresult(WAIT_S) for job in jobs]

    # Each time it is another one.
    for _ in range(2):
        assert asyncio.run(main()) == [True, True, False, True]


def test_what_was_made_on_the_callers_loop_can_be_used_by_tasks_beside_others(app: App) -> None:
    app.task(name="thread")(lambda: None)

    async def main() -> int:
        answers: asyncio.Queue[int] = asyncio.Queue()

        @app.task
        async def ask() -> int:
            return await answers.get()

        async with app.aworkers(1):
            job = await ask.aenqueue()
            # It waits there, on an object that belongs to one loop.
            while not answers._getters:  # noqa: ASYNC110 - it is another thread's job that gets there
                await asyncio.sleep(0.001)
            answers.put_nowait(7)
            return await job.aresult(WAIT_S)

    assert asyncio.run(main()) == 7


def test_a_shutdown_cancels_an_async_task_beside_others_on_the_callers_loop(app: App) -> None:
    app.task(name="thread")(lambda: None)
    seen: list[str] = []

    @app.task
    async def forever() -> None:
        seen.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async def main() -> Job[None]:
        async with app.aworkers(1) as pool:
            job = await forever.aenqueue()
            while not seen:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
            assert (await pool.shutdown(0)).released == 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert seen == ["started", "ended"]
        return job

    info = asyncio.run(main()).info()
    assert (info.state, info.attempt) == (State.READY, 0)


def test_a_pool_whose_callers_loop_was_closed_under_it_runs_async_tasks_on_its_own(app: App) -> None:
    app.task(name="thread")(lambda: None)
    loops: list[Any] = []

    @app.task
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    pool = app.aworkers(1)

    async def main() -> Any:
        await pool.start()
        await (await where.aenqueue())
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    where.enqueue().result(WAIT_S)
    assert loops[0] is loop
    assert loops[1] is not loop
    asyncio.run(pool.shutdown())


def test_an_async_task_that_finds_no_loop_waits_unspent(app: App, monkeypatch) -> None:
    app.task(name="thread")(lambda: None)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("ulak-tasks-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    job = app.task(name="t")(awaiting(lambda: 7)).enqueue()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with app.workers(1):
            eventually(lambda: job.info().history)
            patched.undo()
            assert job.result(WAIT_S) == 7
    first, *_ = job.info().history
    assert (first.cause, first.error.text, job.info().attempt) == ("release", "can't start new thread", 1)


def test_a_def_that_gives_a_coroutine_has_it_awaited(app: App) -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @app.task
    @decorated
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    job = double.enqueue(4)
    run_all(app)
    assert job.result() == 8


def test_a_coroutine_that_gives_another_has_that_awaited_too(app: App) -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 3

    async def outer() -> Any:
        return inner()

    job = app.task(name="t")(outer).enqueue()
    run_all(app)
    assert job.result() == 3


def test_an_exit_of_a_given_coroutine_leaves_the_loop_to_others(app: App) -> None:
    async def leave() -> None:
        raise SystemExit

    async def stay() -> int:
        return 3

    def of(function: Any) -> Any:
        return lambda: function()  # noqa: PLW0108 - so that it is no async def

    jobs = [app.task(name=f"t{n}", max_attempts=1)(of(leave)).enqueue() for n in range(3)]
    jobs.append(app.task(name="t")(of(stay)).enqueue())
    run_all(app)
    assert [job.wait() for job in jobs] == [State.DEAD] * 3 + [State.SUCCEEDED]
    assert jobs[-1].result() == 3


def test_tasks_of_both_kinds_run_at_once_in_one_pool(app: App) -> None:
    with Gate() as gate:
        work = {kind: gate.handler(kind) for kind in KINDS}

        @app.task
        def held() -> None:
            work["def"](None)

        @app.task
        async def aheld() -> None:
            await work["async def"](None)

        with app.workers(4):
            jobs = [task.enqueue() for task in (held, aheld, held, aheld)]
            gate.entered(4)
            gate.open()
            assert [job.wait(WAIT_S) for job in jobs] == [State.SUCCEEDED] * 4


# Endings


def test_a_task_may_ask_for_another_attempt_later(app: App, style: str) -> None:
    def work() -> int:
        job = current_job()
        assert job is not None
        if job.attempt == 1:
            raise Retry(after=timedelta(0), reason="busy")
        return job.attempt

    job = outcome(app, work, style)
    assert job.result() == 2
    first = job.info().history[0]
    assert (first.cause, first.error.text) == ("nack", "busy")


def test_a_snooze_does_not_count(app: App, style: str) -> None:
    def work() -> list[int]:
        job = current_job()
        assert job is not None
        if job.delivery < 3:
            raise Snooze(0)
        return [job.attempt, job.delivery]

    assert outcome(app, work, style).result() == [1, 3]


@pytest.mark.parametrize(
    ("error", "state", "cause"),
    [(Reject("bad address"), State.DEAD, "reject"), (Cancel("not wanted"), State.CANCELLED, "cancel")],
)
def test_a_task_may_end_its_job_at_once(app: App, style: str, error, state, cause) -> None:
    def work() -> None:
        raise error

    job = outcome(app, work, style)
    assert (job.status(), causes(job.info())) == (state, [cause])
    assert job.info().error.text == str(error)


def test_r9_what_no_attempt_could_mend_is_dead_at_once_with_its_reason(app: App, style: str) -> None:
    def work() -> None:
        raise LookupError("no such address")

    job = outcome(app, work, style, give_up_on=(ValueError, LookupError))
    assert (job.status(), causes(job.info()), job.info().attempt) == (State.DEAD, ["error"], 1)
    assert job.info().error.text == "no such address"
    with pytest.raises(JobFailed, match="is dead after 1 of 3 attempts: LookupError: no such address"):
        job.result()


def test_only_what_is_named_is_tried_again(make_app: MakeApp, style: str) -> None:
    def fail(kind: type[Exception]) -> Any:
        def work() -> None:
            raise kind

        return work

    app = make_app()
    settings = {"retry_on": (OSError, ExceptionGroup), "give_up_on": FileNotFoundError}
    names = {ConnectionError: 3, KeyError: 1, FileNotFoundError: 1}
    jobs = {}
    for kind in names:
        work = fail(kind) if style == "def" else awaiting(fail(kind))
        jobs[kind] = app.task(name=kind.__name__, max_attempts=3, **settings)(work).enqueue()
    run_all(app)
    assert {kind: job.info().attempt for kind, job in jobs.items()} == names


def test_a_group_is_given_up_if_each_of_its_errors_is(app: App) -> None:
    def work(only: bool) -> None:
        errors = [ValueError(), ExceptionGroup("inner", [ValueError()])]
        raise ExceptionGroup("outer", errors if only else [*errors, OSError()])

    task = app.task(name="t", max_attempts=2, give_up_on=ValueError)(work)
    jobs = [task.enqueue(True), task.enqueue(False)]
    run_all(app)
    assert [job.info().attempt for job in jobs] == [1, 2]


def test_a_hostile_class_of_exceptions_is_an_ordinary_failure(app: App, style: str) -> None:
    class Meta(type):
        def __subclasscheck__(cls, subclass: type) -> bool:
            raise RuntimeError

    class Hostile(Exception, metaclass=Meta):
        pass

    def work() -> None:
        raise Hostile

    job = outcome(app, work, style, give_up_on=Hostile, max_attempts=2)
    assert causes(job.info()) == ["error", "error"]


def test_a_result_that_cannot_be_stored_is_a_failed_attempt_that_says_so(app: App, style: str) -> None:
    job = outcome(app, lambda: {1, 2}, style, max_attempts=2)
    assert causes(job.info()) == ["error", "error"]
    with pytest.raises(JobFailed, match="PayloadError: the result: a set would come back as a list"):
        job.result(timeout=5)
    assert job.info().result_body is None


def test_a_result_that_is_too_large_is_a_failed_attempt(app: App) -> None:
    job = outcome(app, lambda: "x" * 70_000, max_attempts=1)
    with pytest.raises(JobFailed, match="PayloadError: the result is more than 65,536 bytes"):
        job.result(timeout=5)


BEYOND = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", BEYOND)
def test_whatever_a_task_raises_its_worker_goes_on(app: App, style: str, error) -> None:
    def work() -> None:
        raise error

    job = outcome(app, work, style, max_attempts=2)
    assert causes(job.info()) == ["error", "error"]
    assert job.info().error.type == type(error).__name__


# Time-outs


def test_an_async_task_is_stopped_when_its_time_is_over(app: App) -> None:
    stopped = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(current_job().timed_out)

    task = app.task(name="t", timeout=0.02, max_attempts=2)(forever)
    job = task.enqueue()
    run_all(app)
    assert causes(job.info()) == ["timeout", "timeout"]
    error = job.info().error
    assert (error.type, error.text) == (
        "TimeoutError",
        "the job ran longer than the task's timeout of 0.02 s",
    )
    assert stopped == [True, True]


def test_an_async_task_is_stopped_by_its_loops_clock_where_a_test_owns_the_other(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed()

    async def forever() -> None:
        await asyncio.Event().wait()

    job = app.task(name="t", timeout=0.02, max_attempts=1)(forever).enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is State.DEAD)
        pool.shutdown(0)
    assert causes(job.info()) == ["timeout"]


def test_a_time_out_of_the_tasks_own_is_an_error_as_any(app: App, style: str) -> None:
    def work() -> None:
        raise TimeoutError("the server's")

    job = outcome(app, work, style, timeout=60, max_attempts=1)
    assert causes(job.info()) == ["error"]


@pytest.mark.parametrize("ends_by", ["return", "raise", "give up"])
def test_a_thread_task_can_see_that_its_time_is_over_and_its_attempt_has_failed(
    timed: MakeApp, clock: ManualClock, ends_by: str
) -> None:
    app = timed()
    seen: list[list[bool]] = []

    @app.task(timeout=5, max_attempts=1, give_up_on=LookupError)
    def look(ctx: Context) -> int:
        seen.append([ctx.cancelled, ctx.timed_out])
        clock.advance(4.9)
        seen.append([ctx.cancelled, ctx.timed_out])
        clock.advance(0.1)
        seen.append([ctx.cancelled, ctx.timed_out])
        if ends_by == "raise":
            raise RuntimeError("stopped half way")
        if ends_by == "give up":
            raise LookupError
        return 3

    job = look.enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is not State.LEASED and seen, clock=clock)
        pool.shutdown(0)
    assert seen == [[False, False], [False, False], [True, True]]
    assert causes(job.info()) == ["timeout"]
    text = "stopped half way" if ends_by == "raise" else "the job ran longer than the task's timeout of 5 s"
    assert job.info().error.text == text


def test_a_task_that_is_late_may_still_say_how_its_job_ends(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()

    @app.task(timeout=5)
    def give_up(ctx: Context) -> None:
        clock.advance(6)
        if ctx.timed_out:
            raise Cancel("too late")

    job = give_up.enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is State.CANCELLED, clock=clock)
        pool.shutdown(0)
    assert causes(job.info()) == ["cancel"]


# Backoff


def test_the_stored_backoff_is_the_tasks_or_else_the_apps(make_app: MakeApp) -> None:
    app = make_app(backoff=Backoff(7, 9))
    own = app.task(name="a", backoff=Backoff(1, 2))(lambda: None)
    plain = app.task(name="b")(lambda: None)
    computed = app.task(name="c", backoff=lambda attempt, error: 1)(lambda: None)
    stored = [task.enqueue().info().backoff for task in (own, plain, computed)]
    assert stored == [Backoff(1, 2), Backoff(7, 9), Backoff(7, 9)]


def test_a_backoff_function_is_asked_with_the_attempt_and_the_error(app: App, style: str) -> None:
    asked: list[Any] = []

    def policy(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error), current_job().attempt))
        return 0

    def work() -> None:
        raise ValueError("no")

    job = outcome(app, work, style, backoff=policy, max_attempts=3)
    assert job.status() is State.DEAD
    # Not after the last attempt.
    assert asked == [(1, "no", 1), (2, "no", 2)]


class Hostile(float):
    """A number that cannot be read as one."""

    def __float__(self) -> float:
        return 1 / 0


@pytest.mark.parametrize(
    ("answer", "delay_s", "said"),
    [
        (12.5, 12.5, ""),
        (timedelta(seconds=3), 3.0, ""),
        (-1, 0.0, "less than 0 s or more than 100 years; it is cut to that"),
        (1e300, 100 * 365.25 * 86_400, "it is cut to that"),
        (math.nan, 300.0, "answered with NaN or infinity; the stored backoff is used"),
        (math.inf, 300.0, "answered with NaN or infinity"),
        (None, 300.0, "answered with NoneType, not seconds"),
        ("3s", 3.0, ""),
        ("three", 300.0, "answered with str that is no duration (ArgumentError); the stored backoff is used"),
        (10**400, 300.0, "answered with int that is no duration (OverflowError)"),
        (Hostile(), 300.0, "answered with Hostile that is no duration (ZeroDivisionError)"),
        (True, 300.0, "answered with bool, not seconds"),
        (KeyError("hunter2"), 300.0, "raised KeyError; the stored backoff is used"),
    ],
)
def test_what_a_backoff_function_does_wrong_is_mended_and_said_once(  # noqa: PLR0917
    timed: MakeApp, clock: ManualClock, caplog, style: str, answer, delay_s, said
) -> None:
    caplog.set_level(logging.WARNING, "ulak")
    app = timed(backoff=Backoff(300, 300, 300))

    def policy(attempt: int, error: BaseException) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def work() -> None:
        raise ValueError

    function = work if style == "def" else awaiting(work)
    task = app.task(name="t", backoff=policy)(function)
    jobs = [task.enqueue() for _ in range(3)]
    with app.workers(1) as pool:
        eventually(lambda: all(job.info().history for job in jobs))
        pool.shutdown(0)
    if delay_s > 0:
        now = datetime.fromtimestamp(clock.calendar(), UTC)
        assert {(job.info().run_at - now).total_seconds() for job in jobs} == {delay_s}
    said_all = [record.getMessage() for record in caplog.records]
    warnings = [said for said in said_all if "its backoff function" in said]
    assert len(warnings) == (said != "")
    assert not said or said in warnings[0]
    assert "hunter2" not in caplog.text


def test_a_slow_backoff_function_keeps_no_worker(make_app: MakeApp, caplog, style: str, monkeypatch) -> None:
    monkeypatch.setattr(advice, "ADVICE_S", 0.01)
    caplog.set_level(logging.WARNING, "ulak.none")
    app = make_app()
    done = threading.Event()

    def slow(attempt: int, error: BaseException) -> float:
        done.wait(WAIT_S)
        return 0

    def work(n: int) -> None:
        raise ValueError

    task = app.task(name="t", backoff=slow, max_attempts=2)(work if style == "def" else awaiting(work))
    jobs = [task.enqueue(n) for n in range(20)]
    began = time.monotonic()
    run_all(app, 1)
    assert time.monotonic() - began < WAIT_S / 2
    assert {job.status() for job in jobs} == {State.DEAD}
    done.set()


# Middleware


def test_a_context_manager_goes_around_each_job(app: App, style: str) -> None:
    seen: list[str] = []
    value: contextvars.ContextVar[str] = contextvars.ContextVar("value")

    @app.around
    def outer(job: Context) -> Iterator[None]:
        seen.append(f"before {job.attempt}")
        value.set("from outside")
        try:
            yield
        except ValueError:
            seen.append("failed")
            raise
        seen.append("after")

    @app.around
    @contextlib.contextmanager
    def inner(job: Context) -> Iterator[None]:
        seen.append("inner")
        yield

    def work() -> str:
        if current_job().attempt == 1:
            raise ValueError
        return value.get()

    job = outcome(app, work, style)
    assert job.result() == "from outside"
    assert seen == ["before 1", "inner", "failed", "before 2", "inner", "after"]


def test_what_goes_around_may_fail_a_job_or_swallow_its_failure(make_app: MakeApp, style: str) -> None:
    def work() -> int:
        raise ValueError

    swallowing, failing = make_app(), make_app()
    swallowing.around(lambda job: contextlib.suppress(ValueError))
    job = outcome(swallowing, work, style)
    assert (job.status(), job.result()) == (State.SUCCEEDED, None)

    @failing.around
    def fail(job: Context) -> Iterator[None]:
        raise LookupError("no tenant")
        yield

    other = outcome(failing, lambda: 3, style, name="other", max_attempts=1)
    assert other.info().error.text == "no tenant"


@pytest.mark.parametrize("error", [*BEYOND, StopIteration(3), StopAsyncIteration(), RuntimeError()])
def test_whatever_a_task_raises_goes_through_what_is_around_it(app: App, style: str, error) -> None:
    seen: list[BaseException] = []

    @app.around
    def look(job: Context) -> Iterator[None]:
        try:
            yield
        except BaseException as raised:
            seen.append(raised)
            raise

    def work() -> None:
        raise error

    # A coroutine cannot raise it: Python makes another error of it.
    is_stop = type(error) is StopIteration and style == "async def"
    job = outcome(app, work, style, max_attempts=2)
    assert job.info().error.type == ("RuntimeError" if is_stop else type(error).__name__)
    assert len(seen) == 2


@pytest.mark.parametrize("ends_by", ["return", "raise"])
def test_a_time_out_that_is_swallowed_is_a_time_out_all_the_same(
    timed: MakeApp, clock: ManualClock, style: str, ends_by: str
) -> None:
    app = timed()
    app.around(lambda job: contextlib.suppress(Exception))

    @app.around
    def no_matter(job: Context) -> Iterator[None]:
        with contextlib.suppress(Exception):
            yield

    def late() -> int:
        clock.advance(6)
        if ends_by == "raise":
            raise RuntimeError
        return 3

    function = late if style == "def" else awaiting(late)
    job = app.task(name="t", timeout=5, max_attempts=1)(function).enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is State.DEAD, clock=clock)
        pool.shutdown(0)
    assert causes(job.info()) == ["timeout"]
    error = job.info().error
    assert (error.type, error.text) == ("TimeoutError", "the job ran longer than the task's timeout of 5 s")


def test_an_async_task_that_is_stopped_has_failed_also_where_that_is_swallowed(app: App) -> None:
    app.around(lambda job: contextlib.suppress(Exception))

    async def forever() -> None:
        await asyncio.Event().wait()

    job = app.task(name="t", timeout=0.02, max_attempts=1)(forever).enqueue()
    run_all(app)
    assert causes(job.info()) == ["timeout"]


def test_a_failure_in_time_that_is_swallowed_is_a_success(app: App, style: str) -> None:
    app.around(lambda job: contextlib.suppress(ValueError))

    def work() -> None:
        raise ValueError

    assert outcome(app, work, style, timeout=60).status() is State.SUCCEEDED


def test_what_cannot_go_around_is_refused(app: App) -> None:
    async def one(job: Context) -> None: ...

    async def two(job: Context) -> Any:
        yield

    def with_next(job: Context, call_next: Any) -> Any:
        return call_next(job)

    class Plain:
        def __init__(self, job: Context) -> None: ...

    wrongs: dict[str, Any] = {
        "one is async": one,
        "two is async": contextlib.asynccontextmanager(two),
        "two is async: write it as def": two,
        "with_next cannot be called so": with_next,
        "Plain gives none": Plain,
        "suppress is no function": contextlib.suppress(ValueError),
        "int is no function": 3,
    }
    for why, wrong in wrongs.items():
        with pytest.raises(ArgumentError, match=rf"app\.around takes a @contextmanager function .*{why}"):
            app.around(wrong)
    assert app._arounds == []
    with pytest.raises(ArgumentError, match=r"app\.on takes a function of an event, got int"):
        app.on(3)  # type: ignore[type-var]


def test_whatever_gives_a_context_manager_goes_around(app: App) -> None:
    seen: list[str] = []

    class Own:
        def __init__(self, job: Context) -> None:
            self.task = job.task

        def __enter__(self) -> None:
            seen.append(f"class {self.task}")

        def __exit__(self, *_: object) -> None: ...

    class Maker:
        def __call__(self, job: Context) -> Own:
            seen.append("object")
            return Own(job)

    class Yielding:
        def __call__(self, job: Context) -> Iterator[None]:
            seen.append("yields")
            yield

    def perhaps(job: Context) -> Any:
        if job.attempt == 1:
            return contextlib.nullcontext()
        return None

    for right in (Own, Maker(), Yielding(), perhaps, functools.partial(lambda name, job: Own(job), "bound")):
        app.around(right)
    outcome(app, lambda: None)
    assert seen == ["class t", "object", "class t", "yields", "class t"]


def test_subscribers_hear_of_each_job(app: App, style: str) -> None:
    heard: list[Any] = []
    app.on(heard.append)

    def work() -> None:
        if current_job().attempt == 1:
            raise ValueError

    job = outcome(app, work, style)
    kinds = [type(event) for event in heard]
    # Each is told once its caller knows of it, and another worker may be as quick as to go on before that.
    assert Counter(kinds) == Counter([told.Enqueued, *[told.Started] * 2, told.Retried, told.Succeeded])
    assert kinds[-1] is told.Succeeded
    assert {event.job_id for event in heard} == {job.id}
    assert {event.task for event in heard} == {"t"}
