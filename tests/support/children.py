"""Processes of their own for a test, which end with it, also when the test run itself is killed.

A child runs one function of a module, `role(parent, *arguments)`. The two sides talk in lines of JSON: the
child says words with `Parent.say`, which `Child.hear` waits for, and the other way round.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.leash import end_with
from tests.support.waiting import WAIT_S

_ROOT = Path(__file__).parents[2]
_GONE = object()

Role = Callable[..., None]


class _Ear:
    """What the other side says, read by a thread of its own so that a listener can give up in time."""

    def __init__(self, source: Iterable[str], at_end: Callable[[], None]) -> None:
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._source = source
        self._at_end = at_end
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # a line that its writer did not live to finish
            for line in self._source:
                self._said.put(json.loads(line))
        self._said.put(_GONE)
        self._at_end()

    def next(self, within_s: float | None) -> Any:
        """The next words; None once there are none left. Raises queue.Empty if nothing comes in time."""
        words = self._said.get(timeout=within_s)
        if words is _GONE:
            self._said.put(_GONE)
            return None
        return words


class Child:
    """A child, as the test sees it."""

    def __init__(self, role: Role, arguments: tuple[Any, ...]) -> None:
        command = [sys.executable, "-m", __name__, str(os.getpid()), role.__module__, role.__name__]
        self._process = subprocess.Popen(
            [*command, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdout is not None
        self._ear = _Ear(self._process.stdout, lambda: None)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def hear(self, word: str, within_s: float = WAIT_S) -> Any:
        """The value of the next thing it says, which must be this word."""
        try:
            words = self._ear.next(within_s)
        except queue.Empty:
            raise AssertionError(f"the child has not said {word!r} in {within_s:g} s") from None
        assert words is not None, f"the child ended before it said {word!r}: {self._process.wait()}"
        assert words[0] == word, f"the child said {words!r}, not {word!r}"
        return words[1]

    def rest(self, within_s: float = WAIT_S) -> list[tuple[str, Any]]:
        """All that it still says up to its end: words and their values."""
        said = []
        while (words := self._ear.next(within_s)) is not None:
            said.append((words[0], words[1]))
        return said

    def tell(self, word: str) -> None:
        """Say a word to it."""
        assert self._process.stdin is not None
        print(json.dumps([word, None]), file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """Kill it as `kill -9` does, and wait until it is gone."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def freeze(self) -> None:
        """Stop it as Ctrl+Z cannot be refused, and wait until none of its threads runs."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        os.kill(self.pid, signal.SIGCONT)

    def ended(self, within_s: float = WAIT_S) -> int:
        """Wait for its end: its exit status, or minus the signal that ended it."""
        return self._process.wait(within_s)

    def close(self) -> None:
        """Kill it if it still lives, frozen or not, and let go of its pipes."""
        self.kill()
        self._ear.thread.join(WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def child(role: Role, *arguments: Any) -> Iterator[Child]:
    """A child that runs this function with these arguments, which JSON can carry, and ends with the block."""
    started = Child(role, arguments)
    try:
        yield started
    finally:
        started.close()


class Parent:
    """The test, as its child sees it."""

    def __init__(self) -> None:
        # Line by line and whole: several threads of a child may speak.
        self._mutex = threading.Lock()
        # When the test ends, also by a SIGKILL, so does this.
        self._ear = _Ear(sys.stdin, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def say(self, word: str, value: Any = None) -> None:
        """Say a word, with a value that JSON can carry."""
        with self._mutex:
            print(json.dumps([word, value]), flush=True)

    def next_word(self) -> str:
        """Wait for what the test says next."""
        words: list[str] = self._ear.next(None)
        return words[0]

    def wait_for(self, word: str) -> None:
        """Wait until the test says something, which must be this word."""
        said = self.next_word()
        assert said == word, said


def _main(parent_pid: str, module: str, name: str, arguments: str) -> None:
    end_with(int(parent_pid))
    role = getattr(importlib.import_module(module), name)
    role(Parent(), *json.loads(arguments))


if __name__ == "__main__":
    _main(*sys.argv[1:])
