"""Warns of jobs that nobody is there to take: a forgotten worker, or one that serves other queues."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable

from ulak.clock import Clock
from ulak.errors import UlakError

_log = logging.getLogger("ulak")

PATIENCE_S = 10.0
"""How long after its enqueue a job may be left untaken."""


class Unserved:
    """Looks after one job at a time of each queue, from a thread that ends with nothing to look after.

    is_left: whether a job of a queue was never taken, and no worker that lives serves the queue.
    """

    def __init__(self, is_left: Callable[[str, int], bool], clock: Clock) -> None:
        self._is_left = is_left
        self._clock = clock
        self._warned: set[str] = set()
        self._is_closed = False
        self.forget_parent()
        _all.add(self)

    def forget_parent(self) -> None:
        """In a forked child: its parent's thread is not here."""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._due: dict[str, tuple[float, int]] = {}
        self._is_running = False

    def note(self, queue: str, job_id: int) -> None:
        """A job was stored. Costs next to nothing where its queue is looked after, or was warned of."""
        if queue in self._due or queue in self._warned:
            return
        with self._lock:
            if self._is_closed:
                return
            self._due.setdefault(queue, (self._clock.interval() + PATIENCE_S, job_id))
            if not self._is_running:
                self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._main, name="ulak-unserved", daemon=True).start()
        except RuntimeError:
            # No more threads: the job is stored all the same, and the next enqueue tries again.
            self._due.clear()
        else:
            self._is_running = True

    def close(self) -> None:
        """Look after nothing any more, for good."""
        with self._lock:
            self._is_closed = True
            self._due.clear()
        self._changed.set()

    def _main(self) -> None:
        while (next_one := self._next()) is not None:
            queue, due, job_id = next_one
            # Whoever comes later is due later, so that nobody needs to wake this one but `close`.
            self._clock.wait(self._changed, due - self._clock.interval())
            if self._due.get(queue) == (due, job_id) and self._clock.interval() >= due:
                self._look(queue, job_id)

    def _next(self) -> tuple[str, float, int] | None:
        with self._lock:
            if not self._due:
                self._is_running = False
                return None
            queue, (due, job_id) = next(iter(self._due.items()))
            return queue, due, job_id

    def _look(self, queue: str, job_id: int) -> None:
        try:
            is_left = self._is_left(queue, job_id)
        except UlakError as error:
            # The next enqueue will see for itself.
            _log.debug("whether queue %s is served is unknown: %s", queue, error)
            is_left = False
        if is_left:
            self._warned.add(queue)
            _log.warning(
                "job %d of queue %s was taken by nobody for %g s, and no worker that lives serves this "
                "queue; start one, as in: ulak work module:app (said once)",
                job_id,
                queue,
                PATIENCE_S,
                extra={"job_id": job_id, "queue": queue},
            )
        with self._lock:
            self._due.pop(queue, None)


_all: weakref.WeakSet[Unserved] = weakref.WeakSet()


def _forget_parent() -> None:
    for unserved in _all:
        unserved.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
