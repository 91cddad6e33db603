"""A small App, and `ulak work` on it as a process, for the tests of that command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import COMMAND
from tests.support.commands import Command, running
from tests.support.doors import Door, door
from tests.support.modules import forgotten
from ulak import App, JobInfo, Queue
from ulak.cli import main

HELLO = r"""
import os
import sys
from tests.support.doors import knock
from ulak import App, Backoff

app = App("sqlite:///jobs.db", queues=["default", "mail"], backoff=Backoff(base=0.001, cap=0.001))

kept = []

def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

@app.task
def welcome(email: str) -> str:
    say(f"welcome {email}")
    return f"welcome {email}"

@app.task
async def awelcome(email: str) -> str:
    return welcome(email)

@app.task(queue="mail")
def send(number: int) -> None:
    say(f"send {number}")

@app.task
def hold() -> None:
    say("holding")
    sys.stdin.readline()
    say("let go")

@app.task
def stand(place: str) -> str:
    word, _ = knock(place)
    say(f"let go {word}")
    return word

@app.task
def whoami() -> int:
    return os.getpid()

@app.task
def grow(size: int) -> None:
    kept.append(b"x" * size)

@app.task(max_attempts=2)
def fail(secret: str) -> None:
    raise ValueError(secret)
"""
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])

Work = Callable[..., Command]
Python = Callable[[str], str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HELLO)
    return tmp_path


@pytest.fixture
def work(folder: Path) -> Iterator[Work]:
    """Starts `ulak work ARGS`; unless told otherwise it has said that it works when it comes back."""
    with ExitStack() as commands:

        def start(*args: str, ready: bool = True) -> Command:
            command = commands.enter_context(running(*COMMAND, "work", *args, folder=folder))
            if ready:
                assert command.err.next().startswith("ulak works on ")
            return command

        yield start


class Caller:
    """Who calls the tasks, in this process: it knows them by their names alone."""

    def __init__(self, folder: Path) -> None:
        self.app = App(f"sqlite:///{folder}/jobs.db", queues=["default", "mail"])

        @self.app.task(name="hello.welcome")
        def welcome(email: str) -> str:
            raise NotImplementedError

        @self.app.task(name="hello.stand")
        def stand(place: str) -> str:
            raise NotImplementedError

        @self.app.task(name="hello.fail", max_attempts=2)
        def fail(secret: str) -> None:
            raise NotImplementedError

        @self.app.task(name="hello.whoami")
        def whoami() -> int:
            raise NotImplementedError

        @self.app.task(name="hello.grow")
        def grow(size: int) -> None:
            raise NotImplementedError

        self.welcome, self.stand, self.fail, self.whoami, self.grow = welcome, stand, fail, whoami, grow


@pytest.fixture
def caller(folder: Path) -> Iterator[Caller]:
    with (made := Caller(folder)).app:
        yield made


@pytest.fixture
def gate() -> Iterator[Door]:
    """Where the jobs of `stand` stand."""
    with door() as made:
        yield made


@pytest.fixture
def python(folder: Path) -> Python:
    """Runs some lines of Python as another process of the same program; what they print."""

    def run(code: str) -> str:
        with running(sys.executable, "-c", f"from hello import *\n{code}", folder=folder) as command:
            lines = command.out.rest()
            assert (command.ended(), command.err.rest()) == (0, [])
        return "\n".join(lines)

    return run


def jobs(folder: Path, queue: str = "default") -> list[JobInfo]:
    with Queue(f"sqlite:///{folder}/jobs.db", queue) as q:
        return q.jobs()


Refused = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refused]:
    """Runs `ulak work ARGS` in this process; its exit status, and what it says on stderr.

    That is at most six lines, and no traceback.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def go(*args: str, hello: str = HELLO) -> tuple[int, list[str]]:
        (folder / "hello.py").write_text(hello)
        status = main(["work", *args])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) <= 6
        assert "Traceback" not in "".join(lines)
        return status, lines

    with forgotten(folder):
        yield go
