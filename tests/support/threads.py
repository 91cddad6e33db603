"""Calls in threads of their own, which end in time or fail their test, and pass their errors on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tests.support.waiting import WAIT_S

R = TypeVar("R")


class Running(Generic[R]):
    """One call in a thread of its own; with a barrier, once all who share it are there."""

    def __init__(self, call: Callable[[], R], start: threading.Barrier | None = None) -> None:
        self._call = call
        self._start = start
        self._answer: list[R] = []
        self._error: BaseException | None = None
        # A daemon, so that a thread which hangs fails its test and does not hang the whole run as well.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._start is not None:
                self._start.wait(WAIT_S)
            self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self, within_s: float = WAIT_S) -> R:
        """What the call returned. Raises what it raised, or that it hangs."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"{self._call} hangs"
        if self._error is not None:
            raise self._error
        return self._answer[0]
