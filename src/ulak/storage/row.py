"""A job as the memory store keeps it: small while it only waits."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from ulak.core.job import Attempt, Cause, Grant, Job, State, Work
from ulak.core.rules import is_refused, remember

# A dict takes 40 to 110 bytes an entry unless it has shrunk.
_ENTRY_MAX_BYTES = 400
_TABLE_MIN_BYTES = 4_000_000


class More(msgspec.Struct, gc=False):
    """What plain jobs never need.

    uncounted: deliveries that do not count as attempts, because they were refunded or came before a redrive.
    watched: the row has an entry in its queue's order of expiry.
    """

    run_at: float
    expires_at: float | None = None
    crashes: int = 0
    uncounted: int = 0
    cancel_requested: bool = False
    watched: bool = False
    progress: str = ""
    result: bytes | None = None
    history: tuple[Attempt, ...] = ()


class Row(Work, gc=False, eq=False):
    """One stored job.

    state: None once the row is not part of the store any more, though some order may still point at it.
    grant, claimed_at: of its current lease or its last one. more: made when it is first needed; a row
    without it is plain, and each of its deliveries counts as an attempt.
    """

    state: State | None = State.READY
    delivery: int = 0
    more: More | None = None
    grant: Grant | None = None
    claimed_at: float = 0.0
    ended_at: float | None = None

    @property
    def attempt(self) -> int:
        """How many deliveries counted so far."""
        return self.delivery if self.more is None else self.delivery - self.more.uncounted

    @property
    def max_attempts(self) -> int:
        """How many runs it gets at most."""
        return self.spec.max_attempts

    @property
    def run_at(self) -> float:
        """When it is or was due."""
        return self.created_at if self.more is None else self.more.run_at

    @property
    def expires_at(self) -> float | None:
        """After which it is not started any more."""
        return None if self.more is None else self.more.expires_at

    @property
    def crashes(self) -> int:
        """How many of its workers died."""
        return 0 if self.more is None else self.more.crashes

    @property
    def cancel_requested(self) -> bool:
        """Whether its running delivery is asked to stop."""
        return self.more is not None and self.more.cancel_requested

    @property
    def worker(self) -> str:
        """Who has or had it."""
        return "" if self.grant is None else self.grant.worker

    @property
    def is_refused(self) -> bool:
        """Whether workers who know its task leave it, while it is held."""
        return self.more is not None and is_refused(self.more.history)

    def detail(self) -> More:
        """`more`, made if need be."""
        if self.more is None:
            self.more = More(self.created_at)
        return self.more

    def ended(self, cause: Cause, at: float) -> Attempt:
        """The entry of its history for the delivery that ends now."""
        return Attempt(self.delivery, self.attempt, self.worker, self.claimed_at, at, cause)

    def record(self, lease_end: float) -> Job:
        """The whole record, as a copy."""
        more, grant, spec = self.more or More(self.created_at), self.grant, self.spec
        history = more.history
        # A plain success leaves no entry behind, because the row itself tells it all.
        if self.state is State.SUCCEEDED and (not history or history[-1].delivery != self.delivery):
            assert self.ended_at is not None
            history = remember(history, self.ended(Cause.ACK, self.ended_at))
        assert self.state is not None
        return Job(
            id=self.id,
            queue=spec.queue,
            payload=self.body,
            codec=spec.codec,
            priority=self.priority,
            max_attempts=spec.max_attempts,
            created_at=self.created_at,
            run_at=more.run_at,
            task=spec.task,
            headers=spec.headers,
            unique_key=spec.unique_key,
            idempotency_key=spec.idempotency_key,
            expires_at=more.expires_at,
            backoff=spec.backoff,
            state=self.state,
            attempt=self.attempt,
            delivery=self.delivery,
            crashes=more.crashes,
            worker=self.worker,
            started_at=self.claimed_at,
            lease_s=0.0 if grant is None else grant.lease_s,
            lease_end=lease_end,
            cancel_requested=more.cancel_requested,
            progress=more.progress,
            result=more.result,
            ended_at=self.ended_at,
            history=history,
        )


class Registry:
    """All rows of a store, by id, and the last id given out.

    A dict that gives its memory back: a plain one keeps its largest table for ever. So `rows` may be another
    dict at any time.
    """

    __slots__ = ("last_id", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.last_id = 0

    def shrink(self) -> None:
        """Give memory back, if most of the rows there ever were are gone. Cheap enough for any call."""
        if sys.getsizeof(self.rows) > _TABLE_MIN_BYTES + _ENTRY_MAX_BYTES * len(self.rows):
            self.rows = dict(self.rows)

    def after(self, job_id: int) -> Iterable[Row]:
        """Every row with a higher id, by id; costs no more than those ids, or than all rows."""
        if self.last_id - job_id > len(self.rows):
            # Ids only grow, and each is put in once, so the dict is in their order.
            return (row for row in self.rows.values() if row.id > job_id)
        between = (self.rows.get(known) for known in range(job_id + 1, self.last_id + 1))
        return (row for row in between if row is not None)
