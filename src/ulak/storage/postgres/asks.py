"""What a step asks of the server: statements. A step is a generator that does no I/O itself.

So one text serves the blocking and the asynchronous connection; whoever runs a step sends what it yields,
gives it the rows, and commits when it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from ulak.core.store import Until
from ulak.errors import StorageBusy

R = TypeVar("R")


class Execute(msgspec.Struct, frozen=True, gc=False):
    """One statement. text: a literal of ours; what others gave is bound, never spliced.

    alone: if no transaction is open yet, it may commit by itself: one round trip. A step that goes on after
    such a statement has changed nothing by it that may not be done twice, so that it may still be run again
    from the start. only_alone: if it cannot, it is left out, and answered with no rows.
    """

    text: str
    params: Sequence[Any] | Mapping[str, Any] = ()
    alone: bool = False
    only_alone: bool = False

    def __repr__(self) -> str:
        return f"Execute({self.text!r})"


Rows: TypeAlias = list[tuple[Any, ...]]
Step: TypeAlias = Generator[Execute, Rows, R]
"""Yields statements, is sent the rows of each (none: an empty list), and returns the answer."""


class Walks(Protocol):
    """Where claims, and looks for what comes first, begin, as `marks` has it."""

    def spans(self, queues: Sequence[str]) -> dict[str, Any] | None:
        """How a claim is to walk these queues, as parameters; None: each from its head."""

    def met(self, queue: str, priority: int) -> None:
        """A job of this priority was taken."""

    def since(self, what: str, queues: Iterable[str], *, renews: bool) -> float:
        """Where a look for the first of these may begin; from the head: -inf.

        renews: the look will tell what it has found.
        """

    def raise_to(self, what: str, queue: str, first: float, since: float) -> None:
        """A look that began there found that none comes before `first`."""


class ApartError(Exception):
    """Several calls cannot be done by one step: nothing was changed, and each is to be run by itself."""


class InTheWayError(ApartError):
    """Others hold what a call needs, and it was to wait for a moment only. told: what it says in the end."""

    def __init__(self, told: StorageBusy) -> None:
        super().__init__()
        self.told = told


class Scene:
    """What a step may know, and what it tells. Made anew for every run of a step, since one may be run again.

    now, now_at: the instants on the interval and the calendar clock; None: the server's own clock.
    shard: which rows of tallies this process adds to, from 0: few in all, best none that others add to too;
    None inside a transaction of the caller's, which only adds rows of differences.
    holder: the number that leases of this process name. claim: that of this run, which stands in the rows
    that it leases. claimed: the queues that it has asked for leases of. marks: where claims begin; None: at
    the head.
    rings: whom to wake in this process after the commit. ended_ids: jobs that ended or were deleted.
    dead_pruned: dead jobs that retention removed, by queue.
    """

    __slots__ = (
        *("claim", "claimed", "dead_pruned", "ended_ids", "epoch", "holder", "now", "now_at", "rings"),
        *("marks", "shard", "uid"),
    )

    def __init__(
        self,
        uid: str,
        epoch: int,
        *,
        shard: int | None = None,
        holder: int | None = None,
        claim: int = 0,
        now: float | None = None,
        now_at: float | None = None,
    ) -> None:
        self.uid = uid
        self.epoch = epoch
        self.shard = shard
        self.holder = holder
        self.marks: Walks | None = None
        self.claim = claim
        self.claimed: Sequence[str] = ()
        self.now = now
        self.now_at = now_at
        self.rings: Counter[tuple[Until, str]] = Counter()
        self.ended_ids: list[int] = []
        self.dead_pruned: Counter[str] = Counter()
