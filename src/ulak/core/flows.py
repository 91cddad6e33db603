"""Calls of several steps, written once for threads and for event loops.

A flow is a generator that does nothing itself: it yields what it wants (a storage operation, the time, a
random draw, a wait) and gets the answer sent in. `ulak.storage.drive` runs flows, one loop for threads and
one for asyncio; tests and simulators bring their own. Every ask goes through one of the typed helpers
below, so each `yield from` has the exact type of its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import msgspec

from ulak.core import rules
from ulak.core.job import ENDED, FULL, Cause, Counts, Done, Draft, Failure, Full, Job, Lease, Outcome, Verdict
from ulak.core.store import Line, Settings, Settled, Settlement, Signal, Store, Until
from ulak.errors import Closed, LeaseLost, QueueFull, WouldDeadlock

P = ParamSpec("P")
R = TypeVar("R")

REAP_MAX = 100
"""How many ended leases one step reclaims."""

SWEEP_MAX = 1_000
"""How many leases one step of a sweep over all of them settles."""

LOOK_AGAIN_S = 1.0
"""The longest a waiter sleeps without a look: a lease that was taken meanwhile, or an open job's time, may
have ended, and nobody rings for either."""

CALENDAR_SLEEP_MAX_S = 1.0
"""The longest sleep towards an instant of the calendar clock, which may be set at any moment."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """Ask for a storage operation."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Now(msgspec.Struct, frozen=True):
    """Ask for the time on the interval clock, in seconds."""


class Draw(msgspec.Struct, frozen=True):
    """Ask for a uniform draw from [0, 1)."""


class NewSignal(msgspec.Struct, frozen=True):
    """Ask for a signal that this flow's driver can sleep on."""


class Sleep(msgspec.Struct, frozen=True):
    """Ask to sleep until the signal is set or `timeout_s` have passed (None: no limit)."""

    signal: Signal
    timeout_s: float | None


class Do(msgspec.Struct, frozen=True):
    """Ask to call a function that is not ours.

    A thread's driver calls it, an event loop's awaits what it returns. It must not raise.
    """

    call: Callable[[], Any]


Ask: TypeAlias = Call | Now | Draw | NewSignal | Sleep | Do
Flow: TypeAlias = Generator[Ask, Any, R]


def ask(operation: Callable[Concatenate[Store, P], R], *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
    """What a storage operation answers, as in `ids = yield from ask(Store.add, queue, drafts)`."""
    return cast("R", (yield Call(operation.__name__, args, kwargs)))


def now() -> Flow[float]:
    """Seconds on the interval clock."""
    return cast("float", (yield Now()))


def draw() -> Flow[float]:
    """A uniform draw from [0, 1)."""
    return cast("float", (yield Draw()))


def new_signal() -> Flow[Signal]:
    """A fresh signal of this driver."""
    return cast("Signal", (yield NewSignal()))


def sleep(signal: Signal, timeout_s: float | None) -> Flow[None]:
    """Sleep until the signal is set, or for `timeout_s`."""
    yield Sleep(signal, timeout_s)


class Handling(Enum):
    """What the caller is running: no handler, the handler of a job of this queue, or of another one."""

    NOTHING = "nothing"
    THIS_QUEUE = "this queue"
    OTHER_QUEUE = "other queue"


class Local(Protocol):
    """What one process knows of a queue and never stores."""

    @property
    def finished(self) -> bool:
        """Whether every producer that registered here has finished (none registered: False)."""

    @property
    def closed(self) -> bool:
        """Whether the handle that the call came through is closed."""

    def count_rejected(self) -> None:
        """An enqueue found no room."""

    def count_stale(self, stale: int) -> None:
        """So many settlements were refused as stale."""

    def count_blocked(self, blocked_s: float) -> None:
        """An enqueue has waited so long for room, found or not."""


Note: TypeAlias = Callable[[Lease, Verdict, Settled], None]
"""Is told of each delivery that a flow has ended in its worker's place, as soon as that is stored."""


def unheard(_lease: Lease, _verdict: Verdict, _answer: Settled) -> None:
    """Tell nobody."""


def enqueue(
    local: Local,
    queue: str,
    drafts: Sequence[Draft],
    *,
    timeout_s: float | None,
    handler: Handling,
) -> Flow[list[int]]:
    """Store jobs, all or none, waiting for room, first come first served.

    timeout_s: the longest wait; None waits for ever.
    Raises Closed once every producer has finished (a handler's enqueue into its own queue is not refused),
    WouldDeadlock where a handler would wait without a limit, QueueFull when there was no room in time.
    Nothing was stored then.
    """
    _refuse_closed(local, queue, handler)
    room = yield from ask(Store.line, Until.ROOM, queue)
    never_waits = handler is not Handling.NOTHING and timeout_s is None
    # Whoever waits already comes first, but a duplicate takes no room and never waits for it.
    answer = yield from ask(Store.add, queue, drafts, known_only=len(room) > 0 and not never_waits)
    if not isinstance(answer, Full):
        return answer
    if never_waits:
        local.count_rejected()
        raise WouldDeadlock(
            f"queue {queue!r} is full, and a handler must not wait without a limit for room that only "
            f"handlers can make\n  give enqueue(timeout=...), use try_enqueue, or raise the capacity"
        )
    answer = yield from _wait_for_room(local, queue, drafts, room, timeout_s=timeout_s, handler=handler)
    if not isinstance(answer, Full):
        return answer
    local.count_rejected()
    raise QueueFull((yield from _full_text(queue, timeout_s)))


def _wait_for_room(
    local: Local,
    queue: str,
    drafts: Sequence[Draft],
    room: Line,
    *,
    timeout_s: float | None,
    handler: Handling,
) -> Flow[list[int] | Full]:
    """Stand in line, and store the jobs when it is their turn and there is room; FULL when time is over."""
    start = yield from now()
    signal = yield from new_signal()
    room.join(signal)
    try:
        while True:
            signal.clear()
            _refuse_closed(local, queue, handler)
            is_first = room.is_first(signal)
            if is_first:
                answer = yield from ask(Store.add, queue, drafts)
                if not isinstance(answer, Full):
                    local.count_blocked((yield from now()) - start)
                    return answer
            left_s = None if timeout_s is None else start + timeout_s - (yield from now())
            if timeout_s is not None and left_s is not None and left_s <= 0:
                if timeout_s > 0:
                    local.count_blocked(timeout_s - left_s)
                return FULL
            # Nobody rings when an open job's `expires_at` passes, so the first in line looks by itself.
            yield from sleep(signal, least(left_s, LOOK_AGAIN_S) if is_first else left_s)
    finally:
        room.leave(signal)


def _refuse_closed(local: Local, queue: str, handler: Handling) -> None:
    _refuse_closed_handle(local, queue)
    # The job of a handler is open, so nothing has ended while it runs.
    if local.finished and handler is not Handling.THIS_QUEUE:
        raise Closed(
            f"queue {queue!r} takes no more jobs: every registered producer has finished\n"
            f"  register another with queue.producer() to reopen it"
        )


def _refuse_closed_handle(local: Local, queue: str) -> None:
    if local.closed:
        raise Closed(f"this handle on queue {queue!r} is closed; make a new one")


def _full_text(queue: str, timeout_s: float | None) -> Flow[str]:
    settings = (yield from ask(Store.queues)).get(queue)
    capacity = settings.capacity if settings is not None else None
    limit = "" if capacity is None else f" of {capacity:,} open jobs"
    waited = "" if not timeout_s else f" for {timeout_s:g} s"
    return (
        f"queue {queue!r} stayed at its capacity{limit}{waited}; nothing was stored\n"
        f"  wait longer, work faster, or raise it with q.configure(capacity=...)"
    )


def enqueue_joined(
    local: Local, queue: str, drafts: Sequence[Draft], connection: object, *, handler: Handling
) -> Flow[list[int]]:
    """Store jobs, all or none, in the transaction that is open on the caller's connection; never waits.

    Raises QueueFull at once if there is no room, Closed as `enqueue` does, StorageBusy.
    """
    answer = yield from try_enqueue(local, queue, drafts, handler=handler, connection=connection)
    if isinstance(answer, Full):
        raise QueueFull((yield from _full_text(queue, None)))
    return answer


def try_enqueue(
    local: Local,
    queue: str,
    drafts: Sequence[Draft],
    *,
    handler: Handling,
    connection: object | None = None,
) -> Flow[list[int] | Full]:
    """Store jobs, all or none, or answer FULL at once. Raises Closed as `enqueue` does."""
    _refuse_closed(local, queue, handler)
    if connection is None:
        answer = yield from ask(Store.add, queue, drafts)
    else:
        answer = yield from ask(Store.add, queue, drafts, connection=connection)
    if isinstance(answer, Full):
        local.count_rejected()
        return FULL
    return answer


def deliver(
    local: Local,
    queue: str,
    limit: int,
    *,
    worker: str,
    lease_s: float,
    timeout_s: float | None,
    note: Note = unheard,
) -> Flow[list[Lease]]:
    """Take up to `limit` jobs under leases of `lease_s`, waiting for the first; reclaims ended leases too.

    timeout_s: the longest wait (None: for ever, 0: none).
    Empty when time is up, or when every producer has finished and nothing is left that could come.
    """
    look = Look(local, queue, limit, worker=worker, lease_s=lease_s, note=note)
    _refuse_closed_handle(local, queue)
    leases = yield from look.once()
    if leases or timeout_s == 0:
        return leases
    start = yield from now()
    signal = yield from new_signal()
    lines = yield from lines_of(queue, Until.READY, Until.DUE, Until.DRAINED)
    for line in lines:
        line.join(signal)
    try:
        while True:
            signal.clear()
            _refuse_closed_handle(local, queue)
            leases = yield from look.once()
            if leases or (local.finished and (yield from is_drained([queue]))):
                return leases
            left_s = None if timeout_s is None else start + timeout_s - (yield from now())
            if left_s is not None and left_s <= 0:
                return leases
            yield from sleep(signal, least(left_s, (yield from ask(Store.horizon, [queue])), LOOK_AGAIN_S))
    finally:
        for line in lines:
            line.leave(signal)


def wait_end(job_id: int, *, timeout_s: float | None, local: Local | None = None) -> Flow[Job | None]:
    """The record of a job once it has ended, or as it is when time is over; None if it is not stored.

    timeout_s: the longest wait (None: for ever, 0: none). local: whose handle the wait ends with.
    Raises Closed when that one is closed.
    """
    start = yield from now()
    signal = yield from new_signal()
    line = yield from ask(Store.ends, job_id)
    line.join(signal)
    try:
        while True:
            signal.clear()
            (job,) = yield from ask(Store.get, [job_id])
            if job is None or job.state in ENDED:
                return job
            if local is not None:
                _refuse_closed_handle(local, job.queue)
            left_s = None if timeout_s is None else start + timeout_s - (yield from now())
            if left_s is not None and left_s <= 0:
                return job
            yield from sleep(signal, least(left_s, LOOK_AGAIN_S))
    finally:
        line.leave(signal)


def lines_of(queue: str, *untils: Until) -> Flow[list[Line]]:
    """The lines of a queue where waiters for these things stand."""
    lines: list[Line] = []
    for until in untils:
        lines += [(yield from ask(Store.line, until, queue))]
    return lines


def first(flow: Flow[list[R]]) -> Flow[R | None]:
    """The first of what a flow answers, or None."""
    answers = yield from flow
    return answers[0] if answers else None


def least(*limits_s: float | None) -> float | None:
    """The shortest of several optional limits, in seconds; None if there is none."""
    given = [limit for limit in limits_s if limit is not None]
    return min(given) if given else None


class Look(msgspec.Struct, frozen=True):
    """One look for work in one queue, as one worker: reclaim what has ended, then claim."""

    local: Local
    queue: str
    limit: int
    worker: str
    lease_s: float
    note: Note

    def once(self) -> Flow[list[Lease]]:
        """Leases, in order; empty when nothing is due."""
        yield from reclaim([self.queue], self.note)
        leases = yield from ask(
            Store.claim, [self.queue], self.limit, worker=self.worker, lease_s=self.lease_s
        )
        if leases and self.local.closed:
            # The close came first, and has handed back what it found; this came too late for it.
            yield from ask(Store.settle, [(lease, rules.give_back()) for lease in leases])
            _refuse_closed_handle(self.local, self.queue)
        return leases


def reclaim(queues: Sequence[str], note: Note = unheard) -> Flow[int]:
    """Settle every lease that ended without a verdict by the failure step; how many this call reclaimed.

    Each batch is its own step: an error leaves what was settled settled, and the next call goes on.
    """
    reclaimed = 0
    while leases := (yield from ask(Store.ended, queues, REAP_MAX)):
        settled = yield from _settle_lost(leases, note)
        reclaimed += settled
        # Others may hold what is left; the next call tries again.
        if settled == 0:
            break
    return reclaimed


def _settle_lost(leases: Sequence[Lease], note: Note, *, crashed: bool = False) -> Flow[int]:
    """Settle leases as lost; how many really were (the others were settled or extended meanwhile)."""
    lost: list[Settlement] = []
    for lease in leases:
        u = yield from draw()
        error = rules.lost_with(lease.gone)
        is_crash = crashed or lease.gone is not None
        lost.append((lease, rules.failure(lease, Cause.LOST, draw=u, error=error, crashed=is_crash)))
    return (yield from settle_for_others(lost, note))


def settle_for_others(settlements: Sequence[Settlement], note: Note) -> Flow[int]:
    """Settle what their workers do not; how many were theirs still."""
    answers = yield from ask(Store.settle, settlements)
    settled = 0
    for (lease, verdict), answer in zip(settlements, answers, strict=True):
        if answer is not Outcome.STALE:
            settled += 1
            note(lease, verdict, answer)
    return settled


def crash(queue: str, note: Note = unheard) -> Flow[int]:
    """Reclaim every lease of the queue whatever its deadline, as if all its workers had died; how many.

    A lease that its holder extends between the look and the settle is left alone: the holder lives.
    """
    reclaimed, after = 0, 0
    while leases := (yield from ask(Store.leased, queue, after=after, limit=SWEEP_MAX)):
        reclaimed += yield from _settle_lost(leases, note, crashed=True)
        after = leases[-1].id
    return reclaimed


def settle(local: Local, settlements: Sequence[Settlement]) -> Flow[list[Outcome]]:
    """Settle deliveries in one step: per lease OK, or STALE and nothing changed."""
    settled = yield from ask(Store.settle, settlements)
    outcomes = [Outcome.STALE if answer is Outcome.STALE else Outcome.OK for answer in settled]
    local.count_stale(outcomes.count(Outcome.STALE))
    return outcomes


def ack_joined(local: Local, lease: Lease, connection: object) -> Flow[Outcome]:
    """Finish a job in the transaction that is open on the caller's connection: it counts when that commits.

    Raises LeaseLost if the delivery is not current any more, so that nothing is committed by oversight.
    """
    (settled,) = yield from ask(Store.settle, [(lease, Done())], connection=connection)
    if settled is Outcome.STALE:
        local.count_stale(1)
        raise lost(lease)
    return Outcome.OK


def lost(lease: Lease) -> LeaseLost:
    """What a call raises that must not go on without its lease."""
    return LeaseLost(
        f"job {lease.id} of queue {lease.queue!r} is not this delivery's any more: its lease has ended\n"
        f"  roll back the transaction; whoever has the job now does its work"
    )


def nack(local: Local, lease: Lease, *, delay_s: float | None, error: Failure | None) -> Flow[Outcome]:
    """Settle one delivery as failed, by the failure step."""
    u = yield from draw()
    verdict = rules.failure(lease, Cause.NACK, draw=u, delay_s=delay_s, error=error)
    return (yield from settle(local, [(lease, verdict)]))[0]


def extend(local: Local, lease: Lease, lease_s: float) -> Flow[Outcome]:
    """Move one lease's end: OK, or STALE and nothing changed."""
    (answer,) = yield from ask(Store.extend, [lease], lease_s)
    local.count_stale(int(answer is Outcome.STALE))
    return Outcome.STALE if answer is Outcome.STALE else Outcome.OK


def is_drained(queues: Sequence[str]) -> Flow[bool]:
    """Whether nothing is left that could still run here.

    Held jobs, and waiting jobs of paused queues, do not keep a drain.
    """
    counts = yield from ask(Store.counts, queues)
    settings = yield from ask(Store.queues)
    return all(is_at_rest(count, settings[queue]) for queue, count in counts.items())


def is_at_rest(counts: Counts, settings: Settings) -> bool:
    """Whether nothing is left of a queue that could still run here, by these numbers."""
    return counts.leased == 0 and (settings.paused or counts.pending == 0)


def release_all(queue: str, worker: str, cause: Cause = Cause.RELEASE, note: Note = unheard) -> Flow[int]:
    """Hand back, unspent, every lease this worker holds in the queue; how many."""
    released, after = 0, 0
    while leases := (yield from ask(Store.leased, queue, worker=worker, after=after, limit=SWEEP_MAX)):
        released += yield from settle_for_others([(lease, rules.give_back(cause)) for lease in leases], note)
        after = leases[-1].id
    return released
