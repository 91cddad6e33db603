"""What a job's handle answers: results, how it ended, why it has not, keys, cancels, batches."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.pools import Gate
from tests.support.stores import refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from tests.tasks.conftest import MakeApp
from ulak import (
    App,
    ArgumentError,
    Backoff,
    Closed,
    Context,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobForgotten,
    Keep,
    PayloadError,
    QueueFull,
    ResultTimeout,
    Retention,
    State,
    StorageUnavailable,
    WouldDeadlock,
    taskqueue,
)
from ulak.core.store import Until
from ulak.testing import ManualClock


def run_all(app: App) -> None:
    """Run what is ready in threads, to the end."""
    with app.workers(2) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def test_a_result_is_what_the_function_returned(app: App) -> None:
    @app.task
    def add(a: int, b: int = 2) -> datetime:
        return datetime(2026, 1, a + b, tzinfo=UTC)

    @app.task
    def nothing() -> None: ...

    jobs = [add.enqueue(1), add.enqueue(1, b=5)]
    none = nothing.enqueue()
    assert [job.status() for job in jobs] == [State.READY, State.READY]
    run_all(app)
    assert [job.result(timeout=5).day for job in jobs] == [3, 6]
    assert none.result() is None
    assert jobs[0].wait() is State.SUCCEEDED
    assert jobs[0].info().result == "2026-01-03T00:00:00Z"
    assert none.info().result_body is None
    assert jobs[0].info().payload == jobs[0].refresh().payload == {"a": 1}
    assert (jobs[0].task, jobs[0].queue, jobs[0].existed) == (add.name, "default", False)


def test_a_result_is_waited_for_from_a_thread_and_from_a_loop(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        await asyncio.sleep(0)
        return 3 * n

    async def main() -> list[Any]:
        async with app.aworkers(2):
            first, second = await double.aenqueue(2), await triple.aenqueue(2)
            ends = [await first, await second, await first.await_end(), await second.astatus()]
            return [*ends, (await second.ainfo()).attempt]

    with app.workers(2):
        waiting = [Running(lambda n=n: double.enqueue(n).result(WAIT_S)) for n in range(4)]
        assert [one.result() for one in waiting] == [0, 2, 4, 6]
        assert triple.enqueue(3).result(WAIT_S) == 9
    assert asyncio.run(main()) == [4, 6, State.SUCCEEDED, State.SUCCEEDED, 1]


def test_how_a_job_ended_without_a_result_is_an_error_that_says_so(app: App, caplog) -> None:
    caplog.set_level("CRITICAL", "ulak")

    @app.task(max_attempts=2)
    def fail(text: str) -> None:
        raise ValueError(text)

    dead, cancelled = fail.enqueue("no such address"), fail.enqueue("x")
    expired = fail.using(expires=timedelta(0)).enqueue("y")
    assert cancelled.cancel()
    assert not cancelled.cancel()
    run_all(app)
    with pytest.raises(JobFailed) as caught:
        dead.result(5)
    named = f"job {dead.id} ({fail.name})"
    assert f"{named} is dead after 2 of 2 attempts: ValueError: no such address (" in str(caught.value)
    assert caught.value.failure is not None
    assert "in test_how_a_job_ended" in caught.value.failure.traceback
    with pytest.raises(JobCancelled, match=r"was cancelled after 0 of 2 attempts \[U108\]"):
        cancelled.result(5)
    app.queue("default").prune()
    with pytest.raises(JobExpired, match=r"expired after 0 of 2 attempts \[U109\]"):
        expired.result(5)
    assert [job.wait(5) for job in (dead, cancelled, expired)] == [State.DEAD, State.CANCELLED, State.EXPIRED]


def test_the_errors_of_a_job_can_be_copied_and_pickled(app: App) -> None:
    error = JobFailed("job 7 is dead", 7, None)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(twin), twin.job_id, twin.failure) == ("job 7 is dead [U107]", 7, None)


def test_a_job_that_is_not_stored_is_forgotten_at_once(app: App) -> None:
    @app.task
    def f() -> None: ...

    gone, never = f.enqueue(), f.job(999)
    app.queue("default").delete(gone.id)
    for job in (gone, never):
        for ask in (job.result, job.wait, job.status, job.info):
            with pytest.raises(JobForgotten, match=rf"job {job.id} is not stored in queue 'default'"):
                ask()
        assert job.cancel() is False


def test_a_job_of_another_queue_is_not_this_tasks(make_app: MakeApp) -> None:
    app = make_app(queues=["default", "mail"])
    task = app.task(name="f")(lambda: None)
    job = task.using(queue="mail").enqueue()
    with pytest.raises(JobForgotten, match=f"job {job.id} is not stored in queue 'default'"):
        task.job(job.id).wait(0)
    assert task.using(queue="mail").job(job.id).wait(0) is State.READY


def test_waiters_of_a_job_that_is_deleted_are_told(app: App) -> None:
    @app.task
    def f() -> None: ...

    job = f.enqueue()
    waiting = Running(lambda: job.result(WAIT_S))
    app.queue("default").delete(job.id)
    with pytest.raises(JobForgotten):
        waiting.result()


@pytest.mark.parametrize("of", ["another", "none"])
def test_a_job_of_another_task_is_not_this_tasks(app: App, of: str) -> None:
    f = app.task(name="f")(lambda: 1)
    g = app.task(name="g", aliases=["old"])(lambda: 2)
    theirs = g.enqueue().id if of == "another" else app.queue("default").enqueue("x")
    job = f.job(theirs)
    asks: list[Any] = [job.result, job.wait, job.status, job.info, job.cancel, job.refresh]
    asks += [lambda ask=ask: asyncio.run(ask()) for ask in (job.aresult, job.await_end, job.acancel)]
    said = "is one of task g" if of == "another" else "has no task"
    for ask in asks:
        with pytest.raises(JobForgotten, match=rf"job {theirs} of queue 'default' {said}, not of f"):
            ask()
    assert app.queue("default").counts().ready == 1
    if of == "another":
        assert g.job(theirs).cancel()


@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
def test_a_key_that_stands_for_a_job_of_another_task_gives_no_job_of_this_one(app: App, key: str) -> None:
    f, g = app.task(name="f")(lambda: 1), app.task(name="g")(lambda: 2)
    keyed: Any = {key: "k"}
    theirs = g.using(**keyed).enqueue()
    jobs = [f.using(**keyed).enqueue(), asyncio.run(f.using(**keyed).aenqueue())]
    jobs += f.enqueue_many([f.using(**keyed).call()])
    assert [job.existed for job in jobs] == [True] * 3
    run_all(app)
    for job in jobs:
        for ask in (lambda job=job: job.result(0), lambda job=job: asyncio.run(job.aresult(0))):
            with pytest.raises(JobForgotten, match=r"is one of task g, not of f\n.*put the task's name"):
                ask()
    assert theirs.result(0) == 2


def test_a_job_is_found_by_its_id_also_under_the_earlier_name_of_its_task(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    job = old.task(name="old")(lambda: 7).enqueue()
    task = new.task(name="new", aliases=["older", "old"])(lambda: 7)
    run_all(new)
    assert task.job(job.id).result(5) == 7


def test_a_job_is_found_again_by_its_id(make_app: MakeApp) -> None:
    def define(app: App) -> Any:
        @app.task(name="f")
        def f() -> timedelta:
            return timedelta(1)

        return f

    here, there = make_app(), make_app()
    job_id = define(here).enqueue().id
    task = define(there)
    run_all(there)
    assert task.job(job_id).result(5) == timedelta(1)


def why(job: Any) -> str:
    with pytest.raises(ResultTimeout) as caught:
        job.result(timeout=0)
    assert isinstance(caught.value, TimeoutError)
    return str(caught.value)


def test_a_time_out_says_what_the_job_waits_for(app: App) -> None:
    @app.task
    def f(n: int) -> None: ...

    job = f.enqueue(1)
    assert "no live worker serves queue 'default'" in why(job)
    later = f.using(delay=3600).enqueue(2)
    assert "due in 3" in why(later)
    q = app.queue("default")
    q.pause()
    assert "waits: its queue is paused" in why(job)
    q.resume()
    with Gate() as gate:

        @app.task
        def hold() -> None:
            gate.handler("def")(None)

        with app.workers(1):
            held = hold.using(priority=9).enqueue()
            gate.entered()
            behind = [f.using(priority=8).enqueue(n) for n in range(3)]
            assert f"job {held.id} has not ended: runs on " in why(held)
            eventually(lambda: "no live worker" not in why(behind[0]))
            assert "runs as soon as a worker is free, the next of all" in why(behind[0])
            assert "runs as soon as a worker is free, after 2 other jobs of queue 'default'" in why(behind[2])
            gate.open()


def test_a_time_out_counts_the_jobs_that_come_before(make_app: MakeApp, monkeypatch) -> None:
    monkeypatch.setattr(taskqueue, "PAGE", 4)
    monkeypatch.setattr(taskqueue, "PAGES_MAX", 3)
    app = make_app(queues=["default", "other"])
    f = app.task(name="f")(lambda: None)
    first = f.enqueue()
    jobs = f.enqueue_many([f.using(priority=priority).call() for priority in (0, 3, 1, 2, 0, 1)])
    f.using(queue="other", priority=9).enqueue()
    f.using(delay=60, priority=9).enqueue()
    app.queue("default")._edge.store.beat("w", {"queues": "default", "size": "1"})
    # Of one priority, in the order of their enqueue.
    assert [count(why(job)) for job in (first, *jobs)] == [4, 5, 0, 2, 1, 6, 3]
    f.enqueue_many([f.using(priority=5).call() for _ in range(8)])
    assert "after at least 9 other jobs of queue 'default'" in why(first)


def count(said: str) -> int:
    """How many jobs are said to be before one."""
    found = re.search(r", after (\d+) other jobs|, the next of all", said)
    assert found
    return int(found[1] or 0)


def test_a_time_out_says_that_a_job_is_held(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()

    def send(to: str) -> None: ...

    def sent(to: str, subject: str) -> None: ...

    new.task(name="other")(lambda: None)
    known = old.task(name="send")(send)
    new_send = new.task(name="send")(sent)
    unknown = old.task(name="unknown")(lambda: None).enqueue()
    refused = known.enqueue("ada")
    with new.workers(1):
        eventually(lambda: (unknown.status(), refused.status()) == (State.HELD, State.HELD))
        assert "waits for a worker that knows unknown" in why(unknown)
        assert "its payload does not fit its task here" in why(refused)
    assert new_send.name == "send"


def watchers(app: App) -> int:
    """How many threads wait for the first job to be taken: one, where it is durable."""
    return int(app._home._unserved is not None)


def test_a_wait_ends_with_its_time(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()
    job = app.task(name="f")(lambda: None).enqueue()
    waiting = Running(lambda: job.wait(timeout=5))
    let_time_pass(clock, 5.0, sleepers=1 + watchers(app))
    assert waiting.result() is State.READY


# In a handler


def test_a_handler_never_waits_without_a_limit(app: App) -> None:
    @app.task
    def inner() -> int:
        return 1

    @app.task
    def outer() -> str:
        job = inner.enqueue()
        try:
            job.result()
        except WouldDeadlock as error:
            return str(error)
        return "it waited"

    @app.task
    async def aouter() -> str:
        job = await inner.aenqueue()
        try:
            await job
        except WouldDeadlock as error:
            return str(error)
        return "it waited"

    with app.workers(1):
        for task in (outer, aouter):
            said = task.enqueue().result(WAIT_S)
            assert said.startswith("a handler would wait without a limit for job ")


def test_a_handler_may_look_at_a_job_that_has_ended_and_wait_with_a_limit(app: App) -> None:
    @app.task
    def inner() -> int:
        return 7

    @app.task
    def outer(job_id: int) -> list[int]:
        return [inner.job(job_id).result(), inner.enqueue().result(timeout=WAIT_S)]

    with app.workers(2):
        job = inner.enqueue()
        job.wait(WAIT_S)
        assert outer.enqueue(job.id).result(WAIT_S) == [7, 7]


def test_an_enqueue_in_a_handler_never_waits_for_room(make_app: MakeApp) -> None:
    app = make_app(queues={"default": 1})

    @app.task
    def again() -> str:
        try:
            again.enqueue()
        except WouldDeadlock as error:
            return str(error)
        return "it waited"

    with app.workers(1):
        said = again.enqueue().result(WAIT_S)
    assert "is full, and a handler must not wait without a limit" in said
    assert "task.using(wait=...), or raise the capacity" in said


def test_an_enqueue_waits_for_room_at_most_30_seconds_unless_told(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(queues={"default": 1})
    task = app.task(name="f")(lambda: None)
    task.enqueue()
    waiting = Running(task.enqueue)
    let_time_pass(clock, 29.0, sleepers=1 + watchers(app))
    assert not waiting.is_over
    eventually(lambda: waiting.is_over, clock=clock, step_s=1.0)
    with pytest.raises(QueueFull, match=r"of 1 open jobs for 30 s"):
        waiting.result()
    with pytest.raises(QueueFull):
        task.using(wait=0).enqueue()

    async def main() -> None:
        with pytest.raises(QueueFull):
            await task.using(wait=0).aenqueue()

    asyncio.run(main())


# Options


def test_options_reach_the_job_and_what_is_not_named_stays(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(queues=["default", "mail"])

    @app.task(priority=3, max_attempts=7, expires=100, backoff=Backoff(2, 4))
    def f() -> None: ...

    plain, named = f.enqueue().info(), f.using(
        delay=timedelta(seconds=5),
        priority=9,
        queue="mail",
        unique_key="u",
        idempotency_key="i",
        expires=None,
        max_attempts=1,
        backoff=Backoff(1, 2),
        headers={"a": "b"},
    ).using(priority=8).enqueue().info()  # fmt: skip
    now = datetime.fromtimestamp(clock.calendar(), UTC)
    assert (plain.priority, plain.max_attempts, plain.backoff, plain.queue) == (
        3,
        7,
        Backoff(2, 4),
        "default",
    )
    assert (plain.task, plain.codec, plain.expires_at) == (f.name, "json", now + timedelta(seconds=100))
    assert (named.priority, named.max_attempts, named.backoff, named.queue) == (8, 1, Backoff(1, 2), "mail")
    assert (named.unique_key, named.idempotency_key, named.headers) == ("u", "i", {"a": "b"})
    assert (named.run_at, named.expires_at, named.state) == (
        now + timedelta(seconds=5),
        None,
        State.SCHEDULED,
    )


def test_c6_a_time_without_a_zone_is_refused(app: App) -> None:
    task = app.task(name="f")(lambda: None)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    for option in ("run_at", "expires"):
        with pytest.raises(
            ArgumentError, match=rf"{option} must be aware of its time zone: datetime\(..., tz"
        ):
            task.using(**{option: naive})
    assert app.queue("default").counts().total == 0


def test_a_duplicate_says_that_it_existed_and_is_the_same_job(app: App) -> None:
    task = app.task(name="f")(lambda: None)
    once = task.using(unique_key="k")
    first, second = once.enqueue(), once.enqueue()
    assert (first.existed, second.existed, second.id) == (False, True, first.id)
    assert type(second.id) is int

    async def main() -> Any:
        return await task.using(idempotency_key="i").aenqueue(), await task.using(
            idempotency_key="i"
        ).aenqueue()

    third, fourth = asyncio.run(main())
    assert (third.existed, fourth.existed, fourth.id) == (False, True, third.id)


def test_wrong_arguments_store_nothing(app: App) -> None:
    @app.task
    def f(n: int) -> None: ...

    async def main() -> None:
        with pytest.raises(ArgumentError, match="argument 'n' got str, expected int"):
            await f.aenqueue("x")  # type: ignore[arg-type]

    for call in (f.enqueue, f.call, f.using(delay=3).enqueue):
        with pytest.raises(ArgumentError, match="argument 'n' got str, expected int"):
            call("x")  # type: ignore[arg-type]
    asyncio.run(main())
    assert app.queue("default").counts().total == 0


# Many at once


def test_many_calls_are_stored_all_or_none(make_app: MakeApp) -> None:
    app = make_app(queues={"default": 3})

    @app.task
    def f(n: int) -> int:
        return n

    jobs = f.enqueue_many([f.call(1), f.using(priority=5).call(n=2)])
    assert [job.info().payload for job in jobs] == [{"n": 1}, {"n": 2}]
    assert [job.info().priority for job in jobs] == [0, 5]
    with pytest.raises(QueueFull):
        f.using(wait=0).enqueue_many(f.call(n) for n in range(2))
    assert app.queue("default").counts().total == 2
    assert f.enqueue_many([]) == []

    async def main() -> Any:
        return await f.aenqueue_many([f.call(3)])

    assert [job.info().payload for job in asyncio.run(main())] == [{"n": 3}]


def test_many_calls_are_of_one_task_and_queue(make_app: MakeApp) -> None:
    app = make_app(queues=["default", "mail"])
    f, g = app.task(name="f")(lambda: None), app.task(name="g")(lambda: None)
    with pytest.raises(ArgumentError, match=r"f.enqueue_many: calls\[1\] is of g, not f.call\(...\)"):
        f.enqueue_many([f.call(), g.call()])
    with pytest.raises(ArgumentError, match=r"calls\[0\] is int, not f.call\(...\)"):
        f.enqueue_many([3])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"f.enqueue_many takes a list of f.call\(...\), got str"):
        f.enqueue_many("ab")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"in one queue; these are for \['default', 'mail'\]"):
        f.enqueue_many([f.call(), f.using(queue="mail").call()])
    assert repr(f.call()) == "Call(task='f', queue='default', arguments=<2 bytes>)"


# The App


def test_an_app_that_was_closed_is_opened_again_by_its_next_use(make_app: MakeApp) -> None:
    app = make_app()
    keep = make_app()
    keep.task(name="f")(lambda: None).enqueue()
    task = app.task(name="f")(lambda: None)
    first = task.enqueue()
    with app:
        assert first.status() is State.READY
    assert first.status() is State.READY
    assert task.enqueue().id == first.id + 1

    async def main() -> Any:
        async with app:
            job = await task.aenqueue()
        return job, await task.aenqueue(), await job.astatus()

    job, other, state = asyncio.run(main())
    assert (other.id - job.id, state) == (1, State.READY)
    app.close()
    app.close()


def test_the_queue_below_a_task_is_the_apps(app: App) -> None:
    task = app.task(name="f")(lambda: None)
    task.enqueue()
    q = app.queue("default")
    assert q is app.queue("default")
    assert q.counts().ready == 1
    q.close()
    with pytest.raises(Closed):
        q.counts()
    assert app.queue("default").counts().ready == 1

    async def main() -> int:
        async with app.aqueue("default") as aq:
            return (await aq.counts()).ready

    assert asyncio.run(main()) == 1


def test_a_private_memory_store_is_one_for_all_of_an_apps_queues() -> None:
    app, other = App(queues=["a", "b"]), App(queues=["a", "b"])
    task = app.task(name="f")(lambda: None)
    ids = [task.enqueue().id, task.using(queue="b").enqueue().id, app.queue("b").enqueue(1)]
    assert ids == [1, 2, 3]
    assert app.queue("b").counts().ready == 2
    assert other.queue("b").counts().ready == 0
    app.close()
    other.close()


@pytest.mark.parametrize("private", [True, False])
def test_threads_that_use_an_app_for_the_first_time_at_once_share_one_store(
    make_app: MakeApp, private: bool
) -> None:
    for _ in range(20):
        app = App(queues=["a", "b"]) if private else make_app(queues=["a", "b"])
        task, start = app.task(name="f")(lambda: None), threading.Barrier(8)
        before = 0 if private else app.queue("a").counts().total + app.queue("b").counts().total
        enqueuing = [Running(task.using(queue="ab"[n % 2]).enqueue, start) for n in range(8)]
        ids = {one.result().id for one in enqueuing}
        assert len(ids) == 8
        assert app.queue("a").counts().total + app.queue("b").counts().total == before + 8
        app.close()


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_an_app_may_be_closed_while_others_enqueue(make_app: MakeApp, on_a_loop: bool) -> None:
    app, other = make_app(), make_app()
    task = app.task(name="f")(lambda: None)
    # So that what is in memory stays.
    other.open()
    stop = threading.Event()
    said: list[str] = []

    def enqueue() -> int:
        stored = 0
        while not stop.is_set():
            try:
                _ = asyncio.run(task.aenqueue()) if on_a_loop else task.enqueue()
                stored += 1
            except Closed as closed:
                said.append(str(closed))
        return stored

    enqueuing = [Running(enqueue) for _ in range(3)]
    for _ in range(40):
        app.open()
        app.close()
    stop.set()
    assert sum(one.result() for one in enqueuing) == other.queue("default").counts().total
    # Whoever has no handle is not told of one.
    assert [text for text in said if f"{app!r} was closed while this call was under way" not in text] == []


@pytest.mark.parametrize("call", ["enqueue", "aenqueue", "enqueue_many"])
def test_who_waits_for_room_in_an_app_that_is_closed_is_told_so(
    timed: MakeApp, clock: ManualClock, call: str
) -> None:
    app, other = timed(queues={"default": 1}), timed()
    task = app.task(name="f")(lambda: None)
    task.enqueue()
    other.open()
    calls = {
        "enqueue": task.enqueue,
        "aenqueue": lambda: asyncio.run(task.aenqueue()),
        "enqueue_many": lambda: task.enqueue_many([task.call()]),
    }
    waiting = Running(calls[call])
    eventually(lambda: len(app._home.queue_of("default").edge.store.line(Until.ROOM, "default")))
    app.close()
    with pytest.raises(Closed, match=r"App\(.*\) was closed while this call was under way"):
        waiting.result()
    assert other.queue("default").counts().open == 1


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_who_waits_for_a_job_of_an_app_that_is_closed_is_told_so(
    timed: MakeApp, clock: ManualClock, on_a_loop: bool
) -> None:
    app = timed()
    job = app.task(name="f")(lambda: None).enqueue()
    line = app._home.queue_of("default").edge.store.ends(job.id)
    waiting = Running(lambda: asyncio.run(job.aresult()) if on_a_loop else job.result())
    eventually(lambda: len(line) == 1)
    app.close()
    eventually(lambda: waiting.is_over, clock=clock)
    with pytest.raises(Closed, match=r"App\(.*\) was closed while this call was under way"):
        waiting.result()


@pytest.mark.parametrize("url", ["memory://", "memory://closed-and-opened-again"])
def test_a_job_that_went_with_a_closed_memory_store_is_not_taken_for_a_later_one(url: str) -> None:
    app = App(url)
    f, g = app.task(name="f")(lambda: 1), app.task(name="g")(lambda: 2)
    gone = f.enqueue()
    app.close()
    later = g.enqueue()
    assert later.id > gone.id
    with pytest.raises(JobForgotten, match="what is in memory is gone once its App is closed"):
        gone.result()
    with pytest.raises(JobForgotten):
        asyncio.run(gone.aresult())
    with app.workers(1):
        assert later.result(WAIT_S) == 2
    app.close()


def test_who_waits_for_a_job_of_a_private_store_that_is_closed_is_told_that_it_is_gone() -> None:
    clock = ManualClock()
    app = App(clock=clock)
    job = app.task(name="f")(lambda: None).enqueue()
    line = app._home.queue_of("default").edge.store.ends(job.id)
    waiting = Running(job.result)
    eventually(lambda: len(line) == 1)
    app.close()
    eventually(lambda: waiting.is_over, clock=clock)
    with pytest.raises(Closed, match="what was in its memory is gone"):
        waiting.result()


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_pool_whose_app_was_closed_before_it_started_says_so(
    make_app: MakeApp, private: bool, on_a_loop: bool
) -> None:
    app = App() if private else make_app()
    app.task(name="f")(lambda: 1)

    async def start() -> None:
        await pool.start()

    pool: Any = app.aworkers(1) if on_a_loop else app.workers(1)
    app.close()
    with pytest.raises(Closed, match="the store of this pool was closed before the pool was started"):
        asyncio.run(start()) if on_a_loop else pool.start()
    with app.workers(1):
        assert app.find("f").enqueue().result(WAIT_S) == 1
    app.close()


@pytest.mark.parametrize("private", [True, False])
def test_an_app_that_is_closed_beside_its_pool_finds_the_pools_store_again(
    make_app: MakeApp, private: bool
) -> None:
    app = App() if private else make_app()
    task = app.task(name="f")(lambda: 1)
    with app.workers(1):
        first = task.enqueue()
        app.close()
        assert task.enqueue().result(WAIT_S) == 1
        assert first.result(WAIT_S) == 1
    app.close()


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_handle_that_cannot_be_closed_in_order_leaves_no_other_open(
    make_app: MakeApp, on_a_loop: bool
) -> None:
    app = make_app(queues=["a", "b", "c"]).open()
    handles = [app.queue(name) for name in "abc"]
    opened = handles[0]._open()
    for q in handles:
        q.enqueue(b"")
        q.deliver()

    def away(name: str, args: Any) -> Any:
        return StorageUnavailable("away") if name == "leased" and args[0] == "b" else None

    refuse(handles[0], away)
    close = (lambda: asyncio.run(app.aclose())) if on_a_loop else app.close
    with pytest.raises(StorageUnavailable):
        close()
    assert [q.is_closed for q in handles] == [True] * 3
    assert opened._handles == 0
    app.close()


def test_an_url_may_be_set_until_the_store_is_opened(tmp_path) -> None:
    app = App()
    task = app.task(name="f")(lambda: None)
    app.url = f"sqlite:///{tmp_path / 'jobs.db'}"
    task.enqueue()
    with pytest.raises(ValueError, match="has opened its store; set its url before the first use"):
        app.url = "memory://"
    app.close()
    app.url = "memory://"
    assert task.enqueue().id == 1
    app.close()


def test_settings_of_an_app_are_stored_with_its_queues(make_app: MakeApp) -> None:
    kept = Retention(succeeded=Keep(1, 60))
    app = make_app(queues={"mail": 5}, retention=kept, max_attempts=9, visibility_timeout=7)
    assert app.queue("mail").settings().capacity == 5
    assert app.queue("mail").settings().retention == kept
    assert app.task(name="f")(lambda: None).enqueue().info().max_attempts == 9
    lease = app.queue("mail").deliver()
    assert lease is not None
    assert lease.lease_s == 7


def test_many_calls_are_part_of_the_callers_transaction_as_each_of_them_would_be(tmp_path) -> None:
    path = tmp_path / "jobs.db"
    heard: list[object] = []
    with App(f"sqlite:///{path}") as app:
        f = app.task(name="f")(lambda n: None)
        app.on(heard.append)
        mine = sqlite3.connect(path, isolation_level=None)
        joined = f.using(connection=mine)
        mine.execute("BEGIN IMMEDIATE")
        f.enqueue_many([joined.call(1), joined.using(priority=3).call(2)])
        joined.enqueue_many([f.call(3)])
        asyncio.run(f.aenqueue_many([joined.call(4)]))
        mine.execute("ROLLBACK")
        assert app.queue("default").counts().total == 0
        mine.execute("BEGIN IMMEDIATE")
        jobs = f.enqueue_many([joined.call(n) for n in range(2)])
        mine.execute("COMMIT")
        assert [job.info().payload for job in jobs] == [{"n": 0}, {"n": 1}]
        # What is part of a transaction may never be.
        assert heard == []
        other = sqlite3.connect(path, isolation_level=None)
        for calls in ([joined.call(1), f.call(2)], [joined.call(1), f.using(connection=other).call(2)]):
            with pytest.raises(ArgumentError, match="or none, so with one connection="):
                f.enqueue_many(calls)
        assert app.queue("default").counts().total == 2
        mine.close()
        other.close()


def test_many_calls_that_join_a_transaction_need_an_open_queue(tmp_path) -> None:
    path = tmp_path / "jobs.db"
    App(f"sqlite:///{path}").open().close()
    app, mine = App(f"sqlite:///{path}"), sqlite3.connect(path, isolation_level=None)
    f = app.task(name="f")(lambda: None)
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(ArgumentError, match="connection= needs queue 'default' to be open"):
        f.enqueue_many([f.using(connection=mine).call()])
    mine.close()
    app.close()


def test_many_calls_wait_as_long_as_each_of_them_would(make_app: MakeApp) -> None:
    app = make_app(queues={"default": 1})
    f = app.task(name="f")(lambda: None)
    f.enqueue()
    for patience in (f.using(wait=0), f.using(wait=timedelta(0))):
        with pytest.raises(QueueFull):
            f.enqueue_many([patience.call()])
        with pytest.raises(QueueFull):
            patience.enqueue_many([f.call()])
    with pytest.raises(ArgumentError, match="or none, so with one wait="):
        f.enqueue_many([f.using(wait=0).call(), f.using(wait=1).call()])
    with pytest.raises(ArgumentError, match="or none, so with one wait="):
        f.enqueue_many([f.using(wait=0).call(), f.call()])


def test_l13_an_enqueue_is_part_of_the_callers_transaction(tmp_path) -> None:
    path = tmp_path / "jobs.db"
    app = App(f"sqlite:///{path}")

    @app.task
    def f(n: int) -> int:
        return n

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(ArgumentError, match="open it before the transaction begins"):
        f.using(connection=connection).enqueue(1)
    connection.execute("ROLLBACK")
    heard: list[object] = []
    app.on(heard.append)
    with app:
        joined = f.using(connection=connection)
        connection.execute("BEGIN IMMEDIATE")
        lost = joined.enqueue(1)
        connection.execute("ROLLBACK")
        with pytest.raises(JobForgotten):
            lost.status()
        connection.execute("BEGIN IMMEDIATE")
        jobs = [joined.enqueue(2), *joined.enqueue_many([f.call(3), f.call(4)])]
        # What is not committed has not happened.
        assert heard == []
        with app.workers(1):
            # Nothing of it is seen, nor run, before the commit.
            assert app.queue("default").counts().total == 0
            connection.execute("COMMIT")
            assert [job.result(WAIT_S) for job in jobs] == [2, 3, 4]
    connection.close()


def test_a_store_without_transactions_refuses_a_connection() -> None:
    app = App()
    task = app.task(name="f")(lambda: None)
    with app, pytest.raises(ArgumentError):
        task.using(connection=sqlite3.connect(":memory:")).enqueue()


def test_a_result_of_another_version_is_an_error_that_says_where_to_look(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()

    def f() -> str:
        return "x"

    def g() -> int: ...

    job = old.task(name="f")(f).enqueue()
    run_all(old)
    with pytest.raises(PayloadError, match=r"the stored result: expected `int`, got `str`\n  see job.info"):
        new.task(name="f")(g).job(job.id).result(5)


def test_cancelling_a_running_job_asks_its_handler(make_app: MakeApp) -> None:
    # It is asked when its lease is renewed, at a third of its length.
    app = make_app(visibility_timeout=2.0)

    @app.task
    def until_asked(ctx: Context) -> str:
        eventually(lambda: ctx.cancelled)
        return "stopped"

    with app.workers(1):
        job = until_asked.enqueue()
        eventually(lambda: job.status() is State.LEASED)
        assert job.cancel()
        # Its ack still wins.
        assert job.result(WAIT_S) == "stopped"


def test_reprs_of_jobs_hold_no_payload(app: App) -> None:
    job = app.task(name="f")(lambda x: None).enqueue("hunter2")
    assert repr(job) == f"Job(id={job.id}, task='f', queue='default')"
    assert "hunter2" not in repr(job.info())
