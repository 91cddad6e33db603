"""The state machine: what may happen to a job, and where each verdict lands it.

Every storage obeys these rules; the memory store calls them, the others say the same in their own language
and are held to it by the contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol, assert_never

import msgspec

from ulak.core.job import (
    Attempt,
    Cancelled,
    Cause,
    Dead,
    Done,
    Draft,
    Duplicate,
    Failure,
    Hold,
    Lease,
    Retry,
    State,
    Verdict,
)

HISTORY_MAX = 20

KeyKind = Literal["idempotency", "unique"]


class Event(StrEnum):
    """What can happen to a stored job."""

    CLAIM = "claim"
    ACK = "ack"
    RETRY = "retry"
    RETRY_LATER = "retry later"
    HOLD = "hold"
    BURY = "bury"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"
    EDIT = "edit"
    REPRIORITISE = "reprioritise"
    DELETE = "delete"


GONE = None
_R, _S, _L, _H = State.READY, State.SCHEDULED, State.LEASED, State.HELD
_OK, _DEAD, _CANCELLED, _EXPIRED = State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED

# The whole state machine: for each event, from which state it may happen and where it leads. What is not
# here cannot happen. CANCEL of a leased job is a flag: the job stays leased until its delivery ends.
# DELETE and REPRIORITISE of a leased job need force.
TABLE: Mapping[Event, Mapping[State, State | None]] = {
    Event.CLAIM: {_R: _L, _S: _L, _H: _L},
    Event.ACK: {_L: _OK},
    Event.RETRY: {_L: _R},
    Event.RETRY_LATER: {_L: _S},
    Event.HOLD: {_L: _H},
    Event.BURY: {_L: _DEAD},
    Event.CANCEL: {_R: _CANCELLED, _S: _CANCELLED, _H: _CANCELLED, _L: _CANCELLED},
    Event.EXPIRE: {_R: _EXPIRED, _S: _EXPIRED, _H: _EXPIRED, _L: _EXPIRED},
    Event.REDRIVE: {_H: _R, _DEAD: _R, _CANCELLED: _R, _EXPIRED: _R},
    Event.EDIT: {_R: _R, _S: _S, _H: _H, _DEAD: _DEAD, _CANCELLED: _CANCELLED, _EXPIRED: _EXPIRED},
    Event.REPRIORITISE: {_R: _R, _S: _S, _H: _H, _L: _L},
    Event.DELETE: dict.fromkeys(State, GONE),
}


def may(state: State, event: Event, *, force: bool = False) -> bool:
    """Whether an operator's act `event` is allowed on a job in `state`; `force` overrides a live lease."""
    if state is State.LEASED and event is not Event.CANCEL and not force:
        return False
    return state in TABLE[event]


class Leased(Protocol):
    """What the rules look at in a leased job; `Job` has it all."""

    @property
    def state(self) -> State | None:
        """Where it is."""

    @property
    def attempt(self) -> int:
        """Which attempt this is."""

    @property
    def max_attempts(self) -> int:
        """How many runs it gets at most."""

    @property
    def crashes(self) -> int:
        """How many of its workers died."""

    @property
    def run_at(self) -> float:
        """When it was due."""

    @property
    def expires_at(self) -> float | None:
        """After which it is not started any more."""

    @property
    def cancel_requested(self) -> bool:
        """Whether its delivery is asked to stop."""


class Landing(msgspec.Struct, frozen=True, gc=False):
    """Where a verdict leaves a job: its state and due time, its counters, and the totals that grow by one."""

    state: State
    run_at: float
    attempt: int
    crashes: int
    totals: tuple[str, ...]


def land(job: Leased, verdict: Verdict, *, now_at: float) -> Landing:
    """Where `verdict` leaves a leased `job`, at calendar time `now_at`.

    ack wins over a requested cancel; every other end of a cancel-requested delivery is `cancelled`; what
    would come back at or after `expires_at` is `expired`.
    """
    assert job.state is State.LEASED
    failed, event, due_at = _intent(job, verdict, now_at)
    if event is not Event.ACK and job.cancel_requested:
        event = Event.CANCEL
    elif event in _BACK and job.expires_at is not None and due_at >= job.expires_at:
        event = Event.EXPIRE
    state = TABLE[event][State.LEASED]
    assert state is not None
    refund = isinstance(verdict, Hold) or (isinstance(verdict, Retry) and verdict.refund)
    crashed = isinstance(verdict, Retry | Dead) and verdict.crashed
    totals = _totals(event, failed=failed)
    return Landing(
        state=state,
        run_at=due_at if event in _BACK else job.run_at,
        attempt=job.attempt - refund,
        crashes=job.crashes + crashed,
        totals=(*totals, "reclaimed") if verdict.cause is Cause.LOST else totals,
    )


_BACK = frozenset({Event.RETRY, Event.RETRY_LATER, Event.HOLD})


def _intent(job: Leased, verdict: Verdict, now_at: float) -> tuple[bool, Event, float]:
    """(is it a failed attempt, the event asked for, when the job would be due)."""
    match verdict:
        case Done():
            return False, Event.ACK, now_at
        case Retry():
            assert verdict.refund or job.attempt < job.max_attempts, "the last failed attempt is Dead"
            event = Event.RETRY_LATER if verdict.delay_s > 0 else Event.RETRY
            return not verdict.refund, event, now_at + verdict.delay_s
        case Hold():
            return False, Event.HOLD, now_at
        case Dead():
            return True, Event.BURY, now_at
        case Cancelled():
            return True, Event.CANCEL, now_at
        case _:
            assert_never(verdict)


def _totals(event: Event, *, failed: bool) -> tuple[str, ...]:
    match event:
        case Event.ACK:
            return ("processed", "succeeded")
        case Event.BURY:
            return ("processed", "failed", "dead_lettered")
        case Event.CANCEL:
            return ("processed", "failed", "cut", "cancelled") if failed else ("cancelled",)
        case Event.EXPIRE:
            return ("processed", "failed", "cut", "expired") if failed else ("expired",)
        case _:
            return ("processed", "failed", "retries") if failed else ()


def failure(
    lease: Lease,
    cause: Cause,
    *,
    draw: float,
    delay_s: float | None = None,
    error: Failure | None = None,
    crashed: bool = False,
) -> Retry | Dead:
    """The failure step, one for nack, error, timeout and reclaim.

    Dead at the last attempt; otherwise back after `delay_s` if given, else after the stored backoff policy
    (none: at once). A crash spends the attempt too, but a job's first crash is retried at once and its later
    ones back off by the number of crashes. draw: uniform in [0, 1).
    """
    if lease.attempt >= lease.max_attempts:
        return Dead(cause=cause, crashed=crashed, error=error)
    if delay_s is None:
        step = lease.crashes if crashed else lease.attempt
        delay_s = lease.backoff.delay_s(step, draw) if lease.backoff is not None and step > 0 else 0.0
    return Retry(delay_s=delay_s, cause=cause, crashed=crashed, error=error)


LOST = "WorkerLost"
"""The type of the stored error of a job whose process was lost."""


def lost_with(gone: str | None) -> Failure | None:
    """The error of a job whose worker's process is gone; None where that is not known of it."""
    if gone is None:
        return None
    return Failure(LOST, f"its worker's process has ended {gone}" if gone else "its worker's process is gone")


def give_back(cause: Cause = Cause.RELEASE, *, delay_s: float = 0.0, error: Failure | None = None) -> Retry:
    """Hand a delivery back unspent: release, shutdown, snooze. error: why, where somebody said so."""
    return Retry(delay_s=delay_s, cause=cause, refund=True, error=error)


def error_of(verdict: Verdict) -> Failure | None:
    """The stored error of a verdict, where it has one."""
    return None if isinstance(verdict, Done) else verdict.error


def is_refused(history: Sequence[Attempt]) -> bool:
    """Whether a held job with this history is one that workers who know its task leave.

    What holds a job is the end of its last delivery: nothing else is written to its history meanwhile.
    """
    return bool(history) and history[-1].cause is Cause.UNDECODABLE


def remember(history: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """Add to a job's history, which keeps the first attempt and the last nineteen."""
    if len(history) < HISTORY_MAX:
        return (*history, attempt)
    return (history[0], *history[2:], attempt)


def number(
    drafts: Sequence[Draft],
    last_id: int,
    stored: Callable[[KeyKind, str], int | None],
) -> tuple[list[int], int]:
    """One answer per new job, as if there is room, and how many are not stored yet: those get the next ids.

    stored: the id that a key of this kind stands for already. The idempotency key counts before the unique
    one, what is stored before what comes earlier in the same call.
    """
    if all(draft.unique_key is None and draft.idempotency_key is None for draft in drafts):
        return list(range(last_id + 1, last_id + 1 + len(drafts))), len(drafts)
    answers: list[int] = []
    same_call: dict[tuple[str, str], int] = {}
    next_id = last_id + 1

    def known(kind: KeyKind, key: str | None) -> int | None:
        if key is None:
            return None
        found = stored(kind, key)
        return same_call.get((kind, key)) if found is None else found

    for draft in drafts:
        found = known("idempotency", draft.idempotency_key)
        if found is None:
            found = known("unique", draft.unique_key)
        answer = next_id if found is None else Duplicate(found)
        if draft.idempotency_key is not None:
            same_call.setdefault(("idempotency", draft.idempotency_key), answer)
        if found is None:
            next_id += 1
            if draft.unique_key is not None:
                same_call["unique", draft.unique_key] = answer
        answers.append(answer)
    return answers, next_id - last_id - 1
