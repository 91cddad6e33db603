"""The values everything else speaks in: a job, a lease on it, what may become of it.

Instants named `*_at` are seconds since the epoch on the store's calendar clock; `lease_end` is on the
store's interval clock; durations end in `_s`. The two clocks are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from ulak import codec as _codec
from ulak.core.backoff import Backoff

PRIORITY_MIN = -(2**63)
PRIORITY_MAX = 2**63 - 1


class State(StrEnum):
    """Where a job is in its life."""

    READY = "ready"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    HELD = "held"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


OPEN = frozenset({State.READY, State.SCHEDULED, State.LEASED, State.HELD})
ENDED = frozenset(State) - OPEN


class Terminal(Enum):
    """How a job ended, as `terminal_of` answers it."""

    ACKED = "acked"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL_OF: Mapping[State, Terminal] = {
    State.SUCCEEDED: Terminal.ACKED,
    State.DEAD: Terminal.DEAD,
    State.CANCELLED: Terminal.CANCELLED,
    State.EXPIRED: Terminal.EXPIRED,
}


class Outcome(Enum):
    """What a call with a lease did: OK, or nothing at all because the lease had ended (STALE, falsy)."""

    OK = "ok"
    STALE = "stale"

    def __bool__(self) -> bool:
        return self is Outcome.OK


class Full(Enum):
    """The answer when a queue is at its capacity: `FULL`, falsy."""

    FULL = "full"

    def __bool__(self) -> bool:
        return False


FULL: Literal[Full.FULL] = Full.FULL


class Duplicate(int):
    """The id of the job that already stands for this unique or idempotency key: nothing new was stored."""

    __slots__ = ()

    # As text it is the id, so that it may stand wherever an id does.
    __str__ = int.__repr__

    def __repr__(self) -> str:
        return f"Duplicate({int(self)})"


def shown_as_repr(value: object) -> list[tuple[str, Any]]:
    """For `__rich_repr__`: show no more than `repr` does, since structs would show all their fields."""
    return [("summary", repr(value))]


class Cause(StrEnum):
    """Why a delivery ended."""

    ACK = "ack"
    NACK = "nack"
    ERROR = "error"
    TIMEOUT = "timeout"
    LOST = "lost"
    REJECT = "reject"
    CANCEL = "cancel"
    RELEASE = "release"
    SNOOZE = "snooze"
    SHUTDOWN = "shutdown"
    UNKNOWN_TASK = "unknown task"
    UNDECODABLE = "undecodable"


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An error as it is stored: bounded valid text, no objects, no local variables."""

    type: str
    text: str
    traceback: str = ""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One delivery that ended: who had it, when, how it ended."""

    delivery: int
    attempt: int
    worker: str
    started_at: float
    ended_at: float
    cause: Cause
    error: Failure | None = None


class Done(msgspec.Struct, frozen=True, gc=False):
    """The job is finished. `result` is already encoded."""

    result: bytes | None = None
    cause: Cause = Cause.ACK

    def __repr__(self) -> str:
        return "Done()" if self.result is None else f"Done(result=<{len(self.result)} bytes>)"

    __rich_repr__ = shown_as_repr


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Back into the queue after `delay_s`, added to the store's clock inside the settle.

    refund: the attempt does not count. crashed: the worker died with it (one more crash).
    """

    delay_s: float = 0.0
    cause: Cause = Cause.NACK
    refund: bool = False
    crashed: bool = False
    error: Failure | None = None


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Set aside until a worker that knows its task claims it; the attempt does not count.

    cause UNDECODABLE: its payload does not fit its task here, so that such workers leave it too. error: why.
    """

    cause: Cause = Cause.UNKNOWN_TASK
    error: Failure | None = None


class Dead(msgspec.Struct, frozen=True, gc=False):
    """A failed attempt and no more: into the dead-letter queue, with its payload."""

    cause: Cause = Cause.NACK
    crashed: bool = False
    error: Failure | None = None


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The handler gave the job up on purpose."""

    cause: Cause = Cause.CANCEL
    error: Failure | None = None


Verdict: TypeAlias = Done | Retry | Hold | Dead | Cancelled


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A job that is not stored yet: checked and encoded.

    Of `delay_s` and `run_at`, and of `expires_s` and `expires_at`, at most one is given.
    """

    payload: bytes
    codec: str
    priority: int = 0
    max_attempts: int = 5
    task: str | None = None
    headers: Mapping[str, str] | None = None
    delay_s: float = 0.0
    run_at: float | None = None
    expires_s: float | None = None
    expires_at: float | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    backoff: Backoff | None = None

    def __repr__(self) -> str:
        return f"Draft(payload=<{len(self.payload)} bytes>, priority={self.priority}, task={self.task!r})"

    __rich_repr__ = shown_as_repr


class Job(msgspec.Struct, kw_only=True):
    """The whole stored record of a job. What a storage hands out is a copy."""

    id: int
    queue: str
    payload: bytes
    codec: str
    priority: int
    max_attempts: int
    created_at: float
    run_at: float
    task: str | None = None
    headers: Mapping[str, str] | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    expires_at: float | None = None
    backoff: Backoff | None = None
    state: State = State.READY
    attempt: int = 0
    delivery: int = 0
    crashes: int = 0
    worker: str = ""
    started_at: float = 0.0
    lease_s: float = 0.0
    lease_end: float = 0.0
    cancel_requested: bool = False
    progress: str = ""
    result: bytes | None = None
    ended_at: float | None = None
    history: tuple[Attempt, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id}, queue={self.queue!r}, state={self.state.value}, attempt={self.attempt}, "
            f"delivery={self.delivery}, payload=<{len(self.payload)} bytes>)"
        )

    __rich_repr__ = shown_as_repr


class Spec(msgspec.Struct, frozen=True, gc=False):
    """What a job was asked to be, beside its payload and priority. Jobs enqueued alike may share one."""

    queue: str
    codec: str
    max_attempts: int
    task: str | None = None
    headers: Mapping[str, str] | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    backoff: Backoff | None = None


class Work(msgspec.Struct, gc=False):
    """What is to be done for one job. Nobody changes it while the job is open: an edit makes another one."""

    id: int
    spec: Spec
    body: bytes
    priority: int
    created_at: float

    def __repr__(self) -> str:
        return f"Work(id={self.id}, queue={self.spec.queue!r}, payload=<{len(self.body)} bytes>)"

    __rich_repr__ = shown_as_repr


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What all leases of one worker share: the store they come from, who holds them, and for how long."""

    store: str
    epoch: int
    worker: str
    lease_s: float


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to settle one delivery of one job.

    `token` = (store epoch, delivery) only grows for a job: hand it to outside systems as a fencing token.
    backoff: the policy that a failure follows, the job's own or else its queue's. gone: its holder's process
    is known to be gone, and how it has ended ("": that is not known); only `Store.ended` says so.
    """

    grant: Grant
    work: Work
    delivery: int
    attempt: int
    lease_end: float
    claimed_at: float
    crashes: int = 0
    backoff: Backoff | None = None
    gone: str | None = None

    @property
    def store(self) -> str:
        """The store that delivered it."""
        return self.grant.store

    @property
    def epoch(self) -> int:
        """The store's epoch, which only grows."""
        return self.grant.epoch

    @property
    def queue(self) -> str:
        """The queue that delivered it."""
        return self.work.spec.queue

    @property
    def id(self) -> int:
        """The job's id."""
        return self.work.id

    @property
    def max_attempts(self) -> int:
        """How many runs the job gets at most."""
        return self.work.spec.max_attempts

    @property
    def priority(self) -> int:
        """The job's priority when it was delivered."""
        return self.work.priority

    @property
    def body(self) -> bytes:
        """The payload as it is stored."""
        return self.work.body

    @property
    def codec(self) -> str:
        """How the payload is encoded."""
        return self.work.spec.codec

    @property
    def worker(self) -> str:
        """Who holds it."""
        return self.grant.worker

    @property
    def lease_s(self) -> float:
        """Its length, in seconds."""
        return self.grant.lease_s

    @property
    def created_at(self) -> float:
        """When the job was enqueued, calendar time."""
        return self.work.created_at

    @property
    def task(self) -> str | None:
        """The task the job is a call of, if any."""
        return self.work.spec.task

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers it was enqueued with."""
        return self.work.spec.headers

    @property
    def payload(self) -> Any:  # noqa: ANN401 - a payload is whatever its producer gave
        """The payload, decoded anew at each look. Raises PayloadError if the stored bytes do not fit."""
        return _codec.decode(self.work.body, self.work.spec.codec)

    @property
    def token(self) -> tuple[int, int]:
        """(store epoch, delivery): grows with every delivery of this job."""
        return self.grant.epoch, self.delivery

    @property
    def redelivered(self) -> bool:
        """True unless this is the first time the job is handed out."""
        return self.delivery > 1

    def __repr__(self) -> str:
        return f"Lease(id={self.id}, queue={self.queue!r}, delivery={self.delivery}, attempt={self.attempt})"

    __rich_repr__ = shown_as_repr


class Totals(msgspec.Struct, gc=False):
    """Lifetime totals of a queue; none of them ever goes down.

    processed = succeeded + failed; failed = retries + dead_lettered + cut;
    enqueued + redriven = succeeded + dead_lettered + cancelled + expired + deleted + open.

    processed: attempts ended by success, failure, time-out or reclaim (not release, snooze, hold).
    cut: failed attempts after which the job ended cancelled or expired. deleted: jobs deleted while open.
    pruned: ended jobs removed, by retention or by an operator.
    """

    enqueued: int = 0
    redriven: int = 0
    processed: int = 0
    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    dead_lettered: int = 0
    cut: int = 0
    cancelled: int = 0
    expired: int = 0
    deleted: int = 0
    reclaimed: int = 0
    pruned: int = 0


class Counts(msgspec.Struct, frozen=True, gc=False):
    """How many jobs of a queue are in each state, and its totals, in one snapshot."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    held: int = 0
    acked: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)

    @property
    def pending(self) -> int:
        """Waiting for a worker: ready + scheduled."""
        return self.ready + self.scheduled

    @property
    def open(self) -> int:
        """Unfinished: ready + scheduled + leased + held."""
        return self.ready + self.scheduled + self.leased + self.held

    @property
    def pruned(self) -> int:
        """Ended jobs that are no longer stored, removed by retention or by an operator."""
        return self.totals.pruned

    @property
    def total(self) -> int:
        """Ever enqueued = open + acked + dead + cancelled + expired + pruned + totals.deleted."""
        return self.totals.enqueued
