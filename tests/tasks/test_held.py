"""Jobs whose task is unknown, or whose arguments do not fit it: held, shown, and healed by a deploy."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.support.pools import causes
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Job, State
from ulak.core.job import Cause, Draft, Hold
from ulak.storage.drive import run
from ulak.testing import ManualClock
from ulak.worker import refused


@pytest.fixture(autouse=True)
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


def define(app: App, function: Any, **settings: Any) -> Any:
    return app.task(**{"name": "mail.send", **settings})(function)


def idle(app: App) -> None:
    """Let its workers look at everything there is."""
    with app.workers(1) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def first(to: str) -> str:
    return f"1 {to}"


def second(to: str, subject: str) -> str:
    return f"2 {to} {subject}"


def third(to: str, subject: str = "hello") -> str:
    return f"3 {to} {subject}"


def test_l10_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    define(old, first)
    job = new.task(name="mail.new")(lambda: 7).enqueue()
    idle(old)
    info = job.info()
    assert (info.state, info.attempt, causes(info)) == (State.HELD, 0, ["unknown task"])
    assert info.next == "waits for a worker that knows mail.new"
    idle(new)
    assert job.result() == 7
    assert job.info().attempt == 1


def test_l10_a_renamed_task_runs_the_jobs_of_its_old_name(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    jobs = [define(old, first).enqueue("ada")]
    renamed = new.task(name="post.send", aliases=["mail.send"])(first)
    jobs.append(renamed.enqueue("bo"))
    idle(new)
    assert [job.result() for job in jobs] == ["1 ada", "1 bo"]


def test_a_job_without_a_task_is_held_by_a_worker_of_tasks(app: App) -> None:
    define(app, first)
    job_id = app.queue("default").enqueue("plain")
    idle(app)
    info = app.queue("default").get(job_id)
    assert (info.state, info.next) == (State.HELD, "waits for a worker that knows jobs without a task")


def test_arguments_that_do_not_fit_are_held_with_the_difference_shown(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    job = define(old, first).enqueue("ada")
    define(new, second)
    idle(new)
    info = job.info()
    assert (info.state, info.attempt, causes(info)) == (State.HELD, 0, ["undecodable"])
    assert info.error.type == "ArgumentMisfit"
    assert info.error.text == "mail.send(to: str, subject: str): no argument 'subject' is stored"
    assert info.next.startswith("its payload does not fit its task here; edit it and redrive it")
    assert "ada" not in info.error.text


def test_arguments_that_do_not_fit_are_taken_by_a_worker_that_they_fit(make_app: MakeApp) -> None:
    old, broken, mended = make_app(), make_app(), make_app()
    job = define(old, first).enqueue("ada")
    define(broken, second)
    define(mended, third)
    idle(broken)
    with mended.workers(1):
        # At its start, since that may be the deploy that mends it.
        assert job.result(WAIT_S) == "3 ada hello"
    assert causes(job.info()) == ["undecodable", "ack"]
    assert job.info().attempt == 1


def test_a_drain_runs_what_was_held_and_fits_now(make_app: MakeApp, monkeypatch) -> None:
    old, broken, mended = make_app(), make_app(), make_app()
    task = define(old, first)
    jobs = [task.enqueue(str(n)) for n in range(5)]
    define(broken, second)
    idle(broken)
    assert {job.status() for job in jobs} == {State.HELD}
    looks, may_look = refused.Refused.duty, threading.Event()

    def late(self: Any) -> Any:
        may_look.wait(WAIT_S)
        return (yield from looks(self))

    monkeypatch.setattr(refused.Refused, "duty", late)
    monkeypatch.setattr(refused, "PAGE", 2)
    define(mended, third)
    with mended.workers(1) as pool:
        drain = Running(pool.drain)
        # Longer than the workers need to find that nothing is ready.
        eventually(lambda: all(seat.standing for seat in pool._crew.seats))
        may_look.set()
        report = drain.result()
    assert (report.drained, report.open, report.held) == (True, 0, 0)
    assert {job.status() for job in jobs} == {State.SUCCEEDED}


def test_held_arguments_are_looked_at_again_every_minute(timed: MakeApp, clock: ManualClock) -> None:
    app = timed()
    define(app, second)
    q = app.queue("default")
    put(app, b'{"to":"ada"}')
    with app.workers(1) as pool:
        eventually(lambda: q.counts().held == 1, clock=clock)
        q.edit(1, {"to": "ada", "subject": "x"})
        eventually(lambda: q.counts().acked == 1, clock=clock, step_s=5.0)
        pool.shutdown(0)
    # The test moves the clock faster than threads run, so when that was it cannot say.
    assert causes(q.get(1)) == ["undecodable", "ack"]


def put(app: App, body: bytes, codec: str = "json") -> Job[Any]:
    """Store a job of the task with this very payload."""
    store = app.queue("default")._edge.store
    (job_id,) = store.add("default", [Draft(body, codec, task="mail.send")])
    return app.find("mail.send").job(job_id)


def test_an_operator_may_mend_and_redrive_a_held_job(app: App) -> None:
    define(app, second)
    job = put(app, b'{"to":"ada"}')
    idle(app)
    assert job.status() is State.HELD
    q = app.queue("default")
    q.edit(job.id, {"to": "ada", "subject": "x"})
    assert q.redrive(job.id).done == (job.id,)
    idle(app)
    assert job.result() == "2 ada x"


def test_many_held_jobs_are_looked_at_page_by_page(make_app: MakeApp, monkeypatch) -> None:
    monkeypatch.setattr(refused, "PAGE", 7)
    old, new = make_app(queues=["default", "mail"]), make_app(queues=["default", "mail"])
    task = define(old, first)
    jobs = task.enqueue_many(task.call(str(n)) for n in range(30))
    jobs += task.using(queue="mail").enqueue_many(task.using(queue="mail").call(str(n)) for n in range(3))
    broken = make_app(queues=["default", "mail"])
    define(broken, second)
    idle(broken)
    assert {job.status() for job in jobs} == {State.HELD}
    define(new, third)
    with new.workers(2):
        assert [job.result(WAIT_S) for job in jobs[-2:]] == ["3 1 hello", "3 2 hello"]
        assert all(job.wait(WAIT_S) is State.SUCCEEDED for job in jobs)


def test_jobs_that_stay_held_do_not_hide_those_behind_them(make_app: MakeApp, monkeypatch) -> None:
    monkeypatch.setattr(refused, "PAGE", 7)
    old, broken, new = make_app(), make_app(), make_app()
    stranger, task = old.task(name="other")(lambda: None), define(old, first)
    strangers = [stranger.enqueue() for _ in range(20)]
    job = task.enqueue("ada")
    define(broken, second)
    idle(broken)
    define(new, third)
    with new.workers(1):
        assert job.result(WAIT_S) == "3 ada hello"
    assert {held.status() for held in strangers} == {State.HELD}


def test_only_refused_jobs_are_brought_back(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    unknown, misfit = old.task(name="other")(lambda: None).enqueue(), define(old, first).enqueue("ada")
    define(new, second)
    idle(new)
    edge = new.queue("default")._edge
    assert run(edge, refused.Refused(["default"], lambda job: True).duty()) == refused.LOOK_S
    assert (unknown.status(), misfit.status()) == (State.HELD, State.READY)


def test_held_jobs_that_do_not_fit_are_looked_at_a_page_a_second_and_others_not_at_all(
    make_app: MakeApp,
) -> None:
    queues = ["default", "empty", "mail"]
    app = make_app(queues=queues)
    store = app.queue("default")._edge.store
    for queue, jobs in (("default", 250), ("mail", 30)):
        store.add(queue, [Draft(b"{}", "json", task="mail.send")] * jobs)
        leases = store.claim([queue], jobs, worker="w", lease_s=30.0)
        # Some wait for a worker who knows their task.
        unknown = [(lease, Hold()) for lease in leases[::2]]
        store.settle([*unknown, *[(lease, Hold(Cause.UNDECODABLE)) for lease in leases[1::2]]])
    seen: list[str] = []
    duty = refused.Refused(queues, lambda job: bool(seen.append(job.queue))).duty
    # The first time faster, since a drain waits for that.
    for page_s in (refused.FIRST_PAGE_S, refused.PAGE_S):
        seen.clear()
        for seen_s, default, mail in ((page_s, 100, 0), (page_s, 125, 0), (refused.LOOK_S, 125, 15)):
            assert run(app.queue("default")._edge, duty()) == seen_s
            assert (seen.count("default"), seen.count("mail")) == (default, mail)


def test_a_page_of_held_jobs_that_all_fit_is_followed_by_the_next_at_once(
    make_app: MakeApp, monkeypatch
) -> None:
    monkeypatch.setattr(refused, "PAGE", 2)
    app = make_app()
    edge = app.queue("default")._edge
    ids = edge.store.add("default", [Draft(b"{}", "json", task="mail.send")] * 6)
    leases = edge.store.claim(["default"], 6, worker="w", lease_s=30.0)
    edge.store.settle([(lease, Hold(Cause.UNDECODABLE)) for lease in leases])
    duty = refused.Refused(["default"], lambda job: job.id != ids[2]).duty
    assert [run(edge, duty()) for _ in range(4)] == [0.0, refused.FIRST_PAGE_S, 0.0, refused.LOOK_S]
    assert (app.queue("default").counts().ready, app.queue("default").counts().held) == (5, 1)


def test_a_held_job_that_is_cancelled_while_it_is_looked_at_stays_cancelled(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    misfit = define(old, first).enqueue("ada")
    define(new, second)
    idle(new)
    duty = refused.Refused(["default"], lambda job: old.find("mail.send").job(job.id).cancel()).duty
    run(new.queue("default")._edge, duty())
    assert misfit.status() is State.CANCELLED


@pytest.mark.parametrize("codec", ["json", "pickle", "bytes", "str"])
def test_z1_a_pickle_as_a_payload_is_never_loaded(app: App, codec: str, monkeypatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("os.system", ran.append)
    define(app, first)
    job = put(app, b"cos\nsystem\n(S'echo boom'\ntR.", codec)
    idle(app)
    assert ran == []
    assert causes(job.info()) == ["undecodable"]
    # What no version of the task could read is dead; what is only no call of it is held.
    assert job.status() is (State.DEAD if codec in ("json", "pickle") else State.HELD)


def test_a_task_whose_annotation_is_not_there_holds_its_jobs(app: App) -> None:
    def broken(to: Missing) -> None: ...  # noqa: F821

    define(app, broken)
    job = put(app, b'{"to":"ada"}')
    idle(app)
    assert job.status() is State.HELD
    assert "parameter 'to' names 'Missing'" in job.info().error.text
