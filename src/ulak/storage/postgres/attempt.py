"""One run of a step on a session: its transaction, and what is to be done when that fails."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Sequence
from typing import Generic, TypeVar

import psycopg

from ulak.clock import MACHINE
from ulak.errors import StorageBusy, StorageUnavailable, UlakError
from ulak.storage.postgres.asks import Execute, InTheWayError, Rows, Step
from ulak.storage.postgres.faults import AGAIN, LOCKED, READ_ONLY, explained, is_lost, is_of_all
from ulak.storage.postgres.link import BRIEF_S, LOCK_S
from ulak.storage.postgres.place import Place

R = TypeVar("R")

PATIENCE_S = 2.0
"""How long a call tries to reach a server that is away, as long as it is known that nothing was changed."""

WAITS_S = (BRIEF_S, LOCK_S)
"""How long a call waits for others: at first as its session does, in one round trip; then to the full."""

RUNS_MAX = 10
"""How often a step is run again that others were in the way of."""

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5


class Attempt(Generic[R]):
    """A step in a transaction of its own, as work for a session.

    begin: what begins it. is_proxied: every statement needs its BEGIN. is_sent: what commits was sent, and
    its answer has not come. may_be_stored: what commits was sent, and may have changed something.
    """

    def __init__(self, step: Step[R], begin: str, *, is_proxied: bool) -> None:
        self.is_sent = self.may_be_stored = False
        self._step = step
        self._begin = begin
        self._is_proxied = is_proxied

    def work(self) -> Generator[Execute, Rows, R]:
        """BEGIN, the statements, COMMIT; statements that are alone commit by themselves."""
        step = self._step
        try:
            ask = next(step)
            while ask.alone and not self._is_proxied:
                self.is_sent = self.may_be_stored = True
                rows = yield ask
                self.is_sent = False
                ask = step.send(rows)
                # It goes on, so it has changed nothing that may not be done twice.
                self.may_be_stored = False
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        yield Execute(self._begin)
        try:
            answer = yield from _all(step, ask)
        except BaseException:
            # Where the connection is lost, the server rolls back by itself.
            with contextlib.suppress(psycopg.Error):
                yield Execute("ROLLBACK")
            raise
        self.is_sent = self.may_be_stored = True
        yield Execute("COMMIT")
        self.is_sent = False
        return answer


def _all(step: Step[R], ask: Execute) -> Generator[Execute, Rows, R]:
    while True:
        rows = [] if ask.only_alone else (yield ask)
        try:
            ask = step.send(rows)
        except StopIteration as stop:
            answer: R = stop.value
            return answer


class Tries:
    """What one call has tried so far. lock_s: how long it is to wait for others in its next run."""

    def __init__(
        self, place: Place, patience_s: float = PATIENCE_S, waits_s: Sequence[float] = WAITS_S
    ) -> None:
        self.lock_s, self._waits_s = waits_s[0], waits_s[1:]
        self._place = place
        self._patience_s = patience_s
        self._runs = 0
        self._until: float | None = None
        self._pause_s = _PAUSE_MIN_S

    def after(self, error: psycopg.Error | StorageUnavailable, *, is_sent: bool = False) -> float:
        """For how long to pause before the next try. Raises what the caller is told if there is none.

        is_sent: what commits was sent, so that a lost connection leaves it unknown. Raises InTheWayError if
        others are in the way of this call only, and it was to wait for a moment.
        """
        if isinstance(error, StorageUnavailable):
            return self._patience(error)
        if error.sqlstate in AGAIN:
            self._runs += 1
            if self._runs < RUNS_MAX:
                return random.uniform(0.0, 0.005 * self._runs)
        told = explained(error, str(self._place), is_unknown=is_sent)
        if error.sqlstate == LOCKED and self.lock_s < LOCK_S:
            assert isinstance(told, StorageBusy)
            if not self._waits_s and not is_of_all(error):
                raise InTheWayError(told) from None
            self.lock_s, self._waits_s = (self._waits_s[0] if self._waits_s else LOCK_S), self._waits_s[1:]
            return 0.0
        # The next session may be one of another server, which takes writes.
        if (is_lost(error) and not is_sent) or error.sqlstate == READ_ONLY:
            return self._patience(told)
        # A mistake in a statement, or in the schema, names no values; anything else may.
        raise told from (error if (error.sqlstate or "").startswith("42") else None)

    def _patience(self, told: UlakError) -> float:
        now = MACHINE.interval()
        if self._until is None and self._patience_s > 0:
            self._until = now + self._patience_s
            # What was idle may have gone with a restart that is over.
            return 0.0
        if self._until is None or now >= self._until:
            raise told from None
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)
        return random.uniform(self._pause_s / 2, self._pause_s)
