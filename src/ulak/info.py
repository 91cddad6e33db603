"""What a person or a program is shown of a stored job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ulak import codec
from ulak.core.backoff import Backoff
from ulak.core.job import Attempt, Failure, Job, State, shown_as_repr
from ulak.core.rules import is_refused


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when it was looked at. Instants are aware datetimes in UTC.

    next: what happens to it next, in plain words. history: its first and last nineteen attempts.
    result_body: what its task returned, as it is stored; None if nothing was.
    """

    id: int
    queue: str
    task: str | None
    body: bytes
    codec: str
    headers: Mapping[str, str]
    priority: int
    state: State
    attempt: int
    max_attempts: int
    delivery: int
    crashes: int
    backoff: Backoff | None
    unique_key: str | None
    idempotency_key: str | None
    worker: str
    cancel_requested: bool
    progress: str
    created_at: datetime
    run_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None
    history: tuple[Attempt, ...]
    result_body: bytes | None
    next: str

    @property
    def payload(self) -> Any:  # noqa: ANN401 - a payload is whatever its producer gave
        """The payload, decoded anew. Raises PayloadError if the stored bytes do not fit their codec."""
        return codec.decode(self.body, self.codec)

    @property
    def result(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        """What its task returned, decoded anew from JSON; None if nothing was stored. Raises PayloadError."""
        return None if self.result_body is None else codec.decode(self.result_body, "json")

    @property
    def error(self) -> Failure | None:
        """The error of its last attempt that had one, if any."""
        return next((attempt.error for attempt in reversed(self.history) if attempt.error), None)

    def __repr__(self) -> str:
        return f"JobInfo(id={self.id}, queue={self.queue!r}, state={self.state.value!r}, next={self.next!r})"

    __rich_repr__ = shown_as_repr


def info_of(job: Job, *, now: float, now_at: float, paused: bool) -> JobInfo:
    """What is shown of a record, at interval time `now` and calendar time `now_at`.

    paused: whether its queue is.
    """
    same = {name: getattr(job, name) for name in _SAME}
    return JobInfo(
        **same,
        body=job.payload,
        headers=job.headers or {},
        result_body=job.result,
        created_at=_instant(job.created_at),
        run_at=_instant(job.run_at),
        expires_at=None if job.expires_at is None else _instant(job.expires_at),
        ended_at=None if job.ended_at is None else _instant(job.ended_at),
        next=_next(job, now, now_at, paused=paused),
    )


_SAME = (
    *("id", "queue", "task", "codec", "priority", "state", "attempt", "max_attempts", "delivery", "crashes"),
    *("backoff", "unique_key", "idempotency_key", "worker", "cancel_requested", "progress", "history"),
)


def _next(job: Job, now: float, now_at: float, *, paused: bool) -> str:
    match job.state:
        case State.READY | State.SCHEDULED if paused:
            return "waits: its queue is paused"
        case State.READY:
            return "runs as soon as a worker is free"
        case State.SCHEDULED:
            return f"due in {max(0.0, job.run_at - now_at):.1f} s"
        case State.LEASED:
            asked = "; its cancel is requested" if job.cancel_requested else ""
            if job.lease_end <= now:
                return f"its lease has ended; any worker may take it over{asked}"
            return f"runs on {job.worker}; its lease ends in {job.lease_end - now:.1f} s{asked}"
        case State.HELD if is_refused(job.history):
            return "its payload does not fit its task here; edit it and redrive it, or deploy a task it fits"
        case State.HELD:
            return f"waits for a worker that knows {job.task or 'jobs without a task'}"
        case State.SUCCEEDED:
            return "nothing: it has succeeded, and is kept until retention removes it"
        case _:
            return "nothing, unless redrive makes it run again; kept until retention removes it"


def _instant(at: float) -> datetime:
    # A file may hold what no call has stored; it must not hide the other jobs of a listing.
    return datetime.fromtimestamp(min(max(at, _SHOWN_MIN), _SHOWN_MAX), UTC)


_SHOWN_MIN = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_SHOWN_MAX = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
