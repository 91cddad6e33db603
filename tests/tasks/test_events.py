"""What is told of jobs: to subscribers, and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.pools import KINDS, Gate
from tests.support.waiting import eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Queue, State
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
