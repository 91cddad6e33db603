"""Ends calls into nothing: sessions whose other side neither works nor answers, nor says that it is gone.

The system finds out by itself that a machine has vanished. What stands between may go on in its place, and
swallow everything: a firewall, a tunnel, a proxy that hangs. So of a call that takes long the server is
asked, in another session, whether it works on it; if not, or if nobody answers there either, the call's
connection is shut down, and the call ends as that of any that was lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection
from typing import Protocol

import psycopg

from ulak.clock import MACHINE
from ulak.errors import StorageUnavailable, UlakError
from ulak.storage.postgres.asks import Execute
from ulak.storage.postgres.link import Connection, Session
from ulak.storage.postgres.place import Place

CALL_S = 5.0
"""So long a call may take before the server is asked about it."""

PROXIED_S = 60.0
"""So long it may take behind a proxy, where the server cannot be asked: its sessions are not ours."""

STEP_S = 1.0
IDLE_S = 10.0
"""So long after the last call the thread ends."""

IS_WORKING = Execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state <> 'idle'", (0,))


class Watched(Protocol):
    """A session, as this sees it. since: when its present call began; 0 at rest."""

    since: float
    backend: int
    is_proxied: bool


def is_long(session: Watched) -> bool:
    """Whether its call takes so long that somebody should look."""
    return session.since > 0 and MACHINE.interval() - session.since > CALL_S


def is_over(session: Watched) -> bool:
    """Whether it has taken too long behind a proxy."""
    return MACHINE.interval() - session.since > PROXIED_S


def asked(session: Watched) -> Execute:
    """Whether the server works for it, as a statement: a row if so."""
    return Execute(IS_WORKING.text, (session.backend,), alone=True)


def cut(db: Connection) -> None:
    """Shut a connection down, so that whoever waits for it wakes; its owner closes it."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=socket.dup(db.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Watchdog:
    """A thread that looks after the calls of threads, while there are any.

    sessions: those in use now. end: called with one whose call is to end; cuts it if it is still in it.
    """

    def __init__(
        self, place: Place, sessions: Callable[[], Collection[Session]], end: Callable[[Session, float], None]
    ) -> None:
        self._place = place
        self._sessions = sessions
        self._end = end
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A call begins."""
        if self._thread is not None:
            return
        with self._mutex:
            if not self._stop.is_set():
                thread = threading.Thread(target=self._main, name="ulak-calls", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:
                    # The system has no more threads; what hangs then hangs.
                    self._thread = None

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        with self._mutex:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _main(self) -> None:
        idle_since = MACHINE.interval()
        while not self._stop.wait(STEP_S):
            sessions = self._sessions()
            if sessions:
                idle_since = MACHINE.interval()
            elif MACHINE.interval() - idle_since > IDLE_S:
                with self._mutex:
                    self._thread = None
                return
            for session in sessions:
                since = session.since
                if is_long(session) and not self._works(session):
                    self._end(session, since)

    def _works(self, session: Session) -> bool:
        if session.is_proxied:
            return not is_over(session)
        try:
            other = Session(self._place)
        except StorageUnavailable as error:
            # Somebody answers there, if only to say that there is no room.
            return "FATAL" in str(error)
        except UlakError:
            return True
        try:
            other.since = MACHINE.interval()
            return bool(other.execute(asked(session)))
        except psycopg.Error:
            return False
        finally:
            other.close()
