"""One transition: what was asked of the store, what it answered, and what could be read before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.explore.scope import Scope
from tests.explore.world import Fact, Rest, Seen
from ulak.core.job import Draft, Job, Lease, Outcome, State


class End(NamedTuple):
    """A delivery was settled: the one of this lease, or the job's own at that time.

    how: ack, fail, lost, crash, back, hold, refuse, reject, give up. delay_s: as asked for; None: the job's
    policy. answer: as given, or None where nobody was told.
    """

    lease: Lease | Job
    how: str
    answer: Any = None
    delay_s: float | None = None


class Claimed(NamedTuple):
    """A worker asked for jobs. tasks: as in `Store.claim`."""

    limit: int
    tasks: frozenset[str | None] | None
    leases: Sequence[Lease]


class Put(NamedTuple):
    """Somebody enqueued jobs, from this number on.

    answer: an id or a `Duplicate` for each, FULL, or "closed".
    """

    number: int
    drafts: Sequence[Draft]
    answer: Any
    in_handler: bool = False


class Extended(NamedTuple):
    """A worker asked for more time."""

    lease: Lease
    lease_s: float
    answer: Outcome


class Acted(NamedTuple):
    """An operator's act. what: cancel, redrive, delete, reprioritise. refusal: None, or why not."""

    job_id: int
    what: str
    refusal: str | None


class Step:
    """What happened. Only what a transition is about is set; the rest keeps these values."""

    before: Seen
    after: Seen
    facts: tuple[Fact, ...]
    rest: Rest
    scope: Scope
    is_closed: bool
    keys: tuple[int, ...]
    now_at: float
    now: float
    was_at: float
    was: float
    """The two clocks after the step, and before it."""
    u: float = 0.0
    wanted: dict[int, Job]
    gains: list[str]
    choice: list[int]
    changed: list[tuple[int, Job | None, Job | None]]

    ends: Sequence[End] = ()
    claimed: Claimed | None = None
    put: Put | None = None
    extended: Extended | None = None
    acted: Acted | None = None
    leased: Sequence[Lease] | None = None
    """What the store named as its current leases."""
    ended: Sequence[Lease] | None = None
    """What the store named as leases past their end."""
    reclaimed: int | None = None
    """How many leases a sweep said that it reclaimed."""
    pruned: bool = False
    promoted: int | None = None
    horizon_s: float | None = None
    """What the store said until when nothing becomes claimable by itself; asked before the clock moved."""
    counted: tuple[int, int]
    """By how much the process's own counters of stale and of rejected calls grew."""
    is_direct: bool = False
    """Whether the store was asked without a flow of the process, so that nobody counted."""
    leaver: int | None = None
    may_leave: bool = False
    knows_won: bool | None = None
    """For an ack that is sent again: whether the first one was OK."""

    def __init__(self, **what: Any) -> None:
        self.parts = tuple(what)
        self.__dict__.update(what)


def is_current(job: Job | None, end: End) -> bool:
    """Whether this settlement comes from the current delivery, by what is stored.

    A reclaim must also have seen the lease's present end.
    """
    return (
        job is not None
        and job.state is State.LEASED
        and job.delivery == end.lease.delivery
        and (end.how not in {"lost", "crash"} or job.lease_end == end.lease.lease_end)
    )
