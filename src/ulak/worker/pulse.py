"""Whether an event loop still turns, asked from outside."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable


class Pulse:
    """Asks a loop to answer, and says how long it has not. One thread asks.

    loop_of: the loop, once there is one.
    """

    def __init__(self, loop_of: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._loop_of = loop_of
        self._asked_at: float | None = None
        self._thread: int | None = None

    def silent_s(self, now: float) -> float:
        """For how many seconds the loop has not answered; asks it again if it has."""
        if self._asked_at is not None:
            return now - self._asked_at
        loop = self._loop_of()
        if loop is not None and loop.is_running():
            self._asked_at = now
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                # It was closed meanwhile.
                self._asked_at = None
        return 0.0

    def _answer(self) -> None:
        self._thread = threading.get_ident()
        self._asked_at = None

    def where(self) -> str:
        """Where the loop's thread is now: file, line and function of its innermost frame."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread)  # noqa: SLF001
        if frame is None:
            return "an unknown place"
        code = frame.f_code
        return f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}'
