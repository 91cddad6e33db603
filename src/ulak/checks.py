"""Checks of what callers pass: each answers with the value, or raises ArgumentError with what it may be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeAlias, TypeVar, cast

from ulak import codec
from ulak.core.backoff import Backoff
from ulak.core.job import PRIORITY_MAX, PRIORITY_MIN, Draft
from ulak.core.store import BATCH_MAX, KEEP_COUNT_MAX, Retention
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError
from ulak.names import QUEUE_NAME, check_key, check_queue_name
from ulak.newjob import NewJob

T = TypeVar("T")

Timeout: TypeAlias = Duration | None

MAX_ATTEMPTS_MAX = 1_000_000
WEIGHT_MAX = 1_000

# A day inside what a datetime holds, so that it can be shown in any time zone.
_INSTANT_MIN = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_INSTANT_MAX = datetime(9999, 12, 30, tzinfo=UTC).timestamp()

_DIGITS_MAX = 20
_NAMES_SHOWN = 10
_NAME_CHARS_MAX = 80


def several(items: Iterable[T], expected: str) -> Iterable[T]:
    """The items, if these are several of something; else ArgumentError, which says what is expected.

    What can be iterated over but is one value to whoever passed it (a str, bytes, a dict) is refused too.
    """
    if isinstance(items, str | bytes | bytearray | memoryview | Mapping) or not isinstance(items, Iterable):
        raise ArgumentError(f"{expected}, got {type(items).__name__}")
    return _bounded(items)


def _bounded(items: Iterable[T]) -> Iterable[T]:
    """The items, unless there are more than one call takes."""
    for number, item in enumerate(items):
        if number == BATCH_MAX:
            raise ArgumentError(f"one call takes at most {BATCH_MAX:,} of them; split it")
        yield item


def draft_of(
    new: NewJob,
    body: bytes,
    tag: str,
    *,
    max_attempts: int,
    task: str | None = None,
    backoff: Backoff | None = None,
) -> Draft:
    """A job with this encoded payload in place of its own, and its options checked; else ArgumentError.

    max_attempts, backoff: where it has none of its own.
    """
    run_at = None if new.run_at is None else instant(new.run_at, name="run_at")
    delay_s = 0.0 if new.delay is None else seconds(new.delay, name="delay")
    if run_at is not None and delay_s:
        raise ArgumentError("give delay= or run_at=, not both")
    expires_at = instant(new.expires, name="expires") if isinstance(new.expires, datetime) else None
    expires_s = None
    if new.expires is not None and not isinstance(new.expires, datetime):
        expires_s = seconds(new.expires, name="expires")
    return Draft(
        payload=body,
        codec=tag,
        priority=check_priority(new.priority),
        max_attempts=max_attempts if new.max_attempts is None else check_attempts(new.max_attempts),
        task=task,
        headers=None if new.headers is None else codec.encode_headers(new.headers),
        delay_s=delay_s,
        run_at=run_at,
        expires_s=expires_s,
        expires_at=expires_at,
        unique_key=check_key(new.unique_key, name="unique_key"),
        idempotency_key=check_key(new.idempotency_key, name="idempotency_key"),
        backoff=backoff if new.backoff is None else check_backoff(new.backoff),
    )


def check_names(
    options: Iterable[str],
    known: Iterable[str],
    call: str,
    kind: str = "option",
    *,
    foreign: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises ArgumentError for an option that a call does not have, with the nearest that it has.

    foreign: names that other job queues have for it, and what they are here.
    """
    known = sorted(known)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else _there_are(known)
            hint = f"it is {foreign[name]} here" if name in foreign else hint
            raise ArgumentError(f"{call} has no {kind} {name!r}; {hint}")


def _there_are(names: Sequence[str]) -> str:
    """The names that there are, for an error."""
    shown = ", ".join(names)
    return f"there {'is' if len(names) == 1 else 'are'} {shown or 'none'}"


def may_be_queue(name: object) -> bool:
    """Whether a queue may be called so."""
    return isinstance(name, str) and QUEUE_NAME.fullmatch(name) is not None


def nearest(name: object, known: Iterable[str]) -> str:
    """A name that there is not, for an error: itself, and the nearest that there is."""
    if not isinstance(name, str):
        return f"that is {type(name).__name__}; its names are str"
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else _there_are(names[:_NAMES_SHOWN])
    return f"{name[:_NAME_CHARS_MAX]!r}; {hint}"


def _got(value: object) -> str:
    """What was given, for an error: an int itself, as long as it is short; else its type."""
    if type(value) is int and abs(value) < 10**_DIGITS_MAX:
        return f"got {value}"
    return f"got an int of {value.bit_length()} bits" if type(value) is int else f"got {type(value).__name__}"


def check_priority(priority: object) -> int:
    """An int64; else ArgumentError. Never clamped."""
    if type(priority) is not int:
        raise ArgumentError(f"priority must be an int, got {type(priority).__name__}")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise ArgumentError("priority must fit 64 bits: from -2**63 to 2**63 - 1, higher first")
    return priority


def check_attempts(attempts: object) -> int:
    """How many runs a job gets; else ArgumentError."""
    if type(attempts) is not int or not 1 <= attempts <= MAX_ATTEMPTS_MAX:
        raise ArgumentError(
            f"max_attempts counts the first run: an int from 1 to {MAX_ATTEMPTS_MAX:,}, {_got(attempts)}"
        )
    return attempts


def check_queues(queues: object) -> dict[str, int | None]:
    """The queues that an App declares, each with its capacity; else ArgumentError. None declares none."""
    if queues is None:
        return {}
    if isinstance(queues, Mapping):
        declared = {check_queue_name(name): check_capacity(capacity) for name, capacity in queues.items()}
    else:
        expected = "queues is a list of names, or a mapping to capacities"
        declared = {
            check_queue_name(name): None for name in several(cast("Iterable[object]", queues), expected)
        }
    if not declared:
        raise ArgumentError("queues names none; leave it out, and there is one named 'default'")
    return declared


def check_max_jobs(jobs: object) -> int | None:
    """How many jobs a pool runs, or None for no limit; else ArgumentError."""
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise ArgumentError(f"max_jobs is how many jobs a pool runs, an int from 1, or None; {_got(jobs)}")
    return jobs


def check_served(queues: object) -> tuple[list[str], Mapping[str, int] | None]:
    """The queues that a pool serves, in order, and their weights if they have any; else ArgumentError."""
    weights: Mapping[str, object] = queues if isinstance(queues, Mapping) else {}
    expected = "queues is a list of names or a mapping to weights"
    names = list(weights or several(cast("Iterable[str]", queues), expected))
    if not names:
        raise ArgumentError(f"{expected}, and names none")
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"{expected}; a name is a str")
    if len(set(names)) < len(names):
        raise ArgumentError(f"queues names one twice: {', '.join(names)}")
    given: dict[str, int] = {}
    for name, weight in weights.items():
        if weight is not None and (type(weight) is not int or not 1 <= weight <= WEIGHT_MAX):
            raise ArgumentError(f"queue {name}: a weight is an int from 1 to {WEIGHT_MAX:,}")
        given[name] = weight or 1
    return names, given if any(weights.values()) else None


def check_capacity(capacity: object) -> int | None:
    """Most open jobs, or None for no bound; else ArgumentError."""
    if capacity is not None and (type(capacity) is not int or not 1 <= capacity <= KEEP_COUNT_MAX):
        raise ArgumentError(
            f"capacity is the most open jobs: an int from 1 to 2**63 - 1, or None for any; {_got(capacity)}"
        )
    return capacity


def check_retention(retention: object) -> Retention | None:
    """What is kept of ended jobs, or None for the store's default; else ArgumentError."""
    if retention is not None and not isinstance(retention, Retention):
        raise ArgumentError(f"retention must be a Retention, got {type(retention).__name__}")
    return retention


def check_id(job_id: object) -> int:
    """A job's id, or 0 where a listing starts; else ArgumentError."""
    if not isinstance(job_id, int) or isinstance(job_id, bool):
        raise ArgumentError(f"a job's id is an int, got {type(job_id).__name__}")
    return int(job_id)


def check_limit(limit: object) -> int:
    """How many at most: an int from 1 to 100,000; else ArgumentError."""
    if type(limit) is not int or not 1 <= limit <= BATCH_MAX:
        raise ArgumentError(f"limit must be an int from 1 to {BATCH_MAX:,}, {_got(limit)}")
    return limit


def check_backoff(backoff: object) -> Backoff | None:
    """A stored policy or None; else ArgumentError."""
    if backoff is not None and not isinstance(backoff, Backoff):
        raise ArgumentError(f"backoff must be a Backoff(base=, cap=), got {type(backoff).__name__}")
    return backoff


def instant(value: object, *, name: str) -> float:
    """Seconds since the epoch of an aware datetime; else ArgumentError."""
    if not isinstance(value, datetime):
        raise ArgumentError(f"{name} must be an aware datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ArgumentError(f"{name} must be aware of its time zone: datetime(..., tzinfo=UTC)")
    at = value.timestamp()
    if not _INSTANT_MIN <= at <= _INSTANT_MAX:
        raise ArgumentError(f"{name} must lie between the years 1 and 9999, at least a day inside")
    return at


def wait_s(timeout: Timeout, *, name: str = "timeout") -> float | None:
    """A public timeout in seconds; None waits for ever."""
    return None if timeout is None else seconds(timeout, name=name)
