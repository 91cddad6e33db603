"""How jobs, leases and queues stand in a database, and what they become in Python; for every one alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from ulak.codec import Codec
from ulak.core import rules
from ulak.core.backoff import Backoff
from ulak.core.job import (
    Attempt,
    Cause,
    Counts,
    Dead,
    Grant,
    Job,
    Lease,
    Retry,
    Spec,
    State,
    Totals,
    Verdict,
    Work,
)
from ulak.core.store import DURABLE_RETENTION, Retention, Settings
from ulak.errors import UlakError

STATES = (
    State.READY,
    State.SCHEDULED,
    State.LEASED,
    State.HELD,
    State.SUCCEEDED,
    State.DEAD,
    State.CANCELLED,
    State.EXPIRED,
)
"""A state's number in a database is its place here."""

NUMBER: Mapping[State, int] = {state: number for number, state in enumerate(STATES)}
READY, SCHEDULED, LEASED, HELD, SUCCEEDED, DEAD, CANCELLED, EXPIRED = range(8)

INT_MAX = 2**63 - 1

_CODECS = frozenset(get_args(Codec))
to_json = msgspec.json.encode


class UnreadableError(Exception):
    """A stored row does not hold what it must; whoever wrote it was not ulak."""


# Queues

COUNTERS = (
    *("entered", "left", "scheduled", "leased", "held", "succeeded", "dead", "cancelled", "expired"),
    *("redriven", "retries", "dead_lettered", "cut", "ever_cancelled", "ever_expired", "deleted"),
    *("reclaimed", "pruned"),
)
QUEUE_NAMES = ("id", "name", "capacity", "paused", "backoff", "retention", *COUNTERS)
numbers_of = attrgetter(*COUNTERS)
"""A queue's counters, in the order of `COUNTERS`."""

# A total of `rules.land` -> the counter that holds it; what is missing is worked out from others.
COUNTER_OF = {
    **{
        name: name
        for name in ("redriven", "retries", "dead_lettered", "cut", "deleted", "reclaimed", "pruned")
    },
    "cancelled": "ever_cancelled",
    "expired": "ever_expired",
}


class QueueRow(msgspec.Struct, gc=False):
    """One queue as it is stored. entered, left: how many jobs became open and ceased to be, ever."""

    id: int
    name: str
    capacity: int | None
    paused: int
    backoff_text: str | None
    retention_text: str | None
    entered: int = 0
    left: int = 0
    scheduled: int = 0
    leased: int = 0
    held: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    redriven: int = 0
    retries: int = 0
    dead_lettered: int = 0
    cut: int = 0
    ever_cancelled: int = 0
    ever_expired: int = 0
    deleted: int = 0
    reclaimed: int = 0
    pruned: int = 0
    # Not stored: no waiting job expires, and no scheduled one is due, before these; None if not known.
    expires_from: float | None = None
    due_from: float | None = None

    @property
    def open(self) -> int:
        """Unfinished jobs."""
        return self.entered - self.left

    @property
    def ready(self) -> int:
        """Jobs that wait for a worker only."""
        return self.entered - self.left - self.scheduled - self.leased - self.held

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left that could still run."""
        return self.leased == 0 and (bool(self.paused) or self.open == self.held)

    @property
    def backoff(self) -> Backoff | None:
        """The policy of its jobs that have none of their own; none, if what is stored cannot be read."""
        try:
            return backoff_of(self.backoff_text)
        except UnreadableError:
            return None

    @property
    def settings(self) -> Settings:
        """What is stored with it."""
        return Settings(
            capacity=self.capacity,
            paused=bool(self.paused),
            backoff=self.backoff,
            retention=_retention_of(self.retention_text),
        )

    @property
    def retention(self) -> Retention:
        """What is kept of its ended jobs."""
        return _retention_of(self.retention_text) or DURABLE_RETENTION

    def counts(self) -> Counts:
        """A snapshot of states and totals."""
        succeeded = self.left - self.dead_lettered - self.ever_cancelled - self.ever_expired - self.deleted
        failed = self.retries + self.dead_lettered + self.cut
        totals = Totals(
            enqueued=self.entered - self.redriven,
            redriven=self.redriven,
            processed=succeeded + failed,
            succeeded=succeeded,
            failed=failed,
            retries=self.retries,
            dead_lettered=self.dead_lettered,
            cut=self.cut,
            cancelled=self.ever_cancelled,
            expired=self.ever_expired,
            deleted=self.deleted,
            reclaimed=self.reclaimed,
            pruned=self.pruned,
        )
        return Counts(
            ready=self.ready,
            scheduled=self.scheduled,
            leased=self.leased,
            held=self.held,
            acked=self.succeeded,
            dead=self.dead,
            cancelled=self.cancelled,
            expired=self.expired,
            totals=totals,
        )


@lru_cache(maxsize=256)
def backoff_of(text: str | None) -> Backoff | None:
    """A stored policy. Raises UnreadableError."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Backoff)
    except (msgspec.MsgspecError, UlakError, ValueError) as error:
        raise UnreadableError("its backoff policy cannot be read") from error


@lru_cache(maxsize=256)
def _retention_of(text: str | None) -> Retention | None:
    """A stored retention; the default, if it cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Retention)
    except (msgspec.MsgspecError, UlakError, ValueError):
        return None


def text_of(value: Backoff | Retention | None) -> str | None:
    """As a setting is stored."""
    return None if value is None else to_json(value).decode()


# Jobs

JOB_COLUMNS = (
    "id, queue, state, priority, attempt, delivery, max_attempts, crashes, cancel_requested, created_at, "
    "run_at, expires_at, ended_at, holder, worker, started_at, lease_s, lease_end, codec, task, unique_key, "
    "idempotency_key, headers, backoff, progress, history, result, payload"
)
WORK_COLUMNS = (
    "id, priority, attempt, delivery, max_attempts, crashes, created_at, expires_at, codec, task, "
    "unique_key, idempotency_key, headers, backoff, payload"
)


def work_of(row: tuple[Any, ...], queue: str) -> Work:
    """What is to be done, from `WORK_COLUMNS`. Raises UnreadableError."""
    job_id, priority, attempt, delivery, max_attempts, crashes, created_at, _, codec, task, *options = row
    unique_key, idempotency_key, headers, backoff, body = options
    if codec not in _CODECS:
        raise UnreadableError("its codec is unknown")
    if not 0 <= attempt < max_attempts:
        raise UnreadableError("it has more attempts than it may have")
    if not (0 <= delivery < INT_MAX and 0 <= crashes < INT_MAX):
        raise UnreadableError("its deliveries or crashes are no number of such")
    if unique_key is None and idempotency_key is None and headers is None and backoff is None:
        spec = _plain_spec(queue, codec, max_attempts, task)
    else:
        _check_text(task, unique_key, idempotency_key)
        policy = backoff_of(backoff)
        spec = Spec(
            queue, codec, max_attempts, task, _headers_of(headers), unique_key, idempotency_key, policy
        )
    return Work(job_id, spec, body, priority, created_at)


@lru_cache(maxsize=256)
def _plain_spec(queue: str, codec: str, max_attempts: int, task: str | None) -> Spec:
    _check_text(task)
    return Spec(queue, codec, max_attempts, task)


def text_from(raw: bytes) -> str:
    """A stored text; what is not valid keeps its bytes as surrogates, so that it can be told and shown."""
    return raw.decode("utf-8", "surrogateescape")


def _check_text(*texts: str | None) -> None:
    if not all(text is None or text.isascii() or shown(text) == text for text in texts):
        raise UnreadableError("one of its texts is not valid")


def shown(text: str) -> str:
    """A text as it may leave the store: valid."""
    return text.encode("utf-8", "replace").decode()


def _headers_of(text: str | None) -> Mapping[str, str] | None:
    if text is None:
        return None
    try:
        return MappingProxyType(msgspec.json.decode(text, type=dict[str, str]))
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableError("its headers cannot be read") from error


_decode_history = msgspec.json.Decoder(tuple[Attempt, ...]).decode


def history_of(stored: bytes | None) -> tuple[Attempt, ...]:
    """The attempts that have ended. Raises UnreadableError."""
    if stored is None:
        return ()
    try:
        return _decode_history(stored)
    except msgspec.MsgspecError as error:
        raise UnreadableError("its history cannot be read") from error


def history_bytes(history: tuple[Attempt, ...]) -> bytes | None:
    """As a history is stored."""
    return to_json(history) if history else None


class JobRow(msgspec.Struct, gc=False):
    """One job as it is stored: `JOB_COLUMNS`. It has what the rules look at."""

    id: int
    queue_id: int
    number: int
    priority: int
    attempt: int
    delivery: int
    max_attempts: int
    crashes: int
    cancelled: int
    created_at: float
    run_at: float
    expires_at: float | None
    ended_at: float | None
    holder: int | None
    worker: str | None
    started_at: float | None
    lease_s: float | None
    lease_end: float | None
    codec: str
    task: str | None
    unique_key: str | None
    idempotency_key: str | None
    headers: str | None
    backoff: str | None
    progress: str | None
    history: bytes | None
    result: bytes | None
    payload: bytes

    @property
    def state(self) -> State:
        """Where it is. Raises UnreadableError."""
        if not 0 <= self.number < len(STATES):
            raise UnreadableError("its state is unknown")
        return STATES[self.number]

    @property
    def cancel_requested(self) -> bool:
        """Whether its delivery is asked to stop."""
        return bool(self.cancelled)

    def work(self, queue: str) -> Work:
        """What is to be done. Raises UnreadableError."""
        _check_text(self.task, self.unique_key, self.idempotency_key)
        spec = Spec(
            queue,
            self.codec,
            self.max_attempts,
            self.task,
            _headers_of(self.headers),
            self.unique_key,
            self.idempotency_key,
            backoff_of(self.backoff),
        )
        return Work(self.id, spec, self.payload, self.priority, self.created_at)

    def ended(self, cause: Cause, at: float) -> Attempt:
        """The entry of its history for the delivery that ends now."""
        return Attempt(
            self.delivery, self.attempt, shown(self.worker or ""), self.started_at or 0.0, at, cause
        )

    def record(self, queue: str) -> Job:
        """The whole record. Raises UnreadableError."""
        state, history = self.state, history_of(self.history)
        _check_text(self.codec, self.task, self.unique_key, self.idempotency_key)
        # A plain success leaves no entry behind, because the row itself tells it all.
        if state is State.SUCCEEDED and (not history or history[-1].delivery != self.delivery):
            history = (*history, self.ended(Cause.ACK, self.ended_at or 0.0))
        return Job(
            id=self.id,
            queue=queue,
            payload=self.payload,
            codec=self.codec,
            priority=self.priority,
            max_attempts=self.max_attempts,
            created_at=self.created_at,
            run_at=self.run_at,
            task=self.task,
            headers=_headers_of(self.headers),
            unique_key=self.unique_key,
            idempotency_key=self.idempotency_key,
            expires_at=self.expires_at,
            backoff=backoff_of(self.backoff),
            state=state,
            attempt=self.attempt,
            delivery=self.delivery,
            crashes=self.crashes,
            worker=shown(self.worker or ""),
            started_at=self.started_at or 0.0,
            lease_s=self.lease_s or 0.0,
            lease_end=(self.lease_end or 0.0) if state is State.LEASED else 0.0,
            cancel_requested=self.cancel_requested,
            progress=shown(self.progress or ""),
            result=self.result,
            ended_at=self.ended_at,
            history=history,
        )


def job_row(values: tuple[Any, ...]) -> JobRow:
    """A row of `JOB_COLUMNS`."""
    return JobRow(*values)


def bare(job: JobRow) -> JobRow:
    """A row that cannot be read, without what may be at fault, so that the rest can be shown."""
    return msgspec.structs.replace(
        job,
        number=job.number if 0 <= job.number < len(NUMBER) else NUMBER[State.DEAD],
        codec=shown(job.codec),
        task=None if job.task is None else shown(job.task),
        unique_key=None,
        idempotency_key=None,
        headers=None,
        backoff=None,
        history=None,
    )


class Leases(msgspec.Struct, frozen=True):
    """Makes leases of stored rows, as they would be given now."""

    uid: str
    epoch: int

    def of(self, queue: QueueRow, rows: Iterable[JobRow], gone: Collection[int]) -> list[Lease]:
        """The leases; those whose holder is gone say so. Rows that cannot be read get one all the same.

        gone: by number; a mapping also says how they have ended.
        """
        ends = gone if isinstance(gone, Mapping) else dict.fromkeys(gone, "")
        return [self._lease(queue, job, "" if job.holder is None else ends.get(job.holder)) for job in rows]

    def _lease(self, queue: QueueRow, job: JobRow, gone: str | None) -> Lease:
        try:
            work = job.work(queue.name)
        except UnreadableError:
            work = bare(job).work(queue.name)
        return Lease(
            Grant(self.uid, self.epoch, shown(job.worker or ""), job.lease_s or 0.0),
            work,
            job.delivery,
            job.attempt,
            job.lease_end or 0.0,
            job.started_at or 0.0,
            job.crashes,
            work.spec.backoff or queue.backoff,
            gone,
        )


class Landed(msgspec.Struct, frozen=True, gc=False):
    """What a verdict makes of a leased job, as it is stored.

    is_refused: it is held, and left by whoever knows its task.
    """

    landing: rules.Landing
    is_refused: bool
    history: bytes | None


def landed(job: JobRow, verdict: Verdict, *, now_at: float) -> Landed:
    """Where a verdict leaves a job, at calendar time `now_at`."""
    if isinstance(verdict, Retry) and not verdict.refund and job.attempt >= job.max_attempts:
        verdict = Dead(verdict.cause, crashed=verdict.crashed, error=verdict.error)
    landing = rules.land(job, verdict, now_at=now_at)
    entry = job.ended(verdict.cause, now_at)
    if (error := rules.error_of(verdict)) is not None:
        entry = Attempt(
            entry.delivery, entry.attempt, entry.worker, entry.started_at, entry.ended_at, entry.cause, error
        )
    try:
        history = history_of(job.history)
    except UnreadableError:
        history = ()
    return Landed(
        landing,
        landing.state is State.HELD and verdict.cause is Cause.UNDECODABLE,
        history_bytes(rules.remember(history, entry)),
    )
