"""`ulak.testing`: which store an App works on during a test, and after it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S
from ulak import App, ArgumentError, Queue, State
from ulak.testing import Jobs


def test_an_app_of_a_file_does_not_touch_it(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def note() -> None: ...

    with Jobs() as jobs:
        note.enqueue()
        assert jobs.drain() == 1
    assert list(tmp_path.iterdir()) == []
    app.close()


@pytest.mark.parametrize("url", ["memory://", "memory://named", "sqlite:///jobs.db"])
def test_afterwards_an_app_is_on_its_own_store_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(url)

    @app.task
    def note(n: int) -> None: ...

    def waiting() -> list[int]:
        # By handles and short ways from before, from the test, and from after it.
        return [handle.counts().ready for handle in (before, app.queue("default"))]

    with app:
        before, enqueue = app.queue("default"), app.queue("default").enqueue
        urgent = note.using(priority=1)
        note.enqueue(1)
        urgent.enqueue(2)
        enqueue(b"")
        for _ in range(2):
            with Jobs() as jobs:
                assert waiting() == [0, 0]
                note.enqueue(3)
                urgent.enqueue(4)
                enqueue(b"")
                before.enqueue(b"")
                inside = note.using(priority=2)
                inside.enqueue(5)
                assert waiting() == [5, 5]
                assert len(jobs.enqueued(note)) == 3
        assert waiting() == [3, 3]
        note.enqueue(6)
        urgent.enqueue(7)
        enqueue(b"")
        before.enqueue(b"")
        inside.enqueue(8)
        assert waiting() == [8, 8]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_thread_that_opens_a_queue_as_a_test_begins_and_the_test_do_not_wait_for_each_other(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with App(url, queues=["mail", "other"]) as app:
        q, opens, goes_on = app.queue("other"), threading.Event(), threading.Event()
        find, lay_aside = q._find_store, q.lay_aside

        def find_late() -> Any:
            opens.set()
            assert goes_on.wait(WAIT_S)
            return find()

        def let_go_on(store: Any) -> Any:
            goes_on.set()
            return lay_aside(store)

        q.found_by(find_late)
        monkeypatch.setattr(q, "lay_aside", let_go_on)
        opening = Running(q.counts)
        assert opens.wait(WAIT_S)
        back = Running(app._home.lay_aside).result()
        assert opening.result().open == 0
        back()
        q.enqueue(b"")
        assert app.queue("other").counts().ready == 1


def test_an_app_that_is_closed_in_a_test_keeps_the_tests_jobs(app: App, jobs: Jobs) -> None:
    @app.task
    def note() -> None: ...

    with app:
        note.enqueue()
    assert len(jobs.enqueued(note)) == 1
    assert jobs.drain() == 1


def test_an_app_that_is_closed_in_a_test_is_open_after_it() -> None:
    with App("memory://") as app:
        app.queue("default").enqueue(b"")
        with Jobs():
            app.close()
        assert app.queue("default").counts().ready == 1


def test_an_app_that_is_made_in_a_test_is_a_plain_one_after_it() -> None:
    with Jobs() as jobs:
        app = App("memory://")
        app.queue("default").enqueue(b"")
        assert len(jobs.enqueued()) == 1
    assert app.queue("default").counts().total == 0
    app.close()


def test_apps_of_one_url_share_a_store_and_private_ones_do_not() -> None:
    one, same, other = App("memory://shared"), App("memory://shared"), App("memory://")

    @one.task(name="note")
    def note(n: int) -> None: ...

    @same.task(name="only_here")
    def same_task() -> None: ...

    with Jobs() as jobs:
        note.enqueue(1)
        same_task.enqueue()
        other.queue("default").enqueue(b"")
        assert one.queue("default").counts().ready == same.queue("default").counts().ready == 2
        with pytest.raises(
            ArgumentError, match="several Apps with stores of their own have a queue 'default'"
        ):
            jobs.counts("default")
        with pytest.raises(ArgumentError, match="no App has used a queue 'mail'"):
            jobs.counts("mail")
        jobs.drain()
        assert [job.state for job in jobs.enqueued()] == [State.SUCCEEDED, State.SUCCEEDED, State.READY]
        assert [job.arguments for job in jobs.enqueued(note)] == [{"n": 1}]


def test_apps_that_enqueue_into_each_other_are_drained_together() -> None:
    one, two = App("memory://"), App("memory://")

    @one.task(name="count")
    def count(n: int) -> None:
        if n:
            down.enqueue(n - 1)

    @two.task(name="count")
    def down(n: int) -> None:
        count.enqueue(n)

    with Jobs() as jobs:
        count.enqueue(2)
        assert jobs.drain() == 5
        assert [job.arguments["n"] for job in jobs.enqueued(count)] == [2, 1, 0]
        assert [job.arguments["n"] for job in jobs.enqueued(down)] == [1, 0]


def test_jobs_inside_jobs_are_apart() -> None:
    app = App("memory://")
    with Jobs() as outer:
        app.queue("default").enqueue(b"")
        with Jobs() as inner:
            assert inner.enqueued() == []
        assert len(outer.enqueued()) == 1
    app.close()


def test_plain_queues_are_left_alone(jobs: Jobs) -> None:
    with Queue("memory://") as q:
        q.enqueue(b"")
        assert jobs.enqueued() == []


def test_a_pool_of_threads_works_on_the_tests_store_too(app: App, jobs: Jobs) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    with app.workers(2):
        assert double.enqueue(2).result(timeout=20) == 4
    assert len(jobs.enqueued(double)) == 1


def test_an_url_that_a_test_sets_is_what_it_was_after_the_test(tmp_path: Path) -> None:
    opened, unopened = App("memory://"), App("memory://")
    opened.queue("default").enqueue(b"")
    before = opened.queue("default")
    with Jobs() as jobs:
        for app in (opened, unopened):
            app.url = f"sqlite:///{tmp_path}/jobs.db"
            app.queue("default").enqueue(b"")
        # Of one URL, they share a store.
        assert jobs.counts("default").ready == 2
    assert [app.url for app in (opened, unopened)] == ["memory://"] * 2
    assert opened.queue("default") is before
    assert [app.queue("default").counts().ready for app in (opened, unopened)] == [1, 0]
    assert list(tmp_path.iterdir()) == []
    opened.close()
    unopened.close()


def test_what_is_opened_while_a_test_begins_is_on_the_tests_store(monkeypatch: pytest.MonkeyPatch) -> None:
    late = App("memory://late")

    @late.task(name="note")
    def note() -> None: ...

    lay_aside = late._home.lay_aside

    def after_another_thread_has_used_it() -> Any:
        Running(note.enqueue).result()
        return lay_aside()

    monkeypatch.setattr(late._home, "lay_aside", after_another_thread_has_used_it)
    q = late.queue("default")
    with Jobs() as jobs:
        assert len(jobs.enqueued(note)) == 1
        note.enqueue()
        assert q.counts().ready == 2
    assert q.counts().total == 0
    assert note.enqueue().id == 1
    late.close()


def test_jobs_that_are_left_in_another_order_leave_every_app_as_it_was() -> None:
    app, one, two = App("memory://"), Jobs(), Jobs()
    app.queue("default").enqueue(b"")
    one.__enter__()
    app.queue("default").enqueue(b"")
    two.__enter__()
    app.queue("default").enqueue(b"")
    one.__exit__(None, None, None)
    # Who was entered last stays.
    app.queue("default").enqueue(b"")
    assert len(two.enqueued()) == 2
    two.__exit__(None, None, None)
    assert app.queue("default").counts().ready == 1
    other = App("memory://")
    other.queue("default").enqueue(b"")
    assert [len(jobs.enqueued()) for jobs in (one, two)] == [1, 2]
    other.close()
    app.close()


def test_jobs_may_be_entered_again_once_they_are_left_and_begin_with_nothing() -> None:
    app, jobs = App("memory://"), Jobs()
    for _ in range(2):
        with jobs:
            app.queue("default").enqueue(b"")
            assert len(jobs.enqueued()) == 1
            with pytest.raises(ArgumentError, match="was entered already"):
                jobs.__enter__()
    assert app.queue("default").counts().total == 0
    app.close()


def test_an_app_that_moves_to_another_url_in_a_test_is_drained_there() -> None:
    app = App("memory://here")

    @app.task
    def note() -> None: ...

    with Jobs() as jobs:
        note.enqueue()
        assert jobs.drain() == 1
        app.close()
        app.url = "memory://there"
        note.enqueue()
        assert jobs.drain() == 1
