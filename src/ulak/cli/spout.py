"""Lines for stderr from a thread of their own, so that a reader who stands still holds up nobody else."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Self

from ulak.cli.output import encodable

CHARS_MAX = 1_000_000
"""So much may wait to be read; what comes on top of it is lost, and counted."""

TELL_S = 0.5
"""How long whoever ends, or has something to tell, waits for its last line to be taken."""


class Spout:
    """While inside, what is said here is written in order, and at once if somebody reads."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._chars = 0
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_all, name="ulak-say", daemon=True)
        # How many lines nobody took since that was last asked for.
        self._lost = 0

    def say(self, text: str, *, wait_s: float = 0.0) -> None:
        """Write lines soon; if given, wait so long at most until they are."""
        if self._pid != os.getpid():
            # In a job's forked child there is no such thread, and its parent may have held the lock.
            _write(text)
            return
        with self._changed:
            if self._chars > CHARS_MAX:
                self._lost += 1
                return
            self._lines.append(text)
            self._chars += len(text)
            self._changed.notify_all()
            if wait_s:
                self._changed.wait_for(lambda: not self._lines, wait_s)

    def lost(self) -> int:
        """How many lines were lost since the last call, once there is room to say so; else 0."""
        if self._pid != os.getpid():
            return 0
        with self._changed:
            if self._chars > CHARS_MAX // 2:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def _write_all(self) -> None:
        is_over = False
        while not is_over:
            with contextlib.suppress(MemoryError):  # the process will end of it, and say so
                is_over = self._write_next()

    def _write_next(self) -> bool:
        """Write what comes next; whether nothing will any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if not self._lines:
                return True
            text = self._lines[0]
        _write(text)
        with self._changed:
            self._lines.popleft()
            self._chars -= len(text)
            self._changed.notify_all()
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(TELL_S)


def _write(text: str) -> None:
    """Write lines to stderr, past the stream's own lock, which others may need meanwhile."""
    # There may be none, or nobody who reads it any more, or its disk may be full.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream = sys.stderr
        data = (encodable(text, stream.encoding or "utf-8") + "\n").encode(stream.encoding or "utf-8")
        fd = stream.fileno()
        while data:
            data = data[os.write(fd, data) :]
