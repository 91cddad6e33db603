"""The event loop that the threads of a pool share."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from typing import Any

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import State, current_job
from ulak.worker.loop import LoopGone, SharedLoop

NAME = "ulak-shared-loop-test"


@pytest.fixture
def loop() -> Any:
    with contextlib.closing(SharedLoop(NAME)) as made:
        yield made
    eventually(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_the_thread_starts_with_the_first_coroutine_and_serves_many(loop: SharedLoop) -> None:
    assert threads() == []
    running = [Running(lambda n=n: loop.run(answer(n))) for n in range(8)]
    assert [one.result() for one in running] == list(range(8))
    assert len(threads()) == 1


def test_what_a_coroutine_raises_reaches_who_waits_and_nobody_else(loop: SharedLoop) -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(BaseException) as caught:
            loop.run(fail(error))
        assert type(caught.value).__name__ == type(error).__name__
        assert loop.run(answer(3)) == 3


def test_closing_cancels_what_runs_and_refuses_what_comes(loop: SharedLoop) -> None:
    started, seen = threading.Event(), []

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    waiting = Running(lambda: loop.run(forever()))
    assert started.wait(WAIT_S)
    loop.close()
    with pytest.raises(LoopGone):
        waiting.result()
    assert seen == ["cancelled"]
    late = answer(1)
    with pytest.raises(LoopGone):
        loop.run(late)
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED
    loop.close()


class Vanishing(asyncio.SelectorEventLoop):
    """Closed by whose it is, between a look whether it is and the call."""

    def call_soon_threadsafe(self, *call: Any, **named: Any) -> Any:
        self.close()
        return super().call_soon_threadsafe(*call, **named)


def test_a_lent_loop_that_is_closed_as_it_is_called_is_gone_and_then_not_used_any_more(
    loop: SharedLoop,
) -> None:
    loop.borrow(Vanishing())
    late = answer(1)
    with pytest.raises(LoopGone):
        loop.run(late)
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED
    assert loop.run(answer(2)) == 2


def test_a_loop_whose_thread_was_struck_down_is_replaced(loop: SharedLoop, monkeypatch) -> None:
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())

    def strike(_: logging.LogRecord) -> bool:
        raise MemoryError

    async def leave() -> None:
        raise SystemExit(3)

    # So that what keeps the loop alive is struck itself.
    logging.getLogger("ulak").addFilter(strike)
    try:
        with pytest.raises(SystemExit):
            loop.run(leave())
        assert died.wait(WAIT_S)
    finally:
        logging.getLogger("ulak").removeFilter(strike)
    assert loop.run(answer(2)) == 2


def test_a_job_that_is_cancelled_before_its_first_step_has_failed(make_app: MakeApp, caplog) -> None:
    app = make_app()
    started = threading.Event()

    @app.task
    async def cancels() -> None:
        started.set()
        others: list[asyncio.Task[Any]] = []
        while not others:
            await asyncio.sleep(0)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            others = [task for task in tasks if task.get_coro().__name__ == "arun"]
        others[0].cancel()

    @app.task(max_attempts=1)
    async def never() -> None:
        raise AssertionError("it had begun")

    app.task(name="thread")(lambda: None)
    with app.workers(2):
        cancels.enqueue()
        assert started.wait(WAIT_S)
        job = never.enqueue()
        assert job.wait(WAIT_S) is State.DEAD
    assert job.info().error.type == "CancelledError"
    assert [attempt.cause for attempt in job.info().history] == ["error"]
    assert not [record for record in caplog.records if record.getMessage().startswith("worker")]


def test_a_shutdown_cancels_an_async_task_of_a_pool_of_threads_and_hands_its_job_back(
    make_app: MakeApp, caplog
) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")
    app = make_app()
    seen: list[str] = []

    @app.task
    def thread() -> None: ...

    @app.task
    async def forever() -> None:
        seen.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(f"cancelled {current_job() is not None}")

    job = forever.enqueue()
    with app.workers(1) as pool:
        eventually(lambda: seen)
        assert pool.shutdown(0).released == 1
        eventually(lambda: len(seen) == 2)
    assert seen == ["started", "cancelled True"]
    assert (job.status(), job.info().attempt) == (State.READY, 0)
    assert [attempt.cause for attempt in job.info().history] == ["shutdown"]


@pytest.mark.parametrize("is_mixed", [False, True], ids=["own loop", "shared loop"])
def test_a_job_that_cancels_all_tasks_of_its_loop_ends_no_pool(
    make_app: MakeApp, caplog, *, is_mixed: bool
) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")
    app = make_app(visibility_timeout=1.0)

    @app.task(max_attempts=1)
    async def cancels() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    @app.task(max_attempts=1)
    async def fine() -> int:
        return 42

    if is_mixed:
        app.task(name="thread")(lambda: None)
    with app.workers(2) as pool:
        assert cancels.enqueue().wait(WAIT_S) is State.DEAD
        assert [fine.enqueue().result(WAIT_S) for _ in range(4)] == [42] * 4
        eventually(lambda: pool.size == 2)
