"""The machinery of a PostgreSQL store: opening, closing, forks, and how operations are run.

An operation is written once, as a plan, of which each step is run in a transaction of its own. A thread's
loop and an event loop's are all that differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, assert_never, cast

import psycopg

from ulak.clock import MACHINE, SYSTEM, Clock, pause
from ulak.core.store import Until
from ulak.errors import Closed, StorageUnavailable, UlakError
from ulak.storage import forks
from ulak.storage.ends import Ends
from ulak.storage.helper import Helper
from ulak.storage.line import WaitLine
from ulak.storage.postgres import schema
from ulak.storage.postgres.asks import Scene, Step
from ulak.storage.postgres.attempt import WAITS_S, Attempt, Tries
from ulak.storage.postgres.bell import Bell, ring
from ulak.storage.postgres.debts import Debts, hand_back
from ulak.storage.postgres.faults import READ_ONLY, is_lost
from ulak.storage.postgres.lanes import Lanes, LoopLanes, Run, Undo
from ulak.storage.postgres.link import LoopSession, Session, begin_text
from ulak.storage.postgres.listen import Listener
from ulak.storage.postgres.marks import Marks
from ulak.storage.postgres.others import Others
from ulak.storage.postgres.place import Place
from ulak.storage.postgres.plans import Block, Plan
from ulak.storage.postgres.pool import LoopPool, Pool
from ulak.storage.postgres.presence import Presence
from ulak.storage.postgres.sweep import Sweeper

_log = logging.getLogger("ulak")

R = TypeVar("R")

Ran: TypeAlias = tuple[Scene, Attempt[Any], Session | LoopSession, float]
"""A run of a step: what it was told, how it goes, the session it has, and since when."""

Told: TypeAlias = tuple[()] | tuple[Undo | None, Any, Any]
"""What steps of a plan answered, with what takes it back: the last one, and those before it."""

SHARDS = 64
"""How many rows the tallies of a queue have at most; see `Scene.shard`."""

_STRIDE = 11
"""How far apart the shards of one process's sessions lie."""


class Engine:
    """One schema of one database, open in this process. Making the object touches nothing; `open` does."""

    def __init__(self, place: Place, clock: Clock = SYSTEM) -> None:
        self.place = place
        self.clock = clock
        self.uid = ""
        self.epoch = 0
        # By how much the server's clock, which leases are on, is ahead of this process's interval clock.
        self.ahead_s = 0.0
        self.used_at = 0.0
        self._is_open = False
        self.lines: dict[tuple[Until, str], WaitLine] = {}
        # A clock that is not the machine's is a test's, and stands in for the server's.
        self._is_server_timed = clock is SYSTEM or clock is MACHINE
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        """What belongs to one process."""
        self._pool = Pool(self.place)
        self._claims = itertools.count(secrets.randbits(62))
        self._debts = Debts(self.run)
        self._lanes = Lanes(self.run, self._debts.owe)
        self._loops: dict[asyncio.AbstractEventLoop, LoopPool] = {}
        self.bell = Bell(self.place.schema, self._ring_all)
        self._blocking = Helper("ulak-block")
        self._sweeper = Sweeper(self._using)
        self.marks = Marks(self._using)
        self.awaited = Ends(self.begin_watch)
        self._listener = Listener(self)
        self.others = Others(self, Run, Block)

    # Opening and closing

    def open(self) -> None:
        """Connect, and make the schema if there is none. Raises SchemaError, StorageUnavailable."""
        with forks.opening:
            if self._is_open:
                return
            self._start()
            try:
                self._begin()
            except BaseException:
                self._pool.close()
                raise
            self._is_open = True

    def _begin(self) -> None:
        session = self._pool.take()
        try:
            found = session.drive(Attempt(schema.begun(self.place), session.begin, is_proxied=True).work())
            if found is None:
                work = Attempt(schema.begin(self.place), session.begin, is_proxied=True).work()
                found = session.drive(work)
        except psycopg.Error as error:
            Tries(self.place, patience_s=0.0).after(error)
            raise
        finally:
            self._pool.put(session)
        self.uid, self.epoch = found[:2]
        if self._is_server_timed:
            self.ahead_s = found[2] - self.clock.interval()

    def close(self) -> None:
        """Let go of all handles; idempotent."""
        with forks.opening:
            was_open, self._is_open = self._is_open, False
            if not was_open:
                return
            self._listener.close()
            self._debts.close()
            try:
                self.drive(self.others.leave())
            except UlakError as error:
                _log.warning("the store closes without saying so to others: %s", error)
            self.bell.close()
            self._blocking.close()
            self._sweeper.close()
            self.marks.close()
            self.others.drop()
            self._pool.close()
            for loop, pool in list(self._loops.items()):
                pool.abandon() if loop.is_closed() else pool.close()
            # They are to hear of it.
            self.awaited.wake_all()

    def migrate(self) -> None:
        """Bring the schema to this version; idempotent."""
        self.open()

    # Forks

    def before_fork(self) -> bool:
        """Nothing has to stop: a child lets go of the connections without a word."""
        return True

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self, *, stopped: bool) -> None:
        """Begin anew: leases, presence, waiters and connections are the parent's."""
        del stopped
        self._pool.after_fork_in_child()
        for pool in self._loops.values():
            pool.after_fork_in_child()
        self._listener.after_fork_in_child()
        self.others.after_fork_in_child()
        self.lines.clear()
        self._start()

    # Steps

    def scene(self, number: int) -> Scene:
        """What a step may know now. number: of the session among this process's."""
        now = now_at = None
        if not self._is_server_timed:
            now, now_at = self.clock.interval(), self.clock.calendar()
        own = self.others.own
        # So that the first sessions of many processes, which do nearly all, have a row each.
        shard = ((os.getpid() if own is None else own) + number * _STRIDE) % SHARDS
        claim = next(self._claims)
        scene = Scene(self.uid, self.epoch, shard=shard, holder=own, claim=claim, now=now, now_at=now_at)
        scene.marks = self.marks
        return scene

    def check_open(self) -> None:
        """Raises Closed if it is not."""
        if not self._is_open:
            raise Closed("this store is closed; make another handle on it")

    def run(
        self,
        make: Callable[[Scene], Step[R]],
        *,
        repeats: bool = False,
        waits_s: Sequence[float] = WAITS_S,
    ) -> R:
        """Run a step in a transaction of its own, and tell its waiters; again, if others were in the way.

        waits_s: how long it waits for others, one after the other. Raises InTheWayError if not to the full.
        """
        last: list[Ran] = []
        try:
            return self._run(make, last, Tries(self.place, waits_s=waits_s), repeats=repeats)
        except BaseException:
            self._owe_what_may_be_claimed(last)
            for _, _, session, since in last:
                # A strike may have fallen into the giving back.
                assert isinstance(session, Session)
                self._pool.let_go(session, since)
            raise

    def _run(self, make: Callable[[Scene], Step[R]], last: list[Ran], tries: Tries, *, repeats: bool) -> R:
        while True:
            session = attempt = None
            is_sound = False
            try:
                session = self._pool.take()
                self.used_at = session.since
                scene = self.scene(session.number)
                attempt = self._attempt(make(scene), session, tries.lock_s)
                last[:] = [(scene, attempt, session, session.since)]
                answer = session.drive(attempt.work())
                is_sound = True
                self._tell(scene)
                self._ring(session, scene)
            except psycopg.Error as error:
                is_sound = _is_sound_after(error, attempt, self._pool)
                pause_s = tries.after(error, is_sent=attempt is not None and attempt.is_sent and not repeats)
            except StorageUnavailable as error:
                if session is not None:
                    raise
                pause_s = tries.after(error)
            except Exception:
                is_sound = True
                raise
            else:
                return answer
            finally:
                if session is not None:
                    self._pool.put(session, is_sound=is_sound)
            pause(pause_s)

    async def arun(
        self,
        make: Callable[[Scene], Step[R]],
        *,
        repeats: bool = False,
        waits_s: Sequence[float] = WAITS_S,
    ) -> R:
        """The same on the running event loop."""
        last: list[Ran] = []
        try:
            return await self._arun(make, last, Tries(self.place, waits_s=waits_s), repeats=repeats)
        except BaseException:
            self._owe_what_may_be_claimed(last)
            raise

    async def _arun(
        self, make: Callable[[Scene], Step[R]], last: list[Ran], tries: Tries, *, repeats: bool
    ) -> R:
        pool = self._loop_pool()
        while True:
            session = attempt = None
            is_sound = False
            try:
                session = await pool.take()
                self.used_at = session.since
                scene = self.scene(session.number)
                attempt = self._attempt(make(scene), session, tries.lock_s)
                last[:] = [(scene, attempt, session, session.since)]
                answer = await session.drive(attempt.work())
                is_sound = True
                self._tell(scene)
                if channels := self.bell.due(scene.rings):
                    pool.start(self._ring_on(pool, session, channels))
                    session = None
            except psycopg.Error as error:
                is_sound = _is_sound_after(error, attempt, pool)
                pause_s = tries.after(error, is_sent=attempt is not None and attempt.is_sent and not repeats)
            except StorageUnavailable as error:
                if session is not None:
                    raise
                pause_s = tries.after(error)
            except Exception:
                is_sound = True
                raise
            else:
                return answer
            finally:
                if session is not None:
                    pool.put(session, is_sound=is_sound)
            await asyncio.sleep(pause_s)

    def _attempt(self, step: Step[R], session: Session | LoopSession, lock_s: float) -> Attempt[R]:
        if lock_s == session.lock_s:
            return Attempt(step, session.begin, is_proxied=session.is_proxied)
        # For another wait than the session's even a lone statement needs a transaction, to say so in.
        begin = begin_text(self.place, lock_s, is_proxied=session.is_proxied)
        return Attempt(step, begin, is_proxied=True)

    def _owe_what_may_be_claimed(self, last: list[Ran]) -> None:
        """A run has ended without an answer: what it may have leased is for nobody."""
        for ran, attempt, session, _ in last:
            if ran.claimed and attempt.may_be_stored:
                backend = session.backend if attempt.is_sent else None
                self._debts.owe(functools.partial(hand_back, ran.claimed, ran.claim, backend))

    def _loop_pool(self) -> LoopPool:
        self.check_open()
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            for other in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(other).abandon()
            pool = self._loops[loop] = LoopPool(self.place, LoopLanes(self.arun, self._debts.owe))
        return pool

    @property
    def presence(self) -> Presence:
        """This process's place among those that hold leases."""
        return self.others.presence

    @property
    def backends(self) -> set[int]:
        """The server's processes that work for calls of this process."""
        return self._pool.backends().union(*(pool.backends() for pool in list(self._loops.values())))

    # Operations

    def drive(self, plan: Plan[R]) -> R:
        """Run a plan to its end in this thread. If it raises, what was done for its caller is taken back."""
        go: Callable[[Any], Run | Block] = plan.send
        reply: Any = None
        told: Told = ()
        try:
            while True:
                try:
                    want = go(reply)
                except StopIteration as stop:
                    return cast("R", stop.value)
                go = plan.send
                try:
                    match want:
                        case Run(make, None):
                            # In one step, which nothing strikes amid.
                            told = (want.undo, self.run(make, repeats=want.repeats), told)
                            reply = told[1]
                        case Run():
                            told = (want.undo, self._lanes.call(want), told)
                            reply = told[1]
                        case Block(call):
                            reply = call()
                        case _:
                            assert_never(want)
                except BaseException as error:  # noqa: BLE001 - it belongs to the plan, which lets it out
                    go, reply = plan.throw, error
        except BaseException:
            self._take_back(told)
            raise

    async def adrive(self, plan: Plan[R]) -> R:
        """Run a plan to its end on this event loop, which is never blocked. The same if it raises."""
        go: Callable[[Any], Run | Block] = plan.send
        reply: Any = None
        told: Told = ()
        try:
            while True:
                try:
                    want = go(reply)
                except StopIteration as stop:
                    return cast("R", stop.value)
                go = plan.send
                try:
                    match want:
                        case Run():
                            told = (want.undo, await self._loop_pool().lanes.call(want), told)
                            reply = told[1]
                        case Block(call):
                            reply = await self._blocking.acall(call)
                        case _:
                            assert_never(want)
                except BaseException as error:  # noqa: BLE001 - as above
                    go, reply = plan.throw, error
        except BaseException:
            self._take_back(told)
            raise

    def _take_back(self, told: Told) -> None:
        while told:
            undo, answer, told = told
            if undo is not None and (back := undo(answer)) is not None:
                self._debts.owe(back)

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as the operation
        """An operation for an event loop, which it never blocks. What is cancelled runs to its end first."""
        operation: Any = getattr(type(self), name)
        if not hasattr(operation, "plan"):
            # Never blocks.
            return getattr(self, name)(*args, **kwargs)
        return await self.adrive(operation.plan(self, *args, **kwargs))

    # Waking

    def _tell(self, scene: Scene) -> None:
        """Wake waiters of this process for what a transaction has changed."""
        for key, wakeups in scene.rings.items():
            line = self.lines.get(key)
            if line is not None and wakeups > 0:
                line.ring(wakeups)
        if scene.ended_ids:
            self._sweeper.note(len(scene.ended_ids))
            self.marks.note(len(scene.ended_ids))
            if self.awaited.waiting:
                self.awaited.ring(scene.ended_ids)
        for queue, dead in scene.dead_pruned.items():
            _log.info("queue %s: %d dead jobs removed by retention", queue, dead)

    def _ring(self, session: Session, scene: Scene) -> None:
        """Tell other processes; a hint, so what goes wrong with it is nobody's."""
        if channels := self.bell.due(scene.rings):
            with contextlib.suppress(psycopg.Error):
                session.send(ring(channels))

    async def _ring_on(self, pool: LoopPool, session: LoopSession, channels: list[str]) -> None:
        is_sound = False
        try:
            with contextlib.suppress(psycopg.Error):
                await session.execute(ring(channels))
            is_sound = True
        finally:
            pool.put(session, is_sound=is_sound)

    def _ring_all(self, channels: list[str]) -> None:
        with contextlib.suppress(UlakError, psycopg.Error):
            self._using(lambda session: session.execute(ring(channels)))

    def _using(self, call: Callable[[Session], object]) -> None:
        session = self._pool.take()
        is_sound = False
        try:
            call(session)
            is_sound = True
        finally:
            self._pool.put(session, is_sound=is_sound)

    def begin_watch(self) -> None:
        """Somebody of this process waits from now on for what others do."""
        if self._is_open:
            # Without it the waiter looks by itself, less often.
            with contextlib.suppress(RuntimeError):
                self._listener.begin()

    @property
    def is_watched(self) -> bool:
        """Whether it comes back by itself when the presence is lost."""
        return self._listener.is_running

    def watch_presence(self) -> None:
        """Come back by itself when the presence is lost."""
        self.begin_watch()
        self._listener.wake()


def _is_sound_after(error: psycopg.Error, attempt: Attempt[Any] | None, pool: Pool | LoopPool) -> bool:
    """Whether a session whose run ended so may be used again, as far as it is known here."""
    if attempt is not None and not is_lost(error):
        attempt.may_be_stored = False
    if error.sqlstate != READ_ONLY:
        return True
    # After a failover; the others are of the same server, or will be found out too.
    pool.close_idle()
    return False
