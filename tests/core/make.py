"""Jobs and leases for the tests of core: plain values, of which a test names only what it is about."""

from __future__ import annotations

from typing import Any

from ulak.core.job import Grant, Job, Lease, Spec, State, Work


def leased_job(**changes: Any) -> Job:
    """A job in the middle of its life: its second attempt of five is running."""
    values: dict[str, Any] = {
        "id": 7,
        "queue": "mail",
        "payload": b"hello",
        "codec": "bytes",
        "priority": 0,
        "max_attempts": 5,
        "created_at": 800.0,
        "run_at": 900.0,
        "state": State.LEASED,
        "attempt": 2,
        "delivery": 4,
        "crashes": 1,
    }
    return Job(**{**values, **changes})


def lease(**changes: Any) -> Lease:
    """A lease on such a job; a change may be of anything that a lease shows."""
    values: dict[str, Any] = {
        "store": "memory-1",
        "epoch": 3,
        "queue": "mail",
        "id": 7,
        "delivery": 4,
        "attempt": 2,
        "max_attempts": 5,
        "crashes": 1,
        "priority": 0,
        "body": b"hello",
        "codec": "bytes",
        "worker": "w1",
        "lease_s": 30.0,
        "lease_end": 130.0,
        "claimed_at": 900.0,
        "created_at": 800.0,
        **changes,
    }

    def make(kind: type[Any], **others: Any) -> Any:
        named = {name: values.pop(name) for name in kind.__struct_fields__ if name in values}
        return kind(**named, **others)

    backoff = values.pop("backoff", None)
    spec = make(Spec)
    made: Lease = make(Lease, grant=make(Grant), work=make(Work, spec=spec), backoff=backoff)
    assert not values
    return made
