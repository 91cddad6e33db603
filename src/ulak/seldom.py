"""Says what happens again and again now and then, with how often it happened."""

from __future__ import annotations

import threading

EVERY_S = 30.0
KINDS_MAX = 1_000


class Seldom:
    """Whether a complaint may be made now: once in `EVERY_S` for each kind. Any thread may ask."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        # When each kind was last said, and how often it was kept back since.
        self._said: dict[str, tuple[float, int]] = {}

    def may_say(self, kind: str, now: float) -> int | None:
        """How often this kind was kept back since it was said last, if it may be said now; else None."""
        with self._lock:
            said_at, kept_back = self._said.get(kind, (now - self._every_s, 0))
            if now - said_at < self._every_s:
                self._said[kind] = said_at, kept_back + 1
                return None
            if len(self._said) >= KINDS_MAX:
                self._said.clear()
            self._said[kind] = now, 0
            return kept_back

    def forget(self) -> None:
        """All is well again: what comes next is said at once."""
        with self._lock:
            self._said.clear()


def in_a_line(error: Exception) -> str:
    """What an error says, for a log: the lines of its text in one."""
    return "; ".join(line.strip() for line in str(error).splitlines())


def again(kept_back: int) -> str:
    """How a line ends that stands for several."""
    return f" (and {kept_back:,} times since the last such line)" if kept_back else ""
