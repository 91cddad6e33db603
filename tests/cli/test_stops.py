"""Ctrl-C and SIGTERM: before, during and after a run, once and twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from tests.cli.command import COMMAND, environment
from ulak.cli import demo_progress, demo_report, main
from ulak.cli.stops import Stopped, Stops

ENDLESS = ("demo", "--jobs", "1000000000", "--seed", "7")
# The first job fails and then waits for up to an hour, so the producer waits for room as long.
STUCK = ("demo", "--capacity", "1", "--fail-rate", "1", "--base", "1h", "--cap", "1h")
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


@contextmanager
def started(*args: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that has come far enough to print its header."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *args], text=True, env=environment(), **pipes, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ulak ")
            yield process
        finally:
            process.kill()


@SIGNALS
@pytest.mark.parametrize("args", [ENDLESS, STUCK], ids=["busy", "stuck"])
def test_a_signal_ends_the_run_with_a_true_summary(number: signal.Signals, args: tuple[str, ...]) -> None:
    with started(*args) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == ""
    assert "stopped in " in out
    assert out.count("  ok      ") + out.count(" check ok ") == 3
    assert "FAILED" not in out


def test_an_ignored_signal_stays_ignored() -> None:
    with started(*STUCK, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped in " in out


def test_a_second_signal_ends_the_process_though_its_output_is_stuck() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        [*COMMAND, *ENDLESS], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        # Once its header has come, nobody reads on, and the pipe is filled up: the summary cannot be written.
        header = os.read(reader, 4096)
        while not header.startswith(b"ulak ") or header.count(b"\n") < 2:
            header += os.read(reader, 4096)
        fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 512)
        fcntl.fcntl(writer, fcntl.F_SETFL, 0)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    os.close(reader)
    os.close(writer)
    assert process.returncode == 128 + signal.SIGTERM
    assert err == ""


def raising(number: signal.Signals, before: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and a signal to this process just before it is called."""

    def call(*args: Any) -> Any:
        signal.raise_signal(number)
        return before(*args)

    return call


@SIGNALS
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_a_signal_before_the_run_has_begun_still_gives_a_summary(
    number: signal.Signals,
    json: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if json:
        monkeypatch.setattr(demo_progress, "shown", raising(number, demo_progress.shown))
    else:
        monkeypatch.setattr(demo_report, "header", raising(number, demo_report.header))
    before = signal.getsignal(number)
    assert main([*ENDLESS, *json]) == 128 + number
    assert ('"stopped": true' if json else "\nstopped in ") in capsys.readouterr().out
    assert signal.getsignal(number) is before


@SIGNALS
def test_a_signal_during_the_summary_does_not_cost_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_report, "as_text", raising(number, demo_report.as_text))
    assert main(["demo", "--jobs", "20", "--fail-rate", "0"]) == 128 + number
    assert "\ndone in " in capsys.readouterr().out


def test_the_second_signal_gives_a_terminal_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    terminal, its_end = pty.openpty()
    inbox: SimpleQueue[int | None] = SimpleQueue()
    with os.fdopen(its_end, "w") as stream, Stops(inbox) as stops:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", None)
        assert stops.status is None
        signal.raise_signal(signal.SIGTERM)
        assert (ended, stops.status, inbox.get_nowait()) == ([], 143, signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.undo()
        assert ended == [130]
        assert os.read(terminal, 100).startswith(b"\x1b[?25h")
    os.close(terminal)


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def enter() -> None:
        with Stops(SimpleQueue()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_where_nothing_is_to_be_finished_the_first_signal_breaks_off() -> None:
    inbox: SimpleQueue[int] = SimpleQueue()
    steps: list[str] = []

    def work() -> None:
        steps.append("before")
        signal.raise_signal(signal.SIGTERM)
        steps.append("after")

    with Stops(inbox) as stops:
        with pytest.raises(Stopped), stops.breaking_off():
            work()
        assert (stops.number, inbox.get_nowait(), steps) == (signal.SIGTERM, signal.SIGTERM, ["before"])


def test_a_signal_before_that_breaks_off_at_once() -> None:
    steps: list[str] = []
    with Stops(SimpleQueue()) as stops:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped), stops.breaking_off():
            steps.append("inside")
    assert steps == []


@pytest.mark.parametrize("error", [None, ValueError("another")], ids=["nothing", "another error"])
def test_breaking_off_gets_through_code_that_catches_everything(error: Exception | None) -> None:
    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:  # noqa: BLE001 - as somebody else's code does
            if error is not None:
                raise error from None

    with Stops(SimpleQueue()) as stops, pytest.raises(Stopped), stops.breaking_off():
        work()


def test_where_the_interpreter_swallows_it_nothing_is_printed_and_the_block_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Thing:
        pass

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    hook = sys.unraisablehook
    kept: list[weakref.ref[Thing]] = []
    steps: list[str] = []

    def strike(_: object) -> None:
        # As while a module is imported, whose lock is let go of in such a callback.
        signal.raise_signal(signal.SIGTERM)

    def fail(_: object) -> None:
        raise ValueError

    def work() -> None:
        kept.append(weakref.ref(thing := Thing(), strike))
        del thing
        kept.append(weakref.ref(thing := Thing(), fail))
        del thing
        steps.append("went on")

    with Stops(SimpleQueue()) as stops, pytest.raises(Stopped), stops.breaking_off():
        work()
    assert ([reference() for reference in kept], steps) == ([None, None], ["went on"])
    assert sys.unraisablehook is hook
    # Of others' errors it is told as ever.
    assert [error.exc_type for error in told] == [ValueError]  # type: ignore[attr-defined]


def test_after_the_block_the_first_signal_is_a_wish_again() -> None:
    inbox: SimpleQueue[int] = SimpleQueue()
    with Stops(inbox) as stops:
        with pytest.raises(ValueError, match="its own"), stops.breaking_off():
            raise ValueError("its own")
        signal.raise_signal(signal.SIGTERM)
        assert inbox.get_nowait() == signal.SIGTERM
