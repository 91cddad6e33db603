"""Queues, case by case: what is stored, in which order it is taken, room, keys."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.contract.steps import (
    FAIL,
    LEASE_S,
    OTHER,
    RELEASE,
    Q,
    act,
    counts,
    draft,
    end,
    everything,
    put,
    put_one,
    record,
    state,
    take,
    take_ids,
    take_one,
)
from ulak.core.backoff import Backoff
from ulak.core.job import FULL, PRIORITY_MAX, PRIORITY_MIN, Dead, Done, Duplicate, Hold, Retry, State
from ulak.core.store import (
    Cancel,
    Change,
    Delete,
    Filter,
    Redrive,
    Settings,
    Store,
)
from ulak.errors import ArgumentError
from ulak.testing import ManualClock

DAY_S = 86_400.0


# What is stored


def test_a_new_job_is_stored_as_it_was_given(store: Store, clock: ManualClock) -> None:
    policy = Backoff(base=1.0, cap=2.0)
    job_id = put_one(
        store,
        payload=b"\x00\xff",
        priority=-3,
        max_attempts=7,
        task="send",
        headers={"trace": "1"},
        delay_s=5.0,
        expires_s=60.0,
        unique_key="u",
        idempotency_key="i",
        backoff=policy,
    )
    job, now_at = record(store, job_id), clock.calendar()
    assert (job.queue, job.payload, job.codec, job.task) == (Q, b"\x00\xff", "bytes", "send")
    assert (job.priority, job.max_attempts, job.backoff, job.headers) == (-3, 7, policy, {"trace": "1"})
    assert (job.created_at, job.run_at, job.expires_at) == (now_at, now_at + 5.0, now_at + 60.0)
    assert (job.unique_key, job.idempotency_key, job.state) == ("u", "i", "scheduled")
    assert (job.attempt, job.delivery, job.crashes, job.history, job.result) == (0, 0, 0, (), None)


def test_ids_are_one_growing_sequence_of_the_store_in_the_order_of_the_drafts(store: Store) -> None:
    first = put(store, draft(b"a"), draft(b"b"))
    other = put_one(store, queue=OTHER)
    assert [*first, other] == sorted([*first, other])
    assert first[0] >= 1
    assert [record(store, job_id).payload for job_id in first] == [b"a", b"b"]


def test_what_a_store_hands_out_are_copies(store: Store) -> None:
    job_id = put_one(store)
    record(store, job_id).state = State.DEAD
    store.scan(Filter())[0].priority = 99
    assert (record(store, job_id).state, record(store, job_id).priority) == ("ready", 0)


# Order


def test_jobs_are_taken_by_priority_then_in_the_order_they_came(store: Store) -> None:
    given = (0, 5, PRIORITY_MIN, 0, PRIORITY_MAX, 5, -1, PRIORITY_MAX, PRIORITY_MIN)
    ids = put(store, *(draft(priority=priority) for priority in given))
    assert take_ids(store) == [ids[place] for place in (4, 7, 1, 5, 0, 3, 6, 2, 8)]


def test_neighbouring_priorities_at_the_ends_of_64_bits_are_told_apart(store: Store) -> None:
    # A storage that keeps priorities as doubles cannot: they hold 53 bits.
    given = (PRIORITY_MIN, PRIORITY_MIN + 1, PRIORITY_MAX - 1, PRIORITY_MAX)
    ids = put(store, *(draft(priority=priority) for priority in given))
    assert take_ids(store) == ids[::-1]


def test_a_redelivered_job_keeps_its_place(store: Store, clock: ManualClock) -> None:
    ids = put(store, draft(), draft(), draft(), draft())
    by_id = {lease.id: lease for lease in take(store, 4)}
    for place, verdict in ((3, RELEASE), (1, FAIL), (2, Retry(5.0)), (0, Hold())):
        end(store, by_id[ids[place]], verdict)
    clock.advance(5.0)
    assert take_ids(store) == ids


def test_there_is_no_ageing(store: Store, clock: ManualClock) -> None:
    old = put_one(store, priority=0)
    clock.advance(30 * DAY_S)
    new = put_one(store, priority=1)
    assert take_ids(store) == [new, old]


def test_a_due_job_counts_as_scheduled_until_a_claim_promotes_it(store: Store, clock: ManualClock) -> None:
    put(store, draft(delay_s=5.0), draft(delay_s=5.0))
    clock.advance(4.5)
    assert take(store) == []
    clock.advance(0.5)
    assert (counts(store).ready, counts(store).scheduled) == (0, 2)
    assert len(take(store, 3)) == 2
    assert counts(store).scheduled == 0


def test_due_jobs_are_taken_in_the_order_as_if_they_had_been_ready(store: Store, clock: ManualClock) -> None:
    late, soon = put(store, draft(delay_s=9.0), draft(delay_s=1.0))
    ready, high = put(store, draft(), draft(priority=1, delay_s=9.0))
    clock.advance(9.0)
    assert take_ids(store) == [high, late, soon, ready]


def test_promote_makes_due_jobs_ready_and_tells_how_many(store: Store, clock: ManualClock) -> None:
    due, later = put(store, draft(delay_s=5.0), draft(delay_s=5.5))
    elsewhere = put_one(store, queue=OTHER, delay_s=5.0)
    clock.advance(5.0)
    assert store.promote([Q]) == 1
    assert [state(store, i) for i in (due, later, elsewhere)] == ["ready", "scheduled", "scheduled"]
    assert store.promote([Q]) == 0


def test_a_ready_job_stays_ready_when_the_calendar_is_set_back(store: Store, clock: ManualClock) -> None:
    job_id = put_one(store)
    clock.set_calendar(datetime(2000, 1, 1, tzinfo=UTC))
    assert take_ids(store) == [job_id]


def test_a_run_at_that_has_passed_is_ready_at_once(store: Store, clock: ManualClock) -> None:
    ids = put(store, draft(run_at=clock.calendar()), draft(run_at=clock.calendar() - 1.0))
    assert [state(store, job_id) for job_id in ids] == ["ready", "ready"]


# Claim


def test_a_claim_never_takes_more_than_its_limit(store: Store) -> None:
    put(store, *(draft(task="send") for _ in range(5)))
    put(store, *(draft() for _ in range(5)), queue=OTHER)
    for lease in take(store, 2):
        end(store, lease, Hold())
    leases = store.claim([Q, OTHER], 7, worker="w", lease_s=LEASE_S)
    assert len(leases) == len({lease.id for lease in leases}) == 7
    assert store.claim([Q, OTHER], 0, worker="w", lease_s=LEASE_S) == []


def test_a_claim_empties_its_first_queue_before_the_next(store: Store) -> None:
    first = put(store, draft(), draft())
    second = put(store, draft(priority=9), queue=OTHER)
    assert [one.id for one in store.claim([Q, OTHER], 9, worker="w", lease_s=1.0)] == [*first, *second]


def test_a_claim_skips_paused_queues(store: Store, clock: ManualClock) -> None:
    put(store, draft(), draft(delay_s=1.0))
    other = put_one(store, queue=OTHER)
    store.configure(Q, Change(paused=True))
    clock.advance(1.0)
    assert [one.id for one in store.claim([Q, OTHER], 9, worker="w", lease_s=1.0)] == [other]
    assert store.promote([Q]) == 0
    store.configure(Q, Change(paused=False))
    assert len(take(store, 9)) == 2


def test_pausing_leaves_leases_and_enqueues_alone(store: Store) -> None:
    put_one(store)
    lease = take_one(store)
    store.configure(Q, Change(paused=True))
    put_one(store)
    assert store.extend([lease], LEASE_S) == [False]
    assert end(store, lease, Done()) == "succeeded"


def test_a_turn_settles_before_it_claims(store: Store) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    settled, leases = store.turn([(lease, FAIL)], [Q], 5, worker="w2", lease_s=1.0)
    assert (settled, [(one.id, one.delivery, one.worker) for one in leases]) == (
        ["ready"],
        [(job_id, 2, "w2")],
    )


# Room


def test_no_add_goes_beyond_the_capacity(store: Store) -> None:
    store.declare(Q, Settings(capacity=2))
    put(store, draft(), draft())
    before = everything(store)
    assert store.add(Q, [draft()]) is FULL
    assert everything(store) == before


def test_scheduled_leased_and_held_jobs_keep_their_slots(store: Store) -> None:
    store.declare(Q, Settings(capacity=3))
    put(store, draft(), draft(), draft(delay_s=60.0))
    end(store, take(store, 2)[0], Hold())
    assert (counts(store).held, counts(store).leased, counts(store).scheduled) == (1, 1, 1)
    assert store.add(Q, [draft()]) is FULL


@pytest.mark.parametrize("verdict", [FAIL, Retry(5.0), RELEASE, Hold()])
def test_what_comes_back_keeps_its_slot_at_capacity_one(
    store: Store, clock: ManualClock, verdict: Retry
) -> None:
    store.declare(Q, Settings(capacity=1))
    job_id = put_one(store)
    end(store, take_one(store), verdict)
    assert store.add(Q, [draft()]) is FULL
    clock.advance(5.0)
    assert take_ids(store) == [job_id]


def test_the_end_of_a_job_makes_room_in_the_same_step(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    for verdict in (Done(), Dead()):
        put_one(store)
        end(store, take_one(store), verdict)
    act(store, Cancel(), put_one(store))
    act(store, Delete(), put_one(store))
    assert put_one(store)


def test_a_batch_is_stored_whole_or_not_at_all(store: Store) -> None:
    store.declare(Q, Settings(capacity=3))
    put(store, draft(), draft())
    before = everything(store)
    assert store.add(Q, [draft(), draft(idempotency_key="i", unique_key="u")]) is FULL
    assert everything(store) == before
    assert not isinstance(put_one(store, idempotency_key="i", unique_key="u"), Duplicate)


def test_more_new_jobs_than_the_capacity_are_an_error(store: Store) -> None:
    store.declare(Q, Settings(capacity=2))
    with pytest.raises(ArgumentError, match="capacity is 2"):
        store.add(Q, [draft(idempotency_key="i"), draft(), draft()])
    assert counts(store).total == 0
    assert not isinstance(put_one(store, idempotency_key="i"), Duplicate)


def test_a_lower_capacity_removes_nothing_and_is_full_until_enough_has_ended(store: Store) -> None:
    ids = put(store, draft(), draft(), draft())
    store.configure(Q, Change(capacity=2))
    assert counts(store).open == 3
    for job_id in ids[:2]:
        assert store.add(Q, [draft()]) is FULL
        act(store, Cancel(), job_id)
    assert len(put(store)) == 1
    assert store.add(Q, [draft()]) is FULL


def test_each_queue_has_room_of_its_own_and_none_is_unbounded(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    put_one(store)
    assert len(put(store, *(draft() for _ in range(200)), queue=OTHER)) == 200
    store.configure(Q, Change(capacity=None))
    assert len(put(store, *(draft() for _ in range(200)))) == 200


# Keys


def test_one_open_job_per_unique_key_of_a_queue(store: Store) -> None:
    job_id = put_one(store, unique_key="ada")
    again = put_one(store, unique_key="ada")
    assert isinstance(again, Duplicate)
    assert again == job_id
    assert not isinstance(put_one(store, unique_key="ada", queue=OTHER), Duplicate)
    for verdict in (RELEASE, Retry(60.0), Hold()):
        end(store, take_one(store), verdict)
        assert put_one(store, unique_key="ada") == job_id
        act(store, Cancel(), job_id)
        act(store, Redrive(), job_id)
    end(store, take_one(store), Done())
    assert put_one(store, unique_key="ada") > job_id


def test_a_repeated_enqueue_answers_the_first_id_whatever_became_of_its_job(store: Store) -> None:
    done, gone, open_ = put(store, *(draft(idempotency_key=name) for name in ("i1", "i2", "i3")))
    end(store, take_one(store), Done())
    act(store, Delete(), gone)
    again = put(store, *(draft(idempotency_key=name) for name in ("i3", "i2", "i1")))
    assert again == [open_, gone, done]
    assert all(isinstance(answer, Duplicate) for answer in again)
    assert counts(store).total == 3


def test_an_idempotency_key_is_remembered_for_24_hours_and_not_for_ever(
    store: Store, clock: ManualClock
) -> None:
    job_id = put_one(store, idempotency_key="i")
    end(store, take_one(store), Done())
    clock.advance(DAY_S - 0.5)
    store.prune()
    assert put_one(store, idempotency_key="i") == job_id
    clock.advance(0.5)
    store.prune()
    assert put_one(store, idempotency_key="i") > job_id


def test_a_repeat_does_not_prolong_the_memory_of_a_key(store: Store, clock: ManualClock) -> None:
    job_id = put_one(store, idempotency_key="i")
    clock.advance(DAY_S / 2)
    assert put_one(store, idempotency_key="i") == job_id
    clock.advance(DAY_S / 2)
    store.prune()
    assert put_one(store, idempotency_key="i") > job_id


def test_the_idempotency_key_is_looked_at_before_the_unique_key(store: Store) -> None:
    first, second = put(store, draft(idempotency_key="i"), draft(unique_key="u"))
    assert put_one(store, idempotency_key="i", unique_key="u") == first
    assert put_one(store, idempotency_key="j", unique_key="u") == second


def test_an_enqueue_refused_as_a_duplicate_is_answered_alike_when_it_is_repeated(store: Store) -> None:
    job_id = put_one(store, unique_key="u")
    assert put_one(store, unique_key="u", idempotency_key="i") == job_id
    end(store, take_one(store), Done())
    assert put_one(store, unique_key="u", idempotency_key="i") == job_id


def test_keys_are_looked_at_before_room_so_a_duplicate_is_never_told_full(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    job_id = put_one(store, unique_key="u", idempotency_key="i")
    assert put(store, draft(unique_key="u"), draft(idempotency_key="i")) == [job_id, job_id]
    assert store.add(Q, [draft(unique_key="u"), draft()]) is FULL


def test_duplicates_take_no_slot_also_within_one_call(store: Store) -> None:
    store.declare(Q, Settings(capacity=2))
    keys = ({"unique_key": "u"}, {"unique_key": "u"}, {"idempotency_key": "i"}, {"idempotency_key": "i"})
    answers = put(store, *(draft(**key) for key in keys))
    assert answers == [answers[0], answers[0], answers[2], answers[2]]
    assert [isinstance(answer, Duplicate) for answer in answers] == [False, True, False, True]
    assert (counts(store).open, counts(store).total) == (2, 2)


def test_an_add_of_known_jobs_only_answers_duplicates_and_stores_nothing(store: Store) -> None:
    # What an enqueue asks while others wait for room: a duplicate need not stand in line behind them.
    job_id = put_one(store, unique_key="u", idempotency_key="i")
    before = everything(store)
    known = [draft(unique_key="u"), draft(idempotency_key="i")]
    assert store.add(Q, known, known_only=True) == [job_id, job_id]
    assert store.add(Q, [*known, draft(idempotency_key="j")], known_only=True) is FULL
    assert everything(store) == before
    assert not isinstance(put_one(store, idempotency_key="j"), Duplicate)
