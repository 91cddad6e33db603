"""The queue for event loops: the same names and answers as `Queue`, awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import iscoroutine
from types import TracebackType
from typing import Any, Self, Unpack

from ulak import codec
from ulak.checks import check_backoff, check_priority
from ulak.core.backoff import Backoff
from ulak.core.job import Counts, Done, Full, Lease, Outcome, Terminal
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
from ulak.storage.drive import arun
from ulak.worker.execute import Handler
from ulak.worker.pool import AsyncPool


class AsyncQueue(Handle):
    """`Queue` for asyncio. One object may be used on several loops, one after the other, and from threads.

    A cancelled or timed-out call leaves nothing behind: no job half stored, no lease without a holder, no
    place in a line.
    """

    async def enqueue(
        self,
        payload: object,
        priority: int = 0,
        *,
        timeout: Duration | None = None,
        connection: object | None = None,
        **options: Unpack[JobOptions],
    ) -> int:
        """As `Queue.enqueue`."""
        if connection is not None:
            self._check_joinable()
        self._open()
        answer: int = await _now(
            self._ways.enqueue(payload, priority, timeout=timeout, connection=connection, **options)
        )
        return answer

    async def enqueue_many(self, jobs: Iterable[object], *, timeout: Duration | None = None) -> list[int]:
        """As `Queue.enqueue_many`."""
        self._open()
        ids: list[int] = await _now(self._ways.enqueue_many(jobs, timeout=timeout))
        return ids

    async def try_enqueue(
        self, payload: object, priority: int = 0, **options: Unpack[JobOptions]
    ) -> int | Full:
        """As `Queue.try_enqueue`."""
        return await arun(self._edge, self._try_enqueue(self._one(payload, priority, options)))

    async def deliver(self, timeout: Duration | None = 0) -> Lease | None:
        """As `Queue.deliver`."""
        self._open()
        lease: Lease | None = await _now(self._ways.deliver(timeout))
        return lease

    async def deliver_many(self, limit: int, timeout: Duration | None = 0) -> list[Lease]:
        """As `Queue.deliver_many`."""
        return await arun(self._edge, self._deliver(limit, timeout))

    async def ack(self, lease: Lease, *, connection: object | None = None) -> Outcome:
        """As `Queue.ack`."""
        if connection is not None:
            self._check_joinable()
        self._open()
        outcome: Outcome = await _now(self._ways.ack(lease, connection=connection))
        return outcome

    async def ack_many(self, leases: Iterable[Lease]) -> list[Outcome]:
        """As `Queue.ack_many`."""
        return await arun(self._edge, self._settle(leases, Done()))

    async def nack(
        self,
        lease: Lease,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> Outcome:
        """As `Queue.nack`."""
        return await arun(self._edge, self._nack(lease, delay, error))

    async def extend(self, lease: Lease, duration: Duration) -> Outcome:
        """As `Queue.extend`."""
        return await arun(self._edge, self._extend(lease, duration))

    async def release(self, lease: Lease) -> Outcome:
        """As `Queue.release`."""
        return (await arun(self._edge, self._settle([lease], give_back())))[0]

    async def acked_by(self, lease: Lease) -> bool:
        """As `Queue.acked_by`."""
        return await arun(self._edge, self._acked_by(lease))

    async def tick_timeouts(self) -> int:
        """As `Queue.tick_timeouts`."""
        return await arun(self._edge, self._reclaim())

    async def crash(self) -> int:
        """As `Queue.crash`."""
        return await arun(self._edge, self._crash())

    async def terminal_of(self, job_id: int) -> Terminal | None:
        """As `Queue.terminal_of`."""
        return await arun(self._edge, self._terminal_of(job_id))

    async def counts(self) -> Counts:
        """As `Queue.counts`."""
        return await arun(self._edge, self._counts())

    async def settings(self) -> Settings:
        """As `Queue.settings`."""
        return await arun(self._edge, self._stored_settings())

    async def get(self, job_id: int) -> JobInfo | None:
        """As `Queue.get`."""
        return await arun(self._edge, self._get(job_id))

    async def jobs(self, state: States = None, *, after: int = 0, limit: int = 100) -> list[JobInfo]:
        """As `Queue.jobs`."""
        return await arun(self._edge, self._jobs(state, after, limit))

    async def redrive(self, which: Which) -> Changed:
        """As `Queue.redrive`."""
        return await arun(self._edge, self._amend(which, Redrive()))

    async def cancel(self, which: Which) -> Changed:
        """As `Queue.cancel`."""
        return await arun(self._edge, self._amend(which, Cancel()))

    async def reprioritise(self, which: Which, *, priority: int, force: bool = False) -> Changed:
        """As `Queue.reprioritise`."""
        return await arun(self._edge, self._amend(which, Reprioritise(check_priority(priority)), force=force))

    async def delete(self, which: Which, *, force: bool = False) -> Changed:
        """As `Queue.delete`."""
        return await arun(self._edge, self._amend(which, Delete(), force=force))

    async def edit(self, job_id: int | JobInfo, payload: object) -> Changed:
        """As `Queue.edit`."""
        return await arun(self._edge, self._amend(job_id, Edit(*codec.encode(payload))))

    async def configure(
        self,
        *,
        capacity: int | Unset | None = UNSET,
        backoff: Backoff | Unset | None = UNSET,
        retention: Retention | Unset | None = UNSET,
    ) -> Settings:
        """As `Queue.configure`."""
        change = Change(capacity=capacity, backoff=backoff, retention=retention)
        return await arun(self._edge, self._configure(change))

    async def pause(self) -> None:
        """As `Queue.pause`."""
        await arun(self._edge, self._configure(Change(paused=True)))

    async def resume(self) -> None:
        """As `Queue.resume`."""
        await arun(self._edge, self._configure(Change(paused=False)))

    async def prune(self, limit: int = 1000) -> int:
        """As `Queue.prune`."""
        return await arun(self._edge, self._prune(limit))

    def producer(self) -> Producer:
        """As `Queue.producer`: `async with q.producer(): ...`."""
        return Producer(self._local.local)

    def mark_producer_finished(self) -> None:
        """As `Queue.mark_producer_finished`."""
        self._local.local.finish(registered=False)

    def workers(
        self,
        handler: Callable[..., Any],
        *,
        count: int = 8,
        backoff: Backoff | None = None,
        grace: Duration = 30.0,
    ) -> AsyncPool:
        """As `Queue.workers`; `async def` handlers run on the caller's loop."""
        return AsyncPool(
            self._open(),
            [self.name],
            Handler(handler),
            worker=self._pool_name(),
            lease_s=self._lease_s,
            count=count,
            backoff=check_backoff(backoff),
            grace=grace,
        )

    async def close(self) -> None:
        """As `Queue.close`."""
        opened = self._start_closing()
        if opened is not None:
            await arun(opened.edge, self._finish_closing(opened))

    def _on_open(self, opened: LocalStore, view: View) -> None:
        self._ways = self._quick_ways(opened, view, self._general_ways(arun), may_block=False)

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _now(answer: Any) -> Any:  # noqa: ANN401 - what the short way answers, or the general way's coroutine of it
    return await answer if iscoroutine(answer) else answer
