"""A thread that works for callers which have none of their own, and ends when it has had nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

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

    async def acall(self, call: Callable[[], R]) -> R:
        """What a call returns, for an event loop, which it does not block. Raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def answer(error: BaseException | None, result: Any = None) -> None:  # noqa: ANN401
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def run() -> None:
            try:
                told = functools.partial(answer, None, call())
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                told = functools.partial(answer, error)
            # Else the loop is closed, and so is who waited there.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        self.ask(run)
        return await future

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
