"""Group commit: all who wait while a transaction is written go into the next one together.

Whoever finds nobody at work leads: it runs its own call at once, in its own thread. Who comes meanwhile
waits, and the first of them leads next, for all. Calls of event loops have no thread; one of the store's
leads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ulak.errors import StorageUnavailable
from ulak.storage.sqlite.helper import Helper
from ulak.storage.sqlite.ledger import Ledger

Step = Callable[[Ledger], Any]

BATCH_MAX = 256
"""How many calls one transaction takes at most."""


class Merge(msgspec.Struct, frozen=True, gc=False):
    """How calls of one kind can be done in one. together: one answer for each of their parts."""

    key: Any
    part: Any
    together: Callable[[Ledger, list[Any]], Iterable[Any]]


class Asked:
    """One call: its step, and what came of it. grows: the step wanted room for new jobs."""

    __slots__ = ("_parked", "error", "grows", "is_done", "leads", "merge", "result", "soft", "step")

    def __init__(self, step: Step, *, soft: bool, merge: Merge | None = None) -> None:
        self.step = step
        self.soft = soft
        self.merge = merge
        self.grows = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.leads = False
        self._parked: Any = None

    def park(self) -> None:
        """Get ready to sleep; called before anybody could wake this call."""
        self._parked = threading.Lock()
        self._parked.acquire()

    def sleep(self) -> None:
        """Sleep until it is done, or its turn to lead."""
        self._parked.acquire()

    def wake(self) -> None:
        """Wake its caller."""
        with contextlib.suppress(RuntimeError):
            self._parked.release()

    def answer(self) -> Any:  # noqa: ANN401 - what the step returned
        """What came of it. Raises what the step raised."""
        if self.error is not None:
            raise self.error
        return self.result


class LoopAsked(Asked):
    """A call of an event loop."""

    __slots__ = ("future", "is_told", "loop")

    def __init__(self, step: Step, *, soft: bool, merge: Merge | None = None) -> None:
        super().__init__(step, soft=soft, merge=merge)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.is_told = False

    async def outlast(self) -> Any:  # noqa: ANN401 - what the step returned
        """Wait for the end through every cancellation; None if it was an error."""
        while not self.is_told:
            self.future = self.loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await self.future
        return self.result


class Group:
    """The calls of one process on one file. run_all: runs some in one transaction, and never raises."""

    def __init__(self, run_all: Callable[[list[Asked]], None]) -> None:
        self._run_all = run_all
        self._mutex = threading.Lock()
        self._pending: deque[Asked] = deque()
        self._is_led = False
        self._helper = Helper("ulak-commit")

    def call(self, asked: Asked) -> Any:  # noqa: ANN401 - what the step returns
        """Run a step in a transaction, perhaps together with others'; in this thread, or in another's."""
        with self._mutex:
            if leads := not self._is_led:
                self._is_led = True
            else:
                asked.park()
                self._pending.append(asked)
        try:
            if not leads:
                asked.sleep()
        except BaseException:
            self._step_back(asked)
            raise
        if not asked.is_done:
            self._lead(asked)
        return asked.answer()

    def _step_back(self, asked: Asked) -> None:
        """A thread was struck while it slept: it asks for nothing, and if it is to lead, it still does."""
        with self._mutex:
            if asked in self._pending:
                self._pending.remove(asked)
                return
        if asked.leads and not asked.is_done:
            self._lead(None)

    async def acall(self, asked: LoopAsked, *, undo: Callable[[Any], Step | None] | None = None) -> Any:  # noqa: ANN401
        """The same for an event loop, which is never blocked; what is cancelled runs to its end all the same.

        undo: the step that takes back what was done for a caller that is cancelled meanwhile.
        """
        self._ask(asked)
        try:
            return await asked.future
        except asyncio.CancelledError:
            result = await asked.outlast()
            if undo is not None and asked.error is None and (back := undo(result)) is not None:
                undoing = LoopAsked(back, soft=False)
                self._ask(undoing)
                await undoing.outlast()
            raise

    def _ask(self, asked: LoopAsked) -> None:
        with self._mutex:
            self._pending.append(asked)
            if not self._is_led:
                self._is_led = True
                self._want_helper()

    def _lead(self, own: Asked | None) -> None:
        """Run a batch, and hand over."""
        batch = [] if own is None else [own]
        try:
            with self._mutex:
                while self._pending and len(batch) < BATCH_MAX:
                    batch.append(self._pending.popleft())
            self._run_all(batch)
        except BaseException:
            for asked in batch:
                if not asked.is_done and asked is not own:
                    asked.error = StorageUnavailable(
                        "the thread that wrote this together with its own call was struck; "
                        "whether it was stored is unknown"
                    )
                    asked.is_done = True
            raise
        finally:
            _answer(batch, own)
            self._hand_over()

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._pending:
                self._is_led = False
            elif isinstance(self._pending[0], LoopAsked):
                self._want_helper()
            else:
                heir = self._pending.popleft()
                heir.leads = True
                heir.wake()

    def _want_helper(self) -> None:
        self._helper.ask(lambda: self._lead(None))

    def close(self) -> None:
        """Wait until nobody is led any more. Nobody may call now."""
        self._helper.close()


def _answer(batch: Iterable[Asked], own: Asked | None) -> None:
    """Wake whoever waits for these."""
    of_loop: dict[asyncio.AbstractEventLoop, list[LoopAsked]] = {}
    for asked in batch:
        if isinstance(asked, LoopAsked):
            of_loop.setdefault(asked.loop, []).append(asked)
        elif asked is not own:
            asked.wake()
    for loop, asked_there in of_loop.items():
        # Else the loop is closed, and so is who waited there.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, asked_there)


def _resolve(asked_there: list[LoopAsked]) -> None:
    for asked in asked_there:
        is_cancelled, asked.is_told = asked.future.done(), True
        if is_cancelled:
            continue
        if asked.error is not None:
            asked.future.set_exception(asked.error)
        else:
            asked.future.set_result(asked.result)
