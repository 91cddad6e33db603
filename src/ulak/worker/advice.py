"""Asks a user's function how long a failed job waits, and takes only what makes sense for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from ulak.clock import Clock
from ulak.durations import SECONDS_MAX, Duration, parse_duration

_log = logging.getLogger("ulak")

Policy: TypeAlias = Callable[[int, BaseException], Duration | None]
"""Given the number of the failed attempt, from 1, and its error: seconds until the next one."""

ADVICE_S = 1.0
"""How long a worker waits for an answer."""


class Advice:
    """One task's policy. It is asked in a thread of its own, so that a slow one keeps no worker for long.

    What is wrong with an answer is logged, once for each kind of mistake; the stored backoff then stands.
    """

    def __init__(self, task: str, policy: Policy, clock: Clock) -> None:
        self._task = task
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._blamed: set[str] = set()
        self._late = 0

    def ask(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next attempt; None if there is no usable answer within a second."""
        signal = threading.Event()
        if (question := self._put(attempt, error, signal.set)) is None:
            return None
        self._clock.wait(signal, ADVICE_S)
        return self._answer(question)

    async def aask(self, attempt: int, error: BaseException) -> float | None:
        """As `ask`, on an event loop."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # Nobody waits any more where the loop is closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

        if (question := self._put(attempt, error, wake)) is None:
            return None
        try:
            async with asyncio.timeout(ADVICE_S):
                await event.wait()
        except TimeoutError:
            pass
        return self._answer(question)

    def _put(self, attempt: int, error: BaseException, wake: Callable[[], object]) -> _Question | None:
        """Have the policy asked; None if it cannot be: an answer that took too long may be yet to come."""
        if self._late:
            return None
        question = _Question(self._policy, attempt, error)
        context = contextvars.copy_context()

        def main() -> None:
            context.run(question.ask)
            with self._lock:
                if question.is_late:
                    self._late -= 1
            wake()

        try:
            threading.Thread(target=main, name=f"ulak-backoff-{self._task}", daemon=True).start()
        except RuntimeError:
            self._blame("could not be asked, since no thread can be started")
            return None
        return question

    def _answer(self, question: _Question) -> float | None:
        with self._lock:
            if not question.is_answered:
                question.is_late = True
                self._late += 1
        if question.is_late:
            self._blame("took longer than a second")
        elif question.raised is not None:
            self._blame(f"raised {question.raised}")
        else:
            return self._seconds(question.answer)
        return None

    def _seconds(self, answer: object) -> float | None:
        if isinstance(answer, bool) or not isinstance(answer, float | int | timedelta | str):
            self._blame(f"answered with {type(answer).__name__}, not seconds")
            return None
        try:
            wait_s = _as_float(answer)
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            self._blame(f"answered with {type(answer).__name__} that is no duration ({type(error).__name__})")
            return None
        if not math.isfinite(wait_s):
            self._blame("answered with NaN or infinity")
            return None
        if not 0 <= wait_s <= SECONDS_MAX:
            self._blame("answered with less than 0 s or more than 100 years", "it is cut to that")
        return min(max(wait_s, 0.0), SECONDS_MAX)

    def _blame(self, what: str, stands: str = "the stored backoff is used") -> None:
        with self._lock:
            is_new = what not in self._blamed and len(self._blamed) < _BLAMED_MAX
            self._blamed.add(what)
        if is_new:
            _log.warning("task %s: its backoff function %s; %s (said once)", self._task, what, stands)


_BLAMED_MAX = 20


def _as_float(answer: float | timedelta | str) -> float:
    """In seconds, as a plain float: a subclass of float compares as it likes."""
    if isinstance(answer, timedelta):
        answer = answer.total_seconds()
    elif isinstance(answer, str):
        answer = parse_duration(answer)
    return float.__float__(float(answer))


class _Question:
    """One call of a policy."""

    def __init__(self, policy: Policy, attempt: int, error: BaseException) -> None:
        self._call = (policy, attempt, error)
        self.answer: object = None
        self.raised: str | None = None
        self.is_answered = self.is_late = False

    def ask(self) -> None:
        """Call it. Never raises."""
        policy, attempt, error = self._call
        try:
            self.answer = policy(attempt, error)
        except BaseException as raised:  # noqa: BLE001 - a user's function may raise anything
            self.raised = type(raised).__name__
        self.is_answered = True
