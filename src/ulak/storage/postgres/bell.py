"""Tells other processes that something has happened in a queue: NOTIFY, without a payload, as a hint only.

Commits that notify stand in one line on the server, so this process rings for a queue at most once in a few
milliseconds: at once after a rest, and once more at the end of a busy time, from a thread of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping

from ulak.clock import MACHINE, pause
from ulak.core.store import Until
from ulak.storage.helper import Helper
from ulak.storage.postgres.asks import Execute

REST_S = 0.02
"""How long a queue's bell rests after a ring."""

_WORK = frozenset({Until.READY, Until.DUE})


def channel(schema: str, queue: str, *, is_work: bool) -> str:
    """The name of a channel: for jobs that may be claimed now or later, or for jobs that have left."""
    named = hashlib.blake2b(f"{schema}\0{queue}\0{is_work}".encode(), digest_size=16).hexdigest()
    return f"ulak_{named}"


def ring(channels: Iterable[str]) -> Execute:
    """Rings them all."""
    return Execute(
        "SELECT pg_notify(name, '') FROM unnest(%s::text[]) AS name", (list(channels),), alone=True
    )


class Bell:
    """When which channel is to be rung. ring_all: rings channels, in the bell's own thread."""

    def __init__(self, schema: str, ring_all: Callable[[list[str]], None]) -> None:
        self._schema = schema
        self._ring_all = ring_all
        self._lock = threading.Lock()
        self._names: dict[tuple[str, bool], str] = {}
        self._rang_at: dict[str, float] = {}
        self._late: set[str] = set()
        self._helper = Helper("ulak-bell")

    def named(self, rings: Mapping[tuple[Until, str], int]) -> list[str]:
        """The channels for what has happened."""
        names = self._names
        found = set()
        for (until, queue), number in rings.items():
            if number > 0:
                key = (queue, until in _WORK)
                name = names.get(key)
                if name is None:
                    name = names[key] = channel(self._schema, queue, is_work=key[1])
                found.add(name)
        return sorted(found)

    def due(self, rings: Mapping[tuple[Until, str], int]) -> list[str]:
        """The channels to ring now; those that rest are rung later."""
        if not rings:
            return []
        now, due, late = MACHINE.interval(), [], False
        for name in self.named(rings):
            if now - self._rang_at.get(name, 0.0) >= REST_S:
                self._rang_at[name] = now
                due.append(name)
            else:
                with self._lock:
                    late |= name not in self._late
                    self._late.add(name)
        if late:
            # The system may have no more threads; polling bridges.
            with contextlib.suppress(RuntimeError):
                self._helper.ask(self._ring_late)
        return due

    def _ring_late(self) -> None:
        pause(REST_S)
        with self._lock:
            late, self._late = self._late, set()
        now = MACHINE.interval()
        for name in late:
            self._rang_at[name] = now
        if late:
            self._ring_all(sorted(late))

    def close(self) -> None:
        """Ring no more."""
        self._helper.close()
