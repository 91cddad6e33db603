"""`ulak work --processes`: a few processes of which some die, and one that watches over them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.working import HELLO, SIGNALS, Caller, Python, Work
from tests.support.commands import Command
from tests.support.doors import Door
from tests.support.pids import children_of, is_alive
from tests.support.waiting import WAIT_S, eventually
from ulak import State

SOON_S = 1.0
"""How soon a job of a process that was killed runs again, and children of one are gone."""


def all_work(worker: Command, count: int) -> list[int]:
    """The processes, once so many run."""
    eventually(lambda: len(children_of(worker.pid)) == count)
    return children_of(worker.pid)


def test_so_many_processes_run_jobs(work: Work, caller: Caller, gate: Door, folder: Path) -> None:
    worker = work("hello:app", "--processes", "3", "--concurrency", "1", ready=False)
    assert worker.err.next() == (
        f"ulak works on {folder}/jobs.db: tasks hello.welcome, hello.awelcome, hello.send, hello.hold, "
        "hello.stand, and 3 more; queues default, mail; concurrency 1; processes 3"
    )
    standing = [caller.stand.enqueue(gate.place) for _ in range(3)]
    guests = [gate.guest() for _ in standing]
    assert len({guest.pid for guest in guests}) == 3
    for guest in guests:
        guest.let_go("home")
    assert [job.result(WAIT_S) for job in standing] == ["home"] * 3
    # What user code prints comes through.
    assert [worker.out.next() for _ in guests] == ["let go home"] * 3


def test_a_job_of_a_killed_process_runs_again_within_a_second(work: Work, caller: Caller, gate: Door) -> None:
    worker = work("hello:app", "--processes", "2", "--concurrency", "1")
    all_work(worker, 2)
    took_s = []
    for _ in range(3):
        job = caller.stand.enqueue(gate.place)
        first = gate.guest()
        os.kill(first.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        second = gate.guest()
        took_s.append(time.monotonic() - killed_at)
        assert second.pid != first.pid
        worker.err.until(f"(pid {first.pid}) ended by SIGKILL; the next one starts")
        second.let_go("home")
        assert job.result(WAIT_S) == "home"
        lost = job.info().history[0]
        assert lost.cause == "lost"
        assert lost.error is not None
        assert (lost.error.type, lost.error.text) == (
            "WorkerLost",
            "its worker's process has ended by SIGKILL",
        )
        all_work(worker, 2)
    # The others may have been late on a machine that has much else to do.
    assert min(took_s) < SOON_S


def test_with_a_killed_supervisor_its_processes_are_gone_and_another_worker_takes_over(
    work: Work, caller: Caller, gate: Door
) -> None:
    worker = work("hello:app", "--processes", "2", "--concurrency", "1")
    jobs = [caller.stand.enqueue(gate.place) for _ in range(2)]
    standing = {gate.guest().pid for _ in jobs}
    assert standing == set(all_work(worker, 2))
    successor = work("hello:app", "--processes", "1", "--concurrency", "2")
    worker.signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, standing)), SOON_S)
    again = {gate.guest().pid for _ in range(2)}
    assert again == set(children_of(successor.pid))
    # Who could have told how they ended is gone too.
    errors = [job.info().history[0].error for job in jobs]
    assert {error and error.text for error in errors} == {"its worker's process is gone"}


def test_processes_of_the_process_executor_end_with_a_killed_supervisor_too(
    work: Work, caller: Caller, gate: Door
) -> None:
    worker = work("hello:app", "--processes", "1", "--executor", "process", "--concurrency", "1")
    caller.stand.enqueue(gate.place)
    guest = gate.guest()
    (child,) = all_work(worker, 1)
    assert guest.pid in children_of(child)
    worker.signal(signal.SIGKILL)
    eventually(lambda: not is_alive(guest.pid) and not is_alive(child), SOON_S)


@SIGNALS
def test_a_signal_is_passed_on_and_running_jobs_finish(
    work: Work, caller: Caller, gate: Door, number: signal.Signals
) -> None:
    worker = work("hello:app", "--processes", "2", "--concurrency", "1")
    standing = [caller.stand.enqueue(gate.place) for _ in range(2)]
    guests = [gate.guest() for _ in standing]
    worker.signal(number)
    assert worker.err.next() == (
        f"ulak stops on {number.name}: running jobs have 30.00s to finish; a second one hands them back now"
    )
    for guest in guests:
        guest.let_go("home")
    assert worker.ended() == 0
    # How many are open is what the process that ended last saw, and the other's job may have been open then.
    (line,) = worker.err.rest()
    assert line.startswith(f"ulak stopped on {number.name}: 0 jobs handed back, ")
    assert [job.result(0) for job in standing] == ["home"] * 2


def test_a_signal_to_all_of_a_service_counts_once(work: Work, caller: Caller, gate: Door) -> None:
    # As systemd does it by default, and whoever signals a control group.
    worker = work("hello:app", "--processes", "2", "--concurrency", "1")
    job = caller.stand.enqueue(gate.place)
    guest = gate.guest()
    for pid in (*all_work(worker, 2), worker.pid):
        os.kill(pid, signal.SIGTERM)
    worker.err.until("ulak stops on SIGTERM")
    guest.let_go("home")
    assert worker.ended() == 0
    assert job.result(0) == "home"


def test_what_is_not_finished_within_the_grace_is_handed_back_unspent(
    work: Work, caller: Caller, gate: Door
) -> None:
    worker = work("hello:app", "--processes", "2", "--concurrency", "1", "--grace", "10ms")
    standing = [caller.stand.enqueue(gate.place) for _ in range(2)]
    for _ in standing:
        gate.guest()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 2 jobs handed back, 2 jobs open"
    for job in standing:
        info = job.info()
        assert (info.state, info.attempt, info.history[0].cause) == (State.READY, 0, "shutdown")


@pytest.mark.parametrize("more", [(), ("--drain",)], ids=["", "drain"])
def test_at_a_second_signal_all_hand_back_what_runs_and_end(
    work: Work, caller: Caller, gate: Door, more: tuple[str, ...]
) -> None:
    job = caller.stand.enqueue(gate.place)
    worker = work("hello:app", "--processes", "2", *more, ready=False)
    guest = gate.guest()
    children = all_work(worker, 2)
    worker.signal(signal.SIGTERM)
    worker.err.until("ulak stops on SIGTERM")
    worker.signal(signal.SIGINT)
    assert worker.ended() == 128 + signal.SIGINT
    eventually(lambda: not any(map(is_alive, children)), SOON_S)
    assert guest.hear() == ""
    # The line that the workers have started may come after the one that they stop.
    said = [line for line in worker.err.rest() if not line.startswith(("warning", "ulak works on"))]
    assert said == ["ulak stopped on SIGINT: 1 job handed back, 1 job open"]
    info = job.info()
    assert (info.state, info.attempt, info.history[0].cause) == (State.READY, 0, "shutdown")


def test_at_a_second_signal_all_end_soon_also_where_nothing_can_be_handed_back(
    work: Work, caller: Caller, gate: Door, folder: Path
) -> None:
    worker = work("hello:app", "--processes", "2")
    caller.stand.enqueue(gate.place)
    gate.guest()
    children = all_work(worker, 2)
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.signal(signal.SIGTERM)
        worker.err.until("ulak stops on SIGTERM")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 128 + signal.SIGTERM
        assert not any(map(is_alive, children))
    said = "ulak ended on SIGTERM: jobs that still ran start again elsewhere, an attempt the fewer"
    assert worker.err.rest()[-1] == said


def test_what_could_not_be_handed_back_is_told_by_1(
    work: Work, caller: Caller, gate: Door, folder: Path
) -> None:
    worker = work("hello:app", "--processes", "1", "--grace", "10ms")
    caller.stand.enqueue(gate.place)
    gate.guest()
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 1
    said = "ulak ended on SIGTERM: jobs that still ran start again elsewhere, an attempt the fewer"
    assert worker.err.rest()[-1] == said


def test_a_process_that_is_stopped_by_hand_hands_back_and_is_replaced(
    work: Work, caller: Caller, gate: Door
) -> None:
    worker = work("hello:app", "--processes", "1", "--grace", "10ms")
    job = caller.stand.enqueue(gate.place)
    first = gate.guest()
    os.kill(first.pid, signal.SIGTERM)
    assert gate.guest().pid != first.pid
    assert job.info().attempt == 1
    assert worker.err.next().endswith(f"(pid {first.pid}) ended with status 0; the next one starts in 0.1 s")


def test_one_that_had_settled_a_job_is_replaced_at_once_and_else_after_a_while(
    work: Work, caller: Caller
) -> None:
    worker = work("hello:app", "--processes", "1")
    # Idle ones first, twice; then the backoff starts anew.
    for after in ("in 0.1 s", "in 0.2 s"):
        (child,) = all_work(worker, 1)
        os.kill(child, signal.SIGKILL)
        assert worker.err.until("ended by SIGKILL").endswith(
            f"(pid {child}) ended by SIGKILL; the next one starts {after}"
        )
        eventually(lambda child=child: children_of(worker.pid) not in ([], [child]))
    for _ in range(5):
        child = caller.whoami.enqueue().result(WAIT_S)
        os.kill(child, signal.SIGKILL)
        if worker.err.until("ended by SIGKILL").endswith("the next one starts at once"):
            break
        # Its parent hears of the job by a line, and that was on its way still.
    else:
        pytest.fail("one that had settled a job was never replaced at once")


# What cannot work


@pytest.mark.parametrize(
    ("args", "hello", "status", "first"),
    [
        (["hello:app"], "1 / 0", 2, "error U302: importing hello raised ZeroDivisionError: division by zero"),
        (["hello:app"], "raise KeyboardInterrupt", 2, "error U302: importing the App raised Keyboard"),
        (["hello:ap"], HELLO, 2, "error U302: hello.py has no 'ap'; did you mean 'app'?"),
        (
            ["hello:app", "--queues", "mial"],
            HELLO,
            2,
            "error U110: the App has no queue 'mial'; did you mean",
        ),
        (["hello:app", "--max-rss", "1M"], HELLO, 2, "error U302: --max-rss 1M is less than the "),
        (["hello:app", "--url", "memory://"], HELLO, 2, "error U302: hello:app is on memory://, and "),
        (["hello:app", "--url", "sqlite:///hello.py"], HELLO, 69, "error U"),
    ],
)
def test_what_keeps_every_process_from_working_is_said_once_and_ends_the_command(
    work: Work, folder: Path, args: list[str], hello: str, *, status: int, first: str
) -> None:
    (folder / "hello.py").write_text(hello)
    worker = work(*args, "--processes", "3", ready=False)
    assert worker.ended() == status
    lines = worker.err.rest()
    assert lines[0].startswith(first)
    assert len(lines) <= 6
    assert "\n".join(lines).count("error U") == 1


def test_an_app_that_breaks_while_others_work_is_tried_again_until_it_is_mended(
    work: Work, folder: Path, caller: Caller
) -> None:
    worker = work("hello:app", "--processes", "1")
    (child,) = all_work(worker, 1)
    (folder / "hello.py").write_text("half of a deplo")
    os.kill(child, signal.SIGKILL)
    worker.err.until("ended with status 2: error U302: importing hello raised SyntaxError")
    (folder / "hello.py").write_text(HELLO)
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"


def test_a_module_that_ends_its_process_without_a_word_is_tried_again_until_a_signal_comes(
    work: Work, folder: Path
) -> None:
    (folder / "hello.py").write_text("import os\nos._exit(3)")
    worker = work("hello:app", "--processes", "1", ready=False)
    assert worker.err.next().startswith("warning ulak: process 1 (pid ")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


# Ends that are no failure


def test_a_drain_ends_when_nothing_is_left(work: Work, caller: Caller) -> None:
    all_jobs = [caller.welcome.enqueue(str(number)) for number in range(20)]
    worker = work("hello:app", "--processes", "2", "--drain")
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak drained: 0 jobs open"
    assert len(worker.out.rest()) == 20
    assert {job.status() for job in all_jobs} == {State.SUCCEEDED}


def test_a_process_that_dies_in_a_drain_is_replaced(work: Work, caller: Caller, gate: Door) -> None:
    caller.stand.enqueue(gate.place)
    worker = work("hello:app", "--processes", "1", "--drain")
    os.kill(gate.guest().pid, signal.SIGKILL)
    gate.guest().let_go()
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak drained: 0 jobs open"


def test_a_job_that_ends_its_process_with_0_ends_no_drain(work: Work, python: Python, folder: Path) -> None:
    leaves = "@app.task(max_attempts=2)\ndef leave() -> None:\n    os._exit(0)"
    (folder / "hello.py").write_text(HELLO + leaves)
    python("leave.enqueue()\nwelcome.enqueue('ada')")
    # The process may end before it has said that it works.
    worker = work("hello:app", "--processes", "1", "--concurrency", "1", "--drain", ready=False)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak drained: 0 jobs open"
    assert worker.out.rest() == ["welcome ada"]


def test_a_process_that_is_stopped_by_hand_in_a_drain_is_replaced(
    work: Work, caller: Caller, gate: Door
) -> None:
    caller.stand.enqueue(gate.place)
    worker = work("hello:app", "--processes", "1", "--drain", "--grace", "10ms")
    os.kill(gate.guest().pid, signal.SIGTERM)
    gate.guest().let_go()
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak drained: 0 jobs open"


# Whose lines they are


def test_each_line_of_the_log_says_whose_it_is(work: Work, caller: Caller, gate: Door) -> None:
    worker = work("hello:app", "--processes", "2", "--concurrency", "1", "--log-format", "json")
    caller.stand.enqueue(gate.place)
    first = gate.guest()
    other = next(pid for pid in all_work(worker, 2) if pid != first.pid)
    job = caller.fail.enqueue("s3cret")
    records = [json.loads(worker.err.next()) for _ in range(2)]
    assert {record["worker"] for record in records} == {record.worker for record in job.info().history}
    assert all(f"-{other}-" in record["worker"] for record in records)
    first.let_go()


def test_on_a_console_too(work: Work, caller: Caller) -> None:
    worker = work("hello:app", "--processes", "1")
    job = caller.fail.enqueue("s3cret")
    line = worker.err.next()
    (name,) = {attempt.worker for attempt in job.info().history}
    assert line.startswith(
        f"warning ulak [{name}]: job {job.id} (hello.fail) of queue default, attempt 1 of 2"
    )
