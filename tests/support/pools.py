"""What tests of worker pools share: handlers that are held or fail, and what a pool does from outside."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import Backoff, JobInfo, Lease, Pool, Queue
from ulak.storage.line import LoopSignal
from ulak.testing import ManualClock

LEASE_S = 30.0
KINDS = ("def", "async def")
AT_ONCE = Backoff(base=0.001, cap=0.001)
"""For pools on the real clock: retries that tests need not wait for."""

Handler = Callable[[Any], Any]


def of_kind(kind: str, work: Handler) -> Handler:
    """The work as a `def` or an `async def` handler."""

    async def handler(payload: Any) -> Any:
        return work(payload)

    return work if kind == "def" else handler


def flaky(rate: float, seed: int, log: list[Any] | None = None) -> Handler:
    """A handler that fails at this rate, by a source of its own."""
    rng, lock = random.Random(seed), threading.Lock()

    def handle(payload: Any) -> None:
        with lock:
            fails = rng.random() < rate
            if log is not None:
                log.append(payload)
        if fails:
            raise RuntimeError("injected")

    return handle


class Gate:
    """Holds handlers until it is opened, at the latest when its `with` is left."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._signals: list[LoopSignal] = []

    def handler(self, kind: str) -> Handler:
        return self._stop if kind == "def" else self._astop

    def entered(self, handlers: int = 1) -> None:
        """Wait until so many more handlers stand here."""
        for _ in range(handlers):
            assert self._entered.acquire(timeout=WAIT_S), "no handler came to the gate"

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()
        for signal in self._signals:
            signal.set()

    def _stop(self, payload: Any) -> None:
        self._entered.release()
        assert self._open.wait(WAIT_S)

    async def _astop(self, payload: Any) -> None:
        signal = LoopSignal()
        self._signals.append(signal)
        self._entered.release()
        if not self._open.is_set():
            await signal.wait(WAIT_S)
        assert self._open.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def produce(q: Queue, jobs: int) -> Running[list[int]]:
    """Enqueue so many jobs from a thread of its own, as the only producer."""
    producer = q.producer()

    def main() -> list[int]:
        with producer:
            return [q.enqueue(number) for number in range(jobs)]

    return Running(main)


def drain(pool: Pool) -> None:
    """Run to the end, but not for ever."""
    report = pool.drain(timeout=WAIT_S)
    assert (report.drained, report.open, report.released) == (True, 0, 0)


def assert_books_balance(q: Queue) -> None:
    """Nothing is unfinished, and the three sums hold."""
    counts, totals = q.counts(), q.counts().totals
    assert counts.open == 0
    assert totals.processed == totals.succeeded + totals.failed
    assert totals.failed == totals.retries + totals.dead_lettered
    assert totals.enqueued == totals.succeeded + totals.dead_lettered


def causes(job: JobInfo) -> list[str]:
    """How each delivery of the job ended."""
    return [attempt.cause for attempt in job.history]


def workers_of(q: Queue) -> list[threading.Thread]:
    """The live threads that carry `def` handlers of this queue."""
    return [thread for thread in threads_of(q) if thread.name.rpartition("-")[2].isdigit()]


def threads_of(q: Queue) -> list[threading.Thread]:
    """All live threads that pools of this queue started."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"ulak-{q.name}-")]


def leases_of(q: Queue) -> list[Lease]:
    """The current leases of the queue."""
    return q._edge.store.leased(q.name)


def is_renewed(q: Queue, clock: ManualClock) -> bool:
    """Whether the only lease has just been renewed."""
    return leases_of(q)[0].lease_end == clock.interval() + LEASE_S


def kill(thread: threading.Thread, error: type[BaseException] = SystemExit) -> None:
    """Raise in another thread, as time limits do; it strikes when the thread next runs Python code."""
    assert thread.ident is not None
    reached = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(error)
    )
    assert reached == 1


def let_threads_end(clock: ManualClock, q: Queue) -> None:
    """Move the clock until the threads of this queue's pools, which may sleep on it, have ended."""
    eventually(lambda: not threads_of(q), clock=clock, step_s=1.0)
