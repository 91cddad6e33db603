"""The values of core: jobs, leases, answers, counts, settings, filters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from rich.pretty import pretty_repr

from tests.core.make import lease, leased_job
from ulak.core.backoff import Backoff
from ulak.core.job import (
    ENDED,
    FULL,
    OPEN,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TERMINAL_OF,
    Cancelled,
    Cause,
    Counts,
    Dead,
    Done,
    Draft,
    Duplicate,
    Full,
    Hold,
    Job,
    Outcome,
    Retry,
    State,
    Terminal,
    Totals,
)
from ulak.core.store import (
    DURABLE_RETENTION,
    MEMORY_RETENTION,
    UNSET,
    Capabilities,
    Change,
    Edit,
    Filter,
    Keep,
    Refusal,
    Retention,
    Settings,
    Unset,
)
from ulak.errors import ArgumentError, PayloadError

# States


def test_a_job_is_open_or_ended_and_never_both() -> None:
    assert {state.value for state in OPEN} == {"ready", "scheduled", "leased", "held"}
    assert {state.value for state in ENDED} == {"succeeded", "dead", "cancelled", "expired"}
    assert set(State) == OPEN | ENDED


def test_each_ended_state_has_its_terminal_answer() -> None:
    assert {state.value: terminal.value for state, terminal in TERMINAL_OF.items()} == {
        "succeeded": "acked",
        "dead": "dead",
        "cancelled": "cancelled",
        "expired": "expired",
    }
    assert set(TERMINAL_OF.values()) == set(Terminal)


def test_priorities_are_what_64_bits_hold() -> None:
    assert (PRIORITY_MIN, PRIORITY_MAX) == (-9_223_372_036_854_775_808, 9_223_372_036_854_775_807)


# Answers


def test_stale_is_false_and_ok_is_true() -> None:
    assert bool(Outcome.OK) is True
    assert bool(Outcome.STALE) is False


def test_full_is_false_and_one_of_a_kind() -> None:
    assert bool(FULL) is False
    assert FULL is Full.FULL
    assert list(Full) == [FULL]
    assert pickle.loads(pickle.dumps(FULL)) is FULL
    assert copy.deepcopy(FULL) is FULL


def test_a_duplicate_is_the_id_of_the_job_that_stands() -> None:
    duplicate = Duplicate(41)
    assert duplicate == 41
    assert isinstance(duplicate, int)
    assert {41: "found"}[duplicate] == "found"
    assert duplicate + 1 == 42
    assert bool(duplicate) is True


def test_a_duplicate_can_be_told_from_a_new_id() -> None:
    assert repr([Duplicate(41), 42]) == "[Duplicate(41), 42]"
    assert isinstance(pickle.loads(pickle.dumps(Duplicate(41))), Duplicate)


def test_a_duplicate_reads_as_its_id_wherever_an_id_is_put_into_text() -> None:
    duplicate = Duplicate(41)
    assert (str(duplicate), f"{duplicate}", f"{duplicate:04}") == ("41", "41", "0041")
    assert "job %s" % duplicate == "job 41"  # noqa: UP031 - logging formats so


def test_why_an_act_was_refused_reads_as_text() -> None:
    assert [str(reason) for reason in Refusal] == [
        "not found",
        "leased by a worker",
        "not possible in its state",
        "queue is full",
        "unique key is taken",
    ]


# Verdicts


def test_verdicts_mean_the_plain_thing_unless_told_more() -> None:
    assert Done() == Done(result=None, cause=Cause.ACK)
    assert Retry() == Retry(delay_s=0.0, cause=Cause.NACK, refund=False, crashed=False, error=None)
    assert Hold() == Hold(cause=Cause.UNKNOWN_TASK)
    assert Dead() == Dead(cause=Cause.NACK, crashed=False, error=None)
    assert Cancelled() == Cancelled(cause=Cause.CANCEL, error=None)


# Jobs, drafts, leases


def test_a_lease_gives_its_payload_decoded() -> None:
    assert lease(body=b'{"to":"ada"}', codec="json").payload == {"to": "ada"}
    assert lease(body=b"ada", codec="str").payload == "ada"
    assert lease(body=b"ada", codec="bytes").payload == b"ada"


def test_a_lease_decodes_anew_at_each_look() -> None:
    taken = lease(body=b"[1]", codec="json")
    taken.payload.append(2)
    assert taken.payload == [1]


def test_stored_bytes_that_do_not_fit_are_an_error_at_the_look() -> None:
    broken = lease(body=b"{", codec="json")
    with pytest.raises(PayloadError):
        _ = broken.payload


def test_the_token_names_epoch_and_delivery_and_grows_with_both() -> None:
    assert lease(epoch=3, delivery=4).token == (3, 4)
    tokens = [lease(epoch=epoch, delivery=delivery).token for epoch, delivery in ((3, 4), (3, 5), (4, 1))]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize(("delivery", "redelivered"), [(1, False), (2, True), (9, True)])
def test_a_lease_is_redelivered_unless_it_is_the_first_delivery(delivery: int, redelivered: bool) -> None:
    # A refunded attempt is counted once more, yet the job has been handed out before.
    assert lease(delivery=delivery, attempt=1).redelivered is redelivered


def test_a_lease_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        lease().delivery = 5  # type: ignore[misc]


PRINTED = [
    pytest.param(
        Draft(payload=b"hunter2", codec="bytes", priority=3, task="mail.send", headers={"auth": "hunter2"}),
        "Draft(payload=<7 bytes>, priority=3, task='mail.send')",
        id="draft",
    ),
    pytest.param(
        leased_job(payload=b"hunter2", headers={"auth": "hunter2"}, result=b"hunter2"),
        "Job(id=7, queue='mail', state=leased, attempt=2, delivery=4, payload=<7 bytes>)",
        id="job",
    ),
    pytest.param(
        lease(body=b"hunter2", headers={"auth": "hunter2"}),
        "Lease(id=7, queue='mail', delivery=4, attempt=2)",
        id="lease",
    ),
    pytest.param(Edit(b"hunter2", "bytes"), "Edit(payload=<7 bytes>)", id="edit"),
    pytest.param(Done(b"hunter2"), "Done(result=<7 bytes>)", id="done"),
    pytest.param(Done(b""), "Done(result=<0 bytes>)", id="done, empty result"),
    pytest.param(Done(), "Done()", id="done, no result"),
]


@pytest.mark.parametrize(("value", "text"), PRINTED)
def test_what_is_printed_holds_no_payload(value: object, text: str) -> None:
    assert repr(value) == text
    assert str(value) == text


@pytest.mark.parametrize(("value", "text"), PRINTED)
def test_what_rich_prints_is_what_is_printed(value: object, text: str) -> None:
    # Left alone, rich shows all fields of a struct, in its tracebacks too.
    kind = type(value).__name__
    assert pretty_repr(value, max_width=200) == f"{kind}(summary={text!r})"


def test_a_fresh_job_is_ready_and_never_tried() -> None:
    fresh = Job(
        id=1,
        queue="mail",
        payload=b"",
        codec="bytes",
        priority=0,
        max_attempts=1,
        created_at=0.0,
        run_at=0.0,
    )
    assert fresh.state is State.READY
    assert (fresh.attempt, fresh.delivery, fresh.crashes, fresh.history) == (0, 0, 0, ())
    assert (fresh.cancel_requested, fresh.ended_at, fresh.result) == (False, None, None)


def test_a_lease_compares_by_value() -> None:
    assert lease() == lease()
    assert lease() != lease(delivery=5)


# Counts


def test_counts_sum_what_is_waiting_and_what_is_open() -> None:
    counts = Counts(
        ready=1,
        scheduled=20,
        leased=300,
        held=4_000,
        acked=50_000,
        dead=600_000,
        cancelled=7_000_000,
        expired=80_000_000,
        totals=Totals(enqueued=987, pruned=65),
    )
    assert counts.pending == 21
    assert counts.open == 4_321
    assert counts.total == 987
    assert counts.pruned == 65


def test_counts_start_at_zero_each_with_totals_of_their_own() -> None:
    first, second = Counts(), Counts()
    assert (first.pending, first.open, first.total, first.pruned) == (0, 0, 0, 0)
    assert first.totals == Totals()
    assert first.totals is not second.totals


# Settings


def test_a_queue_is_unbounded_running_and_without_backoff_unless_told() -> None:
    assert Settings() == Settings(capacity=None, paused=False, backoff=None, retention=None)


POLICY = Backoff(base=1, cap=2)
BEFORE = Settings(capacity=10, paused=True, backoff=POLICY, retention=MEMORY_RETENTION)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (Change(), Settings(10, True, POLICY, MEMORY_RETENTION)),
        (Change(capacity=5), Settings(5, True, POLICY, MEMORY_RETENTION)),
        (Change(capacity=None), Settings(None, True, POLICY, MEMORY_RETENTION)),
        (Change(paused=False), Settings(10, False, POLICY, MEMORY_RETENTION)),
        (Change(backoff=None), Settings(10, True, None, MEMORY_RETENTION)),
        (Change(backoff=Backoff()), Settings(10, True, Backoff(), MEMORY_RETENTION)),
        (Change(retention=None), Settings(10, True, POLICY, None)),
        (Change(retention=DURABLE_RETENTION), Settings(10, True, POLICY, DURABLE_RETENTION)),
        (Change(None, False, None, None), Settings()),
    ],
)
def test_a_change_sets_what_it_names_and_leaves_the_rest(change: Change, after: Settings) -> None:
    assert change.apply(BEFORE) == after


def test_unset_is_one_of_a_kind() -> None:
    assert list(Unset) == [UNSET]


# Retention

DAY_S = 24 * 60 * 60


@pytest.mark.parametrize(
    ("retention", "finished"),
    [(MEMORY_RETENTION, Keep(10_000, DAY_S)), (DURABLE_RETENTION, Keep(100_000, 7 * DAY_S))],
    ids=["memory", "durable"],
)
def test_dead_jobs_are_kept_longest(retention: Retention, finished: Keep) -> None:
    assert retention.of(State.SUCCEEDED) == finished
    assert retention.of(State.CANCELLED) == finished
    assert retention.of(State.EXPIRED) == finished
    assert retention.of(State.DEAD) == Keep(100_000, 90 * DAY_S)


def test_each_ended_state_has_a_rule_of_its_own() -> None:
    rules = [Keep(count, float(count)) for count in (1, 2, 3, 4)]
    retention = Retention(succeeded=rules[0], dead=rules[1], cancelled=rules[2], expired=rules[3])
    states = (State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED)
    assert [retention.of(state) for state in states] == rules


@pytest.mark.parametrize("state", sorted(OPEN))
def test_no_retention_for_open_jobs(state: State) -> None:
    with pytest.raises(AssertionError):
        MEMORY_RETENTION.of(state)


def test_capabilities_say_that_wake_ups_are_never_missed_unless_told() -> None:
    able = Capabilities(durable=True, immediate=False, processes=True, transactions=True)
    assert able.poll_s is None


# Filters


@pytest.mark.parametrize(
    "states",
    [
        pytest.param("dead", id="name"),
        pytest.param(State.DEAD, id="state"),
        pytest.param(["dead"], id="list"),
        pytest.param(("dead", State.DEAD), id="twice"),
        pytest.param({State.DEAD}, id="set"),
        pytest.param(frozenset({"dead"}), id="frozenset of names"),
        pytest.param(frozenset({State.DEAD}), id="frozenset"),
    ],
)
def test_a_filter_takes_states_in_any_form(states: Any) -> None:
    which = Filter(states=states)
    assert which.states == frozenset({State.DEAD})
    assert which == Filter(states=State.DEAD)
    assert [state for state in State if which.admits(state)] == [State.DEAD]


def test_a_filter_of_several_states_admits_each() -> None:
    which = Filter(states=iter(["dead", State.HELD]))
    assert {state for state in State if which.admits(state)} == {State.DEAD, State.HELD}


def test_a_filter_without_states_admits_all_and_one_of_none_admits_none() -> None:
    assert all(Filter().admits(state) for state in State)
    assert not any(Filter(states=[]).admits(state) for state in State)


@pytest.mark.parametrize(
    "states",
    ["acked", "", ["dead", "acked"], [None], [7], "dead,held", frozenset({"acked"}), 7, b"dead"],
    ids=str,
)
def test_a_filter_refuses_what_is_not_a_state(states: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        Filter(states=states)
    known = "ready, scheduled, leased, held, succeeded, dead, cancelled, expired"
    assert str(caught.value) == f"not a job state: {states!r}; the states are {known} [U110]"
    assert caught.value.__suppress_context__
