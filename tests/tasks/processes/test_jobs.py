"""Jobs in processes of their own, on a file. A name that starts with an id is that of its scenario."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest

from tests.support.doors import Door
from tests.support.pids import children_of, is_alive
from tests.support.pools import causes
from tests.support.stores import Refusing, is_write, stand_before
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.processes import errands
from tests.tasks.processes.conftest import errors_of, processes, run_all
from ulak import App, Failure, JobFailed, State, StorageUnavailable
from ulak.worker import nursery

app = errands.app

pytestmark = pytest.mark.usefixtures("url")

# What a job sees


def test_jobs_run_in_processes_that_are_started_when_needed_and_kept(gate: Door) -> None:
    with processes(3) as pool:
        (first,) = children_of()
        pids = {errands.where.enqueue(n).result(WAIT_S) for n in range(10)}
        assert pids == {first}
        jobs = [errands.stand.enqueue(gate.place) for _ in range(5)]
        guests = [gate.guest() for _ in range(3)]
        assert len({guest.pid for guest in guests} | pids) == 3
        assert sorted(children_of()) == sorted(guest.pid for guest in guests)
        for guest in guests:
            guest.let_go("on")
        for _ in range(2):
            gate.guest().let_go("on")
        assert [job.result(WAIT_S) for job in jobs] == ["on"] * 5
        assert pool.size == 3
    assert children_of() == []


def test_n4_a_process_is_a_fresh_interpreter(capfd) -> None:
    errands.marks.append("mine")
    with processes(1):
        job = errands.marked.enqueue()
        assert job.result(WAIT_S) == [f"before {job.id}"]
    assert errands.marks == ["mine"]


def test_an_async_task_runs_in_its_process_too() -> None:
    with processes(1):
        assert errands.awhere.enqueue().result(WAIT_S) == errands.where.enqueue().result(WAIT_S)


def test_a_job_sees_the_context_that_its_worker_made() -> None:
    job = errands.look.using(priority=7, headers={"trace": "é"}).enqueue()
    with processes(1):
        number, task, queue, attempt, max_attempts, delivery, worker, *rest = job.result(WAIT_S)
    assert (number, task, queue) == (job.id, "errands.look", "default")
    assert (attempt, max_attempts, delivery) == (1, 5, 1)
    assert worker == job.info().history[0].worker
    assert rest == [False, [app._store().epoch, 1], 7, {"trace": "é"}, False]


def test_what_a_job_enqueues_is_in_the_same_store() -> None:
    with processes(1):
        inner = errands.where.job(errands.enqueue.enqueue(3).result(WAIT_S))
        assert isinstance(inner.result(WAIT_S), int)
        assert inner.info().payload == {"n": 3}


def test_a_job_that_would_wait_for_another_one_is_told_so() -> None:
    with processes(1):
        assert errands.wait_for_another.enqueue().result(WAIT_S) == "would deadlock"


def test_progress_and_the_wish_to_stop_pass_between_the_processes(gate: Door, monkeypatch) -> None:
    monkeypatch.setattr(app._home, "lease_s", 0.3)
    with processes(2):
        reporting = errands.report.enqueue(gate.place)
        for text in ("1/3 first", "2/3 second"):
            guest = gate.guest()
            eventually(lambda text=text: reporting.info().progress == text)
            guest.let_go()
        reporting.result(WAIT_S)
        obeying = errands.obey.enqueue(gate.place)
        gate.guest().let_go("word")
        guest = gate._guests[-1]
        assert obeying.cancel()
        assert guest.hear() == "was asked to stop"
        # Its ack wins, as in a thread.
        assert obeying.result(WAIT_S) == "word"


# How a job ends


def test_f8_an_exception_that_cannot_be_made_again_is_an_ordinary_failure() -> None:
    job = errands.fail.enqueue("refused")
    run_all()
    with pytest.raises(JobFailed, match=r"dead after 2 of 2 attempts: Refused: mailbox unavailable \(550\)"):
        job.result()
    error = job.info().error
    assert (error.type, error.text) == ("Refused", "mailbox unavailable (550)")
    assert error.traceback.endswith("in fail\n")


def test_f7_whatever_a_job_raises_is_its_own_and_the_process_goes_on() -> None:
    kinds = {"exit": "SystemExit", "interrupt": "KeyboardInterrupt", "generator exit": "GeneratorExit"}
    jobs = {kind: errands.fail.enqueue(how) for how, kind in kinds.items()}
    with processes(1) as pool:
        before = children_of()
        for kind, job in jobs.items():
            with pytest.raises(JobFailed, match=f"dead after 2 of 2 attempts: {kind}"):
                job.result(WAIT_S)
        assert (children_of(), pool.size) == (before, 1)


def test_what_a_job_raises_to_be_settled_otherwise_does_that() -> None:
    jobs = {how: errands.fail.enqueue(how) for how in ("retry", "snooze", "reject", "cancel")}
    with processes(1):
        states = {"retry": "scheduled", "snooze": "scheduled", "reject": "dead", "cancel": "cancelled"}
        eventually(lambda: {how: job.status() for how, job in jobs.items()} == states)
    infos = {how: job.info() for how, job in jobs.items()}
    assert (infos["retry"].attempt, infos["snooze"].attempt) == (1, 0)
    assert {how: causes(info) for how, info in infos.items()} == {
        "retry": ["nack"],
        "snooze": ["snooze"],
        "reject": ["reject"],
        "cancel": ["cancel"],
    }
    assert infos["reject"].error.text == "never"


def test_a_result_that_cannot_be_stored_is_a_failed_attempt() -> None:
    job = errands.fail.enqueue("result")
    run_all()
    with pytest.raises(JobFailed, match=r"dead after 2 of 2 attempts: PayloadError: the result"):
        job.result()


def test_large_arguments_and_results_pass() -> None:
    with processes(2):
        jobs = [errands.large.enqueue(65_000, "y" * 250_000) for _ in range(6)]
        assert {job.result(WAIT_S) for job in jobs} == {"x" * 65_000}


def test_arguments_that_do_not_fit_the_task_hold_the_job(gate: Door) -> None:
    other = App(app.url)
    other.task(name="errands.where")(lambda wrong: None)
    held = other.find("errands.where").enqueue(wrong=1)
    with processes(1):
        eventually(lambda: held.status() is State.HELD)
    assert causes(held.info()) == ["undecodable"]
    other.close()


def test_what_a_job_prints_is_not_in_the_way(capfd, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with processes(1):
        assert errands.shout.enqueue(3000).result(WAIT_S) == 3000
        assert capfd.readouterr().out.count("\n") == 3000


# Processes that are lost


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "its process ended with status 137"),
        ("segfault", "its process ended by SIGSEGV"),
        ("kill", "its process ended by SIGKILL"),
        ("close", "its process ended with status 70"),
        ("close and hang", "its process was killed, since it had closed its pipe"),
        ("garble", "its process was killed, since it said what nobody understands"),
        ("mumble", "its process was killed, since it said what nobody understands"),
        ("leave a heir", "its process ended with status 5"),
    ],
)
def test_x1_a_job_that_loses_its_process_is_dead_after_its_last_attempt(how: str, said: str) -> None:
    with processes(1) as pool:
        job = errands.die.enqueue(how)
        with pytest.raises(JobFailed, match=r"dead after 3 of 3 attempts: WorkerLost: its process"):
            job.result(WAIT_S)
        assert errors_of(job) == [Failure("WorkerLost", said)] * 3
        assert causes(job.info()) == ["lost"] * 3
        assert app.queue("default").get(job.id).crashes == 3
        # The worker goes on.
        assert isinstance(errands.where.enqueue().result(WAIT_S), int)
        assert pool.size == 1


def test_x2_jobs_beside_one_that_loses_its_process_are_not_touched(gate: Door) -> None:
    innocent = [errands.stand.enqueue(gate.place) for _ in range(3)]
    with processes(4):
        guests = [gate.guest() for _ in innocent]
        poison = errands.die.enqueue("exit")
        with pytest.raises(JobFailed):
            poison.result(WAIT_S)
        for guest in guests:
            guest.let_go("unharmed")
        assert [job.result(WAIT_S) for job in innocent] == ["unharmed"] * 3
    assert [(job.info().attempt, job.info().delivery) for job in innocent] == [(1, 1)] * 3


def test_a_job_whose_process_is_killed_runs_again_at_once(gate: Door) -> None:
    with processes(2):
        job = errands.stand.enqueue(gate.place)
        first = gate.guest()
        os.kill(first.pid, signal.SIGKILL)
        second = gate.guest()
        assert second.pid != first.pid
        second.let_go("again")
        assert job.result(WAIT_S) == "again"
    assert (causes(job.info()), job.info().attempt) == (["lost", "ack"], 2)
    assert not is_alive(first.pid)


def test_a_job_whose_lease_was_renewed_runs_again_at_once_too(gate: Door) -> None:
    with processes(1):
        job = errands.report.enqueue(gate.place)
        first = gate.guest()
        # Progress is stored by a renewal.
        eventually(lambda: job.info().progress == "1/3 first")
        os.kill(first.pid, signal.SIGKILL)
        for _ in range(2):
            gate.guest().let_go()
        assert job.result(WAIT_S) is False
    assert causes(job.info()) == ["lost", "ack"]


@pytest.mark.parametrize("answer", ["renewed", "away"])
def test_a_job_is_lost_once_whatever_the_store_does_at_that_moment(answer: str) -> None:
    told = []

    def decide(name: str, args: tuple[Any, ...]) -> BaseException | None:
        lost = (
            [lease for lease, verdict in args[0] if verdict.cause == "lost"] if is_write(name, args) else []
        )
        if lost and len(told) < 3:
            told.append(name)
            if answer == "away":
                return StorageUnavailable("not now")
            app._store()._store.extend(lost, 30.0 + len(told))
        return None

    stand_before(app.queue("default"), lambda store: Refusing(store, decide))
    with processes(1) as pool:
        job = errands.die.enqueue("exit")
        with pytest.raises(
            JobFailed, match=r"dead after 3 of 3 attempts: WorkerLost: its process ended with"
        ):
            job.result(WAIT_S)
        assert (len(told), pool.metrics().stale) == (3, 0)
    assert causes(job.info()) == ["lost"] * 3


def test_a_job_that_is_another_workers_by_now_is_left_to_that(gate: Door) -> None:
    with processes(1) as pool:
        job = errands.stand.enqueue(gate.place)
        guest = gate.guest()
        app.queue("default").cancel(job.id)
        app.queue("default").delete(job.id, force=True)
        os.kill(guest.pid, signal.SIGKILL)
        assert isinstance(errands.where.enqueue().result(WAIT_S), int)
        assert pool.metrics().failed == 0


def test_f16_a_kill_at_any_moment_costs_one_job_one_attempt() -> None:
    with processes(3):
        jobs = [errands.large.using(max_attempts=50).enqueue(65_000, "y" * 200_000) for _ in range(200)]
        for _ in range(6):
            eventually(children_of)
            with contextlib.suppress(ProcessLookupError):  # it has just been killed
                os.kill(children_of()[0], signal.SIGKILL)
            errands.where.enqueue().result(WAIT_S)
        assert {job.result(WAIT_S) for job in jobs} == {"x" * 65_000}


def test_a_process_that_dies_without_a_job_costs_nobody_an_attempt() -> None:
    with processes(1):
        (idle,) = children_of()
        os.kill(idle, signal.SIGKILL)
        eventually(lambda: not is_alive(idle))
        job = errands.where.enqueue()
        assert job.result(WAIT_S) != idle
    assert job.info().attempt == 1


def test_a_job_that_no_process_could_begin_is_given_to_the_next_one() -> None:
    with processes(1) as pool:
        (idle,) = pool._handler._idle
        # It looks alive, and takes nothing more.
        idle.pipe.cut()
        job = errands.where.enqueue()
        assert job.result(WAIT_S) != idle.pid
    assert job.info().attempt == 1


def test_signals_for_the_whole_service_leave_running_jobs_alone(gate: Door) -> None:
    with processes(1):
        job = errands.stand.enqueue(gate.place)
        guest = gate.guest()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(guest.pid, number)
        guest.let_go("finished")
        assert job.result(WAIT_S) == "finished"
        # They mean what they always do to what a job starts.
        assert errands.start_a_program.enqueue().result(WAIT_S) == -signal.SIGTERM
        assert errands.fork_and_end.enqueue().result(WAIT_S) == -signal.SIGTERM
        assert errands.files_of_a_program.enqueue().result(WAIT_S) == []
        assert errands.lines_of_a_fork.enqueue().result(WAIT_S) == 0
        assert errands.where.enqueue().result(WAIT_S) == guest.pid


# Time


def test_f5_a_job_that_hangs_is_killed_with_what_it_started_and_its_worker_goes_on(gate: Door) -> None:
    with processes(2) as pool:
        jobs = [errands.hang.enqueue(gate.place) for _ in range(2)]
        for _ in range(4):
            # Its program holds the line too.
            assert gate.guest().hear() == ""
        for job in jobs:
            with pytest.raises(
                JobFailed, match=r"dead after 2 of 2 attempts: TimeoutError: the job ran longer"
            ):
                job.result(WAIT_S)
            assert causes(job.info()) == ["timeout"] * 2
            assert app.queue("default").get(job.id).crashes == 0
        assert isinstance(errands.where.enqueue().result(WAIT_S), int)
        assert pool.size == 2


def test_a_job_that_hangs_is_killed_some_time_after_its_timeout(gate: Door, monkeypatch) -> None:
    monkeypatch.setattr(nursery, "GRACE_S", 0.2)
    with processes(1):
        job = errands.hang_by_default.enqueue(gate.place)
        assert gate.guest().hear() == ""
        with pytest.raises(JobFailed):
            job.result(WAIT_S)
    text = "the job ran longer than the task's timeout of 0.3 s, and its process was killed 0.2 s later"
    assert errors_of(job) == [Failure("TimeoutError", text)]


@pytest.mark.parametrize("task", [errands.polite, errands.apolite], ids=["def", "async def"])
def test_a_job_that_ends_when_it_is_asked_to_keeps_its_process(task: Any) -> None:
    with processes(1):
        before = children_of()
        job = task.enqueue()
        with pytest.raises(JobFailed, match="TimeoutError: the job ran longer than the task's timeout of"):
            job.result(WAIT_S)
        assert causes(job.info()) == ["timeout"]
        assert children_of() == before


def test_a_backoff_function_is_asked_about_a_job_that_was_killed(gate: Door) -> None:
    with processes(1):
        job = errands.hang_with_advice.enqueue()
        eventually(lambda: job.status() is State.SCHEDULED)
        info = app.queue("default").get(job.id)
    assert causes(info) == ["timeout"]
    assert info.run_at.timestamp() - info.history[0].ended_at > 3000


def test_a_cancelled_job_that_does_not_stop_is_killed_if_its_task_says_so(gate: Door, monkeypatch) -> None:
    monkeypatch.setattr(app._home, "lease_s", 0.3)
    with processes(1):
        job = errands.hang_for_ever.enqueue(gate.place)
        guest = gate.guest()
        assert job.cancel()
        assert guest.hear() == ""
        eventually(lambda: job.status() is State.CANCELLED)
    text = "its process was killed 0 s after the job was asked to end"
    assert errors_of(job) == [Failure("WorkerLost", text)]
