"""Wakes waiters of this process for what others have committed, and keeps the process present.

One thread: it sleeps on the sockets of two sessions, the one that listens and the one whose lock is this
process's presence, and makes anew whichever is lost. What it hears is a hint: it wakes one waiter at once,
then looks how many more have reason to. Whoever waits looks by itself now and then, also when nobody rings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import psycopg
from psycopg import sql

from ulak.clock import MACHINE, pause
from ulak.core.job import Counts
from ulak.core.store import Signal, Until
from ulak.errors import UlakError
from ulak.storage.ends import Ends
from ulak.storage.line import WaitLine
from ulak.storage.postgres import looks
from ulak.storage.postgres.asks import Scene, Step
from ulak.storage.postgres.bell import channel
from ulak.storage.postgres.link import Session, answer, sever
from ulak.storage.postgres.place import Place
from ulak.storage.postgres.presence import Presence

IDLE_S = 5.0
"""So long after the last waiter has gone, and the last call was made, the thread ends."""

CHECK_S = 10.0
"""How often a session that has heard nothing is asked whether it still hears."""

FIRST_LOOK_S = 0.01
"""So long after a queue is listened to for the first time it is looked at."""

DEAF_S = 60.0
"""So long after a proxy was found in between, through which nothing can be heard, none is tried again."""

_AGAIN_MIN_S, _AGAIN_MAX_S = 0.05, 1.0

_log = logging.getLogger("ulak")


class Listened(Protocol):
    """What this needs of a store."""

    place: Place
    lines: dict[tuple[Until, str], WaitLine]
    awaited: Ends

    @property
    def used_at(self) -> float:
        """When it was last used."""

    @property
    def presence(self) -> Presence:
        """This process's."""

    @property
    def backends(self) -> Collection[int]:
        """The server's processes that work for this one: what they tell is known here."""

    def run(self, make: Callable[[Scene], Step[Any]]) -> Any:  # noqa: ANN401
        """Run a step."""


class HeardLine(WaitLine):
    """A line whose waiters are also woken for other processes."""

    __slots__ = ("_begin",)

    def __init__(self, until: Until, begin: Callable[[], None]) -> None:
        super().__init__(until)
        self._begin = begin

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line, and have the store listened to."""
        super().join(signal)
        self._begin()


class Listener:
    """The thread that listens, while somebody waits or the store is used."""

    def __init__(self, store: Listened) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ends = False
        self._session: Session | None = None
        self._heard: set[str] = set()
        self._channels: dict[str, tuple[str, bool]] = {}
        self._names: dict[tuple[str, bool], str] = {}
        self._notices: deque[psycopg.Notify] = deque()
        self._wake_fds: tuple[int, int] | None = None
        self._is_woken = False
        self._deaf_until = 0.0

    @property
    def is_running(self) -> bool:
        """Whether there is the thread."""
        return self._thread is not None

    def begin(self) -> None:
        """Somebody waits from now on, or leases are taken."""
        if self._thread is None:
            self._start()
        elif self._has_news():
            self.wake()

    def _start(self) -> None:
        with self._mutex:
            if self._thread is not None or self._ends:
                return
            self._wake_fds = self._wake_fds or os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            thread = threading.Thread(target=self._main, name="ulak-listen", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:
                # The system has no more threads. Who waits looks by itself, less often.
                self._thread = None

    def _has_news(self) -> bool:
        """Whether somebody waits for a queue that is not listened to yet, and can be."""
        return not self._is_deaf() and any(name not in self._heard for name in self._wanted())

    def _is_deaf(self) -> bool:
        return MACHINE.interval() < self._deaf_until

    def wake(self) -> None:
        """Have the thread look what it is to do."""
        fds = self._wake_fds
        if fds is not None and not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                os.write(fds[1], b"w")

    def close(self) -> None:
        """Listen no more."""
        with self._mutex:
            self._ends = True
            thread, self._thread = self._thread, None
        self._is_woken = False
        self.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._close_fds()

    def _close_fds(self) -> None:
        fds, self._wake_fds = self._wake_fds, None
        for fd in fds or ():
            os.close(fd)

    def after_fork_in_child(self) -> None:
        """In a forked child, which has the connection but not the thread."""
        if self._session is not None:
            sever(self._session.db)
            self._session.close()
        self._close_fds()

    # The thread

    def _main(self) -> None:
        again_s = _AGAIN_MIN_S
        while not self._is_over():
            try:
                self._listen()
                again_s = _AGAIN_MIN_S
            except Exception as error:  # noqa: BLE001 - whatever the server does, who waits must be woken again
                if not isinstance(error, psycopg.Error | UlakError | OSError):
                    _log.exception("the listener of a store was struck, and goes on")
                self._forget()
                if self._store.presence.own is not None:
                    self._store.presence.take_again()
                pause(again_s / 2, again_s)
                again_s = min(again_s * 2, _AGAIN_MAX_S)
        self._forget()

    def _is_over(self) -> bool:
        return self._ends or self._thread is not threading.current_thread()

    def _forget(self) -> None:
        self._heard = set()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _listen(self) -> None:
        """Sleep, and hear; returns when nobody needs it any more."""
        idle_since = MACHINE.interval()
        while not self._is_over():
            self._is_woken = False
            wanted = self._wanted()
            if wanted:
                idle_since = MACHINE.interval()
                self._hear(wanted)
            elif self._may_end(idle_since):
                return
            self._sleep()

    def _may_end(self, idle_since: float) -> bool:
        if MACHINE.interval() - max(idle_since, self._store.used_at) < IDLE_S:
            return False
        with self._mutex:
            self._thread = None
        # One who joined just now found it running still.
        if self._wanted():
            self._start()
        return True

    def _wanted(self) -> dict[str, tuple[str, bool]]:
        """The channels that somebody waits for, with their queues."""
        names: dict[tuple[str, bool], None] = {}
        for (until, queue), line in list(self._store.lines.items()):
            if line.waiting:
                is_work = until in (Until.READY, Until.DUE)
                names[queue, is_work] = None
        if self._store.awaited.waiting:
            # A job's queue is not known here; its end is told where jobs leave.
            for _, queue in list(self._store.lines):
                names[queue, False] = None
        return {self._name(*key): key for key in names}

    def _name(self, queue: str, is_work: bool) -> str:  # noqa: FBT001 - the two parts of a key
        name = self._names.get((queue, is_work))
        if name is None:
            name = channel(self._store.place.schema, queue, is_work=is_work)
            self._names[queue, is_work] = name
        return name

    def _hear(self, wanted: Mapping[str, tuple[str, bool]]) -> None:
        if self._session is None:
            if self._is_deaf():
                return
            session = Session(self._store.place)
            if session.is_proxied:
                session.close()
                self._deaf_until = MACHINE.interval() + DEAF_S
                return
            session.db.add_notify_handler(self._notices.append)
            self._session = session
        new = [name for name in wanted if name not in self._heard]
        for name in new:
            # Not as others are executed: here nobody else would notice that no answer comes.
            self._session.db.pgconn.send_query(
                sql.SQL("LISTEN {}").format(sql.Identifier(name)).as_string().encode()
            )
            answer(self._session.db.pgconn)
            self._channels[name] = wanted[name]
        if new:
            self._heard.update(new)
            # What came before they were listened to has rung for nobody.
            named = {wanted[name] for name in new}
            before = self._counts(named)
            # Meanwhile calls of this process that are just committed wake their own.
            pause(FIRST_LOOK_S)
            self._look(named, before)

    def _sleep(self) -> None:
        fds = self._wake_fds
        assert fds is not None
        session, presence = self._session, self._store.presence.session
        poll = select.poll()
        poll.register(fds[0], select.POLLIN)
        if session is not None:
            poll.register(session.db.pgconn.socket, select.POLLIN)
        if presence is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                poll.register(presence.db.pgconn.socket, select.POLLIN)
        heard = poll.poll(min(CHECK_S, IDLE_S) * 1000 * random.uniform(0.8, 1.0))
        with contextlib.suppress(OSError):
            os.read(fds[0], 64)
        if presence is not None and not presence.is_usable():
            self._store.presence.take_again()
        if session is not None:
            self._read(session, is_silent=not heard)

    def _read(self, session: Session, *, is_silent: bool) -> None:
        db = session.db.pgconn
        if is_silent:
            # Nobody else would notice that nothing comes any more.
            db.send_query(b"SELECT 1")
            answer(db)
        db.consume_input()
        own = set(self._store.backends)
        heard = []
        while (notice := db.notifies()) is not None:
            heard.append((notice.relname.decode(), notice.be_pid))
        while self._notices:
            noted = self._notices.popleft()
            heard.append((noted.channel, noted.pid))
        told = {self._channels[name] for name, pid in heard if name in self._channels and pid not in own}
        if told:
            for queue, is_work in told:
                line = self._store.lines.get((Until.READY, queue))
                if is_work and line is not None and not _awake(line):
                    line.ring(1)
            self._look(told)

    def _counts(self, told: Iterable[tuple[str, bool]]) -> dict[str, Counts]:
        queues = sorted({queue for queue, _ in told})
        counts: dict[str, Counts] = self._store.run(lambda scene: looks.counts(scene, queues))
        return counts

    def _look(self, told: Iterable[tuple[str, bool]], before: Mapping[str, Counts] | None = None) -> None:
        """Look at these queues, and wake who has reason to look too.

        before: how they stood a moment ago, where nobody has rung: only what has stayed since is a reason.
        """
        counts = self._counts(told)
        for (until, queue), line in list(self._store.lines.items()):
            count = counts.get(queue)
            if not line.waiting or count is None:
                continue
            wakeups = _wakeups(until, count, None if before is None else before[queue])
            if until is Until.READY:
                wakeups -= _awake(line)
            if wakeups > 0:
                line.ring(wakeups)
        awaited = self._store.awaited.awaited()
        if awaited:
            self._store.awaited.ring(self._store.run(lambda scene: looks.over(scene, awaited)))


def _awake(line: WaitLine) -> int:
    """How many waiters have been woken and have yet to look."""
    return sum(signal.is_set() for signal in list(line.waiting))


def _wakeups(until: Until, count: Counts, before: Counts | None) -> int:
    """How many waiters have reason to look. before: as for `_look`."""
    match until:
        case Until.READY:
            found = count.ready + count.held
            return found if before is None else min(found, before.ready + before.held)
        case Until.ROOM | Until.DUE:
            return int(before is None)
        case Until.DRAINED:
            return int(before is None and count.leased == 0)
