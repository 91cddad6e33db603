"""What the state machine may ask for: strategies for jobs, verdicts, filters, acts and settings.

All durations are multiples of half a second, so that sums of them are exact in every storage's arithmetic.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from ulak.core.backoff import Backoff
from ulak.core.job import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    Cancelled,
    Cause,
    Dead,
    Done,
    Draft,
    Failure,
    Hold,
    Lease,
    Retry,
    State,
    Verdict,
)
from ulak.core.store import Cancel, Delete, Edit, Filter, Keep, Redrive, Reprioritise, Retention

QUEUES = ("mail", "bulk")
WORKERS = ("w1", "w2")
TASKS = (None, "send", "draw")

queues = st.sampled_from(QUEUES)
queue_lists = st.sampled_from((("mail", "bulk"), ("bulk", "mail"), ("mail",), ("bulk",)))
workers = st.sampled_from(WORKERS)
priorities = st.sampled_from((0, 0, 0, 1, -1, PRIORITY_MIN, PRIORITY_MAX))
lease_lengths = st.sampled_from((5.0, 10.0, 30.0))
waits = st.sampled_from((0.0, 0.0, 0.0, 0.5, 10.0, 60.0))
task_sets = st.sampled_from(
    (None, None, frozenset({None}), frozenset({"send"}), frozenset({"draw", None}), frozenset[None]())
)
errors = st.sampled_from((None, Failure("ValueError", "no such address", "line 1")))
backoffs = st.sampled_from((None, Backoff(base=0.5, cap=10.0)))
keeps = st.builds(Keep, st.integers(0, 3), st.sampled_from((10.0, 3600.0, 86_400.0)))
retentions = st.none() | st.builds(Retention, keeps, keeps, keeps, keeps)
capacities = st.sampled_from((None, 1, 2, 3, 4))
filters = st.builds(
    Filter,
    queue=st.sampled_from((None, *QUEUES)),
    states=st.none() | st.frozensets(st.sampled_from(State), min_size=1),
    task=st.sampled_from((None, None, "send")),
    worker=st.sampled_from((None, None, *WORKERS)),
)
acts = st.one_of(
    st.just(Redrive()),
    st.just(Cancel()),
    st.just(Cancel()),
    st.builds(Reprioritise, priorities),
    st.builds(Reprioritise, priorities),
    st.just(Delete()),
    st.just(Edit(b"edited", "str")),
)
verdicts = st.one_of(
    st.builds(Done, st.sampled_from((None, b"1"))),
    st.builds(Retry, waits, st.sampled_from((Cause.NACK, Cause.ERROR, Cause.TIMEOUT)), error=errors),
    st.builds(Retry, waits, st.just(Cause.LOST), crashed=st.booleans()),
    st.builds(Retry, waits, st.sampled_from((Cause.RELEASE, Cause.SNOOZE)), refund=st.just(True)),
    st.builds(Hold, st.sampled_from((Cause.UNKNOWN_TASK, Cause.UNDECODABLE)), errors),
    st.builds(Dead, st.sampled_from((Cause.REJECT, Cause.LOST)), st.booleans(), errors),
    st.builds(Cancelled, error=errors),
)
batches = st.lists(verdicts, min_size=1, max_size=4)


class Wish(msgspec.Struct, frozen=True):
    """A job to add, before the time is known: instants are seconds from now, None where not given."""

    draft: Draft
    run_in_s: float | None
    expires_in_s: float | None
    name: str | None

    def draft_at(self, now_at: float, generation: int) -> Draft:
        """The job as it is asked for now. Idempotency keys of one generation are never those of another."""
        return msgspec.structs.replace(
            self.draft,
            run_at=None if self.run_in_s is None else now_at + self.run_in_s,
            delay_s=self.draft.delay_s if self.run_in_s is None else 0.0,
            expires_at=None if self.expires_in_s is None else now_at + self.expires_in_s,
            expires_s=self.draft.expires_s if self.expires_in_s is None else None,
            idempotency_key=None if self.name is None else f"{self.name}-{generation}",
        )


PLAIN = Wish(Draft(b"more", "bytes", max_attempts=2), None, None, None)
plain_wishes = st.builds(
    Wish,
    draft=st.builds(
        Draft,
        payload=st.sampled_from((b"", b"one", b"two")),
        codec=st.just("bytes"),
        priority=priorities,
        max_attempts=st.sampled_from((1, 2, 3, 3)),
        task=st.sampled_from(TASKS),
        headers=st.sampled_from((None, {"trace": "1"})),
        delay_s=waits,
        backoff=backoffs,
    ),
    run_in_s=st.none(),
    expires_in_s=st.none(),
    name=st.none(),
)
keyed_wishes = st.builds(
    Wish,
    draft=st.builds(
        Draft,
        payload=st.just(b"keyed"),
        codec=st.just("bytes"),
        priority=priorities,
        max_attempts=st.integers(1, 3),
        unique_key=st.sampled_from((None, "u1", "u1", "u2")),
    ),
    run_in_s=st.sampled_from((None, 5.0)),
    expires_in_s=st.sampled_from((None, None, 10.0)),
    name=st.sampled_from((None, "i1", "i2")),
)
timed_wishes = st.builds(
    Wish,
    draft=st.builds(
        Draft,
        payload=st.just(b"timed"),
        codec=st.just("bytes"),
        priority=priorities,
        max_attempts=st.integers(1, 3),
        task=st.sampled_from(TASKS),
        delay_s=waits,
        expires_s=st.sampled_from((None, 0.0, 5.0, 60.0)),
    ),
    run_in_s=st.sampled_from((None, None, -10.0, 0.0, 5.0)),
    expires_in_s=st.sampled_from((None, None, -5.0, 0.0, 10.0)),
    name=st.none(),
)
wishes = st.one_of(plain_wishes, plain_wishes, keyed_wishes, timed_wishes)


def legal(lease: Lease, verdict: Verdict) -> Verdict:
    """The verdict, or Dead in place of a retry after the last attempt: that is decided above the storage."""
    if isinstance(verdict, Retry) and not verdict.refund and lease.attempt >= lease.max_attempts:
        return Dead(verdict.cause, verdict.crashed, verdict.error)
    return verdict
