"""One event loop where threads have coroutines run, and wait: the caller's, or one in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ulak.worker.hands import run_through
from ulak.worker.pulse import Pulse

R = TypeVar("R")

LOOK_S = 1.0
"""How often whoever waits looks whether the loop is still there: one that is not says nothing."""


class LoopGone(Exception):
    """The loop was closed before the coroutine had ended."""


class NoLoop(Exception):
    """No thread can be started for the loop."""


class SharedLoop:
    """Starts with the first coroutine, unless there is a loop that was lent. Any thread may call it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._lent: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._running: set[Future[Any]] = set()
        self._is_closed = False
        self.pulse = Pulse(lambda: self._lent or self._own)

    def borrow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run coroutines on this loop, as long as it is not closed."""
        self._lent = loop

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine there, and wait for it. Raises LoopGone, NoLoop, and what it raises."""
        with self._lock:
            try:
                loop = self._loop_now()
                # Inside the lock, so that closing comes before it or finds it there.
                future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            except BaseException as error:
                coroutine.close()
                if isinstance(error, RuntimeError):  # whose loop it is has closed it just now
                    raise LoopGone from None
                raise
            self._running.add(future)
        try:
            return _wait(future, loop)
        except CancelledError:
            if self._is_closed:
                raise LoopGone from None
            raise
        finally:
            self._running.discard(future)

    def _loop_now(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise LoopGone
        if self._lent is not None and self._lent.is_closed():
            self._lent = None
        if self._own is not None and self._own.is_closed():
            # Whatever ended its thread.
            self._own = None
        return self._lent or self._own or self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
        loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        try:
            threading.Thread(target=self._main, args=(loop, self._end), name=self._name, daemon=True).start()
        except RuntimeError as error:
            loop.close()
            raise NoLoop(str(error)) from None
        self._own = loop
        return loop

    def _main(self, loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
        # Leaving the runner cancels what is left on the loop, and closes it.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            run_through(runner.get_loop(), end)

    def close(self) -> None:
        """Cancel what still runs there, and end the thread; idempotent. Waits for nothing."""
        with self._lock:
            self._is_closed = True
            if self._lent is not None and not self._lent.is_closed():
                for future in tuple(self._running):
                    future.cancel()
            if self._own is not None and self._end is not None and not self._own.is_closed():
                self._own.call_soon_threadsafe(self._end.set)


def _wait(future: Future[R], loop: asyncio.AbstractEventLoop) -> R:
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                # Its own.
                return future.result()
            if loop.is_closed():
                raise LoopGone from None
