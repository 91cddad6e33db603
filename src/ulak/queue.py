"""The queue for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from types import TracebackType
from typing import Any, Self, Unpack

from ulak import codec
from ulak.checks import check_backoff, check_priority
from ulak.core.backoff import Backoff
from ulak.core.job import Counts, Full, Lease, Outcome, Terminal
from ulak.core.rules import give_back
from ulak.core.store import (
    UNSET,
    Cancel,
    Change,
    Changed,
    Delete,
    Edit,
    Redrive,
    Reprioritise,
    Retention,
    Settings,
    Unset,
)
from ulak.durations import Duration
from ulak.handle import Handle, States, Which
from ulak.info import JobInfo
from ulak.local import LocalStore, Producer, View
from ulak.newjob import JobOptions
from ulak.storage.direct import Ways
from ulak.storage.drive import run
from ulak.worker.execute import Handler
from ulak.worker.pool import Pool


class Queue(Handle):
    """A bounded, prioritised, leased queue. Safe to share between threads; a context manager.

    Two `Queue` objects on the same URL and name are the same queue (a private `memory://` apart).

    >>> q = Queue("memory://", name="mail", capacity=1000)
    >>> job_id = q.enqueue({"to": "ada@example.org"}, priority=10)
    >>> lease = q.deliver()
    >>> q.ack(lease)
    <Outcome.OK: 'ok'>
    """

    def enqueue(
        self,
        payload: object,
        priority: int = 0,
        *,
        timeout: Duration | None = None,
        connection: object | None = None,
        **options: Unpack[JobOptions],
    ) -> int:
        """Store a job and return its id; waits for room, first come first served.

        payload: bytes or str as they are, anything else as JSON; higher priority first.
        timeout: longest wait for room (None: for ever; inside a handler: not at all).
        connection: of yours, to the store's own database with a transaction open: the job exists exactly if
        that commits, and no room is QueueFull at once. A sqlite3.Connection to the store's file; or psycopg
        3's, SQLAlchemy's or Django's to the PostgreSQL database that the store is in.
        options, as in `JobOptions`: delay or run_at, expires, unique_key, idempotency_key, max_attempts,
        backoff, headers.
        Returns a `Duplicate` (an int: the existing id) if a job stands for its key already.
        Raises QueueFull, Closed, WouldDeadlock, ArgumentError, PayloadError; nothing was stored then.
        """
        if connection is not None:
            self._check_joinable()
        self._open()
        answer: int = self._ways.enqueue(payload, priority, timeout=timeout, connection=connection, **options)
        return answer

    def enqueue_many(self, jobs: Iterable[object], *, timeout: Duration | None = None) -> list[int]:
        """Store up to 100,000 jobs (payloads or `NewJob`s), all or none, in one step; waits for room for all.

        Raises ArgumentError at once if there are more new ones than the capacity; else as `enqueue`.
        """
        self._open()
        ids: list[int] = self._ways.enqueue_many(jobs, timeout=timeout)
        return ids

    def try_enqueue(self, payload: object, priority: int = 0, **options: Unpack[JobOptions]) -> int | Full:
        """Store a job if there is room now, and return its id; else FULL (falsy), at once."""
        return run(self._edge, self._try_enqueue(self._one(payload, priority, options)))

    def deliver(self, timeout: Duration | None = 0) -> Lease | None:
        """Take the next job under a lease, or None.

        timeout: longest wait for a job (0: none, None: for ever). A wait ends early, with None, once every
        producer has finished and nothing is left that could come. Reclaims ended leases on its way.
        """
        self._open()
        lease: Lease | None = self._ways.deliver(timeout)
        return lease

    def deliver_many(self, limit: int, timeout: Duration | None = 0) -> list[Lease]:
        """Take up to `limit` jobs, in order, under leases; waits for the first only."""
        self._open()
        leases: list[Lease] = self._ways.deliver_many(limit, timeout)
        return leases

    def ack(self, lease: Lease, *, connection: object | None = None) -> Outcome:
        """Finish the job. STALE, and nothing changed, if this delivery is no longer current.

        connection: finish it in the transaction that is open on this connection to the store's own database,
        as for `enqueue`, so that it counts exactly if that commits. Raises LeaseLost in place of STALE then.
        """
        if connection is not None:
            self._check_joinable()
        self._open()
        outcome: Outcome = self._ways.ack(lease, connection=connection)
        return outcome

    def ack_many(self, leases: Iterable[Lease]) -> list[Outcome]:
        """Finish several jobs in one step; one answer per lease, in order."""
        self._open()
        outcomes: list[Outcome] = self._ways.ack_many(leases)
        return outcomes

    def nack(
        self,
        lease: Lease,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> Outcome:
        """Give the job back as failed; dead if that was its last attempt.

        delay: until it is ready again (None: the stored backoff; no policy: at once). error: what went wrong,
        kept in the job's history.
        """
        return run(self._edge, self._nack(lease, delay, error))

    def extend(self, lease: Lease, duration: Duration) -> Outcome:
        """Move the lease's end to `duration` from now; never to earlier."""
        return run(self._edge, self._extend(lease, duration))

    def release(self, lease: Lease) -> Outcome:
        """Hand the job back unspent: ready again at its old place, the attempt not counted."""
        return run(self._edge, self._settle([lease], give_back()))[0]

    def acked_by(self, lease: Lease) -> bool:
        """Whether the job's one successful ack was this lease's: "my ack arrived", not "I lost it".

        Raises JobForgotten if the job is not stored any more.
        """
        return run(self._edge, self._acked_by(lease))

    def tick_timeouts(self) -> int:
        """Reclaim every lease of this queue whose time is over; how many, those that died of it included."""
        return run(self._edge, self._reclaim())

    def crash(self) -> int:
        """Reclaim every lease of this queue as if its workers had died; how many."""
        return run(self._edge, self._crash())

    def terminal_of(self, job_id: int) -> Terminal | None:
        """How the job ended; None while it is open, and for an unknown or forgotten id."""
        return run(self._edge, self._terminal_of(job_id))

    def counts(self) -> Counts:
        """How many jobs are in each state, and the totals, in one snapshot."""
        return run(self._edge, self._counts())

    def settings(self) -> Settings:
        """What is stored with the queue: capacity, paused, backoff, retention."""
        return run(self._edge, self._stored_settings())

    def get(self, job_id: int) -> JobInfo | None:
        """The job with its payload, history and what happens next; None for an unknown or forgotten id."""
        return run(self._edge, self._get(job_id))

    def jobs(self, state: States = None, *, after: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs with id > `after`, by id, at most `limit`; page on with the last id."""
        return run(self._edge, self._jobs(state, after, limit))

    def redrive(self, which: Which) -> Changed:
        """Bring dead, cancelled or expired jobs back: same id, place and history, attempts at 0.

        Held jobs become ready as they are, and need no room.
        which, here and in the calls below: ids or `JobInfo`s, one or several, or a `Filter`.
        """
        return run(self._edge, self._amend(which, Redrive()))

    def cancel(self, which: Which) -> Changed:
        """End waiting jobs as cancelled; ask running ones to stop (their ack still wins)."""
        return run(self._edge, self._amend(which, Cancel()))

    def reprioritise(self, which: Which, *, priority: int, force: bool = False) -> Changed:
        """Give open jobs another priority; leased ones only by force, for their next delivery."""
        return run(self._edge, self._amend(which, Reprioritise(check_priority(priority)), force=force))

    def delete(self, which: Which, *, force: bool = False) -> Changed:
        """Remove jobs for good; leased ones only by force."""
        return run(self._edge, self._amend(which, Delete(), force=force))

    def edit(self, job_id: int | JobInfo, payload: object) -> Changed:
        """Replace the payload of a job that is neither leased nor finished.

        A dead or held one stays so: `redrive` it then.
        """
        return run(self._edge, self._amend(job_id, Edit(*codec.encode(payload))))

    def configure(
        self,
        *,
        capacity: int | Unset | None = UNSET,
        backoff: Backoff | Unset | None = UNSET,
        retention: Retention | Unset | None = UNSET,
    ) -> Settings:
        """Change what is stored with the queue; what is not named stays. A lower capacity removes nothing."""
        change = Change(capacity=capacity, backoff=backoff, retention=retention)
        return run(self._edge, self._configure(change))

    def pause(self) -> None:
        """Deliver nothing from this queue, in any process, until `resume`."""
        run(self._edge, self._configure(Change(paused=True)))

    def resume(self) -> None:
        """Deliver again."""
        run(self._edge, self._configure(Change(paused=False)))

    def prune(self, limit: int = 1000) -> int:
        """Forget ended jobs beyond retention, at most `limit`, in all queues of the store; how many."""
        return run(self._edge, self._prune(limit))

    def producer(self) -> Producer:
        """Register a producer of this process: `with q.producer(): ...`.

        Once every registered one has finished, `enqueue` raises Closed, and workers leave when nothing is
        open. Registering another reopens the queue.
        """
        return Producer(self._local.local)

    def mark_producer_finished(self) -> None:
        """Say that the only producer of this process has finished, if it never registered.

        A registered one says so itself, by `producer.finish()` or by leaving its `with`.
        """
        self._local.local.finish(registered=False)

    def workers(
        self,
        handler: Callable[..., Any],
        *,
        count: int = 8,
        backoff: Backoff | None = None,
        grace: Duration = 30.0,
    ) -> Pool:
        """A pool of `count` workers that run `handler(payload)` for each job; start it by `with`.

        handler: `def` (on threads) or `async def` (on an event loop of its own); its result is dropped, and
        what it raises is a failed attempt. A parameter annotated `Context` gets the job's context.
        backoff: stored as the queue's policy if it has none (default base 1 s, cap 300 s).
        grace: how long a shutdown lets running jobs finish.
        """
        return Pool(
            self._open(),
            [self.name],
            Handler(handler),
            worker=self._pool_name(),
            lease_s=self._lease_s,
            count=count,
            backoff=check_backoff(backoff),
            grace=grace,
        )

    def close(self) -> None:
        """Hand back this handle's leases, unspent, and let go of the store; idempotent.

        Producers are not finished by it.
        """
        opened = self._start_closing()
        if opened is not None:
            run(opened.edge, self._finish_closing(opened))

    def _on_open(self, opened: LocalStore, view: View) -> None:
        self._take_ways(self._quick_ways(opened, view, self._general_ways(run), may_block=True))

    def _on_close(self) -> None:
        for name, way in self._shown.items():
            if self.__dict__.get(name) is way:
                del self.__dict__[name]

    def _take_ways(self, ways: Ways) -> None:
        self._ways = ways
        # In place of the methods, which are a call more: that costs as much as a third of the way.
        for name, method in _METHODS.items():
            way = getattr(ways, name)
            # Not where a derived class, or a test, has put a method of its own.
            if getattr(type(self), name) is method and self.__dict__.get(name) in (
                None,
                self._shown.get(name),
            ):
                self._shown[name] = way
                setattr(self, name, update_wrapper(way, method.__get__(self)))

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_METHODS = {name: getattr(Queue, name) for name in Ways.__struct_fields__}
