"""One event loop in a thread of its own, where threads have coroutines run and wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from ulak.worker.hands import run_through
from ulak.worker.pulse import Pulse

R = TypeVar("R")


class LoopGone(Exception):
    """The loop was closed before the coroutine had ended."""


class SharedLoop:
    """Starts with the first coroutine. Any thread may call it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._is_closed = False
        self.pulse = Pulse(lambda: self._loop)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine there, and wait for it. Raises LoopGone, and what it raises."""
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise LoopGone
            loop = self._loop or self._start()
            # Inside the lock, so that closing comes before it or finds it there.
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except CancelledError:
            if self._is_closed:
                raise LoopGone from None
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        threading.Thread(target=self._main, args=(loop, self._end), name=self._name, daemon=True).start()
        return loop

    def _main(self, loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
        # Leaving the runner cancels what is left on the loop, and closes it.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            run_through(runner.get_loop(), loop.create_task(_until(end)))

    def close(self) -> None:
        """Cancel what still runs there, and end the thread; idempotent. Waits for nothing."""
        with self._lock:
            self._is_closed = True
            if self._loop is not None and self._end is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._end.set)


async def _until(end: asyncio.Event) -> None:
    await end.wait()
