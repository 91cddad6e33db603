"""What people get wrong with job queues on their first afternoon, and what happens here instead.

One test per mistake that no other file has: what concerns arguments alone is in test_arguments, names that
are not there in test_tasks, jobs that nobody takes in test_unserved, unknown tasks in test_held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.pools import AT_ONCE, Gate
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import (
    App,
    ArgumentError,
    Backoff,
    ConfigError,
    Context,
    JobForgotten,
    Keep,
    LeaseLost,
    Outcome,
    Retention,
    SchemaError,
    State,
    current_job,
)
from ulak.testing import ManualClock

DAY_S = 86_400.0
SECRET = "s3cret-4711"


def test_what_cannot_travel_is_refused_where_it_was_passed_and_by_its_place(app: App) -> None:
    @app.task(name="import_rows")
    def import_rows(table, options) -> None: ...

    with Path(__file__).open("rb") as file:
        for stray in (lambda: None, file, threading.Lock(), asyncio.Event(), object(), {1, 2}):
            with pytest.raises(ArgumentError) as error:
                import_rows.enqueue("users", {"steps": [1, {"then": stray}]})
            said = str(error.value)
            assert said.startswith('import_rows(table, options): argument \'options["steps"][1]["then"]\'')
            assert "; pass " in said
    assert app.queue("default").counts().total == 0


def test_calling_a_task_runs_it_here_and_enqueues_nothing(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert app.queue("default").counts().total == 0


def test_a_job_that_takes_longer_than_its_lease_runs_once(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(visibility_timeout=30)
    runs: list[int] = []
    with Gate() as gate:
        stop = gate.handler("def")

        @app.task
        def report() -> None:
            runs.append(1)
            stop(None)

        with app.workers(2):
            job = report.enqueue()
            gate.entered()
            for _ in range(20):
                leased_until = _lease_end(app)
                clock.advance(10)
                eventually(lambda before=leased_until: _lease_end(app) > before)
            gate.open()
            assert job.wait(timeout=WAIT_S) is State.SUCCEEDED
    assert runs == [1]


def _lease_end(app: App) -> float:
    (lease,) = app.queue("default")._edge.store.leased("default")
    return lease.lease_end


def test_a_worker_that_comes_back_from_the_dead_cannot_finish_anothers_job(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed(backoff=AT_ONCE)

    @app.task
    def charge() -> None: ...

    charge.enqueue()
    q = app.queue("default")
    late = q.deliver()
    assert late is not None
    clock.advance(31)
    q.tick_timeouts()
    clock.advance(1)
    again = q.deliver()
    assert again is not None
    assert again.redelivered
    assert (q.ack(late), q.ack(again)) == (Outcome.STALE, Outcome.OK)


def test_a_job_can_tell_that_an_earlier_run_may_have_done_its_work(app: App) -> None:
    seen: list[tuple[int, bool]] = []

    @app.task
    def charge() -> None:
        job = current_job()
        assert job is not None
        seen.append((job.attempt, job.redelivered))
        if job.attempt == 1:
            raise ConnectionError

    with app.workers(1):
        assert charge.enqueue().wait(timeout=WAIT_S) is State.SUCCEEDED
    assert seen == [(1, False), (2, True)]


def test_a_store_that_cannot_be_used_is_an_error_at_once_and_nobody_hangs(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("not a store" * 100)
    for url, error in (
        ("sqlite:///no/such/folder/jobs.db", ConfigError),
        (f"sqlite:///{tmp_path}/letter.db", SchemaError),
    ):
        app = App(url)

        @app.task
        def welcome(email: str) -> None: ...

        with pytest.raises(error):
            welcome.enqueue("ada")
        with pytest.raises(error):
            asyncio.run(welcome.aenqueue("ada"))
        with pytest.raises(error):
            app.workers()


@pytest.mark.parametrize("url", ["redis://:pw@host", "jobs.db", "sqlite://jobs.db"])
def test_an_url_that_cannot_be_is_refused_before_anything_is_tried_and_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        App(url)
    assert "pw" not in str(error.value)


@pytest.mark.parametrize("attempts", [0, -1, float("inf"), True, "for ever"])
def test_no_job_can_be_tried_for_ever(app: App, attempts: Any) -> None:
    with pytest.raises(ArgumentError, match="max_attempts"):
        app.task(name="a", max_attempts=attempts)(lambda: None)
    task = app.task(name="b")(lambda: None)
    assert 1 <= task.max_attempts <= 10
    with pytest.raises(ArgumentError, match="max_attempts"):
        task.using(max_attempts=attempts).enqueue()


@pytest.mark.parametrize(
    "queues", ["mail", b"mail", {}, [], (), 3, ["mail", 3], [["mail"]], {3: 1}, {"mail": "x"}]
)
def test_what_is_no_list_of_queues_is_refused_by_an_app_and_by_a_pool(app: App, queues: Any) -> None:
    app.task(name="f", queue="mail")(lambda: None)
    for call in (
        lambda: App(queues=queues),
        lambda: app.workers(queues=queues),
        lambda: app.aworkers(queues=queues),
    ):
        with pytest.raises(ArgumentError, match=r"queue|capacity"):
            call()


def test_a_misspelt_option_of_an_app_is_told_the_nearest() -> None:
    wrong: Any = {"max_attemps": 5}
    with pytest.raises(ArgumentError, match="App has no option 'max_attemps'; did you mean 'max_attempts'"):
        App("memory://", **wrong)


@pytest.mark.parametrize("setting", ["name", "queue", "timeout"])
def test_a_setting_that_is_empty_is_not_taken_for_one_that_was_not_given(app: App, setting: str) -> None:
    settings: Any = {"name": "welcome", setting: 0 if setting == "timeout" else ""}
    with pytest.raises(ArgumentError, match=setting):
        app.task(**settings)(lambda: None)


def test_a_higher_priority_comes_first(app: App) -> None:
    ran: list[str] = []

    @app.task
    def note(text: str) -> None:
        ran.append(text)

    for text, priority in (("low", -5), ("usual", 0), ("high", 5)):
        note.using(priority=priority).enqueue(text)
    with app.workers(1) as pool:
        pool.drain(timeout=WAIT_S)
    assert ran == ["high", "usual", "low"]


def test_what_has_ended_is_not_kept_for_ever_and_that_is_said(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()

    @app.task
    def double(n: int) -> int:
        return 2 * n

    with app.workers(1):
        job = double.enqueue(4)
        assert job.result(timeout=WAIT_S) == 8
        clock.advance(8 * DAY_S)
        eventually(lambda: app.queue("default").counts().pruned == 1, clock=clock)
        with pytest.raises(JobForgotten):
            job.result()


def test_dead_jobs_are_bounded_too(timed: MakeApp) -> None:
    app = timed(retention=Retention(dead=Keep(2, DAY_S)), max_attempts=1)

    @app.task
    def fail() -> None:
        raise ValueError

    with app.workers(1) as pool:
        for _ in range(5):
            fail.enqueue()
        pool.drain(timeout=WAIT_S)
        app.queue("default").prune()
    assert app.queue("default").counts().dead == 2


def test_nothing_that_is_logged_told_or_shown_holds_an_argument_or_a_result(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    caplog.set_level(logging.DEBUG)
    app.on(told.append)

    @app.task
    def echo(text: str) -> str:
        return text

    @app.task(max_attempts=2)
    def fail(text: str) -> None:
        raise ValueError("of the task's own making")

    @app.task
    def reject(text: str) -> bytes:
        return object()  # type: ignore[return-value]

    with app.workers(2) as pool:
        jobs = [task.enqueue(SECRET) for task in (echo, fail, reject)]
        with pytest.raises(ArgumentError) as refused:
            echo.enqueue([SECRET])  # type: ignore[arg-type]
        app.task(name="misfit")(lambda n: None).enqueue({SECRET: 1})
        pool.drain(timeout=WAIT_S)
    assert len(told) > len(jobs)
    shown = [*map(repr, told), *map(repr, jobs), *(repr(job.info()) for job in jobs), str(refused.value)]
    assert SECRET not in caplog.text + "".join(shown)


def test_a_transaction_that_lost_its_job_meanwhile_is_told(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(backoff=AT_ONCE)
    store: Any = app.open().queue("default")._edge.store
    if not store.capabilities.transactions:
        pytest.skip("no transactions")
    lost: list[BaseException] = []
    with Gate() as gate:
        stop = gate.handler("def")

        @app.task
        def charge(context: Context) -> None:
            if context.redelivered:
                return
            stop(None)
            with contextlib.closing(store.open_transaction()) as db:
                try:
                    context.ack(connection=db)
                except LeaseLost as error:
                    lost.append(error)
                    raise

        with app.workers(2):
            job = charge.enqueue()
            gate.entered()
            eventually(app.queue("default").crash)
            eventually(lambda: job.status() is State.SUCCEEDED, clock=clock)
            gate.open()
            eventually(lambda: lost)
    assert job.info().delivery == 2


def test_a_result_that_comes_after_the_job_was_finished_is_said_to_be_lost_once(
    make_app: MakeApp, caplog
) -> None:
    app = make_app()
    store: Any = app.open().queue("default")._edge.store
    if not store.capabilities.transactions:
        pytest.skip("no transactions")

    # Of this test alone: it is said once a process.
    name = f"charge.{secrets.token_hex(4)}"

    @app.task(name=name)
    def charge(context: Context) -> int:
        with contextlib.closing(store.open_transaction()) as db:
            context.ack(connection=db)
            db.commit()
        return 7

    with app.workers(1):
        assert [charge.enqueue().result(WAIT_S) for _ in range(2)] == [None, None]
    told = [record.getMessage() for record in caplog.records if "is not stored" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"task {name}: what it returns is not stored, since context.ack(connection=)")


def test_a_duration_may_be_text_wherever_one_is_taken(make_app: MakeApp, caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")
    app = make_app(visibility_timeout="1m", backoff=Backoff(base="1ms", cap="0.001s"))

    @app.every("1h")
    @app.task(timeout="5m", expires="1d", backoff=lambda attempt, error: "1ms")
    def f(failing: int = 0) -> int:
        return 7 // max(0, current_job().attempt - failing)

    assert f.backoff == Backoff(base=0.001, cap=0.001)
    assert f.timeout_s == 300.0
    assert f.using(delay="1.5m").enqueue(0).info().next.startswith(("due in 89.", "due in 90."))
    with app.workers(1, grace="10s"):
        assert f.using(wait="1s", expires="1h").enqueue(1).result(timeout="10s") == 7
    with pytest.raises(ArgumentError, match=r"delay: cannot read 'soon' as a duration; write a number with"):
        f.using(delay="soon")


def test_an_option_in_the_wrong_place_is_told_the_right_one(app: App) -> None:
    @app.task(name="hello.welcome")
    def welcome(name: str) -> None: ...

    def other() -> None: ...

    for call, said in (
        (
            lambda: welcome.enqueue("ada", delay=SECRET),
            "'delay'; an option of its job? welcome.using(delay=...)",
        ),
        (
            lambda: welcome.call("ada", wait=3),
            "'wait'; an option of its job? welcome.using(wait=...).enqueue(...)",
        ),
        (
            lambda: welcome.enqueue("ada", countdown=SECRET),
            "no parameter 'countdown'; an option of its job? welcome.using(delay=...).enqueue(...)",
        ),
        (
            lambda: welcome.call("ada", eta=SECRET),
            "no parameter 'eta'; an option of its job? welcome.using(run_at=...)",
        ),
        (lambda: welcome.using(countdown=3), "no option 'countdown'; it is delay=... here"),
        (lambda: welcome.using(prioritty=3), "no option 'prioritty'; did you mean 'priority'?"),
        (lambda: app.task(bind=True)(other), "no option 'bind'; it is a parameter annotated Context here"),
        (
            lambda: app.task(max_retries=3)(other),
            "no option 'max_retries'; it is max_attempts=..., which counts the first run here",
        ),
        (lambda: app.task(timeuot=3)(other), "app.task has no option 'timeuot'; did you mean 'timeout'?"),
        (lambda: App(broker=SECRET), "App has no option 'broker'; it is url=... here"),
        (lambda: welcome.enqueue("ada", nmae="x"), "; did you mean 'name'?"),
        (lambda: welcome.using(timeout=3), "waits for room is using(wait=...)"),
        (lambda: welcome.using(give_up_on=()), "it is a setting of the task, @app.task(give_up_on=...)"),
        (lambda: app.task(unique_key="x")(other), "it is a job's, task.using(unique_key=...)"),
        (lambda: App(max_attemps=3), "App has no option 'max_attemps'; did you mean 'max_attempts'?"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert said in str(caught.value)
        assert SECRET not in str(caught.value)
    assert app.queue("default").counts().total == 0


def test_a_name_of_another_job_queue_is_told_what_it_is_called_here(app: App) -> None:
    @app.task(name="hello.welcome")
    def welcome(name: str) -> None: ...

    for owner, name, here in (
        (welcome, "delay", "it is welcome.enqueue(...) here"),
        (welcome.using(priority=1), "apply_async", "it is welcome.using(delay=...).enqueue(...) here"),
        (app, "enqueue", "it is task.enqueue(...), of the task here"),
        (app, "worker_main", "it is with app.workers():, or ulak work module:app here"),
    ):
        with pytest.raises(AttributeError, match=re.escape(here)) as caught:
            getattr(owner, name)
        assert (caught.value.name, caught.value.obj) == (name, owner)
    for owner in (welcome, app):
        assert not hasattr(owner, "nothing_of_the_kind")


def test_what_is_given_for_an_instant_or_an_id_is_named_by_its_type(app: App) -> None:
    @app.task(name="f")
    def f(
        at: datetime | None,
        days: list[date],
        key: UUID | None = None,
        body: bytes = b"",
        by_name: dict[str, date] | None = None,
    ) -> None: ...

    now, day = datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)
    for args, said in (
        ((day, []), "argument 'at' got datetime.date, expected datetime.datetime | None"),
        ((now, [day, "x"]), "argument 'days[1]': got str, expected datetime.date; pass date.fromisoformat("),
        ((now, [], "x"), "argument 'key' got str, expected uuid.UUID | None; pass UUID(text)"),
        ((now, [], None, "x"), "argument 'body' got str, expected bytes; pass text.encode()"),
        ((now, [], None, b"", {"a": "x"}), "argument 'by_name[...]': expected datetime.date"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(said)):
            f.enqueue(*args)


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T00:00:00Z", "tomorrow"])
def test_text_for_a_date_is_refused_with_what_makes_a_date_of_it(app: App, text: str) -> None:
    @app.task(name="f")
    def f(at: datetime | None, days: list[date]) -> None: ...

    for args, said in (
        (
            (text, []),
            "argument 'at' got str, expected datetime.datetime | None; pass datetime.fromisoformat(",
        ),
        ((datetime(2026, 1, 1, tzinfo=UTC), [text]), "argument 'days[0]': got str, "),
    ):
        with pytest.raises(ArgumentError, match=re.escape(said)) as caught:
            f.enqueue(*args)
        made = "datetime" if args[0] == text else "date"
        assert str(caught.value).endswith(f"; pass {made}.fromisoformat(text) [U110]")
        assert text not in str(caught.value)


def test_a_mapping_or_a_list_of_objects_travels_as_exact_json(app: App) -> None:
    @app.task
    def echo(
        known: dict[str, object], items: list[object], more: object | None = None
    ) -> dict[str, list[object]]:
        return {"all": [known, items, more]}

    given = [{"a": [1, None, {"b": 2.5}]}, [1, "x", True], {"c": []}]
    job = echo.enqueue(*given)
    with app.workers(1):
        assert job.result(WAIT_S) == {"all": given}
    for stray in ((1, 2), datetime(2026, 1, 1, tzinfo=UTC), {1: 2}, object()):
        with pytest.raises(ArgumentError, match="argument 'known"):
            echo.enqueue({"a": stray}, [])


def test_a_queue_that_was_not_declared_is_told_how(make_app: MakeApp) -> None:
    app = make_app(queues=["mail"])
    for name, said in (("mial", "declare it: App(queues=[..., 'mial'])"), ("No Name", None), (3, None)):
        with pytest.raises(ArgumentError) as caught:
            app.queue(name)
        assert ("declare it" in str(caught.value)) == (said is not None)
        assert (said or "") in str(caught.value)
