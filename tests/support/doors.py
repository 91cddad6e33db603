"""A door at which jobs of other processes stand until a test lets them go on."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import WAIT_S


class Guest:
    """A job that stands at the door. pid: of its process; said: what it had to say."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(WAIT_S)
        pid, _, self.said = end.recv(1024).decode().partition(" ")
        self.pid = int(pid)

    def let_go(self, word: str = "") -> None:
        """Let it go on, with a word."""
        self._end.sendall(word.encode() or b".")

    def hear(self) -> str:
        """What it says next; nothing once its process is gone."""
        return self._end.recv(1024).decode()

    def close(self) -> None:
        self._end.close()


class Door:
    """Made by the test. place: what to give to the job, for `knock`."""

    def __init__(self) -> None:
        # Not the test's own folder, whose name may be too long for a socket.
        self._folder = tempfile.TemporaryDirectory(prefix="ulak-door-")
        self.place = str(Path(self._folder.name) / "door")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.place)
        self._listener.listen(64)
        self._listener.settimeout(WAIT_S)
        self._guests: list[Guest] = []

    def guest(self) -> Guest:
        """Wait for the next one. Raises ValueError if it died before it said a word."""
        end, _ = self._listener.accept()
        try:
            self._guests.append(Guest(end))
        except ValueError:
            end.close()
            raise
        return self._guests[-1]

    def close(self) -> None:
        self._listener.close()
        for guest in self._guests:
            guest.close()
        self._folder.cleanup()


@contextlib.contextmanager
def door() -> Iterator[Door]:
    """A door, closed with the block; who still stands there goes on with an empty word."""
    made = Door()
    try:
        yield made
    finally:
        made.close()


def knock(place: str, say: str = "") -> tuple[str, socket.socket]:
    """In a job: stand at the door until the test lets it go on or is gone; the word it gave, and the line."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(place)
    end.sendall(f"{os.getpid()} {say}".encode())
    return end.recv(1024).decode(), end
