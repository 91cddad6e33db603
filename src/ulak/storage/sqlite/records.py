"""How jobs and queues are written into the file, and what is read of them."""

from __future__ import annotations

from typing import Any

from ulak.core.job import Draft
from ulak.storage.stored import COUNTERS, HELD, QUEUE_NAMES, READY, SCHEDULED, STATES, text_of, to_json

__all__ = ["HELD", "INSERT", "QUEUE_COLUMNS", "STATES", "STORE_COUNTERS", "inserted"]

QUEUE_COLUMNS = ", ".join(f'"{name}"' for name in QUEUE_NAMES)
_SET_COUNTERS = ", ".join(f'"{name}" = ?' for name in COUNTERS)
STORE_COUNTERS = f"UPDATE queues SET {_SET_COUNTERS} WHERE id = ?"  # noqa: S608 - columns of our own

INSERT = (
    "INSERT INTO jobs (id, queue, state, priority, max_attempts, created_at, run_at, expires_at, codec, "
    "task, unique_key, idempotency_key, headers, backoff, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def inserted(job_id: int, queue: int, draft: Draft, now_at: float) -> tuple[Any, ...]:
    """The values of `INSERT` for a new job, and so its first state."""
    run_at = now_at + draft.delay_s if draft.run_at is None else draft.run_at
    expires_at = now_at + draft.expires_s if draft.expires_s is not None else draft.expires_at
    return (
        job_id,
        queue,
        SCHEDULED if run_at > now_at else READY,
        draft.priority,
        draft.max_attempts,
        now_at,
        run_at,
        expires_at,
        draft.codec,
        draft.task,
        draft.unique_key,
        draft.idempotency_key,
        None if draft.headers is None else to_json(draft.headers).decode(),
        text_of(draft.backoff),
        draft.payload,
    )
