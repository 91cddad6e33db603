"""The supervisor, with children that are a line of Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.pids import is_alive
from tests.support.waiting import eventually
from ulak import Backoff
from ulak.errors import ArgumentError
from ulak.testing import ManualClock
from ulak.worker.supervisor import PARENT, GivenUp, Supervisor, Word

# Ends well as soon as its stdin is closed.
PATIENT = "import sys; sys.stdin.read()"
TIED = """
import os, signal, sys, threading
from ulak.worker import supervisor
from ulak.worker.supervisor import Word
over = threading.Event()
tie = supervisor.Tie(over.set)
"""
# Ends well at the first SIGTERM, also one that came before it was tied.
ORDERLY = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + TIED


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]


def installed(folder: Path, code: str) -> tuple[Path, list[str]]:
    """A program of its own, which can be removed, and the command that runs the code with it."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program, [str(program), "-c", textwrap.dedent(code)]


def tended(supervisor: Supervisor, fact: Callable[[], object]) -> None:
    """Tend until the fact holds."""

    def look() -> object:
        supervisor.tend(0.01)
        return fact()

    eventually(look)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def has_failed(supervisor: Supervisor, times: int) -> bool:
    return supervisor.ends[3] == times


@contextmanager
def owned_clock(
    code: list[str], *, count: int = 1, **options: object
) -> Iterator[tuple[Supervisor, ManualClock]]:
    clock = ManualClock()
    with Supervisor(code, count, clock=clock, backoff=Backoff(1.0, 5.0), **options) as supervisor:  # type: ignore[arg-type]
        yield supervisor, clock


def test_so_many_processes_run_and_leave_when_their_stdin_closes() -> None:
    with Supervisor(python(PATIENT), 3) as supervisor:
        supervisor.tend(0)
        pids = supervisor.pids
        assert len(set(pids)) == supervisor.size == 3
        assert not supervisor.is_over
        supervisor.finish()
        tended(supervisor, lambda: supervisor.is_over)
        assert (supervisor.size, supervisor.pids, supervisor.started) == (0, [], 3)
        assert not supervisor.ends
    for pid in pids:
        with pytest.raises(ChildProcessError):  # it is reaped
            os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_count_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(ArgumentError, match="from 1 to 1,000"):
        Supervisor(python(PATIENT), count)


def test_a_command_that_does_not_exist_is_an_error_and_leaves_nothing() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError), Supervisor(["/nowhere/at-all"], 2) as supervisor:
        supervisor.tend(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_once_one_has_worked_what_cannot_be_started_is_tried_again_while_the_others_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, command = installed(tmp_path, TIED + "tie.report(Word.WORKS)\nover.wait()")
    with owned_clock(command, count=2, failures_max=3) as (supervisor, clock):
        tended(supervisor, lambda: supervisor.has_worked)
        program.unlink()
        killed, other = supervisor.pids
        os.kill(killed, signal.SIGKILL)
        tended(supervisor, lambda: supervisor.killed == 1)
        clock.advance(1.1)
        tended(supervisor, lambda: "cannot be started" in caplog.text)
        assert supervisor.pids == [other]
        installed(tmp_path, "")
        clock.advance(2.1)
        tended(supervisor, lambda: supervisor.size == 2)
        assert other in supervisor.pids


def test_what_can_never_be_started_again_is_given_up(tmp_path: Path) -> None:
    program, command = installed(tmp_path, TIED + "tie.report(Word.WORKS)\nover.wait()")
    with owned_clock(command, failures_max=3) as (supervisor, clock):
        tended(supervisor, lambda: supervisor.has_worked)
        program.unlink()
        os.kill(supervisor.pids[0], signal.SIGKILL)
        tended(supervisor, lambda: supervisor.killed == 1)
        for _ in range(2):
            clock.advance(5.1)
            supervisor.tend(0)
        clock.advance(5.1)
        with pytest.raises(GivenUp, match="3 times in a row no process could be started"):
            supervisor.tend(0)


def test_a_killed_process_is_replaced_and_counted() -> None:
    with Supervisor(python(PATIENT), 2, backoff=Backoff(0.001, 0.001)) as supervisor:
        supervisor.tend(0)
        first, other = supervisor.pids
        os.kill(first, signal.SIGKILL)
        tended(supervisor, lambda: supervisor.killed == 1 and supervisor.size == 2)
        assert other in supervisor.pids
        assert first not in supervisor.pids
        assert supervisor.ends == {-signal.SIGKILL: 1}
        assert supervisor.started == 3


def test_a_place_backs_off_doubling_up_to_the_cap_and_starts_within_it() -> None:
    with owned_clock(python("raise SystemExit(3)")) as (supervisor, clock):
        for nth, delay_s in enumerate([1.0, 2.0, 4.0, 5.0, 5.0], start=1):
            tended(supervisor, partial(has_failed, supervisor, nth))
            clock.advance(delay_s - 0.001)
            supervisor.tend(0)
            assert supervisor.started == nth
            clock.advance(0.002)
            supervisor.tend(0)
            assert supervisor.started == nth + 1


def test_the_backoff_starts_anew_after_a_process_that_settled_a_job(tmp_path: Path) -> None:
    # It fails twice, then settles and is killed, then fails again.
    code = TIED + textwrap.dedent("""
        from pathlib import Path
        file = Path(sys.argv[1])
        nth = len(file.read_text()) if file.exists() else 0
        file.write_text("x" * (nth + 1))
        if nth == 2:
            tie.report_settled()
            tie.report_settled()
            os.kill(os.getpid(), 9)
        sys.exit(4)
    """)
    with owned_clock(python(code, tmp_path / "runs")) as (supervisor, clock):
        tended(supervisor, lambda: supervisor.ends[4] == 1)
        clock.advance(1.1)
        tended(supervisor, lambda: supervisor.ends[4] == 2)
        clock.advance(2.1)
        # The third one settled: its successor comes at once, and the one after that waits the base again.
        tended(supervisor, lambda: supervisor.killed == 1 and supervisor.ends[4] == 3)
        assert supervisor.started == 4
        clock.advance(0.9)
        supervisor.tend(0)
        assert supervisor.started == 4
        clock.advance(0.2)
        supervisor.tend(0)
        assert supervisor.started == 5


def test_a_process_that_ends_well_before_it_is_told_to_is_replaced() -> None:
    with owned_clock(python("pass")) as (supervisor, clock):
        tended(supervisor, lambda: supervisor.ends[0] == 1)
        assert not supervisor.is_over
        clock.advance(1.1)
        supervisor.finish()
        tended(supervisor, lambda: supervisor.is_over)
        assert supervisor.ends == {0: 1}


def test_a_process_that_dies_after_the_end_was_said_is_replaced_by_one_that_knows_it(tmp_path: Path) -> None:
    code = """
        import os, pathlib, sys
        sys.stdin.read()
        died = pathlib.Path(sys.argv[1])
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
    """
    with Supervisor(python(code, tmp_path / "died"), 1, backoff=Backoff(0.001, 0.001)) as supervisor:
        supervisor.tend(0)
        supervisor.finish()
        tended(supervisor, lambda: supervisor.is_over)
        assert (supervisor.killed, supervisor.started) == (1, 2)


def test_processes_that_fail_again_and_again_are_given_up() -> None:
    with owned_clock(python("raise SystemExit(7)"), failures_max=3) as (supervisor, clock):
        with pytest.raises(ChildProcessError, match="3 processes in a row ended with status 7 before"):
            tended(supervisor, lambda: clock.advance(10))
        assert supervisor.ends == {7: 3}


def test_processes_that_are_killed_again_and_again_are_not_given_up() -> None:
    with owned_clock(python("import os; os.kill(os.getpid(), 9)"), failures_max=2) as (supervisor, clock):

        def look() -> bool:
            clock.advance(10)
            return supervisor.killed == 4

        tended(supervisor, look)


def test_what_happened_to_a_process_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with owned_clock(python("import os, sys; os.kill(os.getpid(), 40)")) as (supervisor, _):
        tended(supervisor, lambda: supervisor.ends)
    (record,) = caplog.records
    assert record.getMessage().startswith("process 1 (pid ")
    assert record.getMessage().endswith(") ended by signal 40; the next one starts in 1 s")


def test_stop_lets_them_end_within_the_grace(tmp_path: Path) -> None:
    code = ORDERLY + "open(sys.argv[1], 'w')\nsignal.pause()"
    with Supervisor(python(code, tmp_path / "ready"), 1) as supervisor:
        tended(supervisor, (tmp_path / "ready").exists)
        supervisor.stop(60.0)
        assert (supervisor.size, supervisor.started) == (0, 1)
        assert not supervisor.ends
        supervisor.tend(0)
        assert supervisor.size == 0


def test_one_that_is_stopped_in_the_first_moments_of_its_life_ends_in_order(tmp_path: Path) -> None:
    code = ORDERLY.replace("sys.exit(0)", "(open(f'{sys.argv[1]}/{os.getpid()}', 'w'), sys.exit(0))")
    with Supervisor(python(code + "signal.pause()", tmp_path), 3) as supervisor:
        supervisor.tend(0)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        pids = supervisor.pids
        supervisor.stop(60.0)
        assert (supervisor.size, supervisor.started, supervisor.ends) == (0, 3, {})
    assert {file.name for file in tmp_path.iterdir()} == set(map(str, pids))
    assert not {signal.SIGTERM, signal.SIGINT} & mask


def test_what_children_say_is_passed_on() -> None:
    heard: list[tuple[Word, object]] = []
    code = TIED + "tie.report(Word.WORKS, ['a', 1])\ntie.report(Word.ENDED, {'open': 3})\nover.wait()"
    with Supervisor(python(code), 1, hear=lambda word, value: heard.append((word, value))) as supervisor:
        assert not supervisor.has_worked
        tended(supervisor, lambda: len(heard) == 2)
        assert supervisor.has_worked
        assert heard == [(Word.WORKS, ["a", 1]), (Word.ENDED, {"open": 3})]


def test_a_report_longer_than_the_line_holds_at_once_comes_whole() -> None:
    heard: list[object] = []
    code = TIED + "tie.report(Word.ENDED, ['x' * 50_000])\nover.wait()"
    with Supervisor(python(code), 1, hear=lambda _, value: heard.append(value)) as supervisor:
        tended(supervisor, lambda: heard)
        assert heard == [["x" * 50_000]]


def test_what_nobody_understands_is_told_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    said = b'{}\n["strange", 1]\n[["settled"], 1]\n\xff\n'
    code = f"import os, sys\nos.write(0, {said!r})\nsys.stdin.read()"
    with Supervisor(python(code), 1) as supervisor:
        tended(supervisor, lambda: len(caplog.records) == 4)
        assert {record.getMessage() for record in caplog.records} == {
            "process 1 said what nobody understands"
        }
        assert supervisor.size == 1


def test_one_that_leaves_is_replaced_at_once_and_counts_for_nothing(tmp_path: Path) -> None:
    code = TIED + "tie.report(Word.LEAVES)"
    with owned_clock(python(code), failures_max=1) as (supervisor, _):
        # On a clock that stands still.
        tended(supervisor, lambda: supervisor.started == 4)
        assert not supervisor.ends


def test_one_that_leaves_is_replaced_also_once_the_end_was_said(tmp_path: Path) -> None:
    code = TIED + textwrap.dedent("""
        over.wait()
        if not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w")
            tie.report(Word.LEAVES)
    """)
    with owned_clock(python(code, tmp_path / "left")) as (supervisor, _):
        supervisor.tend(0)
        supervisor.finish()
        tended(supervisor, lambda: supervisor.is_over)
        assert (supervisor.started, supervisor.ends) == (2, {})


def test_one_that_knows_of_itself_when_it_is_enough_is_replaced_until_it_says_so(tmp_path: Path) -> None:
    code = TIED + textwrap.dedent("""
        if os.path.exists(sys.argv[1]):
            tie.report(Word.DRAINED)
        open(sys.argv[1], "w")
    """)
    with owned_clock(python(code, tmp_path / "seen")) as (supervisor, clock):
        supervisor.finish(tell=False)
        tended(supervisor, lambda: supervisor.ends[0] == 1)
        assert not supervisor.is_over
        clock.advance(1.1)
        tended(supervisor, lambda: supervisor.is_over)
        assert (supervisor.started, supervisor.ends) == (2, {0: 1})


def test_one_that_wanted_to_leave_and_died_has_died() -> None:
    code = TIED + "tie.report(Word.LEAVES)\nos.kill(os.getpid(), 9)"
    with owned_clock(python(code)) as (supervisor, _):
        tended(supervisor, lambda: supervisor.killed == 1)
        assert supervisor.started == 1


def test_a_first_process_that_can_say_why_it_fails_is_the_last() -> None:
    code = TIED + "tie.report(Word.FAILED, 'the reason, in\\ntwo lines')\nsys.exit(2)"
    with owned_clock(python(code), count=3) as (supervisor, _), pytest.raises(GivenUp) as error:
        tended(supervisor, lambda: False)
    assert (error.value.status, error.value.reason) == (2, "the reason, in\ntwo lines")


WORKS_ONCE = (
    TIED
    + """
nth = len(open(sys.argv[1]).read()) if os.path.exists(sys.argv[1]) else 0
open(sys.argv[1], "a").write("x")
if nth == 0:
    tie.report(Word.WORKS)
else:
    tie.report(Word.FAILED, "error U302: it is broken\\n  mend it")
sys.exit(2)
"""
)


def test_once_one_has_worked_those_that_fail_are_given_up_after_several(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with owned_clock(python(WORKS_ONCE, tmp_path / "runs"), failures_max=3) as (supervisor, clock):
        with pytest.raises(GivenUp, match="3 processes in a row ended with status 2") as error:
            tended(supervisor, lambda: clock.advance(10))
        assert (supervisor.started, error.value.reason) == (4, "error U302: it is broken\n  mend it")
    assert " ended with status 2: error U302: it is broken; the next one starts in " in caplog.text


def test_what_passes_is_no_reason_to_give_up(tmp_path: Path) -> None:
    code = WORKS_ONCE.replace("sys.exit(2)", "sys.exit(69)")
    with owned_clock(python(code, tmp_path / "runs"), failures_max=2, passing=[69]) as (supervisor, clock):

        def look() -> bool:
            clock.advance(10)
            return supervisor.ends[69] == 5

        tended(supervisor, look)


def test_stop_kills_what_is_left_after_the_grace_and_does_not_count_it_as_killed(tmp_path: Path) -> None:
    code = """
        import signal, sys, pathlib
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[1]).touch()
        while True:
            signal.pause()
    """
    with Supervisor(python(code, tmp_path / "ready"), 1) as supervisor:
        tended(supervisor, (tmp_path / "ready").exists)
        (pid,) = supervisor.pids
        supervisor.stop(0.05)
        assert supervisor.size == 0
        assert supervisor.killed == 0
    assert not is_alive(pid)


def test_leaving_the_context_after_an_error_leaves_no_process() -> None:
    with contextlib.suppress(ZeroDivisionError), Supervisor(python(PATIENT), 2) as supervisor:
        supervisor.tend(0)
        pids = supervisor.pids
        raise ZeroDivisionError
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_a_process_whose_socket_a_grandchild_holds_open_is_seen_to_die(tmp_path: Path) -> None:
    code = """
        import pathlib, subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pathlib.Path(sys.argv[1]).write_text(str(grandchild.pid))
    """
    with owned_clock(python(code, tmp_path / "pid")) as (supervisor, _):
        tended(supervisor, lambda: supervisor.ends[0] == 1)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_ctrl_c_on_the_terminal_is_the_parents_alone() -> None:
    with Supervisor(python(PATIENT), 1) as supervisor:
        supervisor.tend(0)
        (pid,) = supervisor.pids
        assert os.getpgid(pid) != os.getpgrp()


PARENT_OF_TWO = """
    import os, signal, sys, threading
    from ulak.worker.supervisor import Supervisor

    def end_with_the_test():
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_the_test, daemon=True).start()
    with Supervisor([sys.executable, "-c", sys.argv[1]], 2) as supervisor:
        while True:
            supervisor.tend(1.0)
            if len(sys.argv) > 2:
                supervisor.finish()
"""


@pytest.mark.parametrize("finished", [[], ["finished"]], ids=["working", "finishing"])
@pytest.mark.parametrize("by_kernel", [True, False], ids=["kernel", "portable"])
def test_children_die_with_a_parent_that_is_killed(by_kernel: bool, finished: list[str]) -> None:
    # They ignore their stdin's end, as those do that still have jobs to run. One write each: two mingle.
    code = textwrap.dedent(TIED) + "os.write(1, b'%d\\n' % os.getpid())\nthreading.Event().wait()\n"
    if not by_kernel:
        code = code.replace("over =", "supervisor.die_with_parent = bool\nover =")
    with subprocess.Popen(
        python(PARENT_OF_TWO, code, *finished),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, pids))
        parent.kill()
    eventually(lambda: not any(map(is_alive, pids)))


def test_a_child_that_starts_after_its_parent_has_died_dies_too() -> None:
    ended = subprocess.run(
        python(TIED + "print('alive')"),
        env={**os.environ, PARENT: "1"},
        check=False,
        stdout=subprocess.PIPE,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


def test_a_child_hears_of_the_end_and_hands_neither_line_nor_stdin_down(tmp_path: Path) -> None:
    code = TIED + textwrap.dedent("""
        import subprocess
        look = "import os, sys; print(os.listdir('/proc/self/fd'), sys.stdin.read(), os.getenv(sys.argv[1]))"
        command = [sys.executable, "-c", look, supervisor.PARENT]
        shown = subprocess.check_output(command, text=True, close_fds=False)
        over.wait(30)
        open(sys.argv[1], "w").write(shown)
    """)
    with Supervisor(python(code, tmp_path / "shown"), 1) as supervisor:
        supervisor.tend(0)
        supervisor.finish()
        tended(supervisor, lambda: supervisor.is_over)
    # Its three streams, and the listing's own.
    assert lines(tmp_path / "shown") == ["['0', '1', '2', '3']  None"]


def test_a_tie_without_a_supervisor_listens_to_stdin_all_the_same() -> None:
    code = TIED + "print(over.wait(30))\ntie.report_settled()\n"
    done = subprocess.run(
        python(code), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=40
    )
    assert done.stdout == b"True\n"
