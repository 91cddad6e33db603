"""Group commit: all who wait while a transaction is written go into the next one together.

Whoever finds nobody at work leads: it runs its own call at once, in its own thread. Who comes meanwhile
waits, and the first of them leads next, for all. Whoever comes when that one is about to does not overtake
it, and who would lead few after many lets the others come first: else those who have just been answered go
alone, and the others wait for them. Calls of event loops have no thread; one of the store's leads them.

An exception may strike a thread anywhere, Ctrl-C for one. So a call stays in the line until it is done, the
lead is taken by one instruction (`del`, as in `ulak.storage.gate`) and given back in a `finally`, and who
waits looks by itself now and then: a wake-up that was lost costs a moment, never a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ulak.clock import pause
from ulak.errors import StorageUnavailable
from ulak.storage.gate import Gate
from ulak.storage.helper import Helper

Step = Callable[[Any], Any]
"""What is done in a transaction; it is given what the store's transactions are worked with."""

Undo = Callable[[Any], Step | None]

BATCH_MAX = 256
"""How many calls one transaction takes at most."""

FEW = 2
"""Who stands in line are few, where the last transaction took so many times as many."""

LOOK_AGAIN_S = 0.1
"""The longest a caller sleeps without a look."""


class Merge(msgspec.Struct, frozen=True, gc=False):
    """How calls of one kind can be done in one. together: a step of all, with an answer for each's part.

    bytes: how much is sent for it, about, where that has a limit.
    """

    key: Any
    part: Any
    together: Callable[[Any, list[Any]], Any]
    bytes: int = 0


class Asked:
    """One call: its step, and what came of it.

    grows: the step wanted room for new jobs. is_dropped: its caller was struck, and asks for nothing more.
    """

    __slots__ = ("_parked", "error", "grows", "is_done", "is_dropped", "merge", "result", "soft", "step")

    def __init__(self, step: Step, *, soft: bool, merge: Merge | None = None) -> None:
        self.step = step
        self.soft = soft
        self.merge = merge
        self.grows = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_dropped = False
        self._parked: Any = None

    @property
    def is_asleep(self) -> bool:
        """Whether its caller sleeps, or has; no wake-up of it is lost then."""
        return self._parked is not None

    def sleep(self) -> None:
        """Sleep until it is done or its turn to lead, but not for long."""
        if self._parked is None:
            parked = threading.Lock()
            parked.acquire()
            self._parked = parked
        if not self.is_done:
            self._parked.acquire(timeout=LOOK_AGAIN_S)

    def wake(self) -> None:
        """Wake its caller."""
        if self._parked is not None:
            with contextlib.suppress(RuntimeError):
                self._parked.release()

    def answer(self) -> Any:  # noqa: ANN401 - what the step returned
        """What came of it. Raises what the step raised."""
        if self.error is not None:
            raise self.error
        return self.result


class LoopAsked(Asked):
    """A call of an event loop. is_told: its loop knows that it is done."""

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
            # What it raises, if anything, is for nobody: its caller is gone.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self.future
        return self.result


class Untold(set[LoopAsked]):
    """The calls that one event loop has yet to hear of. One timer looks after them all: one each is slow."""

    is_watched = False


class Group:
    """The calls of one process on one file.

    run_all: runs some in one transaction, says what came of each, and raises only what strikes its thread.
    are_stored: whether, after it was struck, these are stored, with what their steps returned; None if
    nobody knows.
    """

    def __init__(
        self,
        run_all: Callable[[list[Asked]], None],
        are_stored: Callable[[list[Asked]], bool | None],
    ) -> None:
        self._run_all = run_all
        self._are_stored = are_stored
        # In the order they came, until they are done. Only who leads takes any out.
        self._line: deque[Asked] = deque()
        self._lead = Gate()
        # How many the last transaction took.
        self._size = 1
        self._helper = Helper("ulak-commit")
        self._is_helped = False
        self._untold: dict[asyncio.AbstractEventLoop, Untold] = {}

    def call(self, asked: Asked, *, undo: Undo | None = None) -> Any:  # noqa: ANN401 - what the step returns
        """Run a step in a transaction, perhaps together with others'; in this thread, or in another's.

        undo: the step that takes back what was done for a caller that is struck meanwhile.
        """
        try:
            self._line.append(asked)
            self._give_way(asked)
            self._see_done(asked)
            return asked.answer()
        except BaseException:
            self._drop(asked, undo)
            raise

    def _give_way(self, asked: Asked) -> None:
        """Let others go first, once, where that makes one transaction of two."""
        try:
            first = self._line[0]
        except IndexError:
            return  # it is done already
        if first is not asked and first.is_asleep:
            asked.sleep()
        if not asked.is_done and len(self._line) * FEW <= self._size:
            pause(0.0)

    def _see_done(self, asked: Asked) -> None:
        while not asked.is_done:
            try:
                del self._lead.open
            except AttributeError:
                asked.sleep()
                continue
            try:
                self._run_batch()
            finally:
                self._lead.open = None
                self._wake_next()

    def _drop(self, asked: Asked, undo: Undo | None) -> None:
        """A thread was struck in its call: nobody runs that any more, or it is taken back."""
        asked.is_dropped = True
        while asked in self._line and not asked.is_done and not hasattr(self._lead, "open"):
            # Whoever leads may be running it.
            asked.sleep()
        if asked.is_done and asked.error is None and undo is not None:
            back = undo(asked.result)
            if back is not None:
                self.call(Asked(back, soft=False))

    def _run_batch(self) -> None:
        """Run who stands in line, as far as one transaction takes them; called by who has the lead."""
        # As a list first, which is one step: others join the line meanwhile.
        standing = list(self._line)
        batch = [asked for asked in standing if not (asked.is_done or asked.is_dropped)][:BATCH_MAX]
        try:
            if batch:
                self._size = len(batch)
                self._run_all(batch)
        except BaseException:
            if (are_stored := self._are_stored(batch)) is not False:
                for asked in [asked for asked in batch if not asked.is_done]:
                    if not are_stored:
                        asked.error = StorageUnavailable(
                            "the thread that wrote this together with its own call was struck; "
                            "whether it was stored is unknown: look, or repeat it under its idempotency key"
                        )
                    asked.is_done = True
            raise
        finally:
            _tell(batch)
            while self._line and (self._line[0].is_done or self._line[0].is_dropped):
                self._line.popleft()

    def _wake_next(self) -> None:
        standing = list(self._line)
        if standing and isinstance(standing[0], LoopAsked):
            self._want_helper()
        elif standing:
            standing[0].wake()

    # Calls of event loops

    async def acall(self, asked: LoopAsked, *, undo: Undo | None = None) -> Any:  # noqa: ANN401 - as `call`
        """The same for an event loop, which is never blocked; what is cancelled runs to its end all the same.

        undo: the step that takes back what was done for a caller that is cancelled meanwhile.
        """
        try:
            self._put(asked)
            return await asked.future
        except asyncio.CancelledError:
            result = await asked.outlast()
            if undo is not None and asked.error is None and (back := undo(result)) is not None:
                undoing = LoopAsked(back, soft=False)
                try:
                    self._put(undoing)
                    await undoing.outlast()
                finally:
                    self._untold_of(asked.loop).discard(undoing)
            raise
        finally:
            self._untold_of(asked.loop).discard(asked)

    def _put(self, asked: LoopAsked) -> None:
        self._line.append(asked)
        try:
            self._want_helper()
        except BaseException:
            asked.is_dropped = True
            raise
        untold = self._untold_of(asked.loop)
        untold.add(asked)
        if not untold.is_watched:
            asked.loop.call_later(LOOK_AGAIN_S, self._look_again, asked.loop)
            untold.is_watched = True

    def _untold_of(self, loop: asyncio.AbstractEventLoop) -> Untold:
        untold = self._untold.get(loop)
        if untold is None:
            for other in list(self._untold):
                if other.is_closed():
                    self._untold.pop(other, None)
            untold = self._untold[loop] = Untold()
        return untold

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        """As a thread does now and then: whoever was to tell, or to lead, may have been struck."""
        untold = self._untold_of(loop)
        if not untold:
            del self._untold[loop]
            return
        loop.call_later(LOOK_AGAIN_S, self._look_again, loop)
        _resolve([asked for asked in untold if asked.is_done and not asked.is_told])
        if any(not asked.is_done for asked in untold) and hasattr(self._lead, "open"):
            self._is_helped = False
            with contextlib.suppress(RuntimeError):
                self._want_helper()

    def _want_helper(self) -> None:
        if not self._is_helped:
            self._is_helped = True
            try:
                self._helper.ask(self._help)
            except BaseException:
                self._is_helped = False
                raise

    def _help(self) -> None:
        """Lead as long as there are calls of event loops, in the store's own thread."""
        mine = Asked(_nothing, soft=True)
        while True:
            # Before the look: whoever comes after it asks again.
            self._is_helped = False
            if not any(isinstance(asked, LoopAsked) for asked in list(self._line)):
                return
            mine.is_done = False
            self._line.append(mine)
            self._see_done(mine)

    def close(self) -> None:
        """Wait until nobody is led any more. Nobody may call now."""
        self._helper.close()


def _nothing(_: object) -> None:
    """What the helper asks for itself."""


def _tell(batch: Iterable[Asked]) -> None:
    """Wake whoever waits for these; also when a strike falls into the midst of it."""
    of_loop: dict[asyncio.AbstractEventLoop, list[LoopAsked]] = {}
    for asked in batch:
        if not asked.is_done:
            continue
        if isinstance(asked, LoopAsked):
            of_loop.setdefault(asked.loop, []).append(asked)
        else:
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
