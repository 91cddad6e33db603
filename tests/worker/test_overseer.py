"""What a pool tells of loops that stand still, jobs that run too long, stores that are away."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.stores import refuse
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import Context
from ulak.errors import StorageUnavailable
from ulak.metrics import RunTimes
from ulak.seldom import EVERY_S, Seldom, again
from ulak.worker.overseer import LONG_MIN_S, LONG_S, RUNS_MIN, Overseer
from ulak.worker.pulse import Pulse


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


# Jobs


def test_a_job_that_runs_for_an_hour_is_told_once(timed, clock, caplog):
    """Nothing is known yet of how long such jobs run."""
    q, goes_on, started = timed(), threading.Event(), threading.Event()

    def handler(_):
        started.set()
        goes_on.wait(WAIT_S)

    with q.workers(handler, count=1):
        q.enqueue("long")
        assert started.wait(WAIT_S)
        eventually(lambda: bool(said(caplog, "runs for")), clock=clock, step_s=600.0)
        (line,) = said(caplog, "runs for")
        assert line.startswith("job 1 of queue")
        assert int(line.split("runs for ")[1].split()[0]) > LONG_S
        for _ in range(3):
            let_time_pass(clock, LONG_S, sleepers=1)
        assert said(caplog, "runs for") == [line]
        goes_on.set()
        eventually(lambda: q.counts().acked == 1)


@pytest.mark.parametrize(("p99_s", "long_s"), [(0.01, LONG_MIN_S), (20.0, 200.0), (1000.0, LONG_S)])
def test_a_job_is_overdue_after_ten_times_what_such_jobs_take(make, p99_s, long_s):
    q = make()
    with q.workers(print, count=1) as pool:
        for _ in range(RUNS_MIN):
            pool._crew.run_times.record(None, p99_s)
        q.pause()
        q.enqueue("never mind")
        q.resume()
        lease = type("Lease", (), {"task": None})()
        assert Overseer(pool._crew, [])._long_s(lease) == pytest.approx(long_s, rel=0.02)
        lease.task = "other"
        assert Overseer(pool._crew, [])._long_s(lease) == LONG_S
        eventually(lambda: q.counts().open == 0)


def test_run_times_of_too_many_tasks_are_left_out():
    times = RunTimes()
    for number in range(times.TASKS_MAX + 1):
        times.record(f"task {number}", 1.0)
    assert times.p99_s("task 0", 1) == 1.0
    assert times.p99_s(f"task {times.TASKS_MAX}", 1) is None
    assert times.p99_s("task 0", 2) is None


def test_run_times_are_those_of_the_last_runs():
    times = RunTimes()
    for run_s in (*[7.0] * 500, *range(times.RUNS_MAX)):
        times.record(None, run_s)
    assert times.p99_s(None, times.RUNS_MAX) == 989
    assert times.p99_s(None, times.RUNS_MAX + 1) is None


# Event loops


def test_N4_a_loop_that_stands_still_is_told_with_the_job_and_the_place(make, caplog):
    q, goes_on, started = make(), threading.Event(), threading.Event()

    async def blocks(_):
        started.set()
        goes_on.wait(WAIT_S)

    with q.workers(blocks, count=2) as pool:
        q.enqueue("blocks the loop")
        assert started.wait(WAIT_S)
        # Not the pool's own, which its keeper asks too.
        pulse = Pulse(lambda: pool._hands._loop)
        overseer = Overseer(pool._crew, [pulse])
        # The first look asks, the later ones see that nobody answered.
        overseer._tell_blocked(100.0, [])
        running = [pool._crew.seats[0].running or pool._crew.seats[1].running]
        pulse._thread = next(t.ident for t in threading.enumerate() if t.name.endswith("-loop"))
        overseer._tell_blocked(101.0, [running[0][0]])
        assert said(caplog, "stood still") == []
        overseer._tell_blocked(102.5, [running[0][0]])
        overseer._tell_blocked(103.5, [running[0][0]])
        (line,) = said(caplog, "stood still for 2.5 s")
        assert "running: job 1" in line
        assert "threading.py" in line
        goes_on.set()
        eventually(lambda: q.counts().acked == 1)
        eventually(lambda: pulse._asked_at is None)
        overseer._tell_blocked(200.0, [])
        assert overseer._blocked == set()


def test_a_loop_that_turns_answers():
    async def main() -> None:
        pulse = Pulse(asyncio.get_running_loop)
        assert pulse.silent_s(1.0) == 0.0
        assert pulse.silent_s(4.0) == 3.0
        await asyncio.sleep(0)
        assert pulse.silent_s(5.0) == 0.0
        assert "pulse.py" in pulse.where()

    asyncio.run(main())


def test_a_loop_that_is_not_there_is_not_blocked():
    pulse = Pulse(lambda: None)
    assert [pulse.silent_s(now) for now in (1.0, 9.0)] == [0.0, 0.0]
    assert pulse.where() == "an unknown place"


# The interpreter


def test_a_keeper_that_was_held_up_says_so(make, caplog):
    q = make()
    with q.workers(print, count=1) as pool:
        overseer = Overseer(pool._crew, [])
        overseer._looked_at = 100.0
        overseer._tell_held_up(102.0, [])
        assert said(caplog, "held up") == []
        overseer._tell_held_up(106.5, [])
        (line,) = said(caplog, "held up for 5.5 s")
        assert line.endswith("running: nothing")


# Stores that are away


def test_a_complaint_is_made_once_in_a_while_and_counts_the_others():
    seldom = Seldom()
    assert [seldom.may_say("away", now) for now in (0.0, 1.0, 2.0, EVERY_S - 0.1)] == [0, None, None, None]
    assert seldom.may_say("other", 3.0) == 0
    assert seldom.may_say("away", EVERY_S) == 3
    seldom.forget()
    assert seldom.may_say("away", EVERY_S + 1) == 0
    assert (again(0), again(3)) == ("", " (and 3 times since the last such line)")


def test_an_outage_is_told_now_and_then_and_so_is_its_end(make, caplog):
    """Every worker meets it, each again and again; a worker claims its first job while all is well."""
    q, is_away = make(), threading.Event()
    refuse(q, lambda *_: StorageUnavailable("it is away") if is_away.is_set() else None)
    ran, goes_on = [], threading.Event()

    def handler(payload):
        ran.append(payload)
        goes_on.wait(WAIT_S)

    with q.workers(handler, count=4) as pool:
        q.enqueue_many(range(6))
        eventually(lambda: len(ran) == 4)
        is_away.set()
        goes_on.set()
        eventually(lambda: bool(said(caplog, "waits for its store")))
        is_away.clear()
        eventually(lambda: sorted(ran) == list(range(6)))
        eventually(lambda: q.counts().acked == 6)
        assert len(said(caplog, "waits for its store")) == 1
        assert len(said(caplog, "answers again")) == 1
        assert pool.size == 4
        assert not any(record.exc_info for record in caplog.records)


# A pool that ends by itself


@pytest.mark.parametrize("count", [1, 3])
def test_S10_a_pool_may_have_a_last_job(make, count):
    from ulak.worker.execute import Handler
    from ulak.worker.pool import Pool

    q, ran = make(), []
    q.enqueue_many(range(10))
    told = {"worker": "w", "lease_s": 30.0, "grace": 30.0}
    pool = Pool(q._open(), [q.name], Handler(ran.append), count=count, jobs_max=4, **told)
    with pool:
        assert pool.join(WAIT_S)
        assert 4 <= len(ran) < 4 + count
        counts = q.counts()
        assert (counts.acked, counts.leased, counts.ready) == (len(ran), 0, 10 - len(ran))


def test_join_waits_no_longer_than_it_may(make):
    q = make()
    with q.workers(print, count=1) as pool:
        assert not pool.join(0)


# What is said to a running job, and by it


@pytest.mark.parametrize("is_progress", [False, True])
def test_a_cancel_is_seen_and_progress_stored_within_two_looks(timed, clock, is_progress):
    """Long before the lease, of 30 s, is renewed."""
    q, goes_on, started = timed(), threading.Event(), threading.Event()
    contexts = []

    def handler(_, context: Context):
        contexts.append(context)
        started.set()
        goes_on.wait(WAIT_S)

    with q.workers(handler, count=1):
        job_id = q.enqueue("long")
        assert started.wait(WAIT_S)
        (context,) = contexts
        if is_progress:
            eventually(lambda: clock.sleepers == 1)
            context.progress(3, 10, "pages")
        q.cancel(job_id)
        # Only what ran at a look already is looked at in the next.
        for _ in range(3):
            let_time_pass(clock, 1.0, sleepers=1)
        eventually(lambda: clock.sleepers == 1)
        assert context.cancelled
        assert q.get(job_id).progress == ("3/10 pages" if is_progress else "")
        goes_on.set()
        eventually(lambda: q.counts().open == 0)
