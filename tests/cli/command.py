"""Runs the command as its users do: in a process of its own, or with a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

COMMAND = (sys.executable, "-m", "ulak")
TIMEOUT_S = 60


class Done(NamedTuple):
    """How a command that ran in this process ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]


def read(run: Run, *argv: object, status: int = 0) -> Any:
    """What a command prints with --json."""
    done = run(*argv, "--json")
    assert (done.status, done.out.count("\n")) == (status, 1), done.err
    return json.loads(done.out)


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, without what would change the form of the output, and with the changes."""
    plain = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    return {**plain, "TERM": "xterm-256color", **(changes or {})}


def ulak(
    *args: object, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `ulak ARGS`, with pipes."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": TIMEOUT_S} | options
    return subprocess.run(
        [*COMMAND, *map(str, args)], env=environment(env), check=False, text=True, **settings
    )


def demo(*args: object) -> dict[str, Any]:
    """Run `ulak demo --json ARGS` to a good end; its result."""
    done = ulak("demo", "--json", *args)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def told_a_reader_of_one_line(*args: object) -> str:
    """The first line of `ulak ARGS`, whose reader goes then: the rest is nobody's, and no traceback."""
    with subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT_S) == 141
    return first


def on_terminal(
    *args: object, env: Mapping[str, str] | None = None, columns: int = 80, stderr_only: bool = False
) -> tuple[int, str, str]:
    """Run `ulak ARGS` with stdout and stderr on a terminal, or stderr alone.

    The exit status, what came to the terminal, and what came to a piped stdout.
    """
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *map(str, args)],
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stderr_only else its_end,
        stderr=its_end,
    ) as process:
        os.close(its_end)
        shown = _read_all(terminal)
        printed = b"" if process.stdout is None else process.stdout.read()
        process.wait(TIMEOUT_S)
    os.close(terminal)
    return process.returncode, shown.decode(), printed.decode()


def _read_all(terminal: int) -> bytes:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # EIO: the other end is closed
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        return True


def lines_of(stream: io.StringIO) -> list[str]:
    """What was written, without the styles that a terminal gets."""
    return re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue()).splitlines()
