"""`ulak work` where what it says goes nowhere, and where its own package is replaced under it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.command import COMMAND
from tests.cli.working import HELLO, Caller, Python, Work
from tests.support.commands import running
from tests.support.doors import Door
from tests.support.waiting import WAIT_S, eventually
from ulak import State

_FULL = Path("/dev/full")
_CLOSES_STDERR = """
@app.task
def shut() -> None:
    sys.stderr.close()
"""
_IMPORTS_NO_MORE = """
class Replaced:
    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("ulak"):
            raise ImportError(f"{name} is replaced")

@app.task
def replace(place: str) -> None:
    sys.meta_path.insert(0, Replaced())
    knock(place)
"""
WAYS = pytest.mark.parametrize(
    "more", [[], ["--processes", "2"], ["--executor", "process"]], ids=["alone", "processes", "executor"]
)


@WAYS
@pytest.mark.skipif(not _FULL.exists(), reason="the system has no file that is always full")
def test_with_a_full_disk_under_its_log_it_works_and_stops_in_order(
    folder: Path, caller: Caller, gate: Door, more: list[str]
) -> None:
    job = caller.stand.enqueue(gate.place)
    shell = ["sh", "-c", f'exec "$@" 2>{_FULL}', "sh"]
    with running(*shell, *COMMAND, "work", "hello:app", *more, folder=folder) as worker:
        guest = gate.guest()
        worker.signal(signal.SIGTERM)
        guest.let_go("home")
        assert worker.ended() == 0
    assert job.result(WAIT_S) == "home"
    assert [attempt.cause for attempt in job.info().history] == ["ack"]


def test_a_job_that_closes_stderr_changes_nothing_but_what_is_said(
    work: Work, python: Python, folder: Path
) -> None:
    (folder / "hello.py").write_text(HELLO + _CLOSES_STDERR)
    python("shut.enqueue()\nwelcome.enqueue('ada')")
    worker = work("hello:app", "--concurrency", "1", "--drain")
    assert worker.ended() == 0
    assert worker.out.rest() == ["welcome ada"]


@pytest.mark.parametrize("more", [[], ["--processes", "1"]], ids=["alone", "processes"])
def test_a_running_job_finishes_also_where_the_package_was_replaced_on_the_disk(
    work: Work, python: Python, folder: Path, gate: Door, more: list[str]
) -> None:
    (folder / "hello.py").write_text(HELLO + _IMPORTS_NO_MORE)
    python(f"replace.enqueue({gate.place!r})")
    worker = work("hello:app", *more)
    guest = gate.guest()
    worker.signal(signal.SIGTERM)
    assert worker.err.next().startswith("ulak stops on SIGTERM")
    guest.let_go()
    assert worker.ended() == 0
    assert worker.err.rest() == ["ulak stopped on SIGTERM: 0 jobs handed back, 0 jobs open"]


@WAYS
def test_a_terminal_that_is_closed_stops_it_in_order(
    work: Work, caller: Caller, gate: Door, more: list[str]
) -> None:
    job = caller.stand.enqueue(gate.place)
    worker = work("hello:app", *more)
    guest = gate.guest()
    worker.signal(signal.SIGHUP)
    assert worker.err.until("ulak stops on SIGHUP")
    guest.let_go("home")
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGHUP: 0 jobs handed back, 0 jobs open"
    assert (job.result(WAIT_S), job.info().attempt) == ("home", 1)


@pytest.mark.parametrize("more", [[], ["--processes", "1"]], ids=["alone", "processes"])
def test_under_nohup_it_works_on(folder: Path, caller: Caller, gate: Door, more: list[str]) -> None:
    shell = ["sh", "-c", """trap '' HUP; exec "$@" """, "sh"]
    with running(*shell, *COMMAND, "work", "hello:app", *more, folder=folder) as worker:
        job = caller.stand.enqueue(gate.place)
        guest = gate.guest()
        worker.signal(signal.SIGHUP)
        guest.let_go("home")
        assert job.result(WAIT_S) == "home"
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert worker.err.rest()[-1].startswith("ulak stopped on SIGTERM")


@WAYS
def test_whoever_takes_no_line_of_its_log_holds_up_no_job_and_no_stop(
    folder: Path, caller: Caller, gate: Door, more: list[str]
) -> None:
    os.mkfifo(log := folder / "log")
    nobody = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    shell = ["sh", "-c", 'exec "$@" 2>log', "sh"]
    with os.fdopen(nobody), running(*shell, *COMMAND, "work", "hello:app", *more, folder=folder) as worker:
        # Two lines each, more than a pipe and its writers hold.
        failing = [caller.fail.enqueue("secret") for _ in range(400)]
        eventually(lambda: all(job.status() is State.DEAD for job in failing[-20:]))
        job = caller.stand.enqueue(gate.place)
        guest = gate.guest()
        worker.signal(signal.SIGTERM)
        guest.let_go("home")
        assert worker.ended() == 0
    assert (job.result(WAIT_S), job.info().attempt) == ("home", 1)
