"""Workers stopped at some moments of their first second, at random points, and in turn; nothing is lost.

The whole of it is a campaign of its own (`tests/campaigns/stops.py`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import TIMEOUT_S, environment
from tests.cli.working import HELLO, SIGNALS, Work
from tests.support.doors import Door
from tests.support.stopping import Tally, control, first_moments, random_points, rolling

ALONE_OR_NOT = pytest.mark.parametrize("args", [[], ["--processes", "2"]], ids=["alone", "processes"])


def passes(tally: Tally) -> None:
    assert tally.problems == [], tally.told()
    assert tally.jobs > 0


@ALONE_OR_NOT
def test_a_stop_in_the_first_moments_loses_nothing(tmp_path: Path, args: list[str]) -> None:
    offsets_s = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6]
    passes(first_moments(tmp_path, offsets_s=offsets_s, args=args, seed=1))


# A signal comes while the command itself is still being imported.
STRUCK = """
import signal, sys

class Strike:
    def find_spec(self, name, *_):
        if name == "ulak.cli.options":
            signal.raise_signal(int(sys.argv.pop(1)))

sys.meta_path.insert(0, Strike())
from ulak.__main__ import main
sys.exit(main())
"""


def struck(folder: Path, number: signal.Signals, *args: str) -> tuple[int, str]:
    (folder / "hello.py").write_text(HELLO)
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, str(number.value), *args],
        cwd=folder,
        env=environment({"PYTHONPATH": path}),
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stdout + done.stderr


@SIGNALS
@ALONE_OR_NOT
def test_a_signal_while_the_command_is_imported_ends_a_worker_without_a_traceback(
    tmp_path: Path, number: signal.Signals, args: list[str]
) -> None:
    status, said = struck(tmp_path, number, "work", "hello:app", *args)
    assert status == 0
    assert "Traceback" not in said
    assert args or said == ""


@SIGNALS
def test_a_signal_while_another_command_is_imported_ends_that_as_ever(
    tmp_path: Path, number: signal.Signals
) -> None:
    ends = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert struck(tmp_path, number, "counts", "--url", url) == (ends[number], "")


LEAVES_A_SIGN = """
import atexit

@atexit.register
def leave():
    knock({place!r})
    open(f"{{os.getpid()}}.left", "x").close()
"""


@SIGNALS
@ALONE_OR_NOT
def test_a_signal_while_exit_functions_run_strikes_none_of_them(
    folder: Path, work: Work, gate: Door, number: signal.Signals, args: list[str]
) -> None:
    (folder / "hello.py").write_text(HELLO + LEAVES_A_SIGN.format(place=gate.place))
    worker = work("hello:app", "--drain", *args, ready=False)
    guests = [gate.guest() for _ in range(2 if args else 1)]
    worker.signal(number)
    if args:
        worker.err.until("ulak stops on ")
    for guest in guests:
        guest.let_go()
    assert worker.ended() == 0
    assert sorted(folder.glob("*.left")) == sorted(folder / f"{guest.pid}.left" for guest in guests)
    assert not any("Traceback" in line for line in worker.err.rest())


# What hangs on sys goes last: after the exit functions, and after Python has taken the handlers away.
LATE = """
import os, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number={number}):
        kill(pid, number)

sys.late = Late()
"""


@SIGNALS
@ALONE_OR_NOT
def test_a_signal_after_the_exit_functions_changes_nothing_any_more(
    folder: Path, work: Work, number: signal.Signals, args: list[str]
) -> None:
    (folder / "hello.py").write_text(HELLO + LATE.format(number=number.value))
    worker = work("hello:app", "--drain", *args, ready=False)
    assert worker.ended() == 0
    assert not any("ended by" in line or "Traceback" in line for line in worker.err.rest())


def test_a_signal_that_is_held_back_ends_it_in_order_however_early_it_came(tmp_path: Path) -> None:
    tally = first_moments(tmp_path, offsets_s=[0.0, 0.02, 0.04, 0.06, 0.08, 0.1], seed=2, held=True)
    passes(tally)
    assert tally.statuses == {0: 6}


@pytest.mark.parametrize(
    "args",
    [[], ["--processes", "2"], ["--executor", "process"]],
    ids=["alone", "processes", "process executor"],
)
def test_a_stop_at_a_random_point_spends_no_attempt(tmp_path: Path, args: list[str]) -> None:
    passes(random_points(tmp_path, stops=3, args=args, seed=3))


def test_workers_that_do_not_hand_back_are_found_out(tmp_path: Path) -> None:
    problems = control(tmp_path, seed=4).problems
    assert any("dead, attempt 1" in problem for problem in problems), problems


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    passes(rolling(tmp_path, rounds=1, seed=5))
