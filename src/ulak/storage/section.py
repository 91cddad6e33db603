"""What goes around each critical section of the memory store, beside its lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from ulak.errors import UlakError
from ulak.storage.shelf import Shelf

_log = logging.getLogger("ulak")


class Mends:
    """Notices that a section was left by an exception which is not ulak's own, such as Ctrl-C."""

    def __init__(self, mend: Callable[[], None]) -> None:
        self._mend = mend

    def __enter__(self) -> None:
        """Nothing to do yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, UlakError):
            self._mend()


class Wakes:
    """Wakes the waiters of what has changed, once the store's lock is free again.

    The lock is entered by a `with` of its own, after this one: an exception that a signal handler raises in
    a Python `__enter__`, just after the lock was taken there, would leave it held for ever.
    """

    def __init__(self, lock: threading.Lock, touched: set[Shelf]) -> None:
        self._lock = lock
        self._touched = touched

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, *_: object) -> None:
        if not self._touched:
            return
        with self._lock:
            rings = [ring for shelf in self._touched for ring in shelf.take_rings()]
            forgotten = [(shelf.name, shelf.take_dead_pruned()) for shelf in self._touched]
            self._touched.clear()
        for line, wakeups in rings:
            line.ring(wakeups)
        for queue, dead in forgotten:
            if dead:
                _log.info("queue %s: %d dead jobs removed by retention", queue, dead)
