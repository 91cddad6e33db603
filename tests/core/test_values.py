"""What all values of core have in common: they stay as they are, they are light, they spell their words."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from tests.core.make import lease
from ulak.core import flows, job, rules, store
from ulak.core.backoff import Backoff
from ulak.core.flows import Call, Handling
from ulak.core.job import (
    Attempt,
    Cancelled,
    Cause,
    Counts,
    Dead,
    Done,
    Draft,
    Failure,
    Full,
    Grant,
    Hold,
    Job,
    Lease,
    Outcome,
    Retry,
    Spec,
    State,
    Terminal,
    Totals,
    Work,
)
from ulak.core.store import (
    Capabilities,
    Change,
    Changed,
    Fired,
    Keep,
    Refusal,
    Retention,
    Settings,
    Unset,
    Until,
    WorkerInfo,
)
from ulak.errors import ArgumentError

# Values

# A job's record, its work and its queue's totals are a store's own, which changes them in place.
CHANGEABLE = {Job, Work, Totals}
# What there may be one of for each job or each call, so what the garbage collector must not have to visit.
MANY: set[type[msgspec.Struct]] = {
    Attempt,
    Call,
    Cancelled,
    Counts,
    Dead,
    Done,
    Draft,
    Failure,
    Grant,
    Hold,
    Lease,
    Retry,
    Spec,
    Totals,
    Work,
    rules.Landing,
}
KINDS = sorted(
    {
        kind
        for module in (flows, job, rules, store)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    },
    key=lambda kind: kind.__name__,
)
CHECKED: dict[type[msgspec.Struct], msgspec.Struct] = {
    Backoff: Backoff(),
    Keep: Keep(1, 1.0),
    Retention: Retention(),
    store.Filter: store.Filter(),
}


def one_of(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Any value of this kind; one that checks nothing holds lists, which the garbage collector visits."""
    return CHECKED.get(kind) or kind(**{name: [] for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_never_changed_but_for_what_a_store_keeps(kind: type[msgspec.Struct]) -> None:
    value = one_of(kind)
    for name in (*kind.__struct_fields__, "nothing of this name"):
        if kind in CHANGEABLE and name in kind.__struct_fields__:
            setattr(value, name, None)
            assert getattr(value, name) is None
        else:
            with pytest.raises(AttributeError):
                setattr(value, name, None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.__struct_fields__])
def test_values_that_say_nothing_but_their_kind_are_one_key(kind: type[msgspec.Struct]) -> None:
    assert {kind(): "found"}[kind()] == "found"


@pytest.mark.parametrize("kind", sorted(MANY, key=KINDS.index))
def test_what_there_are_many_of_does_not_burden_the_garbage_collector(kind: type[msgspec.Struct]) -> None:
    assert not gc.is_tracked(one_of(kind))


def test_a_job_is_made_of_named_fields_only() -> None:
    with pytest.raises(TypeError):
        Job(1, "mail", b"", "bytes", 0, 1, 0.0, 0.0)  # type: ignore[misc]


# Words: they are stored, logged and shown


@pytest.mark.parametrize(
    "kind", [State, Terminal, Outcome, Full, Cause, rules.Event, Until, Fired, Unset, Handling]
)
def test_the_word_for_a_thing_is_its_name(kind: type[Enum]) -> None:
    assert [thing.value for thing in kind] == [thing.name.lower().replace("_", " ") for thing in kind]


# Defaults

GRANT = Grant("memory-1", 1, "w1", 30.0)
WORK = Work(7, Spec("mail", "bytes", 5), b"hunter2", 0, 800.0)


@pytest.mark.parametrize(
    ("value", "defaults"),
    [
        (Failure("ValueError", "no"), {"traceback": ""}),
        (Attempt(1, 1, "w1", 0.0, 1.0, Cause.NACK), {"error": None}),
        (
            Draft(b"", "bytes"),
            {
                "priority": 0,
                "max_attempts": 5,
                "task": None,
                "headers": None,
                "delay_s": 0.0,
                "run_at": None,
                "expires_s": None,
                "expires_at": None,
                "unique_key": None,
                "idempotency_key": None,
                "backoff": None,
            },
        ),
        (
            Job(
                id=1,
                queue="mail",
                payload=b"",
                codec="bytes",
                priority=0,
                max_attempts=1,
                created_at=0.0,
                run_at=0.0,
            ),
            {
                "task": None,
                "headers": None,
                "unique_key": None,
                "idempotency_key": None,
                "expires_at": None,
                "backoff": None,
                "worker": "",
                "started_at": 0.0,
                "lease_s": 0.0,
                "lease_end": 0.0,
                "cancel_requested": False,
                "progress": "",
            },
        ),
        (
            Spec("mail", "bytes", 1),
            {"task": None, "headers": None, "unique_key": None, "idempotency_key": None, "backoff": None},
        ),
        (Lease(GRANT, WORK, 1, 1, 0.0, 0.0), {"crashes": 0, "backoff": None}),
        (Totals(), dict.fromkeys(Totals.__struct_fields__, 0)),
        (
            Counts(),
            dict.fromkeys(
                ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired"), 0
            ),
        ),
        (WorkerInfo("w1", {}), {"seen_at": 0.0}),
        (Change(), dict.fromkeys(("capacity", "paused", "backoff", "retention"), Unset.UNSET)),
        (store.Filter(), {"queue": None, "states": None, "task": None, "worker": None}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_not_said_is_nothing(value: object, defaults: Mapping[str, Any]) -> None:
    assert {name: getattr(value, name) for name in defaults} == defaults


def test_a_lease_shows_the_job_it_is_on_and_the_grant_it_is_under() -> None:
    shown = {
        "store": "memory-9",
        "epoch": 8,
        "queue": "post",
        "id": 70,
        "max_attempts": 6,
        "priority": 11,
        "body": b"12",
        "codec": "json",
        "worker": "w13",
        "lease_s": 14.0,
        "created_at": 15.0,
        "task": "mail.send",
        "headers": {"trace": "16"},
    }
    taken = lease(**shown)
    assert {name: getattr(taken, name) for name in shown} == shown


def test_work_prints_without_its_payload() -> None:
    text = "Work(id=7, queue='mail', payload=<7 bytes>)"
    assert repr(WORK) == text
    assert pretty_repr(WORK, max_width=200) == f"Work(summary={text!r})"


def test_an_act_that_changed_nothing_is_false() -> None:
    assert bool(Changed((), {Refusal.LEASED: (7,)})) is False
    assert bool(Changed((7,), {})) is True


# Limits


def test_one_call_stores_at_most_a_hundred_thousand_jobs() -> None:
    assert store.BATCH_MAX == 100_000


def test_an_idempotency_key_is_remembered_for_a_day() -> None:
    assert store.IDEMPOTENCY_S == 86_400


def test_a_sleep_towards_an_instant_of_the_calendar_is_short() -> None:
    assert flows.CALENDAR_SLEEP_MAX_S == 1.0


# What is kept of ended jobs

MOST = 9_223_372_036_854_775_807


@pytest.mark.parametrize("count", [0, 1, MOST])
def test_any_number_that_a_store_can_hold_may_be_kept(count: int) -> None:
    assert Keep(count, 1.0).count == count


@pytest.mark.parametrize("count", [-1, MOST + 1, True, 1.0, "1", None])
def test_what_is_no_such_number_is_refused(count: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        Keep(count, 1.0)
    text = "Keep's count is the most jobs that are kept: an int from 0 to 2**63 - 1 [U110]"
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("age", "age_s"), [(7, 7.0), (0.5, 0.5), (timedelta(hours=1), 3_600.0), (5e-324, 5e-324)], ids=str
)
def test_an_age_is_kept_as_seconds(age: Any, age_s: float) -> None:
    kept = Keep(1, age).age_s
    assert (kept, type(kept)) == (age_s, float)


@pytest.mark.parametrize("age", [0, 0.0, timedelta(0)], ids=str)
def test_no_age_at_all_is_refused(age: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        Keep(1, age)
    assert str(caught.value) == "age_s must be more than 0 seconds [U110]"


@pytest.mark.parametrize("name", ["succeeded", "dead", "cancelled", "expired"])
def test_retention_takes_nothing_but_a_keep(name: str) -> None:
    given: dict[str, Any] = {name: 5}
    with pytest.raises(ArgumentError) as caught:
        Retention(**given)
    assert str(caught.value) == f"Retention: {name} must be a Keep(count, age_s), got int [U110]"


def test_a_storage_that_says_nothing_of_its_settings_has_none() -> None:
    able = Capabilities(True, True, True, True)
    assert (able.poll_s, Settings().retention) == (None, None)
