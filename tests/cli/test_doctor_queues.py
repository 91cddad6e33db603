"""What `ulak doctor` says of queues and workers, on every storage, on the test's clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.conftest import clock, kind  # noqa: F401 - fixtures
from tests.support.waiting import eventually
from ulak import Backoff, NewJob, Queue
from ulak.cli.doctor_queues import queue_parts
from ulak.cli.inspect_parts import Finding
from ulak.core.job import Cause, Hold
from ulak.testing import ManualClock

LATE_S = 300.0


@pytest.fixture
def q(kind, clock: ManualClock) -> Iterator[Queue]:  # noqa: F811
    """A queue with room for ten, on the test's clock."""
    with Queue(kind.url(), "mail", capacity=10, max_attempts=2, clock=clock) as q:
        q.counts()
        yield q


def found(q: Queue, late_s: float = LATE_S) -> list[Finding]:
    """All findings; each has its remedy."""
    findings = [one for part in queue_parts(q._edge, late_s=late_s) for one in part.findings]
    assert all(one.fix for one in findings)
    return findings


def only(q: Queue, late_s: float = LATE_S) -> Finding:
    (finding,) = found(q, late_s)
    return finding


def beat(q: Queue, queues: str = "mail", tasks: str = "plain", **more: str) -> None:
    q._edge.store.beat("w1", {"queues": queues, "size": "1", "tasks": tasks, **more})


def hold(q: Queue, *verdicts: Hold) -> None:
    leases = q.deliver_many(len(verdicts))
    q._edge.store.settle(list(zip(leases, verdicts, strict=True)))


def test_queues_without_anything_that_waits_have_nothing_wrong(q: Queue) -> None:
    assert found(q) == []


def test_a_queue_that_a_live_worker_serves_has_nothing_wrong(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a")
    clock.advance(120)
    beat(q)
    assert found(q) == []


def test_old_jobs_that_no_live_worker_takes_are_a_problem(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    beat(q)
    q.enqueue_many(["a", "b"])
    clock.advance(90)
    finding = only(q)
    assert finding.what == ("queue mail has 2 jobs due, job 1 for 1m30s, and no worker that lives takes them")
    assert finding.fix.startswith("start one: ulak work module:app")
    assert finding.is_problem


def test_young_jobs_that_no_worker_takes_are_only_noted(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a")
    clock.advance(30)
    assert not only(q).is_problem
    # Whoever asks for less has it told sooner.
    assert only(q, late_s=100).is_problem


@pytest.mark.parametrize(("queues", "tasks"), [("other", "plain"), ("mail", "app")])
def test_a_worker_of_something_else_is_none(
    q: Queue,
    clock: ManualClock,  # noqa: F811
    queues: str,
    tasks: str,
) -> None:
    q.enqueue("a")
    clock.advance(90)
    beat(q, queues, tasks)
    assert "no worker that lives" in only(q).what


def test_whoever_takes_single_jobs_is_a_worker_too(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue_many(["a", "b"])
    clock.advance(90)
    lease = q.deliver()
    assert lease is not None
    assert found(q) == []
    clock.advance(60)
    assert "no worker that lives" in only(q).what


def test_overdue_jobs_count_where_no_worker_makes_them_ready(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a", delay=60)
    q.enqueue("b", delay=3600)
    clock.advance(59)
    assert found(q) == []
    clock.advance(91)
    assert only(q).what.startswith("queue mail has 1 job due, job 1 for 1m30s, ")


def test_a_job_is_late_since_it_was_due_and_not_since_its_enqueue(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.configure(backoff=Backoff(base=1, cap=1, floor=1))
    q.enqueue_many(["handed back", "failed", "lost", NewJob("delayed", delay=3600)])
    clock.advance(3600 - 31)
    back, failed, _ = q.deliver_many(3)
    clock.advance(31)
    q.release(back)
    q.nack(failed)
    clock.advance(1)
    q.tick_timeouts()
    beat(q)
    assert found(q) == []
    clock.advance(LATE_S + 1)
    beat(q)
    assert "4 jobs due" in only(q).what


def test_a_job_that_is_due_for_too_long_is_a_problem(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a")
    clock.advance(LATE_S + 5)
    q.enqueue("b", 9)
    beat(q)
    finding = only(q)
    assert finding.what == "queue mail has 2 jobs due, job 1 for 5m05s, which is longer than 5m00s"
    assert "--concurrency" in finding.fix
    assert finding.is_problem


def test_a_paused_queue_is_noted_and_a_problem_once_its_jobs_are_late(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a")
    q.pause()
    assert (only(q).is_problem, only(q).fix) == (False, "ulak resume mail --yes, when it may go on")
    clock.advance(LATE_S + 5)
    assert only(q).what == "queue mail is paused, with 1 job due, job 1 for 5m05s"
    assert only(q).is_problem


def test_a_full_queue_is_noted(q: Queue) -> None:
    beat(q)
    q.enqueue_many(["a"] * 10)
    finding = only(q)
    assert finding.what == "queue mail is full: 10 open jobs, and room for 10"
    assert "ulak queue set mail --capacity 20 --yes" in finding.fix
    assert not finding.is_problem


def test_a_job_that_runs_for_hours_is_noted(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue("a")
    lease = q.deliver()
    assert lease is not None
    q.extend(lease, 10_000)
    clock.advance(3_700)
    finding = only(q)
    assert finding.what == "a job of queue mail has been with its worker for 1h02m"
    assert "ulak cancel ID --yes" in finding.fix
    assert not finding.is_problem


def test_held_jobs_are_a_problem_by_why_they_are(q: Queue) -> None:
    q.enqueue_many(["a", "b", "c"])
    hold(q, Hold(), Hold(Cause.UNDECODABLE), Hold())
    whats = [finding.what for finding in found(q)]
    assert whats == [
        "jobs are held, since no worker that met them knows their task: no task (2 in mail)",
        "jobs are held, since their payload does not fit their task: no task (1 in mail)",
    ]
    assert all(finding.is_problem for finding in found(q))


def test_very_many_held_jobs_are_not_all_looked_at(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.cli.doctor_queues._HELD_MAX", 3)
    monkeypatch.setattr("ulak.cli.doctor_queues._PAGE", 2)
    q.enqueue_many(["a"] * 6)
    hold(q, *[Hold()] * 6)
    assert found(q)[0].what.endswith(": no task (4 or more in mail)")


# Clocks


def step(clock: ManualClock, by_s: float) -> None:  # noqa: F811
    clock.set_calendar(datetime.fromtimestamp(clock.calendar(), UTC) + timedelta(seconds=by_s))


@pytest.mark.parametrize(("by_s", "told"), [(3_600.0, "forward by 1h00m"), (-90.0, "back by 1m30s")])
def test_a_clock_that_was_set_since_a_worker_began_is_noted(
    q: Queue,
    clock: ManualClock,  # noqa: F811
    by_s: float,
    told: str,
) -> None:
    with q.workers(print, count=1):
        eventually(q._edge.store.workers, clock=clock)
        assert found(q) == []
        step(clock, by_s)
        # Its next word is of the time that is now.
        eventually(lambda: found(q), clock=clock)
        finding = only(q)
    assert re.fullmatch(rf"the machine's clock was set {told} since a worker was started", finding.what)
    assert "timedatectl" in finding.fix
    assert not finding.is_problem


def test_what_a_worker_elsewhere_says_of_its_clock_is_not_compared(q: Queue) -> None:
    beat(q, host="elsewhere", ahead_s="0")
    assert found(q) == []
    beat(q, ahead_s="a lot")
    assert found(q) == []
