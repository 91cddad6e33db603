"""Clears away what jobs leave behind in the table of open ones, as soon as it is much.

Every claim passes the dead rows that lie before the ready ones. The server's own vacuum comes once a minute,
by when a busy queue has left tens of thousands; so this process has it done after so many of its own jobs
have ended, in a thread of its own. Only who owns the table may; `ulak doctor` tells how many dead rows lie.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg

from ulak.errors import UlakError
from ulak.storage.helper import Helper
from ulak.storage.postgres.asks import Execute
from ulak.storage.postgres.link import Session

R = TypeVar("R")

EVERY = 20_000
"""After so many of this process's jobs have ended the table is swept."""

_IS_OWNER = Execute("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'jobs'::regclass")
# Another process may be at it: then it is skipped.
_VACUUM = Execute("VACUUM (SKIP_LOCKED, TRUNCATE off) jobs, tallies")


class Sweeper:
    """Has the table swept. using: calls with a session of the store's."""

    def __init__(self, using: Callable[[Callable[[Session], None]], None]) -> None:
        self._using = using
        self._helper = Helper("ulak-sweep")
        self._lock = threading.Lock()
        self._ended = 0
        self._may: bool | None = None

    def note(self, ended: int) -> None:
        """So many jobs have ended by a call of this process."""
        with self._lock:
            self._ended += ended
            is_due = self._ended >= EVERY
            if is_due:
                self._ended = 0
        if is_due and self._may is not False:
            # The system may have no more threads; then it is due again later.
            with contextlib.suppress(RuntimeError):
                self._helper.ask(self._sweep)

    def _sweep(self) -> None:
        with contextlib.suppress(UlakError, psycopg.Error):
            self._using(self._swept)

    def _swept(self, session: Session) -> None:
        if self._may is None:
            self._may = not session.is_proxied and session.execute(_IS_OWNER) == [(True,)]
        if self._may:
            session.execute(_VACUUM)

    def close(self) -> None:
        """Wait for what is under way."""
        self._helper.close()
