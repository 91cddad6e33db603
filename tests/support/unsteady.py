"""Producers and workers on a server that is unsteady; what all of them were told is judged in the end.

Each of them has a store of its own, as processes do, but all are threads of one process, so that a fault
comes to all at once. What a caller was not told for sure it repeats where that is safe, as a program would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.support.history import History, Pen, Verdict, judge, merged, stored_lines
from tests.support.processes.roles import RecordedBoth
from tests.support.stores import stand_before
from ulak import (
    AsyncQueue,
    Backoff,
    Context,
    Full,
    Keep,
    Lease,
    Queue,
    Reject,
    Retention,
    StorageBusy,
    StorageUnavailable,
)

QUEUE = "mail"
CAPACITY = 100
LEASE_S = 3.0
"""Short: what was claimed by a call whose answer was lost comes again after it."""
BACK_S = 5.0
"""So long after a fault at most work has to go on."""
REST_S = 90.0
_SLACK_S = 0.05
_LOOK_S = 0.01
_LATER_S = 0.05

R = TypeVar("R")


class Outcome(msgspec.Struct):
    """What came of it. longest_s: the longest that nothing was done after a fault."""

    verdict: Verdict
    faults: int
    took_s: float
    longest_s: float
    problems: list[str]


class Unsteady:
    """One run. url: of the store, by way of whatever makes it unsteady; sure_url: of the same, past that."""

    def __init__(self, place: Path, url: str, sure_url: str, *, seed: int) -> None:
        self._place = place
        self._url = url
        self._sure_url = sure_url
        self._seed = seed
        self._ends = threading.Event()
        self._ready = threading.Barrier(len(_ROLES) + 1)
        self._errors: list[str] = []
        self._done = [0] * len(_ROLES)
        self._names: list[str] = []

    def run(self, faults: int, strike: Callable[[random.Random], None], heal: Callable[[], None]) -> Outcome:
        """Work while it is struck so often; then wait until all is done, and judge."""
        start = time.monotonic()
        with Queue(self._sure_url, QUEUE, **self._settings) as sure:
            sure.counts()
            threads = [
                threading.Thread(target=self._role, args=(role, slot), name=role.__name__, daemon=True)
                for slot, role in enumerate(_ROLES)
            ]
            for thread in threads:
                thread.start()
            self.ready()
            longest_s = self._strike(faults, strike)
            heal()
            self._ends.set()
            self._await(lambda: not any(t.is_alive() for t in threads if t.name.startswith("produce")))
            self._await(lambda: sure.counts().open == 0)
            self._done[-1] = -1
            for thread in threads:
                thread.join(REST_S)
            self._errors += [f"{thread.name} does not end" for thread in threads if thread.is_alive()]
            stored = list(stored_lines(sure._open().edge.store, [QUEUE]))
        told = merged(self._place / f"{name}.history" for name in self._names)
        verdict = judge([*told, *stored], capacity={QUEUE: CAPACITY}, slack_s=_SLACK_S)
        return Outcome(verdict, faults, time.monotonic() - start, longest_s, self._errors)

    def _strike(self, faults: int, strike: Callable[[random.Random], None]) -> float:
        """Strike, again once something has been done; the longest that it took."""
        draw = random.Random(self._seed)
        longest_s = 0.0
        for number in range(faults):
            strike(draw)
            done, struck_at = sum(self._done), time.monotonic()
            while sum(self._done) == done:
                if time.monotonic() > struck_at + 4 * BACK_S:
                    self._errors.append(f"fault {number}: nothing was done for {4 * BACK_S:g} s")
                    return longest_s
                time.sleep(_LOOK_S)
            longest_s = max(longest_s, time.monotonic() - struck_at)
        return longest_s

    def _await(self, fact: Callable[[], object]) -> None:
        until = time.monotonic() + REST_S
        while not fact():
            if time.monotonic() > until:
                self._errors.append(f"what was to happen did not within {REST_S:g} s")
                return
            time.sleep(_LATER_S)

    # What the roles use

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "capacity": CAPACITY,
            "visibility_timeout": LEASE_S,
            "max_attempts": 1_000,
            "backoff": Backoff(base=0.01, cap=0.05),
            # The judge looks at the end for all that ever was.
            "retention": Retention(succeeded=Keep(10_000_000, 86_400.0)),
        }

    @property
    def is_over(self) -> bool:
        """Whether all work is done."""
        return self._done[-1] < 0

    @property
    def ends(self) -> bool:
        """Whether no more jobs are to be made."""
        return self._ends.is_set()

    def ready(self) -> None:
        """Wait until all are at work: a program that is started while its server is away says so and ends."""
        self._ready.wait(REST_S)

    def did(self, slot: int) -> None:
        """Something was done."""
        if not self.is_over:
            self._done[slot] += 1

    @contextlib.contextmanager
    def queue(self, name: str) -> Iterator[Queue]:
        """A handle on a store of its own; what is asked and told there is written down."""
        url = f"{self._url}{'&' if '?' in self._url else '?'}application_name={name}"
        queue = repeated(lambda: _opened(Queue(url, QUEUE, **self._settings)))
        try:
            self.record(queue, name)
            yield queue
        finally:
            with contextlib.suppress(StorageUnavailable):
                queue.close()

    def async_queue(self, name: str) -> AsyncQueue:
        """The same for an event loop."""
        return AsyncQueue(f"{self._url}&application_name={name}", QUEUE, **self._settings)

    def record(self, queue: Queue | AsyncQueue, name: str) -> None:
        """Write down what is asked and told by way of this handle."""
        self._names.append(name)
        pen = Pen(History(self._place / f"{name}.history"), time.monotonic)
        stand_before(
            queue, lambda store: RecordedBoth(store, pen, lambda: f"{name}/{threading.current_thread().name}")
        )

    def _role(self, role: Callable[[Unsteady, str, int], None], slot: int) -> None:
        try:
            role(self, f"{role.__name__}{slot}", slot)
        except BaseException as error:  # noqa: BLE001 - it is told in the end
            self._errors.append(f"{role.__name__} ended: {type(error).__name__}: {str(error)[:300]}")


def _opened(queue: Queue) -> Queue:
    queue.counts()
    return queue


def repeated(call: Callable[[], R]) -> R:
    """Make a call again until its outcome is known: one that may be repeated."""
    while True:
        with contextlib.suppress(StorageUnavailable, StorageBusy):
            return call()
        time.sleep(_LOOK_S)


def _sort(payload: bytes) -> int:
    return zlib.crc32(payload) % 100


def produce(run: Unsteady, name: str, slot: int) -> None:
    """Enqueue jobs: most under a key, so that what is not known is repeated; the rest once."""
    number = 0
    with run.queue(name) as q:
        run.ready()
        while not run.ends:
            number += 1
            mark = f"{name}-{number}"
            if _sort(mark.encode()) < 20:
                with contextlib.suppress(StorageUnavailable, StorageBusy):
                    q.enqueue(mark.encode())
                continue
            options: dict[str, Any] = {"idempotency_key": mark}
            if _sort(mark.encode()) > 90:
                options["delay"] = 0.02
            while isinstance(repeated(lambda: q.try_enqueue(mark.encode(), **options)), Full):  # noqa: B023
                time.sleep(_LOOK_S)


def work_by_hand(run: Unsteady, name: str, slot: int) -> None:
    """Run jobs by plain calls."""
    with run.queue(name) as q:
        run.ready()
        while not run.is_over:
            try:
                leases = q.deliver_many(3, timeout=_LATER_S)
                q.tick_timeouts()
            except (StorageUnavailable, StorageBusy):
                time.sleep(_LOOK_S)
                continue
            for lease in leases:
                repeated(lambda: _settle(q, lease))  # noqa: B023
                run.did(slot)


def _settle(q: Queue, lease: Lease) -> object:
    sort = _sort(lease.body)
    if sort < 5 and lease.attempt == 1:
        return q.nack(lease, error="as planned")
    if sort < 8 and lease.delivery == 1:
        return q.release(lease)
    if sort > 80:
        q.extend(lease, LEASE_S)
    return q.ack(lease)


def _handle(payload: bytes, context: Context) -> None:
    sort = _sort(payload)
    if sort < 5 and context.attempt == 1:
        raise RuntimeError("as planned")
    if sort == 5:
        raise Reject("as planned")


def work_in_pool(run: Unsteady, name: str, slot: int) -> None:
    """Run jobs by a pool's threads."""

    def handler(payload: bytes, context: Context) -> None:
        run.did(slot)
        _handle(payload, context)

    with run.queue(name) as q, q.workers(handler, count=3):
        run.ready()
        while not run.is_over:
            time.sleep(_LATER_S)


def work_on_loop(run: Unsteady, name: str, slot: int) -> None:
    """Run jobs by a pool of an event loop."""

    async def handler(payload: bytes, context: Context) -> None:
        run.did(slot)
        _handle(payload, context)

    async def work() -> None:
        q = run.async_queue(name)
        run.record(q, name)
        async with q, q.workers(handler, count=3):
            await asyncio.to_thread(run.ready)
            while not run.is_over:  # noqa: ASYNC110 - it is another thread that ends it
                await asyncio.sleep(_LATER_S)

    asyncio.run(work())


_ROLES = (produce, produce, work_by_hand, work_in_pool, work_on_loop)
