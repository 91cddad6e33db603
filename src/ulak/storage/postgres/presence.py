"""Whether a process lives, told by a lock that the server drops when the session that holds it ends.

The lock is taken first, then the row in `holders` is written, with the time of the server's start: a lock
that is not there says nothing of a process that has not come back since the server was started anew. The
session does nothing else, so nothing that goes wrong elsewhere ends it.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable

import psycopg

from ulak.clock import MACHINE
from ulak.errors import StorageUnavailable, UlakError
from ulak.storage.postgres.asks import Execute, Step
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.faults import explained
from ulak.storage.postgres.link import Session, sever
from ulak.storage.postgres.place import Place

_NEXT = "SELECT nextval('holder_ids')::int"
_LOCK = "SELECT pg_try_advisory_lock(%s::int, %s::int)"
# Without a lock it is of no server's time, so that nobody is ever taken for gone by it.
_SIGN = (
    "INSERT INTO holders (id, server_started_at, since_at) VALUES (%s, "
    "CASE WHEN %s THEN pg_postmaster_start_time() ELSE '-infinity' END, "
    "extract(epoch FROM clock_timestamp())) "
    "ON CONFLICT (id) DO UPDATE SET server_started_at = excluded.server_started_at, "
    "since_at = excluded.since_at, absent_since = NULL"
)
# What others have decided meanwhile is not current any more then. Who settles a job just now does not wait.
_EXTEND = (
    "UPDATE jobs SET lease_end = greatest(lease_end, "
    "coalesce(%s::float8, date_part('epoch', clock_timestamp())) + coalesce(lease_s, 0)) "
    "WHERE id = ANY(ARRAY(SELECT id FROM jobs WHERE state = 2 AND holder = %s::bigint "
    "FOR NO KEY UPDATE SKIP LOCKED))"
)


HEARD_S = 0.005
"""For so long a session that was alive counts as that: many calls ask at once, a look is a system call."""


def class_of(uid: str) -> int:
    """The first of the two numbers of a store's locks: an int4."""
    return zlib.crc32(f"ulak {uid}".encode()) - 2**31


class Presence:
    """This process's place among those that hold leases.

    own: its number there; None until it is taken first. It stays the same for good. now: the instant that
    leases are extended from, None for the server's.
    """

    def __init__(self, place: Place, uid: Callable[[], str], now: Callable[[], float | None]) -> None:
        self.own: int | None = None
        self.session: Session | None = None
        self._place = place
        self._uid = uid
        self._now = now
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_signed = False
        self._heard_at = 0.0

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, as was heard here `HEARD_S` ago at most; or cannot be, behind a proxy."""
        session = self.session
        if session is None or not self._is_signed:
            return self._is_signed
        now = MACHINE.interval()
        if now - self._heard_at < HEARD_S:
            return True
        is_usable = session.is_usable()
        self._heard_at = now if is_usable else 0.0
        return is_usable

    def take(self) -> int:
        """Be present; again, if the session was lost, with its leases as new.

        Raises StorageUnavailable, StorageBusy.
        """
        with self._lock:
            if self.own is None or not self.is_held:
                self._take()
            assert self.own is not None
            return self.own

    def _take(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        self._is_signed = False
        session = Session(self._place)
        try:
            signing = self._sign(is_proxied=session.is_proxied)
            session.drive(Attempt(signing, session.begin, is_proxied=session.is_proxied).work())
        except BaseException as error:
            session.close()
            if isinstance(error, psycopg.Error):
                raise explained(error, str(self._place)) from None
            raise
        if self._is_closed or session.is_proxied:
            session.close()
        else:
            self.session = session
        self._is_signed = True

    def _sign(self, *, is_proxied: bool) -> Step[None]:
        is_again = self.own is not None
        if self.own is None:
            ((self.own,),) = yield Execute(_NEXT)
        is_locked = False
        if not is_proxied:
            ((is_locked,),) = yield Execute(_LOCK, (class_of(self._uid()), self.own))
            self._check_locked(is_locked=is_locked)
        yield Execute(_SIGN, (self.own, is_locked))
        if is_again:
            yield Execute(_EXTEND, (self._now(), self.own))

    def _check_locked(self, *, is_locked: bool) -> None:
        if not is_locked:
            raise StorageUnavailable(
                f"{self._place} still has this process's former session; nothing was changed\n"
                f"  it goes by itself within seconds, then the process is present again"
            )

    def sign_again(self) -> None:
        """Somebody took it for gone while it held no lease, and took its row out."""
        self._is_signed = False

    def take_again(self) -> None:
        """Come back after a loss, if that goes; who looks later tries again."""
        self._heard_at = 0.0
        with contextlib.suppress(UlakError):
            self.take()

    def drop(self) -> None:
        """Be present no more."""
        with self._lock:
            self._is_closed = True
            self._is_signed = False
            if self.session is not None:
                self.session.close()
                self.session = None

    def after_fork_in_child(self) -> None:
        """Let go of the parent's session."""
        if self.session is not None:
            sever(self.session.db)
            self.session.close()
