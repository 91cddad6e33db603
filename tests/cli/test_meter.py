"""What the demo measures, and when."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.cli.test_demo import plan
from ulak import Context, Queue
from ulak.cli.demo_meter import InjectedFailure, Meter, Payload, RoomClock
from ulak.clock import SYSTEM


def context_of(queue: Queue) -> Context:
    lease = queue.deliver()
    assert lease is not None
    return Context(lease)


def record(level: int, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "ulak", "levelno": level, "msg": "settled"} | extra)
    assert isinstance(made, logging.LogRecord)
    return made


def test_a_job_is_measured_when_the_pool_says_that_it_is_settled() -> None:
    meter = Meter(plan(fail_rate=0.0), log_level=logging.WARNING)
    with Queue() as q:
        q.enqueue("x")
        payload: Payload = {"ordinal": 1, "due_at": SYSTEM.interval() - 5}
        meter.accepted(1)
        meter.handle(payload, context_of(q))
    assert meter.latency().due_to_start.count == 1
    assert meter.latency().due_to_settled.count == 0
    assert not meter.filter(record(logging.DEBUG, job_id=1))
    assert meter.latency().due_to_settled.min_s >= 5
    assert meter.latency().accepted_to_settled.count == 1
    # Whatever is said of that job later is not its settle.
    assert meter.filter(record(logging.DEBUG, job_id=1))
    assert meter.latency().due_to_settled.count == 1


def test_a_job_that_is_settled_before_its_enqueue_returned_took_no_time_from_there() -> None:
    meter = Meter(plan(fail_rate=0.0), log_level=logging.WARNING)
    with Queue() as q:
        q.enqueue("x")
        meter.handle({"ordinal": 1, "due_at": SYSTEM.interval()}, context_of(q))
    meter.filter(record(logging.DEBUG, job_id=1))
    assert meter.latency().accepted_to_settled.count == 0
    meter.accepted(1)
    latency = meter.latency().accepted_to_settled
    assert (latency.count, latency.max_s) == (1, 0.0)


@pytest.mark.parametrize(
    ("log_level", "shown"), [(logging.WARNING, False), (logging.INFO, True), (logging.DEBUG, True)]
)
def test_injected_failures_are_logged_only_if_more_is_asked_for(log_level: int, shown: bool) -> None:
    meter = Meter(plan(fail_rate=1.0), log_level=log_level)
    with Queue() as q:
        q.enqueue("x")
        with pytest.raises(InjectedFailure):
            meter.handle({"ordinal": 1, "due_at": 0.0}, context_of(q))
    assert meter.filter(record(logging.ERROR, job_id=2)), "another job's record"
    assert meter.filter(record(logging.ERROR)), "a record of no job"
    assert meter.filter(record(logging.WARNING, job_id=1)) is shown
    assert meter.latency().due_to_settled.count == 0, "two attempts are left"


def test_threads_without_a_job_are_not_listened_to() -> None:
    assert Meter(plan(), log_level=logging.WARNING).filter(record(logging.DEBUG, job_id=1))
    assert Meter(plan(), log_level=logging.WARNING).last_settled_at == 0.0


def test_the_logger_is_left_as_it_was_found() -> None:
    logger = logging.getLogger("ulak")
    before = logger.level, list(logger.filters)
    with Meter(plan(), log_level=logging.WARNING).listening():
        assert logger.level == logging.DEBUG
    assert (logger.level, logger.filters) == before


def test_the_room_clock_measures_the_sleep_of_one_thread_only() -> None:
    clock = RoomClock()
    clock.wait(threading.Event(), 0.001)
    assert clock.slept_s == 0.0
    clock.measure_this_thread()
    clock.wait(threading.Event(), 0.001)
    assert clock.slept_s >= 0.001
