"""What the processes of a trial do: produce, or work, in a pool or by hand, until they are told to leave."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.history import History, Pen, Recorded
from tests.support.history.lines import Line, Told
from tests.support.history.recorder import is_recorded
from tests.support.processes.board import ALLOWED, ASKED, DONE, STOP, TOLD, Board
from tests.support.stores import stand_before
from ulak import AsyncQueue, Backoff, Context, Full, JobOptions, NewJob, Outcome, Queue, Reject, Retry, Snooze

QUEUE = "mail"
POOL_SIZE = 4
_LOOK_S = 0.01
_IDLE_S = 0.02
_LATE_S = 0.002
_BATCH = 10
_KEYS = 50


class Plan:
    """What all processes of a trial know.

    slow_s: how long the slowest jobs take. url: the store's; "" for a file in `place`, with these `options`.
    before: runs in each process before it opens the store; what a negative control breaks.
    """

    def __init__(
        self,
        place: Path,
        board: Board,
        *,
        seed: int,
        lease_s: float,
        slow_s: float,
        capacity: int,
        jobs_each: int,
        before: Callable[[], None] | None = None,
        options: str = "",
        url: str = "",
    ) -> None:
        self.place = place
        self.url = url or f"sqlite:///{place / 'jobs.db'}{options}"
        self.board = board
        self.seed = seed
        self.lease_s = lease_s
        self.slow_s = slow_s
        self.capacity = capacity
        self.jobs_each = jobs_each
        self.before = before

    def history_of(self, name: str) -> Path:
        """Where a process writes what it was told."""
        return self.place / f"{name}.history"

    def queue(self) -> Queue:
        """The queue all of them use."""
        return Queue(self.url, QUEUE, **self._settings)

    def recorded_queue(self, name: str) -> Queue:
        """The same, each call of which is written down before it is made and once it is answered."""
        queue = self.queue()
        self._record(queue, name)
        return queue

    def recorded_async_queue(self, name: str) -> AsyncQueue:
        """The same, for an event loop."""
        queue = AsyncQueue(self.url, QUEUE, **self._settings)
        self._record(queue, name)
        return queue

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "max_attempts": 30,
            "visibility_timeout": self.lease_s,
            "capacity": self.capacity,
            "backoff": Backoff(base=0.01, cap=0.1),
        }

    def _record(self, queue: Queue | AsyncQueue, name: str) -> None:
        if self.before is not None:
            self.before()
        path = self.history_of(name)
        history = Late(path) if name.startswith("producer") else History(path)
        pen = Pen(history, time.monotonic)
        stand_before(
            queue, lambda store: RecordedBoth(store, pen, lambda: f"{name}/{threading.current_thread().name}")
        )


class RecordedBoth(Recorded):
    """Writes the calls of event loops too."""

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An event loop's call."""
        if not is_recorded(name):
            return await self._store.acall(name, args, kwargs)
        who = self._who()
        number = self._pen.asked(who, name, args, kwargs)
        try:
            answer = await self._store.acall(name, args, kwargs)
        except BaseException as error:
            self._pen.told(who, number, name, error)
            raise
        self._pen.told(who, number, name, answer)
        return answer


class Late(History):
    """Often writes late what a call was told, so that many a kill comes between the two."""

    def add(self, line: Line) -> None:
        """Write a line."""
        if isinstance(line, Told) and line.n % 2:
            time.sleep(_LATE_S)
        super().add(line)


def _sort_of(mark: bytes) -> int:
    """What is special about a job, the same in whatever process it runs: a number below 100."""
    return zlib.crc32(mark) % 100


def _time_of(sort: int, slow_s: float, draw: random.Random) -> float:
    return draw.uniform(0.0, slow_s) if sort >= 75 else 0.0


def _end_as_planned(sort: int, context: Context) -> None:
    """Raise what this job is to raise, if anything."""
    if sort < 3 and context.attempt == 1:
        raise RuntimeError("as planned")
    if sort == 3 and context.attempt == 1:
        raise Retry(after=0.01)
    if sort == 4 and context.delivery == 1:
        raise Snooze(0.01)
    if sort == 5:
        raise Reject("as planned")


def work_in_pool(plan: Plan, name: str, slot: int) -> None:
    """Run jobs by a pool's threads."""
    draw = random.Random(f"{plan.seed} {name}")

    def handler(payload: bytes, context: Context) -> None:
        sort = _sort_of(payload)
        time.sleep(_time_of(sort, plan.slow_s, draw))
        # It need not be exact; it paces the trial.
        plan.board.put(slot, DONE, plan.board.of(slot, DONE) + 1)
        _end_as_planned(sort, context)

    with plan.recorded_queue(name) as queue, queue.workers(handler, count=POOL_SIZE):
        while not plan.board[STOP]:
            time.sleep(_LOOK_S)


def work_on_loop(plan: Plan, name: str, slot: int) -> None:
    """Run jobs by a pool of an event loop."""
    draw = random.Random(f"{plan.seed} {name}")

    async def handler(payload: bytes, context: Context) -> None:
        sort = _sort_of(payload)
        await asyncio.sleep(_time_of(sort, plan.slow_s, draw))
        plan.board.put(slot, DONE, plan.board.of(slot, DONE) + 1)
        _end_as_planned(sort, context)

    async def work() -> None:
        async with (
            plan.recorded_async_queue(name) as queue,
            queue.workers(handler, count=POOL_SIZE),
        ):
            while not plan.board[STOP]:  # noqa: ASYNC110 - it is another process that sets it
                await asyncio.sleep(_LOOK_S)

    asyncio.run(work())


def work_by_hand(plan: Plan, name: str, slot: int) -> None:
    """Run jobs by plain calls: deliver, perhaps extend, then ack, nack or release."""
    draw = random.Random(f"{plan.seed} {name}")
    done = plan.board.of(slot, DONE)
    with plan.recorded_queue(name) as queue:
        while not plan.board[STOP]:
            leases = queue.deliver_many(draw.choice((1, 1, 1, 5)), timeout=_IDLE_S)
            queue.tick_timeouts()
            good = []
            for lease in leases:
                sort = _sort_of(lease.body)
                time.sleep(_time_of(sort, plan.slow_s, draw))
                if sort >= 90:
                    queue.extend(lease, plan.lease_s)
                if sort < 4 and lease.attempt == 1:
                    queue.nack(lease, error="as planned")
                elif sort == 4 and lease.delivery == 1:
                    queue.release(lease)
                else:
                    good.append(lease)
            outcomes = queue.ack_many(good) if len(good) > 1 else [queue.ack(lease) for lease in good]
            done += outcomes.count(Outcome.OK)
            plan.board.put(slot, DONE, done)


def produce(plan: Plan, name: str, slot: int) -> None:
    """Enqueue this producer's share of the jobs, going on where a killed predecessor stopped.

    What its last call was told is unknown then: it is repeated under its idempotency key, if it had one.
    """
    board = plan.board
    with plan.recorded_queue(name) as queue:
        number = board.of(slot, TOLD)
        if board.of(slot, ASKED) > number and not _has_key(slot, number):
            number += _size(slot, number)
            board.put(slot, TOLD, number)
        while number < plan.jobs_each:
            while number >= board[ALLOWED]:
                time.sleep(_LOOK_S)
            board.put(slot, ASKED, number + 1)
            size = _size(slot, number)
            has_key = _has_key(slot, number)
            _enqueue(queue, [_job(slot, number + nth, has_key=has_key) for nth in range(size)])
            number += size
            board.put(slot, TOLD, number)


def _way(slot: int, number: int) -> int:
    return zlib.crc32(f"{slot} {number}".encode())


def _has_key(slot: int, number: int) -> bool:
    return _way(slot, number) % 3 > 0


def _size(slot: int, number: int) -> int:
    return _BATCH if _way(slot, number) % 12 > 9 else 1


def _job(slot: int, number: int, *, has_key: bool) -> NewJob:
    """The job of this number; the same, whoever makes it."""
    mark = f"p{slot}-{number}"
    way = _way(slot, number)
    return NewJob(
        mark.encode(),
        priority=9 if way % 50 == 0 else 0,
        delay=0.02 if way % 50 == 1 else None,
        unique_key=f"u{way % _KEYS}" if way % 97 == 2 else None,
        idempotency_key=mark if has_key else None,
    )


def _enqueue(queue: Queue, jobs: list[NewJob]) -> None:
    if len(jobs) > 1:
        queue.enqueue_many(jobs)
        return
    [job] = jobs
    options: JobOptions = {
        "delay": job.delay,
        "unique_key": job.unique_key,
        "idempotency_key": job.idempotency_key,
    }
    if job.priority or job.delay:
        while isinstance(queue.try_enqueue(job.payload, job.priority, **options), Full):
            time.sleep(_LOOK_S)
    else:
        queue.enqueue(job.payload, job.priority, **options)
