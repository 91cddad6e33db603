"""What happens to jobs, as one typed stream; ulak's own log is written on it.

Subscribe with `App.on`. An event tells what this process has done or seen: it is not stored, and a process
that dies tells nothing. It never holds a payload or a result.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ulak.capture import frame_of
from ulak.clock import SYSTEM
from ulak.core import rules
from ulak.core.job import Cancelled as CancelledVerdict
from ulak.core.job import Cause, Dead, Done, Failure, Hold, Lease, Outcome, Retry, State, Verdict
from ulak.core.store import Settled
from ulak.seldom import Seldom, again

_log = logging.getLogger("ulak")


class _OfJob(msgspec.Struct, frozen=True, gc=False):
    job_id: int
    queue: str
    task: str | None


class Enqueued(_OfJob, frozen=True, gc=False):
    """A task's job was stored, or one stood for its key already (`existed`)."""

    existed: bool = False


class _OfDelivery(_OfJob, frozen=True, gc=False):
    attempt: int
    max_attempts: int
    delivery: int
    worker: str
    enqueued_at: float
    started_at: float


class Started(_OfDelivery, frozen=True, gc=False):
    """A worker is about to run the job. enqueued_at, started_at: calendar time."""


class _OfEnd(_OfDelivery, frozen=True, gc=False):
    run_s: float


class Succeeded(_OfEnd, frozen=True, gc=False):
    """The job is finished. run_s: how long its handler ran, in seconds."""


class Retried(_OfEnd, frozen=True, gc=False):
    """A failed attempt; the next one is due in `delay_s` seconds."""

    cause: Cause
    delay_s: float
    error: Failure | None = None


class Died(_OfEnd, frozen=True, gc=False):
    """The last failed attempt: the job is dead now, with its payload."""

    cause: Cause
    error: Failure | None = None


class Cancelled(_OfEnd, frozen=True, gc=False):
    """The job ended as cancelled."""

    error: Failure | None = None


class Expired(_OfEnd, frozen=True, gc=False):
    """A failed attempt whose retry would have come too late: the job is expired now."""

    error: Failure | None = None


class Held(_OfEnd, frozen=True, gc=False):
    """Set aside, the attempt not counted: this worker does not know the task, or its arguments do not fit."""

    cause: Cause
    error: Failure | None = None


class Returned(_OfEnd, frozen=True, gc=False):
    """Handed back, the attempt not counted: at a shutdown, or for a snooze of `delay_s` seconds."""

    cause: Cause
    delay_s: float


class Stale(_OfEnd, frozen=True, gc=False):
    """What the handler did was settled too late: its lease had ended. Nothing was changed."""

    error: Failure | None = None


Event: TypeAlias = (
    Enqueued | Started | Succeeded | Retried | Died | Cancelled | Expired | Held | Returned | Stale
)
Subscriber: TypeAlias = Callable[[Event], object]


class Events:
    """Who is told. A subscriber is called in the thread or task where it happens, and must be quick.

    What a subscriber raises is logged, once for each, and changes nothing: the job that it is about is stored
    already, or must go on.
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        # Their ids, since a subscriber need not have a hash.
        self._blamed: set[int] = set()
        self._seldom = Seldom()

    @property
    def is_heard(self) -> bool:
        """Whether anybody but the log listens."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell this one too, from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Tell this one no more. One that is not told: nothing."""
        self._subscribers = tuple(other for other in self._subscribers if other != subscriber)
        self._blamed &= set(map(id, self._subscribers))

    def tell(self, event: Event) -> None:
        """Tell everybody, the log first. Raises nothing but a Ctrl-C that strikes a producer meanwhile."""
        try:
            self._write(event)
        except BaseException as error:  # noqa: BLE001 - a log handler of the user's may raise anything
            _let_interrupt_through(error, event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the job it is about must go on
                _let_interrupt_through(error, event)
                self._blame(subscriber)

    def _write(self, event: Event) -> None:
        """Have the log say it; of held jobs now and then for each task: they may come by the thousand."""
        kept_back: int | None = 0
        if isinstance(event, Held):
            kind = f"{event.queue} {event.task} {event.cause}"
            kept_back = self._seldom.may_say(kind, SYSTEM.interval())
        if kept_back is not None:
            _write(event, kept_back)

    def _blame(self, subscriber: Subscriber) -> None:
        if id(subscriber) not in self._blamed:
            self._blamed.add(id(subscriber))
            # As above.
            with contextlib.suppress(BaseException):
                _log.exception("a subscriber to events raised; it is told of later ones all the same")


def _let_interrupt_through(error: BaseException, event: Event) -> None:
    """Raise what is a Ctrl-C in the main thread, unless a worker runs there: it would lose its job."""
    is_in_main = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and isinstance(event, Enqueued) and is_in_main:
        raise error


def started(lease: Lease) -> Started:
    """The event of a delivery that begins."""
    return Started(*_delivery(lease))


def settled(lease: Lease, verdict: Verdict, answer: Settled, run_s: float) -> Event:
    """What became of a delivery: `answer` is what the store said to this verdict."""
    of, error = _delivery(lease), rules.error_of(verdict)
    match answer:
        case Outcome.STALE:
            return Stale(*of, run_s, error)
        case State.CANCELLED:
            return Cancelled(*of, run_s, error)
        case State.EXPIRED:
            return Expired(*of, run_s, error)
        case _:
            return _as_asked(of, verdict, run_s, error)


def _as_asked(of: _Of, verdict: Verdict, run_s: float, error: Failure | None) -> Event:
    match verdict:
        case Done():
            return Succeeded(*of, run_s)
        case Retry(refund=False):
            return Retried(*of, run_s, verdict.cause, verdict.delay_s, error)
        case Retry():
            return Returned(*of, run_s, verdict.cause, verdict.delay_s)
        case Dead():
            return Died(*of, run_s, verdict.cause, error)
        case Hold():
            return Held(*of, run_s, verdict.cause, error)
        case CancelledVerdict():
            return Cancelled(*of, run_s, error)


_Of: TypeAlias = tuple[int, str, str | None, int, int, int, str, float, float]


def _delivery(lease: Lease) -> _Of:
    return (
        lease.id,
        lease.queue,
        lease.task,
        lease.attempt,
        lease.max_attempts,
        lease.delivery,
        lease.worker,
        lease.created_at,
        lease.claimed_at,
    )


LEVELS: dict[type[Event], int] = {
    Died: logging.ERROR,
    Retried: logging.WARNING,
    Expired: logging.WARNING,
    Held: logging.WARNING,
    Stale: logging.WARNING,
}
"""At which level the log says it; what is not named here, at DEBUG."""


def log_settled(lease: Lease, verdict: Verdict, answer: Settled) -> None:
    """Write what became of a delivery to the log alone, where nobody else can be told."""
    # As in `Events.tell`.
    with contextlib.suppress(Exception):
        _write(settled(lease, verdict, answer, 0.0))


def is_logged(kind: type[Event]) -> bool:
    """Whether the log would say anything of such an event."""
    return _log.isEnabledFor(LEVELS.get(kind, logging.DEBUG))


def _write(event: Event, kept_back: int = 0) -> None:
    """One line an event; never with a payload, nor with an error's text, which may hold one.

    kept_back: for how many like it the line stands too.
    """
    if not is_logged(type(event)):
        return
    level, name = LEVELS.get(type(event), logging.DEBUG), type(event).__name__.lower()
    extra: dict[str, object] = {"job_id": event.job_id, "queue": event.queue, "task": event.task}
    if isinstance(event, Enqueued):
        known = " (one stood for its key)" if event.existed else ""
        _log.log(level, "job %d of queue %s: %s%s", event.job_id, event.queue, name, known, extra=extra)
        return
    _log.log(
        level,
        "job %d%s of queue %s, attempt %d of %d: %s%s%s%s",
        event.job_id,
        "" if event.task is None else f" ({event.task})",
        event.queue,
        event.attempt,
        event.max_attempts,
        name,
        _why(event),
        f"; again in {event.delay_s:.3g} s" if isinstance(event, Retried) else "",
        again(kept_back),
        extra={**extra, "attempt": event.attempt},
    )


def _why(event: Event) -> str:
    """The type of an error, and where it was raised; what a held job lacks, which is told without values."""
    error: Failure | None = getattr(event, "error", None)
    if isinstance(event, Held):
        unknown = f"no worker here knows {'it' if event.task else 'jobs without a task'}"
        return f" ({unknown if error is None else error.text})"
    where = " at ".join(part for part in (error.type, frame_of(error)) if part) if error is not None else ""
    return f" ({where})" if where else ""
