"""Calls alike that wait at the same moment share a statement: those of threads, and those of an event loop.

Whoever finds its lane empty goes at once, alone. Who comes meanwhile goes with the next, all together; so
there is one statement of a kind under way at a time, and a lone caller pays for no other. Who has to wait for
a transaction of somebody else's leaves its lane, so that the others do not wait with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ulak.errors import (
    Closed,
    SchemaError,
    StorageFull,
    StorageUnavailable,
)
from ulak.storage.group import Asked, Group, Merge
from ulak.storage.postgres.asks import InTheWayError, Scene, Step
from ulak.storage.postgres.attempt import WAITS_S
from ulak.storage.postgres.link import BRIEF_S, LOCK_S

Make = Callable[[Scene], Step[Any]]
Undo = Callable[[Any], Make | None]

BATCH_MAX = 256
"""How many calls one statement takes at most."""

LANES_MAX = 256
"""So many lanes are remembered; then those that nobody is in are forgotten."""

BYTES_MAX = 8 * 2**20
"""So much one statement sends at most, unless it is for one call."""

APART_S = 0.02
"""How long each of those waits for others which have waited together: no longer than the rest bear."""

PATIENT_MAX = 3
"""So many calls that have left their lanes wait for others at once: in a few of the pool's sessions."""

_OF_ALL = (StorageUnavailable, StorageFull, SchemaError, Closed)
"""What says nothing of a call, but of the store. What is in the way may be in that of one call only."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """Ask for a step to be run in a transaction of its own; answered with what it returns.

    merge: how it can be done together with others alike. undo: takes back what was done for nobody.
    repeats: it may be run again when nobody knows whether it was, as what changes nothing may.
    """

    make: Make
    merge: Merge | None = None
    undo: Undo | None = None
    repeats: bool = False


def together(batch: Sequence[Any]) -> Make:
    """All of them in one step. Each has a `merge` of the same key."""
    merge, parts = batch[0].merge, [one.merge.part for one in batch]
    return lambda scene: merge.together(scene, parts)


def _take_back(undo: Undo, answer: Any, owe: Callable[[Make], None]) -> None:  # noqa: ANN401 - as the step's
    if (back := undo(answer)) is not None:
        owe(back)


def fitting(waiting: Sequence[Any]) -> int:
    """How many of those that wait go into the next statement. Each has a `merge`, or else goes alone."""
    sent = 0
    for number, one in enumerate(waiting[:BATCH_MAX]):
        sent += 0 if one.merge is None else one.merge.bytes
        if sent > BYTES_MAX and number:
            return number
    return BATCH_MAX


class Lane:
    """The calls of threads of one kind."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._is_running = False
        self.group = Group(self._run_all, lambda _: None if self._is_running else False)

    def _run_all(self, batch: list[Asked]) -> None:
        # If this thread is struck meanwhile, nobody knows what is stored.
        self._is_running = True
        while batch:
            number = fitting(batch)
            self._do(batch[:number])
            batch = batch[number:]
        self._is_running = False

    def _do(self, batch: list[Asked]) -> None:
        lock_s: float | None = BRIEF_S if len(batch) < 2 else self._do_together(batch)
        if lock_s is not None:
            self._do_apart(batch, lock_s)

    def _do_together(self, batch: list[Asked]) -> float | None:
        """None if it is done; else how long each of them is to wait for others, apart."""
        answers: Sequence[Any] = ()
        try:
            answers = self._run(together(batch), waits_s=(BRIEF_S,))
        except _OF_ALL as error:
            for asked in batch:
                asked.error, asked.is_done = error, True
        except InTheWayError:
            return APART_S
        except Exception:  # noqa: BLE001 - it is of one of them; the others are to have their answers
            return BRIEF_S
        finally:
            # Also where this thread was struck after the answer: the others are to have theirs.
            for asked, answer in zip(batch, answers, strict=False):
                asked.result, asked.is_done = answer, True
        return None

    def _do_apart(self, batch: list[Asked], lock_s: float) -> None:
        for asked in batch:
            try:
                asked.result, asked.is_done = self._run(asked.step, waits_s=(lock_s,)), True
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                asked.error, asked.is_done = error, True


class Lanes:
    """The lanes of threads, by what their calls have alike. owe: has a step done soon, for nobody."""

    def __init__(self, run: Callable[..., Any], owe: Callable[[Make], None]) -> None:
        self._run = run
        self._owe = owe
        self._patient = threading.Semaphore(PATIENT_MAX)
        self._lanes: dict[Any, Lane] = {}

    def call(self, want: Run) -> Any:  # noqa: ANN401 - what the step returns
        """Run a step, perhaps together with others'; in this thread, or in another's."""
        assert want.merge is not None
        lane = self._lanes.get(want.merge.key)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                # Whoever is in one has it still; the next there begins another.
                self._lanes.clear()
            lane = self._lanes.setdefault(want.merge.key, Lane(self._run))
        asked = Asked(want.make, soft=False, merge=want.merge)
        try:
            return lane.group.call(asked)
        except InTheWayError as error:
            return self._wait(want, error)
        except BaseException:
            if want.undo is not None and asked.is_done and asked.error is None:
                # This thread was struck, and has no answer.
                _take_back(want.undo, asked.result, self._owe)
            raise

    def _wait(self, want: Run, error: InTheWayError) -> Any:  # noqa: ANN401 - as above
        """Run it in no lane, where it may wait for others as long as it must."""
        if not self._patient.acquire(timeout=LOCK_S):
            raise error.told from None
        try:
            return self._run(want.make, waits_s=(LOCK_S,))
        finally:
            self._patient.release()


class _Item:
    """One call of an event loop, and what came of it."""

    __slots__ = ("error", "future", "is_done", "make", "merge", "repeats", "result")

    def __init__(self, want: Run, future: asyncio.Future[None]) -> None:
        self.make, self.merge, self.repeats = want.make, want.merge, want.repeats
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False

    def end(self, result: Any = None, error: BaseException | None = None) -> None:  # noqa: ANN401 - as `result`
        """Say what came of it."""
        self.result, self.error, self.is_done = result, error, True
        if not self.future.done():
            self.future.set_result(None)


class LoopLanes:
    """The lanes of one event loop. owe: as of `Lanes`."""

    def __init__(self, run: Callable[..., Awaitable[Any]], owe: Callable[[Make], None]) -> None:
        self._run = run
        self._owe = owe
        self._patient = asyncio.Semaphore(PATIENT_MAX)
        self._waiting: dict[Any, list[_Item]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, want: Run) -> Any:  # noqa: ANN401 - what the step returns
        """Run a step, perhaps together with others'. What is cancelled runs to its end, and is taken back."""
        item = _Item(want, asyncio.get_running_loop().create_future())
        try:
            self._put(item)
            await item.future
        except asyncio.CancelledError:
            await self._outlast(item)
            if want.undo is not None and item.error is None and (back := want.undo(item.result)) is not None:
                undoing = _Item(Run(back), asyncio.get_running_loop().create_future())
                self._put(undoing)
                await self._outlast(undoing)
                if undoing.error is not None:
                    self._owe(back)
            raise
        if isinstance(item.error, InTheWayError):
            return await self._wait(want, item.error)
        if item.error is not None:
            raise item.error
        return item.result

    async def _wait(self, want: Run, error: InTheWayError) -> Any:  # noqa: ANN401 - as above
        """As of `Lanes`."""
        try:
            async with asyncio.timeout(LOCK_S):
                await self._patient.acquire()
        except TimeoutError:
            raise error.told from None
        try:
            return await self.call(Run(want.make, undo=want.undo, repeats=want.repeats))
        finally:
            self._patient.release()

    def _put(self, item: _Item) -> None:
        # What cannot be done together with anything has a lane to itself.
        key = item if item.merge is None else item.merge.key
        if (waiting := self._waiting.get(key)) is not None:
            waiting.append(item)
            return
        self._waiting[key] = [item]
        task = asyncio.get_running_loop().create_task(self._work(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _outlast(self, item: _Item) -> None:
        """Wait for its end through every cancellation."""
        while not item.is_done:
            item.future = asyncio.get_running_loop().create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await item.future

    async def _work(self, key: Any) -> None:  # noqa: ANN401 - whatever calls have alike
        waiting, batch = self._waiting[key], []
        try:
            while waiting:
                number = fitting(waiting)
                batch = waiting[:number]
                del waiting[:number]
                lock_s: float | None = BRIEF_S if len(batch) < 2 else await self._do_together(batch)
                if lock_s is not None:
                    await self._do_apart(batch, lock_s)
        finally:
            del self._waiting[key]
            # Only where this task was cut off, as at the end of its loop.
            for item in (*batch, *waiting):
                if not item.is_done:
                    item.end(error=asyncio.CancelledError())

    async def _do_together(self, batch: list[_Item]) -> float | None:
        try:
            answers = await self._run(together(batch), waits_s=(BRIEF_S,))
        except _OF_ALL as error:
            for item in batch:
                item.end(error=error)
            return None
        except InTheWayError:
            return APART_S
        except Exception:  # noqa: BLE001 - as above
            return BRIEF_S
        for item, answer in zip(batch, answers, strict=True):
            item.end(answer)
        return None

    async def _do_apart(self, batch: list[_Item], lock_s: float) -> None:
        for item in batch:
            waits_s = WAITS_S if item.merge is None else (lock_s,)
            try:
                item.end(await self._run(item.make, repeats=item.repeats, waits_s=waits_s))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                item.end(error=error)
