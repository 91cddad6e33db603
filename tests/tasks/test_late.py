"""Tasks and schedules that are registered while workers run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from tests.support.pools import causes
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Keep, Retention, State
from ulak.testing import ManualClock


@pytest.fixture(autouse=True)
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


@pytest.mark.parametrize("alias", [False, True])
def test_a_task_that_is_registered_late_runs(app: App, alias: bool) -> None:
    app.task(name="early")(lambda: 1)
    with app.workers(1):
        late = app.task(name="late", aliases=["other"] if alias else ())(lambda: 2)
        assert late.enqueue().result(WAIT_S) == 2
        assert causes(late.enqueue().info()) in ([], ["ack"])


def test_jobs_that_were_held_run_once_their_task_is_registered(make_app: MakeApp) -> None:
    app, other = make_app(), make_app()
    app.task(name="early")(lambda: 1)
    job = other.task(name="late")(lambda: 2).enqueue()
    with app.workers(1):
        eventually(lambda: job.status() is State.HELD)
        app.task(name="late")(lambda: 2)
        assert job.result(WAIT_S) == 2
    assert causes(job.info()) == ["unknown task", "ack"]


@pytest.mark.parametrize("early", ["def", "async def"])
def test_a_task_of_the_other_kind_runs_too(app: App, early: str) -> None:
    def plain() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def coroutine() -> bool:
        await asyncio.sleep(0)
        return True

    kinds: dict[str, Any] = {"def": plain, "async def": coroutine}
    app.task(name="early")(kinds.pop(early))
    (other,) = kinds.values()

    async def main() -> bool:
        async with app.aworkers(1):
            job = await app.task(name="late")(other).aenqueue()
            return await job.aresult(WAIT_S)

    assert asyncio.run(main()) is (early == "def")


def test_a_schedule_that_is_declared_late_fires(timed: MakeApp, clock: ManualClock) -> None:
    kept = Retention(succeeded=Keep(7, 60))
    app = timed(retention=kept, visibility_timeout=3600)
    app.task(name="early")(lambda: 1)
    ran: list[str] = []

    def late() -> None:
        ran.append("late")

    with app.workers(1) as pool:
        eventually(lambda: clock.sleepers, clock=clock)
        app.every(30)(app.task(name="late")(late))
        # Into a queue that no other task has, and that these workers do not serve.
        app.every(30)(app.task(name="elsewhere", queue="other")(late))
        eventually(lambda: len(ran) > 1, clock=clock, step_s=1.0)
        pool.shutdown(0)
    assert app.queue("other").counts().ready > 1
    assert app.queue("other").settings().retention == kept
