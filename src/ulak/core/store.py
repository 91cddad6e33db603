"""What the rule book asks of a storage: a small set of batch-first operations, each one round trip.

The protocol lives in core, not in `ulak.storage`, because the flows of core name its operations and may
import nothing above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Protocol, TypeAlias, cast

import msgspec

from ulak.core.backoff import Backoff
from ulak.core.history import Grain, Moment, Took
from ulak.core.job import (
    ENDED,
    Counts,
    Draft,
    Duplicate,
    Full,
    Job,
    Lease,
    Outcome,
    State,
    Verdict,
    shown_as_repr,
)
from ulak.durations import seconds
from ulak.errors import ArgumentError

Settlement: TypeAlias = tuple[Lease, Verdict]
Settled: TypeAlias = State | Outcome
"""The state the job is in now, or `Outcome.STALE`."""

Tasks: TypeAlias = frozenset[str | None]
"""The tasks a worker knows; `None` as a member stands for "no task"."""

IDEMPOTENCY_S = 24 * 3600.0
"""How long an idempotency key is remembered, at least, whatever became of its job."""

BATCH_MAX = 100_000
"""The most jobs one `add` takes."""

HELD_SORTED_MAX = 10_000
"""Up to so many held jobs of a queue are found among themselves, and not by walking all others."""

KEEP_COUNT_MAX = 2**63 - 1
"""The most that a `Keep` may count: what every store can hold as a number."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a storage can do, so that a difference is declared and never silent.

    durable: survives its process. immediate: calls never block on I/O, so an event loop may make them
    directly. poll_s: how often a waiter must look by itself because a wake-up may be missed (None: never
    missed). processes: several processes may open the store. transactions: `connection=` is supported.
    """

    durable: bool
    immediate: bool
    processes: bool
    transactions: bool
    poll_s: float | None = None


class Keep(msgspec.Struct, frozen=True):
    """How much of one ended state is kept: at most `count` jobs, none longer than `age_s` seconds.

    count: an int from 0. age_s: seconds, > 0; a timedelta or text is turned into them.
    Raises ArgumentError for anything else.
    """

    count: int
    age_s: float

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 0 <= self.count <= KEEP_COUNT_MAX:
            raise ArgumentError("Keep's count is the most jobs that are kept: an int from 0 to 2**63 - 1")
        msgspec.structs.force_setattr(self, "age_s", seconds(self.age_s, name="age_s", allow_zero=False))


_DAY = 86_400.0
_FINISHED_KEEP = Keep(10_000, _DAY)
DEAD_KEEP = Keep(100_000, 90 * _DAY)


class Retention(msgspec.Struct, frozen=True):
    """What is kept of ended jobs, per state. `prune` may remove the rest at any time.

    What is not named is kept as in a memory store: 100,000 dead jobs for 90 days, 10,000 others for a day.
    Raises ArgumentError for what is no `Keep`.
    """

    succeeded: Keep = _FINISHED_KEEP
    dead: Keep = DEAD_KEEP
    cancelled: Keep = _FINISHED_KEEP
    expired: Keep = _FINISHED_KEEP

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            keep: object = getattr(self, name)
            if not isinstance(keep, Keep):
                raise ArgumentError(
                    f"Retention: {name} must be a Keep(count, age_s), got {type(keep).__name__}"
                )

    def of(self, state: State) -> Keep:
        """The rule for one ended state."""
        assert state in ENDED
        keep: Keep = getattr(self, state.value)
        return keep


MEMORY_RETENTION = Retention()
DURABLE_RETENTION = Retention(
    Keep(100_000, 7 * _DAY), DEAD_KEEP, Keep(100_000, 7 * _DAY), Keep(100_000, 7 * _DAY)
)


class Settings(msgspec.Struct, frozen=True):
    """What is stored with a queue. `capacity` None: unbounded; `backoff` None: failed jobs retry at once."""

    capacity: int | None = None
    paused: bool = False
    backoff: Backoff | None = None
    retention: Retention | None = None


class Unset(Enum):
    """Marks "leave as it is" where None means something."""

    UNSET = "unset"


UNSET = Unset.UNSET


class Change(msgspec.Struct, frozen=True):
    """A change of a queue's settings; what is UNSET stays."""

    capacity: int | Unset | None = UNSET
    paused: bool | Unset = UNSET
    backoff: Backoff | Unset | None = UNSET
    retention: Retention | Unset | None = UNSET

    def apply(self, settings: Settings) -> Settings:
        """The settings after this change."""
        named = {
            name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not UNSET
        }
        return msgspec.structs.replace(settings, **named)


class Filter(msgspec.Struct, frozen=True):
    """Which jobs; what is None does not narrow.

    states: one state or several, by name or as `State`; kept as a frozenset.
    refused: only held jobs that workers who know their task leave, because their payload does not fit it.
    Raises ArgumentError for a state that does not exist.
    """

    queue: str | None = None
    states: frozenset[State] | Iterable[State | str] | State | str | None = None
    task: str | None = None
    worker: str | None = None
    refused: bool = False

    def __post_init__(self) -> None:
        if self.states is None and self.refused:
            msgspec.structs.force_setattr(self, "states", frozenset({State.HELD}))
        elif self.states is not None:
            try:
                named = [self.states] if isinstance(self.states, str) else list(self.states)
                states = frozenset(State(name) for name in named)
            except (TypeError, ValueError):
                known = ", ".join(State)
                raise ArgumentError(f"not a job state: {self.states!r}; the states are {known}") from None
            msgspec.structs.force_setattr(self, "states", states)

    @property
    def asks_for_held(self) -> bool:
        """Whether it asks for held jobs of one queue and no others, as pools do now and then."""
        return self.queue is not None and self.states == {State.HELD}

    def admits(self, state: State) -> bool:
        """Whether a job in this state can match."""
        return self.states is None or state in cast("frozenset[State]", self.states)


class Redrive(msgspec.Struct, frozen=True):
    """Bring a dead, cancelled or expired job back: ready, attempts and crashes at 0.

    A held job becomes ready as it is, attempts and crashes too; it is open already, so it needs no room.
    """


class Cancel(msgspec.Struct, frozen=True):
    """End a waiting job as cancelled; ask a running one to stop."""


class Reprioritise(msgspec.Struct, frozen=True):
    """Give a job another priority."""

    priority: int


class Delete(msgspec.Struct, frozen=True):
    """Remove a job."""


class Edit(msgspec.Struct, frozen=True):
    """Replace a job's payload; a held job stays held."""

    payload: bytes
    codec: str

    def __repr__(self) -> str:
        return f"Edit(payload=<{len(self.payload)} bytes>)"

    __rich_repr__ = shown_as_repr


Act: TypeAlias = Redrive | Cancel | Reprioritise | Delete | Edit


class Refusal(StrEnum):
    """Why an operator's act left a job alone."""

    NOT_FOUND = "not found"
    LEASED = "leased by a worker"
    STATE = "not possible in its state"
    FULL = "queue is full"
    UNIQUE = "unique key is taken"


class Changed(msgspec.Struct, frozen=True):
    """What an operator's act did: the ids it changed, and those it left alone, by reason.

    True if it changed any.
    """

    done: tuple[int, ...]
    refused: Mapping[Refusal, tuple[int, ...]]

    def __bool__(self) -> bool:
        return bool(self.done)


class Fired(Enum):
    """What became of a tick that stored no job: FIRED, or LOST to whoever had fired it or a later one."""

    FIRED = "fired"
    LOST = "lost"


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself, and when it last did (calendar time, set by the store)."""

    worker: str
    info: Mapping[str, str]
    seen_at: float = 0.0

    def serves(self, queue: str) -> bool:
        """Whether it runs jobs of tasks in this queue. What says nothing of tasks may run them."""
        return queue in self.info.get("queues", "").split(",") and self.info.get("tasks") != "plain"


def info_of_pool(queues: Sequence[str], size: int, *, runs_tasks: bool) -> Mapping[str, str]:
    """What a pool says of itself. runs_tasks: it runs jobs of tasks, and no others; else only others."""
    return {"queues": ",".join(queues), "size": str(size), "tasks": "app" if runs_tasks else "plain"}


class Until(StrEnum):
    """What a waiter waits for: a job to claim, room for one, a due time before all others, nothing left."""

    READY = "ready"
    ROOM = "room"
    DUE = "due"
    DRAINED = "drained"


class Signal(Protocol):
    """What a waiter sleeps on; `set` may be called from any thread and is remembered until `clear`."""

    def set(self) -> None:
        """Wake the waiter."""

    def clear(self) -> None:
        """Forget an earlier wake-up, before looking again."""

    def is_set(self) -> bool:
        """Whether a wake-up was not cleared yet."""


class Line(Protocol):
    """The waiters of this process for one thing, first come first served.

    Join, *then* look, then sleep: so no wake-up is lost between the look and the sleep.
    """

    def join(self, signal: Signal) -> None:
        """Stand at the end of the line."""

    def leave(self, signal: Signal) -> None:
        """Step out; a wake-up that was not used is passed on."""

    def is_first(self, signal: Signal) -> bool:
        """Whether nobody stands before this waiter."""

    def ring(self, wakeups: int) -> None:
        """Wake waiters, first come first served."""

    def wake_all(self) -> None:
        """Make every waiter look again, whatever it waits for."""

    def __len__(self) -> int: ...


class Store(Protocol):
    """The operations of a storage. All are atomic, take batches, and are safe to call from any thread.

    uid: names this store, so that a lease cannot be used on another. epoch: part of `Lease.token`.
    """

    uid: str
    epoch: int
    capabilities: Capabilities

    def open(self) -> None:
        """Make the store usable; idempotent. Raises SchemaError if it is newer or foreign."""

    def close(self) -> None:
        """Let go of all handles; idempotent."""

    def migrate(self) -> None:
        """Bring the schema to this version; idempotent."""

    def add(
        self,
        queue: str,
        drafts: Sequence[Draft],
        *,
        known_only: bool = False,
        connection: object | None = None,
    ) -> list[int] | Full:
        """Store jobs, all or none, durably before return; one id or `Duplicate` per draft, in order.

        Checked in this order: idempotency key, unique key (both also within the call), room. Duplicates take
        no room. FULL: not all new ones fit; nothing was stored. known_only: as if there were no room.
        connection: of the caller's, whose transaction the jobs are stored with.
        Raises ArgumentError if there are more new ones than the queue's capacity: they would never fit; or
        if the store or the connection has no such transaction.
        """

    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> list[Lease]:
        """Lease up to `limit` due jobs, in order; delivery and attempt grow by one. Never waits.

        Empties the first queue before the next; within one, higher priority first, then lower id. Skips
        paused queues.
        tasks: None takes anything, held jobs too; a set takes any ready job, and held jobs of those tasks
        but for refused ones, which are held with cause UNDECODABLE.
        """

    def promote(self, queues: Sequence[str]) -> int:
        """Make scheduled jobs that are due ready, as any claim does, and wake waiters for them; how many."""

    def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> list[Settled]:
        """Apply verdicts in one step, one answer per settlement, in order; the same lease twice: first wins.

        STALE, and nothing changed, unless the job is leased and `delivery` matches. A verdict whose cause is
        LOST (a reclaim) is also STALE if the lease's end has moved since it was seen.
        connection: as in `add`.
        """

    def turn(
        self,
        settlements: Sequence[Settlement],
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None = None,
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle, then claim, in one round trip."""

    def extend(
        self, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
    ) -> list[bool | Outcome]:
        """Move lease ends to now + `lease_s`, never to earlier, and store progress texts, by job id.

        Per lease: STALE, or whether a cancel of the job has been requested.
        """

    def ended(self, queues: Sequence[str], limit: int) -> list[Lease]:
        """Leases past their end, or whose worker's process is gone (`gone`); read-only.

        The caller settles them, so that two reapers cannot both win.
        """

    def leased(
        self, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Lease]:
        """The current leases of a queue (of one worker, if given) with id > `after`, by id; read-only."""

    def horizon(self, queues: Sequence[str]) -> float | None:
        """Seconds until time alone makes a job claimable there: the next due job or lease end.

        None: never. Paused queues count for their leases only.
        """

    def amend(
        self,
        which: Sequence[int] | Filter,
        act: Act,
        *,
        queue: str | None = None,
        states: frozenset[State] | None = None,
        force: bool = False,
    ) -> Changed:
        """An operator's act, in order of priority, then id; each job changes or is refused with its reason.

        which: ids (of `queue` only, if given), or all that match. states: leave those in any other alone, for
        who has chosen the ids by a look before. force: override live leases.
        """

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        """Copies of the stored records; None where the id is unknown."""

    def scan(self, which: Filter, *, after: int = 0, limit: int = 100) -> list[Job]:
        """Matching jobs with id > `after`, by id."""

    def counts(self, queues: Sequence[str]) -> dict[str, Counts]:
        """One snapshot of each queue's states and totals; costs the same whatever is stored."""

    def queues(self) -> dict[str, Settings]:
        """All queues and what is stored with them."""

    def declare(self, queue: str, settings: Settings) -> Settings:
        """Make the queue with these settings unless it is there already; what is stored now."""

    def configure(self, queue: str, change: Change) -> Settings:
        """Change a queue's settings; what is stored now. A lower capacity removes nothing."""

    def fire(
        self, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
    ) -> int | Duplicate | Fired | Full:
        """Insert the job and move the schedule's last tick to `tick_at`, in one step, if it was earlier.

        draft: None only moves the last tick, which answers FIRED. Else the id of the job that was stored.
        LOST: it was not earlier. FULL: no room, and the last tick stays. Duplicate: the unique key is taken,
        and the tick counts as fired.
        """

    def schedules(self) -> dict[str, float]:
        """Each schedule's last tick, calendar time."""

    def beat(self, worker: str, info: Mapping[str, str]) -> None:
        """Say that a worker is there, and what it is."""

    def depart(self, worker: str) -> None:
        """Say that a worker has gone for good; unknown ones are nobody's mistake."""

    def workers(self) -> list[WorkerInfo]:
        """The workers that said they are there and not that they have gone, by name."""

    def prune(self, *, limit: int = 1000) -> Mapping[State, int]:
        """End waiting jobs past `expires_at`, then remove ended jobs beyond retention, at most `limit`.

        Returns how many became expired or were removed, per state.
        """

    def record(self, took: Mapping[str, Took]) -> None:
        """Note in each of these queues' history how its counts stand now, and how long jobs took of late.

        One row of this minute and one of this hour, by the calendar: `history.noted` makes it, or adds to it.
        Need not wait for the disk. What is no queue is left out. Removes rows, of any queue, that began more
        than `history.KEPT_S` ago, at most `history.PRUNE_MAX` of a grain.
        """

    def history(self, queues: Sequence[str], since_at: float, *, grain: Grain) -> dict[str, list[Moment]]:
        """The rows of each of these queues, by time: from the last that began by `since_at` on, or the first.

        The difference of two rows' counts is what has happened between their `seen_at`.
        """

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand.

        A wake-up is a hint: it may come early, and where `capabilities.poll_s` is set it may be missed.
        """

    def ends(self, job_id: int) -> Line:
        """Where waiters of this process stand for the end of one job, known or not.

        All of them are woken when it ends, is deleted or forgotten; a wake-up is a hint, as for `line`.
        """
