"""Tasks as a user writes them: checked by two type checkers, and run."""

import asyncio
import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, assert_type

from ulak import (
    App,
    Backoff,
    Call,
    Cause,
    Context,
    Job,
    JobFailed,
    JobInfo,
    ResultTimeout,
    State,
    Task,
    TaskOptions,
    current_job,
    events,
)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Order:
    id: int
    placed_at: datetime


app = App("memory://", queues=["default", "mail"], max_attempts=3, backoff=Backoff(0.001, 0.001))


@app.task
def welcome(email: str, *, loud: bool = False) -> str:
    return f"welcome, {email}{'!' * loud}"


@app.task(max_attempts=5, timeout=30, queue="mail", priority=0, give_up_on=(ValueError,))
def ship(order: Order, fragile: bool = False) -> Order:
    return order


@app.task(name="mail.old", aliases=["mail.older"], backoff=lambda attempt, error: 2.0 * attempt)
async def fetch(url: str) -> bytes:
    await asyncio.sleep(0)
    return url.encode()


@app.task
def first(job: Context, n: int) -> int:
    return n + job.attempt


@app.task(retry_on=OSError, expires=timedelta(hours=1))
async def afirst(job: Context, n: int, *, m: int = 0) -> int:
    return n + m + job.attempt


@app.task
def named(n: int, *, job: Context | None = None) -> bool:
    return job is not None


@app.task
def nothing() -> None: ...


@app.task
def rest(*numbers: int, **texts: str) -> int:
    return len(numbers) + len(texts)


@app.task
def anything(payload: Any, times: int = 1) -> None: ...


@app.task
def everything(payload: object) -> None: ...


def logged(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return wrapper


@app.task
@logged
def decorated(n: int) -> int:
    return n


@app.cron("0 9 * * 1-5", tz="Europe/Istanbul")
@app.task(queue="mail")
def daily(day: str = "today") -> str:
    return day


@app.every(30)
async def often() -> int:
    return 1


class Mail:
    @app.task
    @staticmethod
    def send(to: str) -> str:
        return to


@app.around
@contextmanager
def around(job: Context) -> Generator[None, None, None]:
    yield


@app.on
def heard(event: object) -> None: ...


def calls() -> None:
    assert_type(welcome("ada"), str)
    job = welcome.enqueue("ada", loud=True)
    assert_type(job, Job[str])
    assert_type(welcome.enqueue(email="ada"), Job[str])
    with app.workers(2):
        assert_type(job.result(timeout=5), str)
        order = Order(1, datetime(2026, 1, 1, tzinfo=UTC))
        assert_type(ship.enqueue(order).result(5), Order)
        assert_type(ship.enqueue(order, fragile=True).result(5), Order)
        assert_type(fetch.enqueue("x").result(5), bytes)
        assert_type(first.enqueue(3).result(5), int)
        assert_type(afirst.enqueue(3, m=4).result(5), int)
        assert_type(named.enqueue(n=3).result(5), bool)
        assert_type(nothing.enqueue(), Job[None])
        assert_type(rest.enqueue(1, 2, a="b").result(5), int)
        assert_type(decorated.enqueue(1).result(5), int)
        assert_type(daily.enqueue(), Job[str])
        assert_type(daily.enqueue(day="x").result(5), str)
        assert_type(often.enqueue().result(5), int)
        assert_type(Mail.send.enqueue("x").result(5), str)
        anything.enqueue({"a": 1}, 2)
        anything.enqueue(payload="b", times=3)
        everything.enqueue(payload=[1])
    assert job.existed is False
    assert_type(job.status(), State)
    assert_type(job.info(), JobInfo)
    assert_type(job.refresh(), JobInfo)
    assert [attempt.cause for attempt in job.info().history] == [Cause.ACK]
    assert_type(job.wait(timeout=1), State)
    assert_type(job.cancel(), bool)
    assert_type(welcome.job(job.id), Job[str])
    try:
        job.result()
    except (JobFailed, ResultTimeout) as error:
        raise AssertionError from error
    assert current_job() is None


def options() -> None:
    common: TaskOptions = {"delay": timedelta(minutes=1), "priority": 9, "unique_key": "ada"}
    later = welcome.using(**common).using(queue="mail", wait=5, connection=None)
    assert_type(later.enqueue("ada"), Job[str])
    batch = [welcome.call("a"), welcome.using(priority=1).call("b", loud=True)]
    assert_type(batch, list[Call[str]])
    assert_type(welcome.enqueue_many(batch), list[Job[str]])
    task: Task[[int], int] = first
    assert_type(task.enqueue(3), Job[int])
    assert app.tasks["mail.old"].name == "mail.old"


@app.on
def told(event: events.Event) -> None:
    match event:
        case events.Retried(error=error) | events.Died(error=error) if error is not None:
            assert_type(event.cause, Cause)
            assert_type(error.text, str)
        case events.Enqueued():
            assert_type(event.existed, bool)
        case _:
            assert_type(event.job_id, int)


async def loops() -> None:
    async with app, app.aworkers(2):
        assert_type(await fetch("x"), bytes)
        job = await welcome.aenqueue("ada")
        assert_type(job, Job[str])
        assert_type(await job, str)
        assert_type(await (await fetch.aenqueue("x")), bytes)
        assert_type(await (await afirst.aenqueue(1)).aresult(timeout=5), int)
        assert_type(await job.astatus(), State)
        assert_type(await job.await_end(5), State)
        assert_type(await job.ainfo(), JobInfo)
        assert_type(await job.acancel(), bool)
        assert_type(await welcome.aenqueue_many([welcome.call("a")]), list[Job[str]])


def main() -> None:
    calls()
    options()
    app.close()
    asyncio.run(loops())
