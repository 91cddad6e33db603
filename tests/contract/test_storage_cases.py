"""Leases and what ends them, case by case."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.contract.steps import (
    FAIL,
    LEASE_S,
    LOST,
    OTHER,
    RELEASE,
    VERDICTS,
    Q,
    act,
    counts,
    draft,
    each_verdict,
    end,
    everything,
    named,
    put,
    put_one,
    record,
    state,
    take,
    take_one,
    with_delivery,
    with_id,
)
from ulak.core.backoff import Backoff
from ulak.core.job import Cancelled, Cause, Dead, Done, Failure, Hold, Outcome, Retry, Verdict
from ulak.core.rules import give_back
from ulak.core.store import Cancel, Redrive, Settings, Store
from ulak.testing import ManualClock

ERROR = Failure("ValueError", "no such address", "line 1")


# One holder, fenced


@each_verdict
def test_an_ended_delivery_settles_nothing_while_the_next_one_runs(store: Store, verdict: Verdict) -> None:
    put_one(store)
    old = take_one(store)
    end(store, old, RELEASE)
    take_one(store)
    before = everything(store)
    assert end(store, old, verdict) is Outcome.STALE
    assert everything(store) == before


@each_verdict
@pytest.mark.parametrize("last", VERDICTS, ids=named)
def test_a_settled_delivery_settles_nothing_more(store: Store, last: Verdict, verdict: Verdict) -> None:
    put_one(store)
    lease = take_one(store)
    end(store, lease, last)
    before = everything(store)
    assert end(store, lease, verdict) is Outcome.STALE
    assert everything(store) == before


@each_verdict
def test_a_delivery_that_never_was_settles_nothing(store: Store, verdict: Verdict) -> None:
    put_one(store)
    lease = take_one(store)
    before = everything(store)
    for wrong in (with_delivery(lease, 0), with_delivery(lease, 2), with_id(lease, lease.id + 1)):
        assert end(store, wrong, verdict) is Outcome.STALE
    assert everything(store) == before


def test_an_ended_delivery_cannot_extend_the_lease_of_the_next_one(store: Store, clock: ManualClock) -> None:
    put_one(store)
    old = take_one(store)
    end(store, old, RELEASE)
    current = take_one(store)
    before = everything(store)
    clock.advance(1)
    assert store.extend([old], 1000.0, progress={old.id: "still at it"}) == [Outcome.STALE]
    assert everything(store) == before
    assert store.leased(Q) == [current]


def test_one_batch_settles_each_delivery_once_and_answers_in_order(store: Store) -> None:
    # A storage that applies a batch as a set of rows easily says OK to both settlements of one lease.
    put(store, draft(), draft())
    first, second = take(store, 2)
    answers = store.settle(
        [(first, Done()), (second, FAIL), (first, Done()), (second, Dead()), (first, FAIL)]
    )
    assert answers == ["succeeded", "ready", Outcome.STALE, Outcome.STALE, Outcome.STALE]
    assert counts(store).totals.processed == 2


def test_at_most_one_ack_of_a_job_is_ok_over_its_whole_life(store: Store) -> None:
    put_one(store)
    leases = []
    for _ in range(3):
        leases.append(take_one(store))
        end(store, leases[-1], RELEASE)
    leases.append(take_one(store))
    answers = store.settle([(lease, Done()) for lease in (*leases, *leases)])
    assert answers == [*[Outcome.STALE] * 3, "succeeded", *[Outcome.STALE] * 4]
    assert act(store, Redrive(), leases[0].id).done == ()
    assert record(store, leases[0].id).delivery == leases[-1].delivery


def test_deliveries_and_tokens_only_grow_through_refunds_holds_and_redrives(store: Store) -> None:
    job_id = put_one(store, max_attempts=2)
    tokens = []
    for verdict in (RELEASE, Hold(), FAIL, give_back(Cause.SNOOZE), Dead(), FAIL, RELEASE, Done()):
        lease = take_one(store)
        tokens.append(lease.token)
        if end(store, lease, verdict) == "dead":
            act(store, Redrive(), job_id)
    assert [delivery for _, delivery in tokens] == list(range(1, 9))
    assert {epoch for epoch, _ in tokens} == {store.epoch}


# When a lease ends


def test_a_lease_past_its_deadline_that_nobody_reclaimed_still_acks(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S * 100)
    assert take(store) == []
    assert end(store, lease, Done()) == "succeeded"


def test_a_lease_past_its_deadline_that_nobody_reclaimed_can_still_be_extended(
    store: Store, clock: ManualClock
) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S * 100)
    assert store.extend([lease], LEASE_S) == [False]
    assert store.ended([Q], 10) == []
    assert end(store, lease, Done()) == "succeeded"


def test_a_reclaimed_lease_is_stale_for_ack_and_extend(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S)
    assert end(store, lease, LOST) == "ready"
    assert end(store, lease, Done()) is Outcome.STALE
    assert store.extend([lease], LEASE_S) == [Outcome.STALE]


def test_a_lease_has_ended_at_the_very_instant_of_its_deadline(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S - 0.5)
    assert store.ended([Q], 10) == []
    clock.advance(0.5)
    assert store.ended([Q], 10) == [lease]


def test_looking_for_ended_leases_changes_nothing_and_keeps_to_its_queues_and_limit(
    store: Store, clock: ManualClock
) -> None:
    put(store, draft(), draft(), draft())
    put_one(store, queue=OTHER)
    leases = [*take(store, 3), take_one(store, queue=OTHER)]
    clock.advance(LEASE_S)
    before = everything(store)
    assert {lease.id for lease in store.ended([Q], 10)} == {lease.id for lease in leases[:3]}
    assert len(store.ended([Q, OTHER], 10)) == 4
    assert len(store.ended([Q, OTHER], 2)) == 2
    assert store.ended([], 10) == []
    assert everything(store) == before


def test_an_extend_between_the_look_and_the_reclaim_lets_the_lease_live(
    store: Store, clock: ManualClock
) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S)
    (seen,) = store.ended([Q], 10)
    store.extend([lease], LEASE_S)
    before = everything(store)
    assert end(store, seen, LOST) is Outcome.STALE
    assert everything(store) == before
    assert end(store, lease, Done()) == "succeeded"


def test_a_reclaim_that_saw_the_extended_lease_ends_it(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    store.extend([lease], LEASE_S * 2)
    clock.advance(LEASE_S * 2)
    (seen,) = store.ended([Q], 10)
    assert end(store, lease, LOST) is Outcome.STALE
    assert end(store, seen, LOST) == "ready"


def test_an_ack_between_the_look_and_the_reclaim_wins(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S)
    (seen,) = store.ended([Q], 10)
    assert end(store, lease, Done()) == "succeeded"
    assert end(store, seen, LOST) is Outcome.STALE
    assert counts(store).totals.reclaimed == 0


def test_of_two_reapers_that_saw_the_same_lease_one_wins(store: Store, clock: ManualClock) -> None:
    put_one(store)
    take_one(store)
    clock.advance(LEASE_S)
    (one,), (other,) = store.ended([Q], 10), store.ended([Q], 10)
    assert [end(store, one, LOST), end(store, other, LOST)] == ["ready", Outcome.STALE]
    assert counts(store).totals.reclaimed == 1


def test_a_lease_that_was_only_looked_at_can_still_be_settled_with_any_end(
    store: Store, clock: ManualClock
) -> None:
    # Only a reclaim names the lease end it saw: the holder itself need not know that its lease was extended.
    put_one(store)
    lease = take_one(store)
    store.extend([lease], LEASE_S * 2)
    assert end(store, lease, FAIL) == "ready"


def test_extend_moves_the_deadline_from_now_and_never_to_earlier(store: Store, clock: ManualClock) -> None:
    put_one(store)
    lease = take_one(store)
    clock.advance(LEASE_S / 2)
    store.extend([lease], 1.0)
    assert store.leased(Q)[0].lease_end == lease.lease_end
    store.extend([lease], LEASE_S)
    assert store.leased(Q)[0].lease_end == lease.lease_end + LEASE_S / 2


def test_extend_answers_each_lease_and_carries_progress_up(store: Store) -> None:
    put(store, draft(), draft())
    first, second = take(store, 2)
    act(store, Cancel(), second.id)
    gone = with_id(first, 99)
    texts = {first.id: "half", 99: "nobody"}
    assert store.extend([gone, second, first], LEASE_S, progress=texts) == [Outcome.STALE, True, False]
    assert [record(store, i).progress for i in (first.id, second.id)] == ["half", ""]


@pytest.mark.parametrize("year", [2000, 2100])
def test_no_setting_of_the_wall_clock_ends_or_prolongs_a_lease(
    store: Store, clock: ManualClock, year: int
) -> None:
    put(store, draft(), draft())
    take_one(store)
    clock.set_calendar(datetime(year, 1, 1, tzinfo=UTC))
    take_one(store)
    assert store.ended([Q], 10) == []
    clock.advance(LEASE_S - 0.5)
    assert store.ended([Q], 10) == []
    clock.advance(0.5)
    assert len(store.ended([Q], 10)) == 2


def test_the_current_leases_of_a_queue_are_listed_by_id_and_by_worker(store: Store) -> None:
    put(store, draft(), draft(priority=1), draft())
    put_one(store, queue=OTHER)
    mine = take(store, 2, worker="a")
    others = take(store, 1, worker="b")
    take(store, queue=OTHER, worker="a")
    by_id = sorted([*mine, *others], key=lambda lease: lease.id)
    assert store.leased(Q) == by_id
    assert store.leased(Q, worker="b") == others
    assert store.leased(Q, after=by_id[0].id, limit=1) == [by_id[1]]


def test_a_lease_says_all_its_holder_needs(store: Store) -> None:
    own, queues = Backoff(base=1.0, cap=2.0), Backoff(base=5.0, cap=9.0)
    store.declare(Q, Settings(backoff=queues))
    put(store, draft(b"p", task="send", priority=3, max_attempts=7, headers={"a": "b"}, backoff=own), draft())
    lease, plain = take(store, 2, worker="w1")
    assert (lease.store, lease.queue, lease.worker, lease.task) == (store.uid, Q, "w1", "send")
    assert (lease.delivery, lease.attempt, lease.max_attempts, lease.crashes) == (1, 1, 7, 0)
    assert (lease.payload, lease.priority, lease.headers) == (b"p", 3, {"a": "b"})
    assert (lease.redelivered, lease.backoff, plain.backoff) == (False, own, queues)


# What each end of a delivery costs


@pytest.mark.parametrize(
    ("verdict", "now", "attempt", "crashes"),
    [
        (Retry(), "ready", 1, 0),
        (Retry(5.0), "scheduled", 1, 0),
        (Retry(0.0, Cause.LOST, crashed=True), "ready", 1, 1),
        (Retry(5.0, Cause.LOST, crashed=True), "scheduled", 1, 1),
        (give_back(Cause.RELEASE), "ready", 0, 0),
        (give_back(Cause.SHUTDOWN), "ready", 0, 0),
        (give_back(Cause.SNOOZE, delay_s=5.0), "scheduled", 0, 0),
        (Hold(), "held", 0, 0),
        (Dead(), "dead", 1, 0),
        (Dead(Cause.LOST, crashed=True), "dead", 1, 1),
        (Cancelled(), "cancelled", 1, 0),
        (Done(), "succeeded", 1, 0),
    ],
)
def test_what_an_end_of_a_delivery_makes_of_the_job(
    store: Store, verdict: Verdict, now: str, attempt: int, crashes: int
) -> None:
    job_id = put_one(store)
    assert end(store, take_one(store), verdict) == now
    job = record(store, job_id)
    assert (job.state, job.attempt, job.crashes, job.delivery) == (now, attempt, crashes, 1)


def test_a_job_handed_back_unspent_never_dies_of_it(store: Store) -> None:
    # An earlier design counted deploys as attempts: a job with one attempt died of a restart.
    put_one(store, max_attempts=1)
    for verdict in (RELEASE, give_back(Cause.SNOOZE), Hold(), give_back(Cause.SHUTDOWN)) * 5:
        lease = take_one(store)
        assert lease.attempt == 1
        assert end(store, lease, verdict) in {"ready", "held"}
    assert end(store, take_one(store), Done()) == "succeeded"


def test_a_delay_is_added_to_the_clock_of_the_settle(store: Store, clock: ManualClock) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    clock.advance(7.0)
    end(store, lease, Retry(60.0))
    assert record(store, job_id).run_at == clock.calendar() + 60.0


def test_a_dead_job_keeps_its_payload_its_errors_and_their_times(store: Store, clock: ManualClock) -> None:
    created_at = clock.calendar()
    job_id = put_one(store, payload=b"\x00\xff", max_attempts=2)
    for verdict in (Retry(error=ERROR), Dead(Cause.ERROR, error=ERROR)):
        lease = take_one(store, worker="w1")
        clock.advance(5.0)
        end(store, lease, verdict)
    job = record(store, job_id)
    assert (job.state, job.payload, job.ended_at) == ("dead", b"\x00\xff", created_at + 10.0)
    first, second = job.history
    assert (first.worker, first.started_at, first.ended_at) == ("w1", created_at, created_at + 5.0)
    assert (second.delivery, second.attempt, second.cause, second.error) == (2, 2, "error", ERROR)


def test_the_history_is_the_first_attempt_and_the_last_nineteen(store: Store) -> None:
    job_id = put_one(store, max_attempts=100)
    for _ in range(25):
        end(store, take_one(store), FAIL)
    assert [attempt.delivery for attempt in record(store, job_id).history] == [1, *range(7, 26)]


def test_an_ack_keeps_the_result(store: Store) -> None:
    job_id = put_one(store)
    end(store, take_one(store), Done(b'{"sent":1}'))
    assert record(store, job_id).result == b'{"sent":1}'


def test_the_end_of_a_lease_alone_ends_no_job(store: Store, clock: ManualClock) -> None:
    job_id = put_one(store, max_attempts=1)
    take_one(store)
    clock.advance(10 * 86_400.0)
    store.prune()
    take(store)
    assert state(store, job_id) == "leased"
