"""What the log and errors say of a job: what failed, where, why it is held, what it waits for."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import (
    App,
    Backoff,
    Cancel,
    Job,
    JobCancelled,
    JobFailed,
    Reject,
    ResultTimeout,
    Snooze,
    State,
)
from ulak.local import file_of, place_of

HERE = Path(__file__)


def line_of(text: str) -> int:
    """The number of the one line of this file that ends so."""
    (number,) = (n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(text))
    return number


def run_all(app: App) -> None:
    """Run what is ready, to the end."""
    with app.workers(1) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def test_the_log_places_a_failure_in_the_task_and_not_in_ulak(app: App, caplog) -> None:
    caplog.set_level(logging.WARNING, "ulak")

    @app.task(max_attempts=2)
    def mail(password: str) -> None:
        app.queue("default").enqueue({password})  # refused there

    mail.enqueue("hunter2")
    run_all(app)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    place = f'File "{HERE}", line {line_of("# refused there")}, in {mail.function.__qualname__}'
    assert f": retried (PayloadError at {place}); again in " in said[0]
    assert said[1].endswith(f": died (PayloadError at {place})")
    assert "hunter2" not in caplog.text


def test_the_log_says_why_a_job_is_held(make_app: MakeApp, caplog) -> None:
    caplog.set_level(logging.WARNING, "ulak")
    app, other = make_app(), make_app()

    def old(to: str) -> None: ...

    def new(to: str, subject: str) -> None: ...

    app.task(name="mail.send")(old).enqueue("hunter2")
    app.task(name="mail.new")(old).enqueue("hunter2")
    app.queue("default").enqueue("hunter2")
    other.task(name="mail.send")(new)
    run_all(other)
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    misfit = "mail.send(to: str, subject: str): no argument 'subject' is stored"
    unknown, no_task = "no worker here knows it", "no worker here knows jobs without a task"
    assert said[:3] == [f"held ({why})" for why in (misfit, unknown, no_task)]
    assert "hunter2" not in caplog.text


def told(job: Job[Any]) -> str:
    """What a time-out says of it now."""
    with pytest.raises(ResultTimeout) as caught:
        job.result(timeout=0)
    return str(caught.value)


def test_a_time_out_says_what_failed_before(make_app: MakeApp, caplog) -> None:
    caplog.set_level("CRITICAL", "ulak")
    app = make_app(backoff=Backoff(base=600, cap=600, floor=600))

    @app.task
    def fetch(url: str) -> None:
        raise TypeError(f"no {url}\nmore of it")  # of fetch

    @app.task(timeout=1e-9)
    def late() -> None: ...

    snoozed = app.task(max_attempts=1)(snooze).enqueue()
    jobs = [fetch.enqueue("x" * 1_000), late.enqueue(), snoozed]
    with app.workers(1):
        eventually(lambda: [job.status() for job in jobs] == [State.SCHEDULED] * 3)
    place = f"{HERE.relative_to(Path.cwd())}:{line_of('# of fetch')}"
    failed, timed_out, not_failed = map(told, jobs)
    assert f": attempt 1 of 5 failed: TypeError: no {'x' * 297} ({place}); due in " in failed
    assert ": attempt 1 of 5 failed: " in timed_out
    assert "failed" not in not_failed
    app.queue("default").cancel(jobs[0].id)
    app.queue("default").redrive(jobs[0].id)
    assert "failed" not in told(jobs[0])


def snooze() -> None:
    raise Snooze(600)


def test_a_job_that_ended_by_an_error_says_where_and_how_to_see_all_of_it(app: App, caplog) -> None:
    caplog.set_level("CRITICAL", "ulak")

    @app.task
    def reject() -> None:
        raise Reject("no such address")  # of reject

    @app.task
    def stop() -> None:
        raise Cancel("asked to")  # of stop

    dead, cancelled = reject.enqueue(), stop.enqueue()
    run_all(app)
    look = "job.info()"
    if app.url.startswith("sqlite"):
        look = f"ulak show {{}} -v -u {app.url}"
    elif app.url.startswith("postgresql"):
        look = "ulak show {} -v"  # its URL may hold a password
    for job, kind, said, where in (
        (dead, JobFailed, "Reject: no such address", "# of reject"),
        (cancelled, JobCancelled, "Cancel: asked to", "# of stop"),
    ):
        with pytest.raises(kind) as caught:
            job.result(WAIT_S)
        place = f"{HERE.relative_to(Path.cwd())}:{line_of(where)}"
        first, second = str(caught.value).splitlines()
        assert first.endswith(f": {said} ({place})")
        assert second.strip().removesuffix(f" [{kind.code}]") == f"all of it: {look.format(job.id)}"


def test_a_time_out_without_a_worker_says_where_the_store_is_and_what_to_do(app: App) -> None:
    job = app.task(snooze).enqueue()
    if not app.url.startswith("memory"):
        is_file = app.url.startswith("sqlite")
        place = file_of(app.url)[0] if is_file else place_of(app.url)
        assert f"no live worker serves queue 'default' of {place}\n" in told(job)
        assert "start one: ulak work module:app" in told(job)
    else:
        assert 'work here, "with app.workers():", or put the App on a file: App("sqlite' in told(job)
        assert "ulak work" not in told(job)


def test_the_place_of_a_store_is_the_whole_path_of_its_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("sqlite:///jobs.db") == str(tmp_path / "jobs.db")
    assert place_of("sqlite:///a/jobs.db?journal=wal") == f"{tmp_path}/a/jobs.db (journal=wal)"
    assert place_of("memory://name") == "memory://name"


def test_who_blocks_the_event_loop_of_the_job_is_told_to_await_it(app: App) -> None:
    @app.task
    async def f() -> int:
        return 7

    async def main() -> int:
        async with app.aworkers(1):
            # Not before the loop is blocked: a worker of it may be as quick as that.
            job = await f.using(delay=0.2).aenqueue()
            with pytest.raises(ResultTimeout) as caught:
                job.result(timeout=0.3)
            assert "nothing ran on the event loop of this thread" in str(caught.value)
            assert "write await job" in str(caught.value)
            held = await snoozed.using(delay=60).aenqueue()
            with pytest.raises(ResultTimeout) as caught:
                await held.aresult(timeout=0)
            assert "event loop" not in str(caught.value)
            return await job

    @app.task
    async def snoozed() -> None: ...

    assert asyncio.run(main()) == 7
    assert "event loop" not in told(snoozed.enqueue())
