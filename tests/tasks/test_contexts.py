"""Context variables: each job starts with those of the pool's start, whatever jobs before it have set."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import WAIT_S
from tests.tasks.conftest import MakeApp
from ulak import App, Queue, current_job
from ulak.worker.fresh import awaited_in

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


@pytest.fixture(params=["def", "async def", "async def beside def"])
def app(request: Any, make_app: MakeApp) -> App:
    """An App with a task that says what it finds, and leaves something behind."""
    app = make_app()

    def look(leave: str) -> str:
        found = seen.get()
        seen.set(leave)
        return found

    async def alook(leave: str) -> str:
        found = look(leave)
        await asyncio.sleep(0)
        assert seen.get() == leave
        return found

    app.task(name="look")(look if request.param == "def" else alook)
    if request.param == "async def beside def":
        app.task(name="other")(lambda: None)
    return app


def test_what_a_job_sets_is_gone_with_it(app: App) -> None:
    look = app.tasks["look"]
    with app.workers(1):
        assert [look.enqueue(f"{n}").result(WAIT_S) for n in range(5)] == ["nothing"] * 5
        # In one go, without a look around between them.
        jobs = look.enqueue_many([look.call(f"{n}") for n in range(20)])
        assert [job.result(WAIT_S) for job in jobs] == ["nothing"] * 20


def test_a_job_finds_what_was_set_where_its_pool_was_started(app: App) -> None:
    token = seen.set("before the start")
    try:
        with app.workers(1):
            seen.set("after it")
            assert app.tasks["look"].enqueue("x").result(WAIT_S) == "before the start"
            assert app.tasks["look"].enqueue("x").result(WAIT_S) == "before the start"
    finally:
        seen.reset(token)


def test_jobs_of_one_loop_share_nothing_either(make_app: MakeApp) -> None:
    app = make_app()
    met = asyncio.Barrier(2)

    @app.task
    async def work(mine: str) -> tuple[str, str, int]:
        seen.set(mine)
        await met.wait()
        inner = await asyncio.create_task(asyncio.sleep(0, seen.get()))
        job = current_job()
        assert job is not None
        return seen.get(), inner, job.id

    async def main() -> None:
        async with app.aworkers(2):
            jobs = [await work.aenqueue(mine) for mine in ("a", "b")]
            found = [await job.aresult(WAIT_S) for job in jobs]
        assert found == [("a", "a", jobs[0].id), ("b", "b", jobs[1].id)]
        assert (seen.get(), current_job()) == ("nothing", None)

    asyncio.run(main())


def test_a_handler_of_a_plain_pool_leaves_nothing_behind_either() -> None:
    found: list[str] = []

    def handle(payload: str) -> None:
        found.append(seen.get())
        seen.set(payload)

    async def ahandle(payload: str) -> None:
        handle(payload)

    for handler in (handle, ahandle):
        with Queue() as queue:
            for number in range(5):
                queue.enqueue(str(number))
            with queue.workers(handler, count=1) as pool:
                pool.drain(WAIT_S)
    assert found == ["nothing"] * 10


def test_how_a_job_calculates_is_no_matter_of_others(make_app: MakeApp) -> None:
    app = make_app()
    own = decimal.getcontext().prec

    @app.task
    def work(digits: int) -> int:
        found = decimal.getcontext().prec
        decimal.getcontext().prec = digits
        return found

    with app.workers(1):
        assert [work.enqueue(3).result(WAIT_S) for _ in range(3)] == [decimal.DefaultContext.prec] * 3
    assert decimal.getcontext().prec == own


# Awaiting in a context


class Pause:
    """Awaited, it gives what it is, and returns what it is sent."""

    def __await__(self) -> Iterator[Any]:
        return (yield self)


def test_a_coroutine_in_a_context_is_driven_as_if_it_were_not_in_one() -> None:
    closed: list[str] = []

    async def inner() -> str:
        seen.set("inside")
        try:
            try:
                said = await Pause()
            except ValueError:
                said = await Pause()
            return f"{said} {seen.get()}"
        finally:
            closed.append(seen.get())

    async def outer() -> str:
        return await awaited_in(contextvars.Context(), inner())

    coroutine = outer()
    assert isinstance(coroutine.send(None), Pause)
    assert seen.get() == "nothing"
    assert isinstance(coroutine.throw(ValueError()), Pause)
    with pytest.raises(StopIteration) as stop:
        coroutine.send("sent")
    assert stop.value.value == "sent inside"

    coroutine = outer()
    coroutine.send(None)
    with pytest.raises(LookupError):
        coroutine.throw(LookupError())
    coroutine = outer()
    coroutine.send(None)
    coroutine.close()
    assert closed == ["inside"] * 3
