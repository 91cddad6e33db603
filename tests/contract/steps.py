"""Short names for what most cases do with a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ulak.core.job import (
    Cancelled,
    Cause,
    Counts,
    Dead,
    Done,
    Draft,
    Full,
    Hold,
    Job,
    Lease,
    Retry,
    Verdict,
)
from ulak.core.rules import give_back
from ulak.core.store import Act, Changed, Filter, Settled, Store, Tasks

Q = "mail"
OTHER = "bulk"
LEASE_S = 30.0
RELEASE = give_back()
FAIL = Retry()
LOST = Retry(cause=Cause.LOST)
VERDICTS = (Done(), FAIL, Retry(5.0), RELEASE, Hold(), Dead(), Cancelled(), LOST)


def named(verdict: Verdict) -> str:
    """What a verdict is called in a test's name."""
    return f"{type(verdict).__name__}-{verdict.cause.value}"


each_verdict = pytest.mark.parametrize("verdict", VERDICTS, ids=named)
each_end_but_ack = pytest.mark.parametrize("verdict", VERDICTS[1:], ids=named)


def draft(payload: bytes = b"x", **options: Any) -> Draft:
    """A job with these options."""
    return Draft(payload, "bytes", **options)


def with_id(lease: Lease, job_id: int) -> Lease:
    """The lease, forged: on another job."""
    return msgspec.structs.replace(lease, work=msgspec.structs.replace(lease.work, id=job_id))


def with_delivery(lease: Lease, delivery: int) -> Lease:
    """The lease, forged: of another delivery."""
    return msgspec.structs.replace(lease, delivery=delivery)


def put(store: Store, *drafts: Draft, queue: str = Q) -> list[int]:
    """Add jobs for which there is room."""
    ids = store.add(queue, drafts or [draft()])
    assert not isinstance(ids, Full)
    return ids


def put_one(store: Store, *, queue: str = Q, **options: Any) -> int:
    """Add one job with these options."""
    return put(store, draft(**options), queue=queue)[0]


def take(
    store: Store,
    limit: int = 1,
    *,
    queue: str = Q,
    lease_s: float = LEASE_S,
    worker: str = "w",
    tasks: Tasks | None = None,
) -> list[Lease]:
    """Claim up to `limit` jobs."""
    return store.claim([queue], limit, worker=worker, lease_s=lease_s, tasks=tasks)


def take_one(store: Store, **options: Any) -> Lease:
    """Claim the one job that must be there."""
    (lease,) = take(store, **options)
    return lease


def take_ids(store: Store, limit: int = 100, **options: Any) -> list[int]:
    """Claim, and tell the ids in order."""
    return [lease.id for lease in take(store, limit, **options)]


def end(store: Store, lease: Lease, verdict: Verdict) -> Settled:
    """Settle one delivery."""
    (answer,) = store.settle([(lease, verdict)])
    return answer


def act(store: Store, act: Act, *ids: int, force: bool = False) -> Changed:
    """An operator's act on these jobs."""
    return store.amend(ids, act, force=force)


def refused(changed: Changed) -> dict[str, Sequence[int]]:
    """What was left alone, by reason."""
    assert not changed.done
    return {reason.value: ids for reason, ids in changed.refused.items()}


def record(store: Store, job_id: int) -> Job:
    """The stored record, which must be there."""
    (job,) = store.get([job_id])
    assert job is not None
    return job


def state(store: Store, job_id: int) -> str | None:
    """The job's state; None if it is not stored."""
    (job,) = store.get([job_id])
    return None if job is None else job.state.value


def counts(store: Store, queue: str = Q) -> Counts:
    """The queue's states and totals."""
    return store.counts([queue])[queue]


def everything(store: Store) -> Any:
    """All that is stored of jobs, to see whether a call has changed anything."""
    return store.scan(Filter(), limit=10_000), store.counts(list(store.queues()))
