"""`ulak work` whose threads hang: jobs that go on though their timeout is over, and what ends them."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.working import HELLO, Caller, Work
from tests.support.doors import Door
from tests.support.pids import children_of
from tests.support.pools import causes
from tests.support.waiting import WAIT_S, eventually
from ulak import Job, State

Hang = Callable[[], Job[None]]

HANGS = HELLO + textwrap.dedent("""
    import threading

    @app.task(timeout=0.05, max_attempts=1)
    def hang() -> None:
        say("hanging")
        threading.Event().wait()
    """)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HANGS)
    return tmp_path


@pytest.fixture
def hang(caller: Caller) -> Hang:
    """Enqueues a job that never returns."""
    return caller.app.task(name="hello.hang", max_attempts=1)(lambda: None).enqueue


def test_a_process_whose_threads_all_hang_is_replaced_and_the_other_jobs_run(
    work: Work, caller: Caller, hang: Hang
) -> None:
    worker = work("hello:app", "--processes", "1", "--concurrency", "2")
    (first,) = children_of(worker.pid)
    hung = [hang() for _ in range(2)]
    assert [worker.out.next() for _ in hung] == ["hanging"] * 2
    # Its grace, of 30 s, is for other jobs.
    assert caller.whoami.enqueue().result(WAIT_S) != first
    assert [causes(job.info()) for job in hung] == [["timeout"]] * 2
    assert [job.status() for job in hung] == [State.DEAD] * 2
    worker.err.until(
        "this process takes no more jobs: 2 of its 2 workers have jobs that go on though their timeout is "
        f"over: job {hung[0].id} (hello.hang), job {hung[1].id} (hello.hang)"
    )
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_a_process_of_which_half_hangs_is_replaced_once_its_other_jobs_have_ended(
    work: Work, caller: Caller, gate: Door, hang: Hang
) -> None:
    worker = work("hello:app", "--processes", "1", "--concurrency", "2")
    (first,) = children_of(worker.pid)
    standing = caller.stand.enqueue(gate.place)
    guest = gate.guest()
    hung = hang()
    worker.err.until("this process takes no more jobs: 1 of its 2 workers have jobs")
    behind = caller.whoami.enqueue()
    assert (hung.status(), behind.status()) == (State.LEASED, State.READY)
    guest.let_go("home")
    assert behind.result(WAIT_S) != first
    assert (standing.result(0), standing.info().delivery) == ("home", 1)
    assert causes(hung.info()) == ["timeout"]


def test_a_lone_worker_goes_on_until_all_its_threads_hang_and_ends_then(
    work: Work, caller: Caller, hang: Hang
) -> None:
    worker = work("hello:app", "--concurrency", "2")
    hung = [hang()]
    worker.err.until("its worker takes no other job until it returns")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"
    hung.append(hang())
    assert worker.ended() == 0
    why = "2 of its 2 workers have jobs that go on though their timeout is over"
    assert worker.err.rest()[-1].startswith(f"ulak ended, since {why}: job ")
    assert [causes(job.info()) for job in hung] == [["timeout"]] * 2


def test_a_worker_that_has_run_its_last_job_does_not_wait_for_what_hangs(
    work: Work, caller: Caller, hang: Hang
) -> None:
    worker = work("hello:app", "--concurrency", "2", "--max-jobs", "2")
    hung = hang()
    caller.welcome.enqueue("ada").result(WAIT_S)
    assert worker.ended() == 0
    assert causes(hung.info()) == ["timeout"]


def test_a_job_that_overran_when_a_signal_ends_its_worker_has_failed(work: Work, hang: Hang) -> None:
    worker = work("hello:app", "--concurrency", "2", "--grace", "100ms")
    hung = hang()
    assert worker.out.next() == "hanging"
    eventually(lambda: hung.status() is State.LEASED)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 0 jobs handed back, 0 jobs open"
    assert causes(hung.info()) == ["timeout"]
