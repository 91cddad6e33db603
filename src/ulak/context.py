"""What a handler may know of the job it runs, and what it may raise to settle it otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import msgspec

from ulak.capture import ERROR_TEXT_MAX, bounded
from ulak.core.flows import Handling, lost
from ulak.core.job import Done, Lease, Outcome
from ulak.core.store import Settled, Store
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError
from ulak.transaction import Transaction

PROGRESS_TEXT_MAX = 1024


class Context(msgspec.Struct, eq=False):
    """The job a handler runs. Ask for it with a parameter annotated `Context`.

    ended: the handler has returned. acked: the handler has finished its job itself, in a transaction.
    """

    _lease: Lease
    _asked_to_stop: bool = False
    ended: bool = False
    progress_text: str | None = None
    acked: bool = False
    _store: Callable[[], Store] | None = None
    _is_late: Callable[[], bool] | None = None

    @property
    def cancelled(self) -> bool:
        """Stop when you can: somebody asked for the job's end, its lease is lost, or its time is over.

        What is returned after a lost lease has no effect.
        """
        return self._asked_to_stop or self.timed_out

    @property
    def timed_out(self) -> bool:
        """Whether the job has run longer than the `timeout` of its task allows."""
        return self._is_late is not None and self._is_late()

    def ask_to_stop(self, *, stop: bool = True) -> None:
        """What the worker says when the job's end is asked for, or its lease is lost."""
        self._asked_to_stop = stop

    def limit(self, is_late: Callable[[], bool]) -> None:
        """What the worker says of a task with a time limit. is_late: looks at the clock."""
        self._is_late = is_late

    def ack(self, *, connection: object) -> None:
        """Finish the job in the transaction that is open on this connection to its store's database.

        So the job and what the handler writes there are committed together, or not at all. Commit it before
        the handler returns: a job that is not finished then is a failed attempt. What the handler returns is
        not stored then, as the job has ended before: `result()` gives None.
        Raises LeaseLost if the delivery is not current any more; roll back then. ArgumentError for a
        connection that cannot be joined, and in a memory store, which has no transactions.
        """
        (settled,) = self._joinable().settle([(self._lease, Done())], connection=connection)
        self._note_ack(settled)

    async def aack(self, *, connection: object) -> None:
        """As `ack`, for a connection of the event loop that this runs on."""
        store = cast("Any", self._joinable())
        (settled,) = await store.acall("settle", ([(self._lease, Done())],), {"connection": connection})
        self._note_ack(settled)

    def transaction(self) -> Transaction:
        """A transaction on the store's database, on a connection of its own: `with`, or `async with`.

        It gives a connection of the database's library (`sqlite3`, `psycopg`; on an event loop
        `psycopg.AsyncConnection`). At the end of the block the job is finished in it as by `ack`, and it is
        committed: what was written there is there exactly once. An exception rolls it back, and is a failed
        attempt. Raises as `ack` does, and in a memory store.
        """
        return Transaction(self, self._joinable())

    def _joinable(self) -> Store:
        if self._store is None:
            raise ArgumentError("this job's store has no transaction that connection= could join")
        return self._store()

    def _note_ack(self, settled: Settled) -> None:
        if settled is Outcome.STALE:
            raise lost(self._lease)
        self.acked = True

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job's id, queue, task and attempt to each record."""
        lease = self._lease
        named = {"job_id": lease.id, "queue": lease.queue, "task": lease.task, "attempt": lease.attempt}
        return logging.LoggerAdapter(logging.getLogger("ulak.job"), named)

    @property
    def id(self) -> int:
        """The job's id."""
        return self._lease.id

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._lease.queue

    @property
    def task(self) -> str | None:
        """The task it is a call of, if any."""
        return self._lease.task

    @property
    def worker(self) -> str:
        """The worker that runs it."""
        return self._lease.worker

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._lease.attempt

    @property
    def max_attempts(self) -> int:
        """How many there are at most."""
        return self._lease.max_attempts

    @property
    def delivery(self) -> int:
        """How often the job was handed out, this time included; never goes down."""
        return self._lease.delivery

    @property
    def redelivered(self) -> bool:
        """True unless the job is handed out for the first time: an earlier run may have done part of it."""
        return self._lease.redelivered

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token of this delivery, to hand to outside systems; it only grows for a job."""
        return self._lease.token

    @property
    def priority(self) -> int:
        """The job's priority."""
        return self._lease.priority

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers it was enqueued with."""
        return self._lease.headers or {}

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Say how far the work is; stored with the next renewal of the lease, at most 1 KiB."""
        self.progress_text = bounded(f"{done}/{total} {text}".rstrip(), PROGRESS_TEXT_MAX)

    def __repr__(self) -> str:
        return (
            f"Context(id={self.id}, queue={self.queue!r}, attempt={self.attempt}, delivery={self.delivery})"
        )


_current: ContextVar[Context | None] = ContextVar("ulak_current_job", default=None)


def current_job() -> Context | None:
    """The job that this thread or task is running, or None outside a handler."""
    return _current.get()


class Control(Exception):
    """The base of what a handler raises to settle its job otherwise than by return or failure."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(bounded(str(reason), ERROR_TEXT_MAX))


class Retry(Control):
    """A failed attempt; the next one comes `after` seconds (None: after the stored backoff)."""

    # Also what a subclass means that does not call this one's __init__.
    after_s: float | None = None

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.after_s = None if after is None else seconds(after, name="after")


class Snooze(Control):
    """Not now: again after so many seconds, the attempt not counted."""

    delay_s: float = 1.0

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_s = seconds(delay, name="delay")


class Reject(Control):
    """No attempt will ever succeed: dead at once, with the reason."""


class Cancel(Control):
    """The job is no longer wanted: cancelled, with the reason."""


def handling(queue: str, store: str) -> Handling:
    """What the caller is running, as seen from a queue of a store."""
    context = _current.get()
    # A task that a handler left behind keeps the handler's context, but runs no job any more.
    if context is None or context.ended:
        return Handling.NOTHING
    lease = context._lease  # noqa: SLF001 - the same module
    return Handling.THIS_QUEUE if (lease.queue, lease.store) == (queue, store) else Handling.OTHER_QUEUE


set_current: Callable[[Context | None], object] = _current.set
"""Make a context the current job of this thread or task."""
