"""What the workers of a benchmark run, and how it is measured."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable

from ulak import Context, Queue
from ulak.cli.bench_load import HEAD, ordinal_of
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_records import Records
from ulak.clock import SYSTEM
from ulak.core.job import Lease
from ulak.events import Event, Events
from ulak.worker.execute import Handler
from ulak.worker.watched import Seen, WatchedPool

QUEUE = "ulak-bench"
"""The queue that benchmarks have for themselves, in whatever store."""


class InjectedFailure(Exception):
    """The failure that the seed has drawn for this attempt."""


class _Unlogged(Events):
    """The log does not say of each job that it failed, as was drawn: its cost is up to whoever writes it."""

    def tell(self, event: Event) -> None:
        """Tell nobody."""


def pool_of(plan: Plan, queue: Queue, records: Records, failures: array[int]) -> WatchedPool:
    """The workers; made as `Queue.workers` makes them."""
    return WatchedPool(
        queue._open(),  # noqa: SLF001 - as that does
        [QUEUE],
        Handler(_handler(plan, records, failures)),
        worker=queue._pool_name(),  # noqa: SLF001 - likewise
        lease_s=queue._lease_s,  # noqa: SLF001 - likewise
        count=plan.workers,
        grace=30.0,
        events=_Unlogged(),
        seen=_seen(records),
    )


def _handler(
    plan: Plan, records: Records, failures: array[int]
) -> Callable[..., None] | Callable[..., Awaitable[None]]:
    """It does nothing but fail where that was drawn. Without failures it asks for no context."""
    started, now, head = records.started, SYSTEM.interval, HEAD.unpack_from

    def plain(payload: bytes) -> None:
        began_at = now()
        (ordinal,) = head(payload)
        if not started[ordinal]:
            started[ordinal] = began_at

    def failing(payload: bytes, context: Context) -> None:
        plain(payload)
        if context.attempt <= failures[ordinal_of(payload)]:
            raise InjectedFailure

    async def aplain(payload: bytes) -> None:
        plain(payload)

    async def afailing(payload: bytes, context: Context) -> None:
        failing(payload, context)

    if plan.executor == "async":
        return afailing if plan.fail_rate else aplain
    return failing if plan.fail_rate else plain


def _seen(records: Records) -> Seen:
    first, last, now, head = records.first_settled, records.settled, SYSTEM.interval, HEAD.unpack_from

    def seen(lease: Lease) -> None:
        settled_at = now()
        (ordinal,) = head(lease.work.body)
        if not first[ordinal]:
            first[ordinal] = settled_at
        last[ordinal] = settled_at

    return seen
