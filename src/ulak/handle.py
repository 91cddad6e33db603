"""What `Queue` and `AsyncQueue` share: the settings of a handle, and the checks of what callers pass."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, Unpack

import msgspec

from ulak import codec
from ulak.capture import capture
from ulak.checks import (
    Timeout,
    check_attempts,
    check_backoff,
    check_capacity,
    check_id,
    check_limit,
    check_names,
    check_priority,
    check_retention,
    draft_of,
    several,
    wait_s,
)
from ulak.clock import SYSTEM, Clock
from ulak.context import handling
from ulak.core import flows
from ulak.core.backoff import Backoff
from ulak.core.flows import Flow, Handling
from ulak.core.job import (
    TERMINAL_OF,
    Counts,
    Done,
    Draft,
    Full,
    Job,
    Lease,
    Outcome,
    State,
    Terminal,
    Verdict,
)
from ulak.core.store import (
    BATCH_MAX,
    UNSET,
    Act,
    Change,
    Changed,
    Filter,
    Retention,
    Settings,
    Store,
)
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError, Closed, ConfigError, JobForgotten, PayloadError, WrongQueue
from ulak.events import log_settled
from ulak.info import JobInfo, info_of
from ulak.local import LocalStore, View, check_url, local_store, masked, watch_forks
from ulak.names import QUEUE_NAME, check_queue_name
from ulak.newjob import JobOptions, NewJob
from ulak.storage.direct import Ways
from ulak.storage.drive import Edge
from ulak.ways import quick_ways

_log = logging.getLogger("ulak")
_handle_numbers = itertools.count(1)

States: TypeAlias = State | str | Iterable[State | str] | None
Which: TypeAlias = int | JobInfo | Iterable[int | JobInfo] | Filter
"""Which jobs an operator's call is for: ids or jobs, one or several, or all that match."""

_OPTIONS = frozenset(JobOptions.__annotations__)
_STATES = frozenset(State)


class Handle:
    """One handle on one queue. Making it does no I/O; the first call opens the store.

    url: `memory://` (a private store), `memory://name` (shared by name inside the process), or
    `sqlite:///path` (one file, for every process of the machine; options `?durability=relaxed`,
    `?journal=truncate`).
    name: the queue. max_attempts: runs a job gets at most, unless it says otherwise.
    visibility_timeout: length of a lease. capacity: most open jobs; stored when the queue is made.
    backoff, retention: likewise.
    Raises ConfigError for a URL, ArgumentError for any other argument that cannot be.
    """

    def __init__(
        self,
        url: str = "memory://",
        name: str = "default",
        *,
        max_attempts: int = 5,
        visibility_timeout: Duration = 30.0,
        capacity: int | None = None,
        backoff: Backoff | None = None,
        retention: Retention | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.url = _check_url(url)
        self.name = check_queue_name(name)
        self._max_attempts = check_attempts(max_attempts)
        self._lease_s = seconds(visibility_timeout, name="visibility_timeout")
        self._settings = Settings(
            capacity=check_capacity(capacity),
            backoff=check_backoff(backoff),
            retention=check_retention(retention),
        )
        self._clock = clock
        self._find_store: Callable[[], LocalStore] = functools.partial(local_store, self.url, clock)
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{next(_handle_numbers)}"
        self._local_store: LocalStore | None = None
        self._view: View | None = None
        self._shown: dict[str, Any] = {}
        self._closed = False
        self._lock = threading.Lock()
        watch_forks(self)

    def forget_parent(self) -> None:
        """In a forked child: who held the lock is not here, and what it had half opened is opened anew."""
        self._lock = threading.Lock()
        if self._local_store is None:
            self._on_close()

    def __repr__(self) -> str:
        shown = f"{type(self).__name__}({masked(self.url)!r}, name={self.name!r})"
        return f"<closed {shown}>" if self._closed else shown

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it has leases and producers of its own\n"
            f"  make another one on the same URL and name"
        )

    def _open(self) -> LocalStore:
        with self._lock:
            if self._closed:
                raise Closed(f"this handle on queue {self.name!r} is closed; make a new one")
            if self._local_store is None:
                opened = self._find_store()
                try:
                    stored = opened.edge.store.declare(self.name, self._settings)
                    view = self._view = View(opened.queue(self.name))
                    self._on_open(opened, view)
                except BaseException:
                    self._on_close()
                    opened.close_handle()
                    raise
                # Last, since others read it without the lock: what they see is whole.
                self._local_store = opened
            else:
                return self._local_store
        # Outside the lock: a log handler is a user's code.
        self._tell_differences(stored)
        return opened

    def _tell_differences(self, stored: Settings) -> None:
        """Say so if the queue was there already, with other settings than this handle's."""
        for name in ("capacity", "backoff", "retention"):
            wanted, there = getattr(self._settings, name), getattr(stored, name)
            if wanted is not None and there != wanted:
                _log.warning(
                    "queue %s has %s %s, so %s is not used; change it with q.configure(%s=)",
                    self.name,
                    name,
                    there,
                    wanted,
                    name,
                )

    def _check_joinable(self) -> None:
        """Raises ArgumentError where opening the store would wait for the caller's own transaction."""
        if self._local_store is None and not self._closed:
            raise ArgumentError(
                f"connection= needs queue {self.name!r} to be open, and this call is its first: opening may "
                f"have to write\n  open it before the transaction begins: with Queue(...) as q, or any call"
            )

    def _start_closing(self) -> LocalStore | None:
        """Refuse all further calls; what is left to close, for the first caller only."""
        with self._lock:
            was_closed, self._closed = self._closed, True
            opened, self._local_store = self._local_store, None
            self._on_close()
        if self._view is not None and not was_closed:
            self._view.close()
        return opened

    @property
    def is_closed(self) -> bool:
        """Whether nothing may be done through it any more."""
        return self._closed

    def closing(self) -> Flow[None]:
        """Hand back this handle's leases, unspent, and let go of the store; idempotent."""
        opened = self._start_closing()
        if opened is not None:
            yield from self._finish_closing(opened)

    def is_on(self, store: LocalStore) -> bool:
        """Whether it is open, on this store."""
        return self._local_store is store

    def lay_aside(self, store: LocalStore | None) -> Callable[[], None]:
        """If open on this store, be as if not opened yet until what is returned is called: then as before.

        Close it before that, if it was opened meanwhile. Whoever waits through it now is told that it is
        closed.
        """
        opened, view = None, None
        with self._lock:
            is_closed = self._closed
            if store is not None and self._local_store is store:
                opened, view = store, self._view
                self._be(None, None, is_closed=is_closed)

        def take_up_again() -> None:
            with self._lock:
                self._be(opened, view, is_closed=is_closed)

        return take_up_again

    def _be(self, opened: LocalStore | None, view: View | None, *, is_closed: bool) -> None:
        """Be open on this store from now on, or not. Called with the lock held."""
        self._on_close()
        # Through it, short ways that others keep come back to this handle.
        if self._view is not None:
            self._view.close()
        self._view, self._closed = view, is_closed
        if opened is not None and view is not None:
            view.closed = False
            self._on_open(opened, view)
        self._local_store = opened

    def _on_open(self, opened: LocalStore, view: View) -> None:
        """Called once the store is open."""

    def _on_close(self) -> None:
        """Called once nothing may be done through this handle any more."""

    def _finish_closing(self, opened: LocalStore) -> Flow[None]:
        try:
            yield from flows.release_all(self.name, self._worker, note=log_settled)
        finally:
            opened.close_handle()

    def _pool_name(self) -> str:
        """A worker name of its own for each pool, so that closing this handle leaves its leases alone."""
        return f"{self._worker}-pool-{next(_handle_numbers)}"

    @property
    def _edge(self) -> Edge:
        return (self._local_store or self._open()).edge

    @property
    def _local(self) -> View:
        self._open()
        assert self._view is not None
        return self._view

    def _handling(self) -> Handling:
        return handling(self.name, self._edge.store.uid)

    def _check(self, lease: Lease) -> Lease:
        """The lease, if it belongs here; else WrongQueue (or ArgumentError, if it is no lease at all)."""
        if not isinstance(lease, Lease):
            raise ArgumentError(f"expected a Lease from deliver(), got {type(lease).__name__}")
        if lease.queue != self.name or lease.store != self._edge.store.uid:
            raise WrongQueue(
                f"job {lease.id} was delivered by queue {lease.queue!r} of another handle's store or name, "
                f"not by this queue {self.name!r}\n  settle it where it was delivered; nothing was changed"
            )
        return lease

    def found_by(self, find_store: Callable[[], LocalStore]) -> Self:
        """This handle, with another way to its store: it answers with one handle more open on that."""
        self._find_store = find_store
        return self

    def _draft(self, new: NewJob) -> Draft:
        """The job, checked and encoded. Raises ArgumentError or PayloadError; nothing is stored then."""
        body, tag = codec.encode(new.payload)
        return draft_of(new, body, tag, max_attempts=self._max_attempts)

    def _one(self, payload: object, priority: int, options: JobOptions) -> Draft:
        """A single job, checked. An unknown option is an ArgumentError that names the nearest."""
        check_names(options, _OPTIONS, "enqueue")
        return self._draft(NewJob(payload, priority, **options))

    def _drafts(self, jobs: Iterable[object]) -> list[Draft]:
        """Several jobs, all checked before any is stored; an error says which one it is about."""
        drafts: list[Draft] = []
        for job in several(jobs, "enqueue_many takes a list of payloads or NewJobs"):
            try:
                if type(job) is NewJob and not job.is_plain:
                    drafts.append(self._draft(job))
                    continue
                # The same, without asking for options that it has not.
                payload, priority = (job.payload, job.priority) if type(job) is NewJob else (job, 0)
                body, tag = codec.encode(payload)
                drafts.append(Draft(body, tag, check_priority(priority), self._max_attempts))
            except PayloadError as error:
                raise PayloadError(f"jobs[{len(drafts)}].{error.args[0]}") from None
            except ArgumentError as error:
                raise ArgumentError(f"jobs[{len(drafts)}]: {error.args[0]}") from None
        if len(drafts) > BATCH_MAX:
            raise ArgumentError(f"one call takes at most {BATCH_MAX:,} jobs, got {len(drafts):,}; split it")
        return drafts

    def _general_ways(self, go: Callable[[Edge, Flow[Any]], Any]) -> Ways:
        """The calls that every job goes through, as every store and option goes. go: runs a flow."""

        def enqueue(
            payload: object,
            priority: int = 0,
            *,
            timeout: Timeout = None,
            connection: object | None = None,
            **options: Unpack[JobOptions],
        ) -> Any:  # noqa: ANN401 - as `go`
            drafts = [self._one(payload, priority, options)]
            return go(self._edge, flows.first(self._enqueue(drafts, timeout, connection)))

        def ack(lease: Lease, *, connection: object | None = None) -> Any:  # noqa: ANN401
            if connection is None:
                return go(self._edge, flows.first(self._settle([lease], Done())))
            return go(self._edge, self._ack_joined(lease, connection))

        return Ways(
            enqueue=enqueue,
            enqueue_many=lambda jobs, *, timeout=None: go(
                self._edge, self._enqueue(self._drafts(jobs), timeout)
            ),
            deliver=lambda timeout=0: go(self._edge, flows.first(self._deliver(1, timeout))),
            deliver_many=lambda limit, timeout=0: go(self._edge, self._deliver(limit, timeout)),
            ack=ack,
            ack_many=lambda leases: go(self._edge, self._settle(leases, Done())),
        )

    def _quick_ways(self, opened: LocalStore, view: View, general: Ways, *, may_block: bool) -> Ways:
        """The same, by the short way where the store has one."""
        return quick_ways(
            opened.edge.store,
            view,
            general,
            worker=self._worker,
            lease_s=self._lease_s,
            max_attempts=self._max_attempts,
            may_block=may_block,
        )

    # Flows: what both facades run

    def _enqueue(
        self, drafts: Sequence[Draft], timeout: Timeout, connection: object | None = None
    ) -> Flow[list[int]]:
        if not drafts:
            return []
        limit_s = wait_s(timeout)
        if connection is not None:
            return (
                yield from flows.enqueue_joined(
                    self._local, self.name, drafts, connection, handler=self._handling()
                )
            )
        return (
            yield from flows.enqueue(
                self._local, self.name, drafts, timeout_s=limit_s, handler=self._handling()
            )
        )

    def _try_enqueue(self, draft: Draft) -> Flow[int | Full]:
        handler = self._handling()
        answer = yield from flows.try_enqueue(self._local, self.name, [draft], handler=handler)
        return answer if isinstance(answer, Full) else answer[0]

    def _deliver(self, limit: int, timeout: Timeout) -> Flow[list[Lease]]:
        return (
            yield from flows.deliver(
                self._local,
                self.name,
                check_limit(limit),
                worker=self._worker,
                lease_s=self._lease_s,
                timeout_s=wait_s(timeout),
                note=log_settled,
            )
        )

    def _reclaim(self) -> Flow[int]:
        return (yield from flows.reclaim([self.name], log_settled))

    def _crash(self) -> Flow[int]:
        return (yield from flows.crash(self.name, log_settled))

    def _settle(self, leases: Iterable[Lease], verdict: Verdict) -> Flow[list[Outcome]]:
        given = several(leases, "ack_many takes a list of leases")
        checked = [(self._check(lease), verdict) for lease in given]
        return (yield from flows.settle(self._local, checked))

    def _ack_joined(self, lease: Lease, connection: object) -> Flow[Outcome]:
        return (yield from flows.ack_joined(self._local, self._check(lease), connection))

    def _nack(self, lease: Lease, delay: Timeout, error: BaseException | str | None) -> Flow[Outcome]:
        delay_s = None if delay is None else seconds(delay, name="delay")
        # By its type alone: an exception's own `__class__` may raise.
        if error is not None and not issubclass(type(error), BaseException | str):
            raise ArgumentError(
                f"error= is what went wrong, an exception or a str, not {type(error).__name__}"
            )
        failure = None if error is None else capture(error)
        return (yield from flows.nack(self._local, self._check(lease), delay_s=delay_s, error=failure))

    def _extend(self, lease: Lease, duration: Duration) -> Flow[Outcome]:
        lease_s = seconds(duration, name="duration")
        return (yield from flows.extend(self._local, self._check(lease), lease_s))

    def _job(self, job_id: int) -> Flow[Job | None]:
        """The record, if it is of this queue."""
        (job,) = yield from flows.ask(Store.get, [check_id(job_id)])
        return job if job is not None and job.queue == self.name else None

    def _get(self, job_id: int) -> Flow[JobInfo | None]:
        job = yield from self._job(job_id)
        return None if job is None else (yield from self._infos([job]))[0]

    def _terminal_of(self, job_id: int) -> Flow[Terminal | None]:
        job = yield from self._job(job_id)
        return None if job is None else TERMINAL_OF.get(job.state)

    def _acked_by(self, lease: Lease) -> Flow[bool]:
        job = yield from self._job(self._check(lease).id)
        if job is None:
            raise JobForgotten(f"job {lease.id} is not stored any more, so who finished it is unknown")
        return job.state is State.SUCCEEDED and job.delivery == lease.delivery

    def _jobs(self, state: States, after: int, limit: int) -> Flow[list[JobInfo]]:
        which = Filter(queue=self.name, states=state)
        jobs = yield from flows.ask(Store.scan, which, after=check_id(after), limit=check_limit(limit))
        return (yield from self._infos(jobs))

    def _counts(self) -> Flow[Counts]:
        return (yield from flows.ask(Store.counts, [self.name]))[self.name]

    def _stored_settings(self) -> Flow[Settings]:
        return (yield from flows.ask(Store.queues))[self.name]

    def _amend(self, which: Which, act: Act, *, force: bool = False) -> Flow[Changed]:
        chosen = self._which(which)
        return (yield from flows.ask(Store.amend, chosen, act, queue=self.name, force=force))

    def _configure(self, change: Change) -> Flow[Settings]:
        if change.capacity is not UNSET:
            check_capacity(change.capacity)
        if change.backoff is not UNSET:
            check_backoff(change.backoff)
        if change.retention is not UNSET:
            check_retention(change.retention)
        return (yield from flows.ask(Store.configure, self.name, change))

    def _prune(self, limit: int) -> Flow[int]:
        pruned = yield from flows.ask(Store.prune, limit=check_limit(limit))
        return sum(pruned.values())

    def _infos(self, jobs: Iterable[Job]) -> Flow[list[JobInfo]]:
        paused = (yield from self._stored_settings()).paused
        clock = self._edge.clock
        now, now_at = clock.interval(), clock.calendar()
        return [info_of(job, now=now, now_at=now_at, paused=paused) for job in jobs]

    def _which(self, which: Which) -> list[int] | Filter:
        """Ids, or a filter narrowed to this queue."""
        if isinstance(which, Filter):
            if which.queue not in (None, self.name):
                raise ArgumentError(
                    f"the filter names queue {which.queue!r}, but this is queue {self.name!r}"
                )
            return msgspec.structs.replace(which, queue=self.name)
        if isinstance(which, int | JobInfo):
            which = [which]
        named: object = which
        state = str(named) if isinstance(named, str) and named in _STATES else "dead"
        given = several(which, f"pass ids, jobs, or Filter(states={state!r})")
        return [check_id(job.id if isinstance(job, JobInfo) else job) for job in given]


def _check_url(url: object) -> str:
    """The URL of a store; else ConfigError, also for who gave a queue's name in its place."""
    try:
        return check_url(url)
    except ConfigError as error:
        # Nothing is shown that could be the secret part of a URL.
        if not isinstance(url, str) or not QUEUE_NAME.fullmatch(url):
            raise
        raise ConfigError(f"{error.args[0]}; for a queue's name write Queue(name={url!r})") from None
