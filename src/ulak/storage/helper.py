"""A thread that works for callers which have none of their own, and ends when it has had nothing to do."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

IDLE_S = 2.0

_log = logging.getLogger("ulak")


class Helper:
    """Runs calls one after the other, in a thread that is started when it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting = 0
        self._thread: threading.Thread | None = None

    def ask(self, call: Callable[[], None]) -> None:
        """Have this called soon."""
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                # The system may have no more threads, and then there is none here.
                thread.start()
                self._thread = thread
            self._waiting += 1
            self._calls.put(call)

    def _main(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._mutex:
                    if self._waiting == 0:
                        self._thread = None
                        return
                continue
            if call is _end:
                return
            try:
                call()
            except BaseException:  # noqa: BLE001 - whatever struck this thread, others wait for it
                _log.exception("the thread %s was struck, and goes on", self._name)
            with self._mutex:
                self._waiting -= 1

    def close(self) -> None:
        """Wait until what was asked is done, and end the thread. Nobody may ask any more."""
        with self._mutex:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._calls.put(_end)
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _end() -> None:
    """What a thread is told, to end."""
