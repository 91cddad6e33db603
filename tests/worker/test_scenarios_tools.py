"""What the scenario tests share: waiting for a fact, gates that hold handlers, stores that refuse."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ulak import Queue, StorageUnavailable
from ulak.storage.drive import Edge
from ulak.testing import ManualClock

WAIT_S = 20.0
KINDS = ("def", "async def")

Handler = Callable[[Any], Any]
Decide = Callable[[str, tuple[Any, ...]], BaseException | None]


def eventually(fact: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Look until the fact holds; after `within_s` fail, so that a bug never hangs."""
    until = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < until, "what the test waits for did not happen"
        time.sleep(0.001)


def of_kind(kind: str, work: Handler) -> Handler:
    """The work as a `def` or an `async def` handler."""

    async def handler(payload: Any) -> Any:
        return work(payload)

    return work if kind == "def" else handler


class Gate:
    """Holds handlers until it is opened, at the latest when its `with` is left."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._open = threading.Event()

    def handler(self, kind: str) -> Handler:
        return self._stop if kind == "def" else self._astop

    def entered(self, handlers: int = 1) -> None:
        """Wait until so many more handlers stand here."""
        for _ in range(handlers):
            assert self._entered.acquire(timeout=WAIT_S), "no handler came to the gate"

    def open(self) -> None:
        self._open.set()

    def _stop(self, payload: Any) -> None:
        self._entered.release()
        assert self._open.wait(WAIT_S)

    async def _astop(self, payload: Any) -> None:
        self._entered.release()
        async with asyncio.timeout(WAIT_S):
            while not self._open.is_set():
                await asyncio.sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()


class Refusing:
    """Stands before a store, of any kind, and raises what `decide` says instead of passing the call on."""

    def __init__(self, store: Any, decide: Decide) -> None:
        self._store = store
        self._decide = decide

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not callable(operation):
            return operation

        def call(*args: Any, **kwargs: Any) -> Any:
            error = self._decide(name, args)
            if error is not None:
                raise error
            return operation(*args, **kwargs)

        return call


def refuse(q: Queue, decide: Decide) -> None:
    """Put a refusing store before the one that this queue, and every handle on its URL, uses."""
    opened = q._open()
    opened.edge = Edge(Refusing(opened.edge.store, decide), opened.edge.clock)


def is_write(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the call settles anything."""
    return name in ("settle", "turn") and len(args[0]) > 0


def nth_write(nth: int, error: BaseException | None = None) -> Decide:
    """Refuses the n-th settlement that reaches the store, once, before it takes effect."""
    writes = 0

    def decide(name: str, args: tuple[Any, ...]) -> BaseException | None:
        nonlocal writes
        writes += is_write(name, args)
        if writes != nth or not is_write(name, args):
            return None
        return error or StorageUnavailable("the store refuses this write")

    return decide


def workers_of(q: Queue) -> list[threading.Thread]:
    """The live threads that carry `def` handlers of this queue."""
    return [thread for thread in threads_of(q) if thread.name.rpartition("-")[2].isdigit()]


def threads_of(q: Queue) -> list[threading.Thread]:
    """All live threads that pools of this queue started."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"ulak-{q.name}-")]


def kill(thread: threading.Thread, error: type[BaseException] = SystemExit) -> None:
    """Raise in another thread, as time limits do; it strikes when the thread next runs Python code."""
    assert thread.ident is not None
    reached = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(error)
    )
    assert reached == 1


def let_time_pass(clock: ManualClock, duration_s: float, *, sleepers: int) -> None:
    """Advance the clock once so many threads sleep on it, so that none computes with the old time."""
    eventually(lambda: clock.sleepers == sleepers)
    clock.advance(duration_s)


def let_threads_end(clock: ManualClock, q: Queue) -> None:
    """Move the clock until the threads of this queue's pools, which may sleep on it, have ended."""

    def gone() -> bool:
        clock.advance(1.0)
        return not threads_of(q)

    eventually(gone)
