"""A job that nobody is there to take is said to be so, once; on the test's clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import child
from tests.support.waiting import eventually, let_time_pass
from tests.tasks import roles
from tests.tasks.conftest import apps
from ulak import App, ResultTimeout, StorageUnavailable
from ulak.taskqueue import TaskQueue
from ulak.testing import Jobs, ManualClock
from ulak.unserved import Unserved


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Iterator[App]:
    with apps(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock, queues=["mail", "slow"]) as make:
        yield make()


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ulak-unserved"]


def warnings(caplog: Any) -> list[str]:
    return [text for record in caplog.records if "taken by nobody" in (text := record.getMessage())]


def noop(app: App) -> Any:
    return app.task(name="f")(lambda: None)


def test_a_job_that_nobody_takes_is_warned_of_once(app: App, clock: ManualClock, caplog) -> None:
    task = noop(app)
    job = task.enqueue()
    for _ in range(5):
        task.enqueue()
    assert len(watchers()) == 1
    let_time_pass(clock, 9.9, sleepers=1)
    assert warnings(caplog) == []
    let_time_pass(clock, 0.1, sleepers=1)
    eventually(lambda: not watchers())
    (said,) = warnings(caplog)
    assert said.startswith(f"job {job.id} of queue mail was taken by nobody for 10 s, and no worker")
    assert "ulak work module:app" in said
    task.enqueue()
    assert watchers() == []


def test_each_queue_is_warned_of(app: App, clock: ManualClock, caplog) -> None:
    task = noop(app)
    task.enqueue()
    let_time_pass(clock, 3.0, sleepers=1)
    task.using(queue="slow").enqueue()
    assert len(watchers()) == 1
    let_time_pass(clock, 7.0, sleepers=1)
    eventually(lambda: len(warnings(caplog)) == 1)
    let_time_pass(clock, 3.0, sleepers=1)
    eventually(lambda: not watchers())
    assert ["mail" in said for said in warnings(caplog)] == [True, False]


@pytest.mark.parametrize("why", ["taken", "worker", "paused", "delayed", "deleted", "cancelled"])
def test_nothing_is_said_where_all_is_well(app: App, clock: ManualClock, caplog, why: str) -> None:
    task = noop(app)
    job = task.using(delay=3600).enqueue() if why == "delayed" else task.enqueue()
    q = app.queue("mail")
    if why == "taken":
        q.deliver()
    elif why == "worker":
        q._edge.store.beat("w", {"queues": "other,mail", "size": "1"})
    elif why == "paused":
        q.pause()
    elif why == "deleted":
        q.delete(job.id)
    elif why == "cancelled":
        job.cancel()
    let_time_pass(clock, 10.0, sleepers=1)
    eventually(lambda: not watchers())
    assert warnings(caplog) == []


def test_a_pool_that_would_hold_the_jobs_of_tasks_serves_none_of_them(app: App, clock: ManualClock) -> None:
    job = noop(app).enqueue()
    q = app.queue("mail")

    def said() -> str:
        with pytest.raises(ResultTimeout) as caught:
            job.result(timeout=0)
        return str(caught.value)

    def beats() -> list[str]:
        return [worker.info.get("tasks", "") for worker in q._edge.store.workers()]

    with q.workers(print, count=1) as pool:
        eventually(lambda: beats() == ["plain"])
        assert "no live worker serves queue 'mail'" in said()
        pool.shutdown(0)
    with app.workers(1, queues=["slow"]) as pool:
        eventually(lambda: beats() == ["app"])
        assert "no live worker serves queue 'mail'" in said()
        pool.shutdown(0)
    q.pause()
    with app.workers(1) as pool:
        eventually(lambda: beats() == ["app"])
        q.redrive(job.id)
        assert q._edge.store.workers()[0].serves("mail")
        pool.shutdown(0)


@pytest.mark.parametrize(("queues", "seen_s"), [("mail", 10.5), ("other,mailing", 0)])
def test_a_worker_of_other_queues_or_one_seen_long_ago_serves_nothing(
    app: App, clock: ManualClock, caplog, queues: str, seen_s: float
) -> None:
    beat = app.queue("mail")._edge.store.beat
    if seen_s:
        beat("w", {"queues": queues, "size": "1"})
        clock.advance(seen_s - 10.0)
    noop(app).enqueue()
    if not seen_s:
        beat("w", {"queues": queues, "size": "1"})
    let_time_pass(clock, 10.0, sleepers=1)
    eventually(lambda: not watchers())
    assert len(warnings(caplog)) == 1


def test_what_is_in_memory_is_not_looked_after(clock: ManualClock) -> None:
    app = App(clock=clock)
    noop(app).enqueue()
    assert watchers() == []
    app.close()


def test_closing_the_app_ends_the_looking(app: App, clock: ManualClock, caplog) -> None:
    noop(app).enqueue()
    eventually(lambda: clock.sleepers == 1)
    app.close()
    eventually(lambda: not watchers())
    assert warnings(caplog) == []


def test_a_look_that_comes_as_the_app_is_closed_does_not_open_it_again(
    app: App, clock: ManualClock, caplog, monkeypatch
) -> None:
    noop(app).enqueue()
    handle, closes = app._home.queue_of("mail"), iter([app.close])
    is_on = TaskQueue.is_on

    def close_then(self: TaskQueue, store: Any) -> bool:
        answer = is_on(self, store)
        # Between that answer and the look.
        for close in closes:
            close()
        return answer

    monkeypatch.setattr(TaskQueue, "is_on", close_then)
    eventually(lambda: clock.sleepers == 1)
    let_time_pass(clock, 10.0, sleepers=1)
    eventually(lambda: not watchers())
    assert handle.is_closed
    assert app._home._store is None
    assert warnings(caplog) == []


def test_a_job_is_not_looked_for_in_the_store_of_a_test(app: App, clock: ManualClock, caplog) -> None:
    task = noop(app)
    task.enqueue()
    eventually(lambda: clock.sleepers == 1)
    with Jobs():
        task.enqueue()
        let_time_pass(clock, 10.0, sleepers=1)
        eventually(lambda: not watchers())
    assert warnings(caplog) == []


def test_a_job_that_is_noted_after_the_end_is_not_looked_after(clock: ManualClock) -> None:
    unserved = Unserved(lambda queue, job_id: True, clock)
    unserved.note("mail", 1)
    eventually(lambda: clock.sleepers == 1)
    unserved.close()
    unserved.note("mail", 2)
    eventually(lambda: not watchers())
    unserved.note("mail", 3)
    assert watchers() == []


def test_an_enqueue_goes_well_where_no_thread_can_be_started(
    app: App, clock: ManualClock, monkeypatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    task = noop(app)
    app.open()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        first = task.enqueue()
    assert (first.id, watchers()) == (1, [])
    task.enqueue()
    assert len(watchers()) == 1


def test_a_store_that_does_not_answer_is_asked_again_after_the_next_enqueue(
    clock: ManualClock, caplog
) -> None:
    answers: list[Any] = [StorageUnavailable("away"), True]

    def is_left(queue: str, job_id: int) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    unserved = Unserved(is_left, clock)
    for job_id in (1, 2):
        unserved.note("mail", job_id)
        let_time_pass(clock, 10.0, sleepers=1)
        eventually(lambda: not watchers())
    (said,) = warnings(caplog)
    assert said.startswith("job 2 of queue mail")


def test_a_forked_child_looks_after_its_own_jobs() -> None:
    with child(roles.forks_beside_a_watcher) as forking:
        assert forking.hear("watchers in the child") == [0, 1]
