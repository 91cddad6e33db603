"""Public bug reports of other queues, as tests of tasks; the id of the report is in each name."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import resource
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import child
from tests.support.pools import AT_ONCE, KINDS, Gate, causes, leases_of
from tests.support.stores import is_write, refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks import roles
from tests.tasks.conftest import MakeApp
from ulak import App, Backoff, Cancel, Context, Failure, Job, JobFailed, Retry, State, StorageUnavailable
from ulak.events import Died
from ulak.testing import ManualClock


@pytest.fixture(autouse=True)
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


def run_all(app: App) -> None:
    with app.workers(1) as pool:
        assert pool.drain(timeout=WAIT_S).drained


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled"])
def test_s13_a_key_stands_for_its_job_while_that_is_open_and_not_longer(app: App, end: str) -> None:
    @app.task(max_attempts=1)
    def work() -> None:
        if end == "dead":
            raise ValueError

    once = work.using(unique_key="k")
    first = once.enqueue()
    second = once.enqueue()
    assert (second.existed, second.id) == (True, first.id)
    if end == "cancelled":
        first.cancel()
    run_all(app)
    assert first.status() == end
    third = once.enqueue()
    assert (third.existed, third.id > first.id) == (False, True)


def test_s18_a_key_that_is_used_again_starts_anew(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()

    @app.task(max_attempts=2, backoff=Backoff(0.001, 0.001))
    def work() -> None:
        raise ValueError

    once = work.using(unique_key="k", expires=1000)

    def run() -> Any:
        job = once.enqueue()
        with app.workers(1) as pool:
            eventually(lambda: job.status() is State.DEAD, clock=clock)
            pool.shutdown(0)
        return job.info()

    first = run()
    clock.advance(5000)
    second = run()
    assert first.id != second.id
    assert [len(info.history) for info in (first, second)] == [2, 2]
    assert second.created_at.timestamp() >= first.created_at.timestamp() + 5000
    assert second.expires_at > first.expires_at
    assert second.history[0].started_at >= second.created_at.timestamp() - 0.001


def test_s19_no_job_is_leased_before_it_is_run(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(visibility_timeout=30.0)
    ran, leased = [], []

    @app.task
    def work(n: int) -> None:
        ran.append(n)
        leased.append(len(leases_of(app.queue("default"))))
        clock.advance(12.0)

    jobs = [work.enqueue(n) for n in range(10)]
    with app.workers(1) as pool:
        eventually(lambda: jobs[-1].status() is State.SUCCEEDED)
        assert pool.metrics().stale == pool.metrics().reclaimed == 0
        pool.shutdown(0)
    assert ran == list(range(10))
    assert leased == [1] * 10
    assert {job.info().delivery for job in jobs} == {1}


def test_s4_an_orphan_waits_for_its_own_lease_and_not_for_the_longest_time_out(
    timed: MakeApp, clock: ManualClock
) -> None:
    app, crashed = timed(backoff=AT_ONCE, visibility_timeout=3600), timed(visibility_timeout=30)
    with Gate() as gate:
        stand = gate.handler("def")

        @app.task(timeout=36_000)
        def lasts() -> None:
            stand(None)

        @app.task(timeout=60)
        def short() -> None: ...

        orphan = short.enqueue()
        assert crashed.queue("default").deliver().id == orphan.id  # type: ignore[union-attr]
        with app.workers(2):
            lasting = lasts.enqueue()
            gate.entered()
            began_at = clock.interval()
            eventually(lambda: orphan.status() is State.SUCCEEDED, clock=clock)
            assert clock.interval() - began_at < 60
            gate.open()
            assert lasting.wait(WAIT_S) is State.SUCCEEDED
    assert causes(orphan.info()) == ["lost", "ack"]
    assert lasting.info().delivery == 1


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[int]:
    """Of which jobs the log has said this, in order of their ids."""
    lines = [record for record in caplog.records if part in record.getMessage()]
    return sorted(line.job_id for line in lines)  # type: ignore[attr-defined]


def test_f5_threads_whose_jobs_overran_in_blocking_calls_are_all_back_at_work(
    timed: MakeApp, clock: ManualClock, caplog
) -> None:
    caplog.set_level(logging.WARNING, "ulak")
    app = timed(visibility_timeout=3600)
    with Gate() as gate:
        stand = gate.handler("def")

        @app.task(timeout=1, max_attempts=1)
        def overrun() -> None:
            stand(None)

        @app.task
        def normal() -> int:
            return 7

        late = [overrun.enqueue() for _ in range(8)]
        behind = normal.enqueue()
        with app.workers(4) as pool:
            gate.entered(4)
            clock.advance(2.0)
            # A thread cannot be stopped: until its call returns, its worker takes no other job.
            eventually(lambda: said(caplog, "its task's timeout is over") == [1, 2, 3, 4], clock=clock)
            assert (behind.status(), app.queue("default").counts().leased) == (State.READY, 4)
            gate.open()
            assert behind.result(WAIT_S) == 7
            # The others find the gate open, and are in time.
            assert [job.wait(WAIT_S) for job in late] == [State.DEAD] * 4 + [State.SUCCEEDED] * 4
            assert pool.size == 4
    assert [causes(job.info()) for job in late] == [["timeout"]] * 4 + [["ack"]] * 4


def test_f6_jobs_that_hang_give_their_workers_back_once_their_time_is_over(app: App) -> None:
    @app.task(timeout=0.02, max_attempts=1)
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.task
    async def normal() -> int:
        return 7

    hung = [hang.enqueue() for _ in range(4)]
    behind = normal.enqueue()
    with app.workers(2):
        assert behind.result(WAIT_S) == 7
    assert [causes(job.info()) for job in hung] == [["timeout"]] * 4


@pytest.mark.parametrize("style", KINDS)
def test_f6_where_all_workers_hang_without_a_time_out_each_job_is_told(
    timed: MakeApp, clock: ManualClock, caplog, style: str
) -> None:
    caplog.set_level(logging.WARNING, "ulak")
    app = timed(visibility_timeout=36_000)
    with Gate() as gate:
        hang = app.task(name="hang")(gate.handler(style))
        hung = [hang.enqueue(None) for _ in range(2)]
        behind = hang.enqueue(None)

        with app.workers(2) as pool:
            gate.entered(2)
            eventually(lambda: len(said(caplog, "runs for")) == 2, clock=clock, step_s=60.0)
            assert said(caplog, "runs for") == [job.id for job in hung]
            assert behind.status() is State.READY
            gate.open()
            assert pool.drain(36_000).drained


def test_f8_an_exception_that_cannot_be_made_again_is_an_ordinary_failure(app: App) -> None:
    job = roles.define(app).enqueue("refused")
    run_all(app)
    with pytest.raises(JobFailed, match=r"Refused: mailbox unavailable \(550\)"):
        job.result()


def test_f8_an_exception_of_a_child_process_is_told_with_its_type_and_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App(url)
    work = roles.define(app)
    with app, child(roles.works, url) as worker:
        pid = worker.hear("works")
        job = work.enqueue("refused")
        with pytest.raises(JobFailed, match=r"is dead after 1 of 1 attempts: Refused: mailbox unavailable"):
            job.result(WAIT_S)
        assert job.info().error == Failure("Refused", "mailbox unavailable (550)", job.info().error.traceback)
        assert ", in define.<locals>.work\n" in job.info().error.traceback
        assert work.enqueue("fine").result(WAIT_S) == pid
        worker.tell("end")
        assert worker.ended() == 0


def memory_kib() -> int:
    """How much memory this process has now; elsewhere than on Linux the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def test_f15_delayed_jobs_keep_no_ready_one_waiting_and_no_worker_busy(make_app: MakeApp) -> None:
    app = make_app()
    started: list[float] = []

    @app.task
    def work(n: int) -> None:
        started.append(time.perf_counter())

    later = work.using(delay=3600)
    body = later.call(1)
    later.enqueue_many([body] * 100_000)
    waits = []
    with app.workers(2):
        work.enqueue(0).wait(WAIT_S)
        before = memory_kib()
        for n in range(20):
            asked = time.perf_counter()
            assert work.enqueue(n).wait(WAIT_S) is State.SUCCEEDED
            waits.append(started[-1] - asked)
        grown = memory_kib() - before
    # The machine may be busy with others; the jobs that come later would all be late.
    assert sorted(waits)[len(waits) // 2] < 0.1
    assert grown < 20_000
    assert app.queue("default").counts().scheduled == 100_000


def test_r5_full_jitter_has_a_floor_where_one_is_asked_for(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()

    @app.task(max_attempts=12, backoff=Backoff(base=1, cap=60, floor=5))
    def work() -> None:
        raise ValueError

    job = work.enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is State.DEAD, clock=clock, step_s=1.0)
        pool.shutdown(0)
    history = job.info().history
    waits = [after.started_at - before.ended_at for before, after in itertools.pairwise(history)]
    assert len(waits) == 11
    assert min(waits) >= 5.0
    assert max(waits) <= 60.0 + 2.0


three = pytest.mark.parametrize("attempts", [1, 2, 3])


def assert_ran_out(job: Job[Any], ran: list[int], attempts: int, cause: str) -> None:
    """Each attempt was run once, and that was all."""
    assert ran == list(range(1, attempts + 1))
    info = job.info()
    assert (info.state, info.attempt, info.delivery) == (State.DEAD, attempts, attempts)
    assert causes(info) == [cause] * attempts


@three
@pytest.mark.parametrize("cause", ["error", "timeout"])
def test_r8_a_job_that_fails_runs_exactly_as_often_as_it_may(app: App, attempts: int, cause: str) -> None:
    ran: list[int] = []

    @app.task(max_attempts=attempts, timeout=0.005 if cause == "timeout" else None)
    async def work(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if cause == "timeout":
            await asyncio.Event().wait()
        raise ValueError

    job = work.enqueue()
    run_all(app)
    assert_ran_out(job, ran, attempts, cause)


@three
def test_r8_a_job_whose_leases_end_runs_exactly_as_often_as_it_may(
    timed: MakeApp, clock: ManualClock, attempts: int
) -> None:
    """Nothing is heard of its workers: their renewals do not arrive, and they go on."""
    app, ran = timed(), []
    refuse(app.queue("default"), lambda name, _: StorageUnavailable("no") if name == "extend" else None)
    with Gate() as gate:
        stop = gate.handler("def")

        @app.task(max_attempts=attempts, backoff=AT_ONCE)
        def work(ctx: Context) -> None:
            ran.append(ctx.attempt)
            stop(None)

        job = work.enqueue()
        # One more than could be held up.
        with app.workers(attempts + 1) as pool:
            eventually(lambda: job.status() is State.DEAD, clock=clock, step_s=1.0)
            gate.open()
            pool.shutdown()
            assert pool.metrics().stale == attempts
    assert_ran_out(job, ran, attempts, "lost")


class Struck(BaseException):
    """What nobody catches by mistake."""


@three
@pytest.mark.parametrize("style", KINDS)
def test_r8_a_job_whose_workers_die_runs_exactly_as_often_as_it_may(
    timed: MakeApp, clock: ManualClock, style: str, attempts: int
) -> None:
    """Each time after the function has returned, and before that is stored."""
    app, ran = timed(visibility_timeout=3600), []

    def decide(name: str, args: Any) -> BaseException | None:
        # Those who settle what it held live.
        return Struck() if name == "turn" and is_write(name, args) else None

    refuse(app.queue("default"), decide)

    def work(ctx: Context) -> None:
        ran.append(ctx.attempt)

    async def awork(ctx: Context) -> None:
        ran.append(ctx.attempt)

    job = app.task(max_attempts=attempts, backoff=AT_ONCE)(work if style == "def" else awork).enqueue()
    with app.workers(1) as pool:
        eventually(lambda: job.status() is State.DEAD, clock=clock)
        assert pool.size == 1
    assert_ran_out(job, ran, attempts, "lost")
    assert job.info().crashes == attempts


@three
def test_r8_a_job_that_kills_its_process_runs_exactly_as_often_as_it_may(
    tmp_path: Path, attempts: int
) -> None:
    url, ran = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "ran"
    with App(url) as app:
        told: list[int] = []
        job = roles.define_killer(app, attempts, told.append).enqueue()
        for _ in range(attempts):
            with child(roles.runs_what_kills_it, url, attempts, str(ran)) as worker:
                assert worker.ended() == -signal.SIGKILL
        ends: list[Any] = []
        app.on(ends.append)
        with app.workers(1):
            eventually(lambda: job.status() is State.DEAD)
    assert told == []
    # Of the last one, whose process is gone, the pool tells that takes back its lease.
    assert [(type(end), end.cause, end.attempt) for end in ends] == [(Died, "lost", attempts)]
    assert_ran_out(job, [int(line) for line in ran.read_text().split()], attempts, "lost")


def test_n1_one_app_serves_loops_one_after_the_other_and_threads(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    @app.task
    def sub(a: int, b: int) -> int:
        return a - b

    async def main() -> list[int]:
        jobs = [await add.aenqueue(1, 2), await sub.aenqueue(5, 2)]
        async with app.aworkers(2):
            return [await job for job in jobs]

    for _ in range(3):
        assert asyncio.run(main()) == [3, 3]
    assert Running(lambda: asyncio.run(main())).result() == [3, 3]

    def in_a_thread() -> list[int]:
        with app.workers(2):
            return [add.enqueue(1, 2).result(WAIT_S), sub.enqueue(5, 2).result(WAIT_S)]

    assert Running(in_a_thread).result() == [3, 3]
    assert in_a_thread() == [3, 3]


def test_n1_an_app_is_used_from_a_loop_and_threads_at_once(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[int]:
        async with app.aworkers(3):
            jobs = [await double.aenqueue(n) for n in range(20)]
            others = [asyncio.to_thread(lambda n=n: double.enqueue(n).result(WAIT_S)) for n in range(20)]
            return [*[await job for job in jobs], *await asyncio.gather(*others)]

    assert asyncio.run(main()) == [2 * n for n in range(20)] * 2


@pytest.mark.parametrize("place", ["memory", "sqlite"])
def test_n1_an_app_serves_a_process_and_its_forked_child(place: str, tmp_path: Path) -> None:
    url = "memory://forked" if place == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with child(roles.forks_with_an_app, url) as forking:
        ran = forking.hear("ran in the child")
        child_pid, states = forking.hear("child")
        parent_pid, results = forking.hear("parent")
        assert forking.ended() == 0
    assert set(ran) == {child_pid}
    assert states == ["succeeded", "succeeded"]
    # In memory each process has jobs of its own from the fork on.
    theirs = child_pid if place == "sqlite" else parent_pid
    assert results == [theirs, theirs, parent_pid]


@pytest.mark.parametrize("place", ["memory", "sqlite"])
def test_n1_a_child_that_is_forked_while_the_app_opens_opens_it_itself(place: str, tmp_path: Path) -> None:
    url = "memory://forked" if place == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with child(roles.forks_while_it_opens, url) as forking:
        assert forking.hear("ids") == [1, 2, 1]
        assert forking.ended() == 0


@pytest.mark.parametrize("style", ["def", "async def"])
def test_n9_a_time_out_a_shutdown_and_an_abort_are_told_apart(make_app: MakeApp, style: str) -> None:
    app = make_app(visibility_timeout=0.6)
    with Gate() as gate:
        stand = gate.handler(style)

        def is_over(ctx: Context, how: str) -> bool:
            if ctx.cancelled and how == "abort":
                raise Cancel("aborted")
            return how == "shut down" or (ctx.timed_out and how == "time out")

        if style == "def":

            def work(ctx: Context, how: str) -> None:
                if how == "shut down":
                    stand(None)
                eventually(lambda: is_over(ctx, how))
        else:

            async def work(ctx: Context, how: str) -> None:
                if how == "shut down":
                    await stand(None)
                while not is_over(ctx, how):  # noqa: ASYNC110 - a context has no event
                    await asyncio.sleep(0.005)

        limits = {"time out": 0.05, "shut down": 100, "abort": 100}
        jobs = {
            how: app.task(name=how.replace(" ", ""), timeout=limit, max_attempts=1)(work).enqueue(how)
            for how, limit in limits.items()
        }
        with app.workers(3) as pool:
            gate.entered()
            jobs["time out"].wait(WAIT_S)
            eventually(lambda: jobs["abort"].status() is State.LEASED)
            jobs["abort"].cancel()
            jobs["abort"].wait(WAIT_S)
            pool.shutdown(0)
            # A worker that was about to take another job may have taken this one too, and handed it back.
            assert {how: (job.status(), set(causes(job.info()))) for how, job in jobs.items()} == {
                "time out": (State.DEAD, {"timeout"}),
                "abort": (State.CANCELLED, {"cancel"}),
                "shut down": (State.READY, {"shutdown"}),
            }
            assert jobs["shut down"].info().attempt == 0
            gate.open()


def test_o4_a_dead_job_shows_each_of_its_attempts(app: App) -> None:
    @app.task(max_attempts=4)
    def work(ctx: Context) -> None:
        if ctx.attempt == 2:
            raise Retry(after=0, reason="not yet")
        raise LookupError(f"attempt {ctx.attempt}")

    before = datetime.now(UTC).timestamp()
    job = work.enqueue()
    q = app.queue("default")
    assert q.deliver() is not None
    assert q.crash() == 1
    run_all(app)
    info = job.info()
    assert info.state is State.DEAD
    assert causes(info) == ["lost", "nack", "error", "error"]
    assert [attempt.attempt for attempt in info.history] == [1, 2, 3, 4]
    assert [attempt.error and attempt.error.type for attempt in info.history] == [
        None,
        "Retry",
        "LookupError",
        "LookupError",
    ]
    assert [attempt.error and attempt.error.text for attempt in info.history[2:]] == [
        "attempt 3",
        "attempt 4",
    ]
    for attempt in info.history:
        assert before - 1 <= attempt.started_at <= attempt.ended_at
        assert attempt.worker
    frames = info.history[-1].error.traceback
    assert frames.splitlines()[-1].endswith("in test_o4_a_dead_job_shows_each_of_its_attempts.<locals>.work")
    assert info.payload == {}


# Exceptions that mean harm


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("hunter2")

    __repr__ = __str__


def cyclic() -> BaseException:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = one, two
    return one


HOSTILE = {
    "NUL": lambda: ValueError("a\0b"),
    "surrogates": lambda: ValueError("a\ud800b"),
    "20 MB": lambda: ValueError("x" * 20_000_000),
    "unshowable": Unshowable,
    "cycle": cyclic,
    "group": lambda: ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [Unshowable()] * 50)]),
    "name": lambda: type("N" * 5000 + "\ud800", (Exception,), {})("x"),
    "deep": lambda: deep(2000),
}


def deep(levels: int) -> BaseException:
    error: BaseException = ValueError("innermost")
    for _ in range(levels):
        outer = ValueError("outer")
        outer.__cause__ = error
        error = outer
    return error


@pytest.mark.parametrize("style", ["def", "async def"])
@pytest.mark.parametrize("how", HOSTILE)
def test_an_exception_that_means_harm_is_stored_bounded_and_valid(app: App, how: str, style: str) -> None:
    def work() -> None:
        error = HOSTILE[how]()
        raise error

    async def awork() -> None:
        work()

    job = app.task(name="t", max_attempts=2)(work if style == "def" else awork).enqueue()
    run_all(app)
    info = job.info()
    assert (info.state, causes(info)) == (State.DEAD, ["error", "error"])
    for attempt in info.history:
        parts = [attempt.error.type, attempt.error.text, attempt.error.traceback]
        assert all(len(part.encode()) <= 8 * 1024 for part in parts)
        assert parts[0]
    assert "hunter2" not in repr(info.history)
    with pytest.raises(JobFailed):
        job.result()
