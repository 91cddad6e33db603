"""How far a benchmark is, on stderr: one live line on a terminal, a line a run elsewhere."""

from __future__ import annotations

import os
from typing import TextIO

from ulak.cli.output import encodable, say

_CLEARED = "\r\x1b[2K"


class Progress:
    """Shows which run it is, and how far that is."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._is_live = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._run = ""

    def begin(self, run: str) -> None:
        """A run begins."""
        self._run = run
        if not self._is_live:
            say(run, to=self._stream)

    def watch(self, how_far: str) -> None:
        """Show it. What is shown takes less time than a look at a clock does a job: ten times a second."""
        if self._is_live:
            self._write(f"{_CLEARED}{self._run}: {how_far}")

    def end(self) -> None:
        """Leave nothing of the live line."""
        if self._is_live:
            self._write(_CLEARED)

    def _write(self, text: str) -> None:
        assert self._stream is not None
        self._stream.write(encodable(text, self._stream.encoding or "utf-8"))
        self._stream.flush()
