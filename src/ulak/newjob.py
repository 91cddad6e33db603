"""What may be said of a job when it is enqueued."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

import msgspec

from ulak.core.backoff import Backoff
from ulak.core.job import shown_as_repr
from ulak.durations import Duration


class JobOptions(TypedDict, total=False):
    """What may be said of a job when it is enqueued, beside its payload and priority.

    delay: how long before it is ready; or run_at: an aware datetime.
    expires: how long, or until which aware datetime, it may be started.
    unique_key: at most one open job per key. idempotency_key: a name for this enqueue; repeating it within
    24 h answers the first id. max_attempts, backoff: instead of the queue's. headers: str to str, 8 KiB.
    None is as if the option were not given.
    """

    delay: Duration | None
    run_at: datetime | None
    expires: Duration | datetime | None
    unique_key: str | None
    idempotency_key: str | None
    max_attempts: int | None
    backoff: Backoff | None
    headers: Mapping[str, str] | None


class _Payload(msgspec.Struct, frozen=True):
    payload: object
    priority: int = 0


class NewJob(_Payload, frozen=True, kw_only=True):
    """A job for `enqueue_many`: a payload with its own priority and options, as `enqueue` takes them."""

    delay: Duration | None = None
    run_at: datetime | None = None
    expires: Duration | datetime | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    headers: Mapping[str, str] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it has no options but its priority."""
        return (
            self.delay is None
            and self.run_at is None
            and self.expires is None
            and self.unique_key is None
            and self.idempotency_key is None
            and self.max_attempts is None
            and self.backoff is None
            and self.headers is None
        )

    def __repr__(self) -> str:
        named = (f"{name}={getattr(self, name)!r}" for name in _SHOWN if getattr(self, name) is not None)
        return f"NewJob(<payload>, {', '.join(named)})"

    __rich_repr__ = shown_as_repr


_SHOWN = (
    "priority",
    "delay",
    "run_at",
    "expires",
    "unique_key",
    "idempotency_key",
    "max_attempts",
    "backoff",
)
