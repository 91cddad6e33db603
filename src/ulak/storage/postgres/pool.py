"""The sessions of one process: as many as calls are under way, up to a few; each is used by one at a time.

Those that the server has ended while they were idle are found by a look at the socket, before anything is
sent, so a restart of the server costs new connections and no call.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import psycopg

from ulak.clock import MACHINE
from ulak.errors import Closed, StorageBusy, StorageUnavailable, UlakError
from ulak.storage.postgres import watchdog
from ulak.storage.postgres.lanes import LoopLanes
from ulak.storage.postgres.link import BRIEF_S, LoopSession, Session, sever
from ulak.storage.postgres.place import Place

SESSIONS_MAX = 8
"""How many sessions a process, or an event loop of it, has for calls at most."""

WAIT_S = 30.0
"""How long a call waits for one of them, before StorageBusy."""

IDLE_S = 60.0
"""What has not been used for so long is closed when another is given back."""


def _busy(place: Place) -> StorageBusy:
    return StorageBusy(
        f"all {SESSIONS_MAX} connections of this process to {place} have been in use for {WAIT_S:g} s; "
        f"nothing was changed\n  make fewer calls at once, or find out what keeps them busy"
    )


def _free_number(sessions: Sequence[Session] | Sequence[LoopSession]) -> int:
    """The least that none of these has."""
    return min(set(range(len(sessions) + 1)) - {session.number for session in sessions})


class Pool:
    """Sessions for threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._freed = threading.Condition()
        self._idle: deque[tuple[Session, float]] = deque()
        # By whom: a thread that was struck down may not have given its session back.
        self._taken: dict[Session, threading.Thread] = {}
        self._coming = 0
        self._is_closed = False
        self._watchdog = watchdog.Watchdog(place, lambda: list(self._taken), self._end)

    def take(self) -> Session:
        """A session for this thread. Raises StorageUnavailable, StorageBusy, Closed."""
        self._watchdog.begin()
        while True:
            session = self._take()
            if session.hear():
                return session
            self.put(session, is_sound=False)

    def _take(self) -> Session:
        with self._freed:
            until = None
            while True:
                if self._is_closed:
                    raise Closed("this store is closed; make another handle on it")
                while self._idle:
                    session, _ = self._idle.pop()
                    if session.is_usable():
                        self._note_taken(session)
                        return session
                    session.close()
                if len(self._taken) + self._coming < SESSIONS_MAX:
                    self._coming += 1
                    break
                until = until or MACHINE.interval() + WAIT_S
                if not self._freed.wait(until - MACHINE.interval()):
                    raise _busy(self._place)
        return self._connect()

    def _note_taken(self, session: Session) -> None:
        session.since = MACHINE.interval()
        self._taken[session] = threading.current_thread()

    def _connect(self) -> Session:
        session = None
        try:
            session = Session(self._place, BRIEF_S)
        finally:
            with self._freed:
                self._coming -= 1
                if session is not None:
                    session.number = _free_number([*self._taken, *(idle for idle, _ in self._idle)])
                    self._note_taken(session)
                else:
                    self._freed.notify()
        return session

    def put(self, session: Session, *, is_sound: bool = True) -> None:
        """Give it back. is_sound: False where its last call was cut off, so that it is not used again."""
        with self._freed:
            self._taken.pop(session, None)
            session.since = 0.0
            now = MACHINE.interval()
            # Only here: what is cut in use must not be another's by then.
            if is_sound and not self._is_closed and session.is_usable():
                self._idle.append((session, now))
            else:
                session.close()
            while self._idle and now - self._idle[0][1] > IDLE_S:
                self._idle.popleft()[0].close()
            self._freed.notify()

    def close_idle(self) -> None:
        """Close what is idle: it is connected to what is no use any more."""
        with self._freed:
            while self._idle:
                self._idle.pop()[0].close()

    def let_go(self, session: Session, since: float) -> None:
        """Close it if it has not come back from the call that it has been in since then."""
        with self._freed:
            if session in self._taken and session.since == since:
                del self._taken[session]
                session.close()
                self._freed.notify()

    def _end(self, session: Session, since: float) -> None:
        """End the call that this session has been in since then."""
        with self._freed:
            if session in self._taken and session.since == since:
                watchdog.cut(session.db)

    def backends(self) -> set[int]:
        """The server's processes that work for these sessions."""
        return {session.backend for session in [*self._taken, *(idle for idle, _ in list(self._idle))]}

    def close(self) -> None:
        """Close what is idle; what is in use closes when it is given back."""
        self._watchdog.close()
        with self._freed:
            self._is_closed = True
            self._freed.notify_all()
            for session, thread in self._taken.items():
                if not thread.is_alive():
                    session.close()
        self.close_idle()

    def after_fork_in_child(self) -> None:
        """Let go of all: they are the parent's."""
        for session, _ in self._idle:
            sever(session.db)
            session.close()
        for session in self._taken:
            # Its thread is not here, and the library may have been in the midst of something.
            sever(session.db)
            _left_behind.append(session)


class LoopPool:
    """Sessions for one event loop; all calls come from it."""

    def __init__(self, place: Place, lanes: LoopLanes) -> None:
        self.lanes = lanes
        self._tasks: set[asyncio.Task[None]] = set()
        self._place = place
        self._idle: deque[tuple[LoopSession, float]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken: set[LoopSession] = set()
        self._doubted: set[LoopSession] = set()
        self._is_watched = False
        self._coming = 0
        self._is_closed = False

    async def take(self) -> LoopSession:
        """A session. Raises StorageUnavailable, StorageBusy, Closed."""
        while True:
            if self._is_closed:
                raise Closed("this store is closed; make another handle on it")
            while self._idle:
                session, _ = self._idle.pop()
                if session.is_usable():
                    self._note_taken(session)
                    return session
                session.close()
            if len(self._taken) + self._coming < SESSIONS_MAX:
                return await self._connect()
            await self._wait()

    def _note_taken(self, session: LoopSession) -> None:
        session.since = MACHINE.interval()
        self._taken.add(session)
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(watchdog.STEP_S, self._watch)

    def _watch(self) -> None:
        """Now and then, while there are calls, look after those that take long."""
        self._is_watched = bool(self._taken)
        if self._is_watched:
            asyncio.get_running_loop().call_later(watchdog.STEP_S, self._watch)
        for session in self._taken:
            if watchdog.is_long(session) and session not in self._doubted:
                self._doubted.add(session)
                self.start(self._look_after(session, session.since))

    async def _look_after(self, session: LoopSession, since: float) -> None:
        try:
            works = await self._works(session)
        finally:
            self._doubted.discard(session)
        if not works and session in self._taken and session.since == since:
            watchdog.cut(session.db)

    async def _works(self, session: LoopSession) -> bool:
        if session.is_proxied:
            return not watchdog.is_over(session)
        try:
            other = await LoopSession.connect(self._place)
        except StorageUnavailable as error:
            # As a thread's.
            return "FATAL" in str(error)
        except UlakError:
            return True
        try:
            async with asyncio.timeout(watchdog.CALL_S):
                return bool(await other.execute(watchdog.asked(session)))
        except (psycopg.Error, TimeoutError):
            return False
        finally:
            other.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done beside the calls."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(self) -> None:
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(freed)
        try:
            async with asyncio.timeout(WAIT_S):
                await freed
        except BaseException as error:
            if freed in self._waiting:
                self._waiting.remove(freed)
            elif not freed.cancelled():
                # Woken, and gone: somebody else is to have it.
                self._wake()
            if isinstance(error, TimeoutError):
                raise _busy(self._place) from None
            raise

    def _wake(self) -> None:
        while self._waiting:
            freed = self._waiting.popleft()
            if not freed.done():
                freed.set_result(None)
                return

    async def _connect(self) -> LoopSession:
        self._coming += 1
        try:
            session = await LoopSession.connect(self._place, BRIEF_S)
            session.number = _free_number([*self._taken, *(idle for idle, _ in self._idle)])
            self._note_taken(session)
        finally:
            self._coming -= 1
            self._wake()
        return session

    def put(self, session: LoopSession, *, is_sound: bool = True) -> None:
        """Give it back."""
        self._taken.discard(session)
        session.since = 0.0
        if is_sound and not self._is_closed and session.is_usable():
            self._idle.append((session, MACHINE.interval()))
        else:
            session.close()
        while self._idle and MACHINE.interval() - self._idle[0][1] > IDLE_S:
            self._idle.popleft()[0].close()
        self._wake()

    def backends(self) -> set[int]:
        """As a `Pool`'s."""
        return {session.backend for session in [*self._taken, *(idle for idle, _ in list(self._idle))]}

    def close(self) -> None:
        """Close all that nobody uses; from any thread, also where the loop is closed."""
        self._is_closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """As of a `Pool`."""
        while self._idle:
            self._idle.pop()[0].close()

    def abandon(self) -> None:
        """The loop is closed, and nobody there uses anything any more."""
        self.close()
        for session in self._taken:
            session.close()

    def after_fork_in_child(self) -> None:
        """As a `Pool`'s."""
        for session, _ in self._idle:
            sever(session.db)
            session.close()
        for session in self._taken:
            sever(session.db)
            _left_behind.append(session)


_left_behind: list[object] = []
"""Sessions of a parent that a child must neither use nor close."""
