"""What the scenario tests share: waiting for a fact, gates that hold handlers, stores that refuse."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pytest

from ulak import Backoff, JobInfo, Lease, Queue, StorageUnavailable
from ulak.storage.drive import Edge
from ulak.testing import ManualClock

WAIT_S = 20.0
LEASE_S = 30.0
KINDS = ("def", "async def")
AT_ONCE = Backoff(base=0.001, cap=0.001)

Handler = Callable[[Any], Any]
Decide = Callable[[str, tuple[Any, ...]], BaseException | None]


def eventually(fact: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Look until the fact holds; after `within_s` fail, so that a bug never hangs."""
    until = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < until, "what the test waits for did not happen"
        time.sleep(0.001)


def ended_within(call: Callable[[], Any], limit_s: float) -> Any:
    """The answer of a call that must end by itself; else the test fails, and leaves its thread behind."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert not thread.is_alive(), "the call did not end"
    return answers[0]


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
            while not self._open.is_set():  # noqa: ASYNC110 - it is opened from another thread
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


def let_time_pass(clock: ManualClock, duration_s: float, *, sleepers: int) -> None:
    """Advance the clock once so many threads sleep on it, so that none computes with the old time."""
    eventually(lambda: clock.sleepers == sleepers)
    clock.advance(duration_s)


def moving(clock: ManualClock, fact: Callable[[], object], step_s: float = 0.1) -> Callable[[], object]:
    """A fact for `eventually` that lets a little time pass before each look. The leases must be long: a pool
    whose threads get no processor meanwhile could not renew them.
    """

    def look() -> object:
        clock.advance(step_s)
        return fact()

    return look


def let_threads_end(clock: ManualClock, q: Queue) -> None:
    """Move the clock until the threads of this queue's pools, which may sleep on it, have ended."""

    eventually(moving(clock, lambda: not threads_of(q), step_s=1.0))


# Fixtures; a test file takes them over by assignment.


@pytest.fixture(params=["memory"])
def queue_url(request: pytest.FixtureRequest) -> str:
    """A new, empty store. Another storage is another parameter."""
    return f"{request.param}://t{uuid.uuid4().hex}"


@pytest.fixture
def make(queue_url: str) -> Iterator[Callable[..., Queue]]:
    """Opens handles on one queue, with a new name since its threads carry it; closes them in the end."""
    name = f"q{uuid.uuid4().hex[:8]}"
    with ExitStack() as handles:
        yield lambda **options: handles.enter_context(Queue(queue_url, name, **options))


@pytest.fixture
def clock() -> ManualClock:
    """Both clocks, moved by the test."""
    return ManualClock()


@pytest.fixture
def timed(make: Callable[..., Queue], clock: ManualClock) -> Iterator[Callable[..., Queue]]:
    """Opens handles on the test's clock, with leases of 30 s unless told otherwise."""
    opened: list[Queue] = []

    def open_handle(**options: Any) -> Queue:
        opened.append(make(**{"clock": clock, "visibility_timeout": LEASE_S, **options}))
        return opened[-1]

    yield open_handle
    for q in opened:
        let_threads_end(clock, q)


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """All threads that pools started in a module have ended soon after its last test."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        started = set(threading.enumerate()) - before
        return [thread.name for thread in started if thread.name.startswith("ulak-")]

    with contextlib.suppress(AssertionError):
        eventually(lambda: not left(), within_s=10.0)
    assert left() == []
