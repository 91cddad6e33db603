"""What is told of jobs: to subscribers, and in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from tests.support.pools import KINDS, Gate, of_kind
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Backoff, Cancel, Queue, Snooze, State, current_job
from ulak import events as told
from ulak.core.job import Cause
from ulak.testing import ManualClock

LEASE_S = 30.0


def hear(app: App) -> list[Any]:
    """All that is told from now on."""
    heard: list[Any] = []
    app.on(heard.append)
    return heard


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[tuple[int, str]]:
    """The lines of the log that have this text, with their levels."""
    found = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "ulak"]
    return [line for line in found if text in line[1]]


# What each event is, and how the log says it

LEVELS = {
    told.Enqueued: logging.DEBUG,
    told.Started: logging.DEBUG,
    told.Succeeded: logging.DEBUG,
    told.Retried: logging.WARNING,
    told.Died: logging.ERROR,
    told.Cancelled: logging.DEBUG,
    told.Expired: logging.WARNING,
    told.Held: logging.WARNING,
    told.Returned: logging.DEBUG,
    told.Stale: logging.WARNING,
}
SECRET = "hunter2"


def define(app: App) -> Any:
    """A task that ends as it is told."""

    @app.task(name="work", max_attempts=2, backoff=Backoff(base=0.001, cap=0.001))
    def work(how: str, password: str) -> str:
        match how:
            case "fail":
                raise ValueError(password)
            case "cancel":
                raise Cancel(password)
            case "snooze" if current_job().delivery == 1:
                raise Snooze(0.001)
            case "crash" if current_job().delivery == 1:
                eventually(app.queue("default").crash)
                raise ValueError(password)
        return password

    return work


def test_each_kind_of_event_is_told_and_logged_without_what_jobs_hold(make_app: MakeApp, caplog) -> None:
    caplog.set_level(logging.DEBUG, "ulak")
    app = make_app()
    work, heard = define(app), hear(app)
    later = Backoff(base=3600, cap=3600, floor=3600)
    for how in ("go", "fail", "cancel", "snooze", "crash"):
        work.enqueue(how, SECRET)
    app.task(name="late", backoff=later)(work.function).using(expires=60).enqueue("fail", SECRET)
    elsewhere = make_app().task(name="elsewhere")(work.function)
    elsewhere.enqueue("go", SECRET)
    with app.workers(1):
        eventually(lambda: {type(event) for event in heard} == set(LEVELS))
        eventually(lambda: (counts := app.queue("default").counts()).open == counts.held == 1)
    for kind, level in LEVELS.items():
        (event, *_) = [event for event in heard if type(event) is kind]
        text = f": {kind.__name__.lower()}"
        (record, *_) = [
            record
            for record in caplog.records
            if text in record.getMessage() and record.job_id == event.job_id  # type: ignore[attr-defined]
        ]
        assert record.levelno == level, kind
        said = {name: getattr(record, name, None) for name in ("job_id", "queue", "task", "attempt")}
        assert said == {name: getattr(event, name, None) for name in said}, kind
        assert said["queue"] == "default"
    assert SECRET not in caplog.text


def test_no_event_holds_a_payload_or_a_result(app: App) -> None:
    work, heard = define(app), hear(app)
    for how in ("go", "snooze", "crash"):
        work.enqueue(how, SECRET)
    with app.workers(1) as pool:
        assert pool.drain(WAIT_S).drained
    without_errors = [msgspec.structs.replace(e, error=None) if hasattr(e, "error") else e for e in heard]
    assert SECRET not in repr(without_errors)
    assert len(heard) >= 11


# Subscribers that raise


class Unhashable:
    """Raises whatever it hears of."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.heard: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, event: Any) -> None:
        self.heard.append(event)
        raise self.error


@pytest.mark.parametrize("style", KINDS)
@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError]
)
def test_a_subscriber_that_raises_breaks_no_job(
    app: App, caplog, style: str, error: type[BaseException]
) -> None:
    subscriber = Unhashable(error)
    app.task(name="work")(of_kind(style, lambda n: n))
    app.on(subscriber)
    heard = hear(app)
    with app.workers(1) as pool:
        # From a thread of its own: of the main one a KeyboardInterrupt may be a Ctrl-C.
        job = Running(lambda: app.find("work").enqueue(1)).result()
        assert job.result(WAIT_S) == 1
        pool.shutdown()
    assert job.info().attempt == 1
    # The producer and the worker tell at the same time.
    kinds = {told.Enqueued, told.Started, told.Succeeded}
    assert {type(event) for event in subscriber.heard} == {type(event) for event in heard} == kinds
    assert len(subscriber.heard) == len(heard) == len(kinds)
    assert len(lines(caplog, "a subscriber to events raised")) == 1


def test_a_ctrl_c_that_strikes_a_producer_in_a_subscriber_is_not_lost(app: App) -> None:
    app.on(Unhashable(KeyboardInterrupt))
    work = app.task(name="work")(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        work.enqueue()
    assert app.queue("default").counts().ready == 1


def test_a_log_handler_that_raises_breaks_no_job(app: App) -> None:
    class Strikes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    @app.task(name="work", max_attempts=2)
    def work() -> int:
        if current_job().attempt == 1:
            raise ValueError
        return 1

    log, handler = logging.getLogger("ulak"), Strikes()
    log.addHandler(handler)
    try:
        with app.workers(1):
            assert work.enqueue().result(WAIT_S) == 1
    finally:
        log.removeHandler(handler)


def test_held_jobs_are_told_each_but_logged_now_and_then_for_each_task(make_app: MakeApp, caplog) -> None:
    there, here = make_app(), make_app()
    here.task(name="known")(lambda: None)
    heard = hear(here)
    unknown = [there.task(name=name)(lambda: None) for name in ("one", "other")]
    for task in unknown:
        task.enqueue_many(task.call() for _ in range(50))
    with here.workers(2) as pool:
        assert pool.drain(WAIT_S).drained
    assert [type(event) for event in heard] == [told.Held] * 100
    assert sorted(text.partition(" of ")[0].split(" ", 2)[2] for _, text in lines(caplog, ": held")) == [
        "(one)",
        "(other)",
    ]


# What nobody's worker says


ENDS = {1: (told.Died, logging.ERROR), 2: (told.Retried, logging.WARNING)}
"""What is told of a lost lease, and at which level, by how many attempts the job has."""


@pytest.mark.parametrize("attempts", ENDS)
def test_a_lost_lease_is_told_by_who_reclaims_it(
    timed: MakeApp, clock: ManualClock, caplog, attempts: int
) -> None:
    """Its worker was killed, say, and tells nothing any more."""
    app, (kind, level) = timed(), ENDS[attempts]

    @app.task(name="work", max_attempts=attempts)
    def work() -> None: ...

    job = work.enqueue()
    lease = app.queue("default").deliver()
    assert lease is not None
    heard = hear(app)
    clock.advance(LEASE_S)
    with app.workers(1):
        eventually(lambda: heard, clock=clock)
        end = heard[0]
        eventually(lambda: job.status() in (State.DEAD, State.SUCCEEDED), clock=clock)
    assert type(end) is kind
    assert (end.job_id, end.task, end.worker, end.attempt) == (job.id, "work", lease.worker, 1)
    assert (end.cause, end.error) == (Cause.LOST, None)
    assert [line[0] for line in lines(caplog, "attempt 1 of")] == [level]


@pytest.mark.parametrize("attempts", ENDS)
@pytest.mark.parametrize("call", ["deliver", "tick_timeouts", "crash"])
def test_a_queue_without_subscribers_writes_what_it_reclaims_to_the_log(
    app_url: str, clock: ManualClock, caplog, call: str, attempts: int
) -> None:
    with Queue(app_url, clock=clock, visibility_timeout=LEASE_S, max_attempts=attempts) as q:
        q.enqueue("x")
        assert q.deliver() is not None
        clock.advance(LEASE_S)
        getattr(q, call)()
    assert [line[0] for line in lines(caplog, "job 1 of queue default")] == [ENDS[attempts][1]]


@pytest.mark.parametrize("style", KINDS)
def test_what_a_shutdown_hands_back_is_told(timed: MakeApp, style: str) -> None:
    app = timed()
    with Gate() as gate:
        wait = gate.handler(style)
        app.task(name="work")(wait)
        job = app.find("work").enqueue(1)
        heard = hear(app)
        with app.workers(1) as pool:
            gate.entered()
            assert pool.shutdown(0).released == 1
            returned = [event for event in heard if type(event) is told.Returned]
    assert [(event.job_id, event.cause, event.delay_s) for event in returned] == [
        (job.id, Cause.SHUTDOWN, 0.0)
    ]
