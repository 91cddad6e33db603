"""The pools users hold: one for threads, one for an event loop. Both only run the flows of their crew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ulak.clock import SYSTEM
from ulak.context import handling
from ulak.core.backoff import Backoff
from ulak.core.flows import Do, Flow, Handling, ask
from ulak.core.job import Lease
from ulak.core.store import Change, Store
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError, Closed, StorageGone, WouldDeadlock
from ulak.events import Events
from ulak.local import LocalStore
from ulak.storage.drive import arun, run
from ulak.worker import spare
from ulak.worker.execute import Runs
from ulak.worker.hands import AnyHands, LoopHands, ThreadHands, replace_lost
from ulak.worker.keeper import Duty, Keeper
from ulak.worker.overseer import Overseer
from ulak.worker.record import Recorder
from ulak.worker.report import PoolMetrics, Report, about_process
from ulak.worker.runtime import Crew

_log = logging.getLogger("ulak")

COUNT_MAX = 10_000
LEASE_MIN_S = 0.05
KEEPER_WAIT_S = 1.0


class BasePool:
    """What both pools share: their crew, how it starts, how it ends."""

    _crew_type = Crew

    def __init__(
        self,
        opened: LocalStore,
        queues: Sequence[str],
        handler: Runs,
        *,
        worker: str,
        lease_s: float,
        count: int,
        grace: Duration,
        backoff: Backoff | None = None,
        turns: Mapping[str, int] | None = None,
        duties: Sequence[Duty] = (),
        has_looked: Callable[[], bool] = lambda: True,
        events: Events | None = None,
        jobs_max: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        _check(count, lease_s)
        self._opened = opened
        self._edge = edge = opened.edge
        self._handler = handler
        self._backoff = backoff
        self._duties = duties if recorder is None else [*duties, recorder.duty]
        self._last = None if recorder is None else recorder.record
        self._grace_s = seconds(grace, name="grace")
        self._crew = self._crew_type(
            edge.store,
            [opened.queue(queue) for queue in queues],
            worker=worker,
            count=count,
            lease_s=lease_s,
            known=lambda: handler.tasks,
            turns=turns,
            told=events,
            jobs_max=jobs_max,
            has_looked=has_looked,
            halt=handler.stop,
            recorder=recorder,
        )
        self._hands: AnyHands | None = None
        self._first_end = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._overseer: Overseer | None = None

    @property
    def worker(self) -> str:
        """What its workers are called in the store, in the history of jobs, and in events."""
        return self._crew.worker

    @property
    def size(self) -> int:
        """How many workers the pool has now."""
        return self._crew.size if self._hands is not None else 0

    @property
    def is_spent(self) -> bool:
        """Whether the last job that it may run has begun."""
        return self._crew.is_spent

    @property
    def late(self) -> list[Lease]:
        """Jobs that go on though their timeout is over; until they return their workers take no other."""
        return [] if self._overseer is None else self._overseer.late

    @property
    def dead(self) -> int:
        """How many of its threads have died; they are replaced within two seconds, if that can be done."""
        hands, keeper = self._hands, self._keeper
        if self._crew.stopped or not isinstance(hands, ThreadHands):
            return 0
        return len(hands.lost()) + (keeper is not None and not keeper.is_alive())

    @property
    def takes_jobs(self) -> bool:
        """Whether its workers were started, and take new jobs."""
        return self._hands is not None and self._crew.taking

    @property
    def silent_s(self) -> float | None:
        """How long ago its keeper last went its round, in seconds; None before it first did."""
        looked_at = None if self._overseer is None else self._overseer.looked_at
        return None if looked_at is None else self._edge.clock.interval() - looked_at

    @property
    def store_gone(self) -> StorageGone | None:
        """Why its workers have ended, if that is since their store was removed or replaced."""
        return self._crew.store_gone

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Flow[None]:
        if self._hands is not None:
            raise Closed("this pool was started already; a pool runs once, make a new one")
        # The store stays open while the pool runs, whoever closes a queue on it meanwhile.
        self._opened.join()
        try:
            yield from self._prepare()
            hands = self._hands_on(loop)
        except BaseException:
            self._opened.close_handle()
            raise
        self._hands = hands
        try:
            self._start_all(hands)
        except BaseException:
            # Also when the system gives no more threads: what was started must not go on alone.
            yield from self._end(self._crew.shutdown(0.0, hands))
            raise

    def _prepare(self) -> Flow[None]:
        # Jobs of tasks have policies of their own.
        if None in self._handler.tasks:
            yield from self._store_policy()
        yield from self._crew.tally.begin()

    def _hands_on(self, loop: asyncio.AbstractEventLoop | None) -> AnyHands:
        # On a pool's loop an `async def` handler runs itself; threads have it run on the caller's.
        self._handler.open(None if self._handler.is_async else loop)
        if self._handler.is_async:
            return LoopHands(self._edge, self._crew, self._handler, loop)
        return ThreadHands(self._edge, self._crew, self._handler)

    def _end(self, ending: Flow[Report]) -> Flow[Report]:
        """Run a drain or a shutdown; the first one to end lets go of the store."""
        try:
            return (yield from ending)
        finally:
            if self._crew.stopped and self._first_end.acquire(blocking=False):
                yield Do(self._see_keeper_off)
                self._handler.close()
                self._opened.close_handle()

    def _start_all(self, hands: AnyHands) -> None:
        hands.open()
        for seat in self._crew.seats:
            hands.start(seat)
        pulses = [pulse for pulse in (hands.pulse, self._handler.pulse) if pulse is not None]
        self._overseer = Overseer(self._crew, pulses)
        duties = [*self._duties, self._overseer.duty]
        about = about_process(self._edge.clock)
        # Of a clock that somebody holds no round is put off: it may stand still then.
        rests = self._edge.clock is SYSTEM
        keeper = Keeper(
            self._crew, lambda: replace_lost(self._crew, hands), duties, about, self._last, rests=rests
        )
        name = f"ulak-{self._crew.label}-keeper"
        thread = threading.Thread(target=self._keep, args=(keeper,), name=name, daemon=True)
        thread.start()
        self._keeper = thread

    def _see_keeper_off(self) -> Any:  # noqa: ANN401 - what `Do` of this pool's driver takes
        """Let the keeper do its last duty, which needs the store; not for long, should the store be away."""
        if self._keeper is not None:
            self._keeper.join(KEEPER_WAIT_S)

    def _keep(self, keeper: Keeper) -> None:
        while not self._crew.stopped:
            try:
                run(self._edge, keeper.keep())
            except BaseException as error:  # noqa: BLE001 - whatever struck this thread, nobody else renews the leases
                if isinstance(error, MemoryError):
                    spare.MEMORY.was_short = True
                with contextlib.suppress(Exception):  # there may be no memory to say so
                    _log.exception("the keeper of queue %s was struck, and goes on", self._crew.label)

    def _store_policy(self) -> Flow[None]:
        """Store the backoff as the queue's, if it has none."""
        settings = yield from ask(Store.queues)
        for queue in self._crew.queues:
            stored = settings[queue].backoff
            if stored is None:
                yield from ask(Store.configure, queue, Change(backoff=self._backoff or Backoff()))
            elif self._backoff is not None and stored != self._backoff:
                _log.warning(
                    "queue %s has %s, so %s is not used; change it with q.configure(backoff=)",
                    queue,
                    stored,
                    self._backoff,
                )

    def _refuse_in_handler(self, what: str) -> None:
        uid = self._edge.store.uid
        for queue in self._crew.queues:
            if handling(queue, uid) is Handling.THIS_QUEUE:
                raise WouldDeadlock(
                    f"{what} in a handler of queue {queue!r} would wait for that handler itself\n"
                    f"  set an event in the handler, and end the pool where it was started"
                )

    def _drain(self, timeout: Duration | None) -> Flow[Report]:
        self._refuse_in_handler("drain()")
        timeout_s = None if timeout is None else seconds(timeout, name="timeout")
        return (yield from self._end(self._crew.drain(timeout_s, self._grace_s, self._started())))

    def _shutdown(self, grace: Duration | None) -> Flow[Report]:
        self._refuse_in_handler("shutdown()")
        grace_s = self._grace_s if grace is None else seconds(grace, name="grace")
        return (yield from self._end(self._crew.shutdown(grace_s, self._started())))

    def _leave(self, error: BaseException | None) -> Flow[Report]:
        """Drain if the producers have finished, else shut down; shut down after an exception."""
        if error is None and self._crew.finished and self._crew.taking:
            return (yield from self._drain(None))
        return (yield from self._shutdown(None))

    def _join(self, timeout: Duration | None) -> Flow[bool]:
        self._refuse_in_handler("join()")
        self._started()
        timeout_s = None if timeout is None else seconds(timeout, name="timeout")
        return (yield from self._crew.left(timeout_s))

    def _metrics(self) -> Flow[PoolMetrics]:
        self._started()
        return (yield from self._crew.tally.metrics())

    def _started(self) -> AnyHands:
        if self._hands is None:
            raise Closed("this pool has not started; use it as a context manager, or call start()")
        return self._hands

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self._crew.label!r}, size={self.size})"


def _check(count: int, lease_s: float) -> None:
    """Raises ArgumentError for what no pool can have."""
    if type(count) is not int or not 1 <= count <= COUNT_MAX:
        raise ArgumentError(f"count is the number of workers: an int from 1 to {COUNT_MAX:,}")
    if lease_s < LEASE_MIN_S:
        raise ArgumentError(
            f"a pool renews its leases at a third of the visibility timeout, which must be at least "
            f"{LEASE_MIN_S} s for that; it is {lease_s:g} s"
        )


class Pool(BasePool):
    """Workers for threads. Made by `Queue.workers` or `App.workers`; a context manager.

    Leaving the `with` drains if the queues' producers have finished, else shuts down within the grace; after
    an exception it always shuts down. `size` stays what it is whatever handlers raise.
    """

    def start(self) -> None:
        """Start the workers."""
        run(self._edge, self._begin(None))

    def drain(self, timeout: Duration | None = None) -> Report:
        """Run until the producers have finished and nothing is left that could run, then stop.

        timeout: after it, stop at once and hand back what runs, unspent (None: no limit). Held jobs, and
        jobs of a paused queue, do not keep a drain; scheduled ones do.
        """
        return run(self._edge, self._drain(timeout))

    def shutdown(self, grace: Duration | None = None) -> Report:
        """Take nothing new, let running jobs finish, and hand back the rest unspent.

        grace: how long they may take (None: the pool's own). Their handlers may go on after it, but what
        they settle is stale.
        """
        return run(self._edge, self._shutdown(grace))

    def join(self, timeout: Duration | None = None) -> bool:
        """Wait until the workers have left by themselves, at most so long; whether they have.

        They leave once every producer has finished and nothing is open, after the last job that they may
        run, or since their store is gone. End the pool by `drain` or `shutdown` all the same.
        """
        return run(self._edge, self._join(timeout))

    def metrics(self) -> PoolMetrics:
        """What happened in the queue since the pool started."""
        return run(self._edge, self._metrics())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._edge, self._leave(error))
        except BaseException:
            self.shutdown(0)
            raise


class AsyncPool(BasePool):
    """Workers for an event loop. Made by `AsyncQueue.workers` or `App.aworkers`; an async context manager.

    `async def` handlers run on the caller's loop, `def` handlers on threads. Else as `Pool`.
    """

    def _see_keeper_off(self) -> Any:  # noqa: ANN401 - a coroutine
        return asyncio.to_thread(super()._see_keeper_off)

    async def start(self) -> None:
        """Start the workers."""
        await arun(self._edge, self._begin(asyncio.get_running_loop()))

    async def drain(self, timeout: Duration | None = None) -> Report:
        """As `Pool.drain`."""
        return await arun(self._edge, self._drain(timeout))

    async def shutdown(self, grace: Duration | None = None) -> Report:
        """As `Pool.shutdown`."""
        return await arun(self._edge, self._shutdown(grace))

    async def join(self, timeout: Duration | None = None) -> bool:
        """As `Pool.join`."""
        return await arun(self._edge, self._join(timeout))

    async def metrics(self) -> PoolMetrics:
        """As `Pool.metrics`."""
        return await arun(self._edge, self._metrics())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await arun(self._edge, self._leave(error))
        except BaseException:
            await self.shutdown(0)
            raise
