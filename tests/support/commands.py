"""Commands that run until a test has seen enough of them. They end with it, also when it is killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.support import leash
from tests.support.waiting import WAIT_S

_END = ""
_LEASH = leash.__file__


class Lines:
    """What a stream says, line by line; read by a thread, so that a listener can give up in time."""

    def __init__(self, stream: IO[str]) -> None:
        self.seen: list[str] = []
        self._stream = stream
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.put(line)
        self._lines.put(_END)

    def next(self) -> str:
        """The next line without its end; fails if none comes."""
        try:
            line = self._lines.get(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError(f"no line in {WAIT_S:g} s, after {self.seen}") from None
        assert line != _END, f"the command ended, after {self.seen}"
        self.seen.append(line.rstrip("\n"))
        return self.seen[-1]

    def until(self, text: str) -> str:
        """The next line that has this text in it."""
        while text not in (line := self.next()):
            pass
        return line

    def rest(self) -> list[str]:
        """All lines that still come, up to the command's end."""
        self._thread.join(WAIT_S)
        left = []
        while (line := self._lines.get(timeout=WAIT_S)) != _END:
            left.append(line.rstrip("\n"))
        self._lines.put(_END)
        return left

    def close(self) -> None:
        """Let go of the stream of a command that has ended."""
        self._thread.join(WAIT_S)
        self._stream.close()


class Command:
    """One that runs. out, err: what it says; `tell` says a line to it."""

    def __init__(self, argv: list[str], folder: Path) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, _LEASH, str(os.getpid()), *argv],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out, self.err = Lines(self._process.stdout), Lines(self._process.stderr)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, line: str = "") -> None:
        """Say a line to it."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end: its exit status, or minus the signal that ended it."""
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        """Kill it if it still lives, and let go of its pipes."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self.out.close()
        self.err.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


@contextlib.contextmanager
def running(*argv: str, folder: Path) -> Iterator[Command]:
    """A command in this folder, until the block is left."""
    command = Command([*argv], folder)
    try:
        yield command
    finally:
        command.close()
