"""What carries the workers of a pool: threads for `def` handlers, tasks of an event loop for `async def`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

from ulak.context import Context
from ulak.core import rules
from ulak.core.flows import Flow
from ulak.core.job import Cause, Done, Lease
from ulak.storage.drive import Edge, arun, run
from ulak.worker import fresh, spare
from ulak.worker.execute import Ending, Runs
from ulak.worker.pulse import Pulse
from ulak.worker.runtime import Crew
from ulak.worker.seat import Left, Seat

_log = logging.getLogger("ulak")

BURST_MAX = 256
"""How many jobs a worker runs by the short way before it looks around: at the log's level, say."""

SHARE_MAX = 64
"""How many of them a task runs before it lets the others of its event loop run."""


class ThreadHands:
    """One thread a worker; it claims, runs and settles by itself."""

    def __init__(self, edge: Edge, crew: Crew, handler: Runs) -> None:
        self._edge = edge
        self._crew = crew
        self._handler = handler
        self._now = edge.clock.interval
        self._threads: dict[int, threading.Thread] = {}
        self._copy = fresh.of_threads().copy
        self.pulse: Pulse | None = None

    def start(self, seat: Seat) -> None:
        """Start a thread for this seat."""
        name = f"ulak-{self._crew.label}-{seat.number}"
        # A daemon: a handler that never returns must not keep the process from ending.
        thread = threading.Thread(target=self._main, args=(seat,), name=name, daemon=True)
        self._threads[seat.number] = thread
        thread.start()

    def _main(self, seat: Seat) -> None:
        try:
            run(self._edge, self._crew.work(seat, self))
        except BaseException as error:  # noqa: BLE001 - whatever killed this thread, its seat must be taken again
            if isinstance(error, MemoryError):
                spare.MEMORY.was_short = True
            tell_death(error, seat, self._crew.label)
            if self._crew.taking:
                return
        self._crew.seat_left(seat)

    def handle(self, seat: Seat, lease: Lease, context: Context) -> Ending:
        """Call the handler in this thread."""
        began = self._now()
        ending = self._copy().run(self._handler.run, lease, context)
        seat.run_s = self._now() - began
        return ending

    def burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> list[Left]:
        """Run jobs in this thread, one after the other."""
        crew, copy, run, draw = self._crew, self._copy, self._handler.run, self._edge.draw
        seat.has_more = False
        if (quick := crew.quick) is None or crew.is_telling:
            return left
        seat.has_more = True
        if not crew.finish_quickly(left, draw):
            return left
        for _ in range(BURST_MAX):
            taken = crew.take_quickly(seat, begin)
            if taken is None:
                seat.has_more = False
                break
            lease, context = taken
            if not isinstance(context, Context):
                return [(lease, context)]
            ending = copy().run(run, lease, context)
            if type(ending) is Done and quick.finish(lease, _result=ending.result) is not None:
                continue
            if not crew.end_quickly(lease, ending, draw):
                return [(lease, ending)]
        return []

    def open(self) -> None:
        """Nothing to open: each seat starts its own thread."""

    def lost(self) -> list[Seat]:
        """Seats whose thread died without leaving."""
        return [
            seat
            for seat in self._crew.seats
            if not seat.left and seat.number in self._threads and not self._threads[seat.number].is_alive()
        ]

    def abandon(self) -> None:
        """A thread cannot be stopped from outside; what it settles later is stale."""


class LoopHands:
    """A fixed set of tasks on one event loop: the caller's or, if None, one in a thread of its own."""

    def __init__(
        self, edge: Edge, crew: Crew, handler: Runs, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._edge = edge
        self._crew = crew
        self._handler = handler
        self._now = edge.clock.interval
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._owns_loop = loop is None
        self._loop = loop or asyncio.new_event_loop()
        self._all_left = asyncio.Event()
        self._copy = contextvars.copy_context().copy
        self.pulse: Pulse | None = Pulse(lambda: self._loop)

    def open(self) -> None:
        """Start the loop's own thread, if it has one."""
        if self._owns_loop:
            threading.Thread(target=self._main, name=f"ulak-{self._crew.label}-loop", daemon=True).start()

    def _main(self) -> None:
        # Leaving the runner cancels what handlers left running on the loop, and closes it.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            run_through(runner.get_loop(), self._all_left)

    def start(self, seat: Seat) -> None:
        """Start a task for this seat."""
        self._tasks.pop(seat.number, None)
        try:
            self._loop.call_soon_threadsafe(self._start, seat)
        except RuntimeError:
            assert self._loop.is_closed()
            self._crew.seat_left(seat)

    def _start(self, seat: Seat) -> None:
        name = f"ulak-{self._crew.label}-{seat.number}"
        self._tasks[seat.number] = self._loop.create_task(self._work(seat), name=name)

    async def _work(self, seat: Seat) -> None:
        try:
            await arun(self._edge, self._crew.work(seat, self))
        except BaseException as error:  # noqa: BLE001 - as in a thread
            if isinstance(error, MemoryError):
                spare.MEMORY.was_short = True
            if not isinstance(error, asyncio.CancelledError):
                tell_death(error, seat, self._crew.label)
            if self._crew.taking:
                return
        if seat.asked_to_end and self._crew.taking:
            return
        self._crew.seat_left(seat)
        self._let_loop_go()

    def _let_loop_go(self) -> None:
        """End the loop's own thread, once nobody will work there again."""
        if self._crew.size == 0 and not self._crew.taking:
            self._all_left.set()

    async def handle(self, seat: Seat, lease: Lease, context: Context) -> Ending:
        """Await the handler in this task."""
        began = self._now()
        ending = await fresh.awaited_in(self._copy(), self._handler.arun(lease, context))
        seat.run_s = self._now() - began
        return self._unless_cancelled(seat, ending)

    def _unless_cancelled(self, seat: Seat, ending: Ending) -> Ending:
        task = asyncio.current_task()
        # Whoever cancels the task wants it to end, and a loop that is being closed waits for that.
        seat.asked_to_end = task is not None and task.cancelling() > 0
        if seat.asked_to_end and not self._crew.taking:
            return rules.give_back(Cause.SHUTDOWN)
        return ending

    async def burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> list[Left]:
        """Run jobs in this task, one after the other."""
        crew, copy, arun, awaited_in = self._crew, self._copy, self._handler.arun, fresh.awaited_in
        draw = self._edge.draw
        seat.has_more = False
        if (quick := crew.quick) is None or crew.is_telling:
            return left
        seat.has_more = True
        if not crew.finish_quickly(left, draw):
            return left
        for number in range(1, BURST_MAX + 1):
            # Handlers that never wait must not keep the loop from everybody else.
            if number % SHARE_MAX == 0:
                await asyncio.sleep(0)
            taken = crew.take_quickly(seat, begin)
            if taken is None:
                seat.has_more = False
                break
            lease, context = taken
            if not isinstance(context, Context):
                return [(lease, context)]
            ending = self._unless_cancelled(seat, await awaited_in(copy(), arun(lease, context)))
            if type(ending) is Done and quick.finish(lease, _result=ending.result) is not None:
                continue
            if not crew.end_quickly(lease, ending, draw):
                return [(lease, ending)]
        return []

    def lost(self) -> list[Seat]:
        """Seats whose task died without leaving."""
        seats = [seat for seat in self._crew.seats if not seat.left]
        if self._loop.is_closed():
            self._close_unbegun()
            return seats
        return [seat for seat in seats if seat.number in self._tasks and self._tasks[seat.number].done()]

    def abandon(self) -> None:
        """Cancel what still runs; what ignores that is left behind, and what it settles later is stale."""
        try:
            self._loop.call_soon_threadsafe(self._cancel_all)
        except RuntimeError:
            # The loop is closed, so nothing runs there any more.
            self._close_unbegun()

    def _close_unbegun(self) -> None:
        """Close what a loop that was closed under its tasks never began to run, since it never will."""
        for task in self._tasks.values():
            coroutine = cast("Coroutine[Any, Any, None]", task.get_coro())
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def _cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._let_loop_go()


def tell_death(error: BaseException, seat: Seat, label: str) -> None:
    """Log of what a worker died."""
    if isinstance(error, MemoryError):
        with contextlib.suppress(MemoryError):
            _log.error("worker %d of queue %s died: there was no memory left", seat.number, label)
    else:
        _log.error("worker %d of queue %s died", seat.number, label, exc_info=error)


def run_through(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Run the loop until this is set, whatever strikes it.

    asyncio leaves a loop when a task of it raises SystemExit; and a job may cancel all tasks that there are.
    """
    while not end.is_set():
        try:
            loop.run_until_complete(end.wait())
        except BaseException as error:  # noqa: BLE001 - whatever struck this thread, others run on its loop
            _log.warning("a pool's event loop was struck by %s, and goes on", type(error).__name__)


AnyHands = ThreadHands | LoopHands


def replace_lost(crew: Crew, hands: AnyHands) -> Flow[None]:
    """Give every seat whose worker died a new one, and settle what the dead one held.

    Workers that left because nothing was open come back when something is: a job was redriven, say. Nobody
    comes back where there is no memory: a thread that finds none hangs who starts it, and the process ends.
    """
    for seat in hands.lost():
        yield from crew.lost(seat)
        seat.asked_to_end = False
        if crew.taking and not spare.is_short():
            hands.start(seat)
        else:
            crew.seat_left(seat)
    if (
        crew.taking
        and not spare.is_short()
        and crew.size < len(crew.seats)
        and not (yield from crew.is_over())
    ):
        for seat in crew.seats:
            if seat.left:
                seat.left = False
                hands.start(seat)
