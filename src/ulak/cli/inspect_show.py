"""`ulak show`: all that is known of one job."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec

from ulak import codec
from ulak.capture import place_of
from ulak.cli.inspect_choice import error_text, last_failed
from ulak.cli.inspect_open import Missing, finding, opened
from ulak.cli.inspect_table import Column, age, clock_time, iso_time, many, print_json, print_table
from ulak.cli.output import say, visible
from ulak.core.backoff import Backoff
from ulak.core.job import Attempt, Job, State
from ulak.durations import format_duration
from ulak.errors import PayloadError
from ulak.info import info_of
from ulak.storage.drive import Edge

MADE_FROM = "ulak-in-place-of"
"""The header that names the dead job in whose place a job was enqueued."""

_ID_CHARS_MAX = 20
_NAME_COLUMNS = 12
_REDRIVABLE = (State.DEAD, State.CANCELLED, State.EXPIRED)
_DAY_CHARS = len("2026-01-01")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and what depends on when one looks. lease_left_s: None unless leased; below 0 if it is over.

    next: what happens to it next, in plain words.
    """

    job: Job
    now_at: float
    lease_left_s: float | None
    next: str


def run(args: argparse.Namespace) -> int:
    """Print the job; 0."""
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        shown = shown_of(edge, args.id)
    if args.json:
        print_json(as_json(shown, with_payload=args.payload), to=sys.stdout)
    else:
        print_job(shown, with_payload=args.payload, with_traceback=args.verbose > 0, to=sys.stdout)
    return 0


def shown_of(edge: Edge, job_id: int) -> Shown:
    """The job as it is now. Raises Missing if it is not stored."""
    (job,) = edge.store.get([job_id])
    if job is None:
        raise Missing(f"there is no job {job_id}: never enqueued, deleted, or removed by retention")
    settings = edge.store.queues().get(job.queue)
    now, now_at = edge.clock.interval(), edge.clock.calendar()
    info = info_of(job, now=now, now_at=now_at, paused=settings is not None and settings.paused)
    return Shown(
        job=job,
        now_at=now_at,
        lease_left_s=job.lease_end - now if job.state is State.LEASED else None,
        next=info.next,
    )


def print_job(shown: Shown, *, with_payload: bool, with_traceback: bool, to: TextIO | None) -> None:
    """Print what is known of it: its facts, then its life as a table."""
    job = shown.job
    say(visible(f"job {job.id}   queue {job.queue}   {job.state.value}"), to=to)
    for name, text in _facts(shown):
        say(f"  {name:<{_NAME_COLUMNS}}{visible(text)}", to=to)
    say("", to=to)
    day = clock_time(job.created_at)[:_DAY_CHARS]
    print_table(_LIFE, [_cells(event, day) for event in life_of(shown)], to=to)
    for attempt in job.history:
        if with_traceback and attempt.error is not None and attempt.error.traceback:
            say(f"\ntraceback of attempt {attempt.attempt}:", to=to)
            for line in attempt.error.traceback.splitlines():
                say(f"  {visible(line)}", to=to)
    if with_payload:
        for name, value in (job.headers or {}).items():
            say(f"\nheader {visible(name)}: {visible(str(value))}", to=to)
        say("\npayload:", to=to)
        for line in _payload_text(job).split("\n"):
            say(f"  {visible(line)}", to=to)


def _facts(shown: Shown) -> Iterator[tuple[str, str]]:
    job = shown.job
    crashed = f", {many(job.crashes, 'worker')} died with it" if job.crashes else ""
    deliveries = f"delivered {many(job.delivery, 'time')}"
    texts = {
        "task": job.task,
        "priority": str(job.priority),
        "attempts": f"{job.attempt} of {job.max_attempts}, {deliveries}{crashed}",
        "raised at": _place(job),
        "enqueued": _when(job.created_at, shown.now_at),
        "due": _when(job.run_at, shown.now_at) if job.state is State.SCHEDULED else None,
        "expires": _when(job.expires_at, shown.now_at),
        "ended": _when(job.ended_at, shown.now_at),
        "unique key": job.unique_key,
        "idempotency": job.idempotency_key,
        "backoff": None if job.backoff is None else backoff_text(job.backoff),
        "in place of": _made_from(job),
        "headers": ", ".join(job.headers) if job.headers else None,
        "progress": job.progress or None,
        "payload": f"{job.codec}, {many(len(job.payload), 'byte')} (--payload prints it)",
        "lease": _lease_text(shown),
        "next": shown.next,
        "to retry": f"ulak retry {job.id}" if job.state in _REDRIVABLE else None,
    }
    return ((name, text) for name, text in texts.items() if text is not None)


def _made_from(job: Job) -> str | None:
    made_from = (job.headers or {}).get(MADE_FROM)
    return None if made_from is None else f"dead job {made_from[:_ID_CHARS_MAX]}"


def _place(job: Job) -> str | None:
    """Where the last error was raised, of the attempts that had one."""
    last = last_failed(job.history)
    if last is None or last.error is None or not (place := place_of(last.error)):
        return None
    return f"{place}, attempt {last.attempt} (-v shows the traceback)"


def _lease_text(shown: Shown) -> str | None:
    left_s = shown.lease_left_s
    if left_s is None:
        return None
    return f"held by {shown.job.worker}, " + (f"{left_s:.1f} s left" if left_s > 0 else "over")


def _when(at: float | None, now_at: float) -> str | None:
    if at is None:
        return None
    away = format_duration(abs(now_at - at))
    return f"{clock_time(at)} ({f'{away} ago' if at <= now_at else f'in {away}'})"


def backoff_text(backoff: Backoff) -> str:
    """A stored backoff in words."""
    base, cap, floor = (format_duration(float(getattr(backoff, name))) for name in ("base", "cap", "floor"))
    return f"base {base}, cap {cap}, floor {floor}"


class Event(msgspec.Struct, frozen=True):
    """Something in a job's life. took_s: None where it took no time, or where it is not over."""

    at: float
    what: str
    took_s: float | None = None
    worker: str = ""
    error: str = ""


def life_of(shown: Shown) -> list[Event]:
    """What happened to the job, in order: its history keeps the first attempt and the last nineteen."""
    job = shown.job
    events = [Event(job.created_at, "enqueued")]
    before = 0
    for attempt in job.history:
        missing = attempt.delivery - before - 1
        if missing > 0 and before:
            events.append(Event(attempt.started_at, f"({missing} deliveries not kept)"))
        events.append(_event_of(attempt))
        before = attempt.delivery
    if job.state is State.LEASED:
        running = shown.now_at - job.started_at
        events.append(Event(job.started_at, f"attempt {job.attempt} runs", running, job.worker))
    elif job.ended_at is not None:
        events.append(Event(job.ended_at, job.state.value))
    return events


def _event_of(attempt: Attempt) -> Event:
    return Event(
        attempt.started_at,
        f"attempt {attempt.attempt}: {attempt.cause.value}",
        attempt.ended_at - attempt.started_at,
        attempt.worker,
        "" if attempt.error is None else error_text(attempt.error),
    )


_LIFE = (Column("at"), Column("what"), Column("took", right=True), Column("worker"), Column("error"))


def _cells(event: Event, day: str) -> list[str]:
    # The date only where it is another one than that of the enqueue, which stands above.
    at = clock_time(event.at).removeprefix(day).strip()
    return [at, event.what, age(event.took_s), event.worker, event.error]


def _payload_text(job: Job) -> str:
    try:
        value = codec.decode(job.payload, job.codec)
    except PayloadError as error:
        return f"({error.args[0]})\n{job.payload!r}"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, indent=2)


def as_json(shown: Shown, *, with_payload: bool) -> dict[str, object]:
    """The job for a program: all that is stored of it, and what depends on when one looks."""
    job = record_json(shown.job, with_payload=with_payload)
    return {**job, "lease_left_s": shown.lease_left_s, "next": shown.next}


def record_json(job: Job, *, with_payload: bool) -> dict[str, object]:
    """All that is stored of a job. Instants are ISO 8601 in UTC; durations are in seconds.

    Payload and headers are in it only if asked for; the payload as its value, or as base64 if it is bytes or
    damaged.
    """
    return {
        **{name: getattr(job, name) for name in _SAME},
        "state": job.state.value,
        "backoff": None if job.backoff is None else msgspec.to_builtins(job.backoff),
        "worker": job.worker or None,
        "created_at": iso_time(job.created_at),
        "run_at": iso_time(job.run_at),
        "expires_at": iso_time(job.expires_at),
        "ended_at": iso_time(job.ended_at),
        "history": [_attempt_json(attempt) for attempt in job.history],
        "payload_bytes": len(job.payload),
        **({"headers": dict(job.headers or {}), **_payload_json(job)} if with_payload else {}),
    }


_SAME = (
    *("id", "queue", "task", "codec", "priority", "attempt", "max_attempts", "delivery", "crashes"),
    *("unique_key", "idempotency_key", "cancel_requested", "progress"),
)


def _attempt_json(attempt: Attempt) -> dict[str, object]:
    return {
        "delivery": attempt.delivery,
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "started_at": iso_time(attempt.started_at),
        "ended_at": iso_time(attempt.ended_at),
        "cause": attempt.cause.value,
        "error": None if attempt.error is None else msgspec.structs.asdict(attempt.error),
    }


def _payload_json(job: Job) -> dict[str, Any]:
    try:
        value = codec.decode(job.payload, job.codec)
    except PayloadError as error:
        damaged = {"payload_error": str(error.args[0])}
    else:
        if not isinstance(value, bytes):
            return {"payload": value}
        damaged = {}
    return {"payload_base64": base64.b64encode(job.payload).decode("ascii"), **damaged}
