"""Jobs that nobody runs, case by case: cancelled, expired, held, brought back, changed by an operator."""

from __future__ import annotations

import random

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
    each_end_but_ack,
    end,
    named,
    put,
    put_one,
    record,
    refused,
    state,
    take,
    take_ids,
    take_one,
)
from ulak.core.job import Cancelled, Cause, Dead, Done, Hold, Outcome, Retry, Verdict
from ulak.core.rules import give_back
from ulak.core.store import Cancel, Change, Delete, Edit, Redrive, Reprioritise, Settings, Store
from ulak.testing import ManualClock

# Cancel


def test_cancel_ends_a_job_that_waits(store: Store) -> None:
    ready, scheduled, held = put(store, draft(priority=1), draft(delay_s=60.0), draft(priority=2))
    end(store, take_one(store), Hold())
    assert act(store, Cancel(), ready, scheduled, held).done == (held, ready, scheduled)
    assert [state(store, i) for i in (ready, scheduled, held)] == ["cancelled"] * 3
    assert take(store) == []
    assert (counts(store).cancelled, counts(store).totals.cancelled) == (3, 3)


def test_cancel_of_a_running_job_is_a_flag_that_extend_carries_down(store: Store) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    assert store.extend([lease], LEASE_S) == [False]
    assert act(store, Cancel(), job_id).done == (job_id,)
    assert state(store, job_id) == "leased"
    assert store.extend([lease], LEASE_S) == [True]


def test_an_ack_wins_over_a_requested_cancel(store: Store) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    act(store, Cancel(), job_id)
    assert end(store, lease, Done()) == "succeeded"


@each_end_but_ack
def test_every_other_end_of_a_cancel_requested_delivery_is_cancelled(store: Store, verdict: Verdict) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    act(store, Cancel(), job_id)
    assert end(store, lease, verdict) == "cancelled"
    assert take(store) == []
    assert counts(store).totals.cancelled == 1


# Expiry


def test_expiry_never_stops_a_running_delivery(store: Store, clock: ManualClock) -> None:
    job_id = put_one(store, expires_s=5.0)
    lease = take_one(store)
    clock.advance(10.0)
    store.prune()
    assert state(store, job_id) == "leased"
    assert store.extend([lease], LEASE_S) == [False]
    assert end(store, lease, Done()) == "succeeded"


@pytest.mark.parametrize(("delay_s", "now"), [(4.5, "scheduled"), (5.0, "expired"), (5.5, "expired")])
def test_a_retry_due_at_or_after_expiry_ends_expired(store: Store, delay_s: float, now: str) -> None:
    put_one(store, expires_s=5.0)
    assert end(store, take_one(store), Retry(delay_s)) == now


@pytest.mark.parametrize("verdict", [FAIL, RELEASE, Hold()], ids=named)
def test_what_comes_back_past_its_expiry_ends_expired(
    store: Store, clock: ManualClock, verdict: Verdict
) -> None:
    put_one(store, expires_s=5.0)
    lease = take_one(store)
    clock.advance(5.0)
    assert end(store, lease, verdict) == "expired"


def test_a_claim_never_takes_a_job_past_its_expiry_and_ends_it(store: Store, clock: ManualClock) -> None:
    overdue = put_one(store, expires_s=5.0, priority=9)
    later = put_one(store, expires_s=5.5)
    clock.advance(5.0)
    assert take_ids(store) == [later]
    assert state(store, overdue) == "expired"
    assert record(store, overdue).ended_at == clock.calendar()


def test_an_add_ends_what_is_past_its_expiry_before_it_looks_for_room(
    store: Store, clock: ManualClock
) -> None:
    store.declare(Q, Settings(capacity=1))
    overdue = put_one(store, expires_s=5.0)
    assert not store.add(Q, [draft()])
    clock.advance(5.0)
    assert put_one(store) == overdue + 1
    assert state(store, overdue) == "expired"
    assert counts(store).open == 1


def test_a_job_past_its_expiry_keeps_its_unique_key_from_nobody(store: Store, clock: ManualClock) -> None:
    overdue = put_one(store, expires_s=5.0, unique_key="ada")
    clock.advance(5.0)
    assert put_one(store, unique_key="ada") == overdue + 1


def test_a_prune_ends_every_waiting_job_past_its_expiry(store: Store, clock: ManualClock) -> None:
    held = put_one(store, expires_s=5.0)
    end(store, take_one(store), Hold())
    ready, scheduled = put(store, draft(expires_s=5.0), draft(expires_s=5.0, delay_s=60.0))
    kept = put_one(store, expires_s=5.5)
    clock.advance(5.0)
    store.prune()
    assert [state(store, i) for i in (held, ready, scheduled, kept)] == [*["expired"] * 3, "ready"]


# Held


def test_a_held_job_is_taken_only_by_a_claim_that_names_its_task(store: Store) -> None:
    job_id = put_one(store, task="send")
    end(store, take_one(store, tasks=frozenset({"draw"})), Hold())
    assert state(store, job_id) == "held"
    assert take(store, tasks=frozenset({"draw", None})) == []
    assert take(store, tasks=frozenset()) == []
    assert take_ids(store, tasks=frozenset({"send"})) == [job_id]


def test_a_claim_without_names_takes_any_held_job(store: Store) -> None:
    job_id = put_one(store, task="send")
    end(store, take_one(store), Hold())
    assert take_ids(store) == [job_id]


def test_a_held_job_without_a_task_is_named_by_no_task(store: Store) -> None:
    job_id = put_one(store)
    end(store, take_one(store, tasks=frozenset({"send"})), Hold())
    assert take(store, tasks=frozenset({"send"})) == []
    assert take_ids(store, tasks=frozenset({None})) == [job_id]


def test_a_claim_that_names_tasks_takes_any_ready_job(store: Store) -> None:
    ids = put(store, draft(task="send"), draft(), draft(task="draw"))
    assert take_ids(store, tasks=frozenset({"draw"})) == ids


def test_held_and_ready_jobs_are_taken_in_one_order(store: Store) -> None:
    ids = put(store, *(draft(task="send", priority=p) for p in (0, 0, 5, 0, 5)))
    for lease in take(store, 5):
        if lease.id in {ids[0], ids[3], ids[4]}:
            end(store, lease, Hold())
        else:
            end(store, lease, RELEASE)
    order = [ids[2], ids[4], ids[0], ids[1], ids[3]]
    assert take_ids(store, tasks=frozenset({"send"})) == order


def test_held_jobs_never_return_to_ready_and_stay_open(store: Store, clock: ManualClock) -> None:
    store.declare(Q, Settings(capacity=1))
    put_one(store, task="send")
    end(store, take_one(store), Hold())
    clock.advance(86_400.0)
    store.promote([Q])
    store.prune()
    assert (counts(store).held, counts(store).open) == (1, 1)
    assert not store.add(Q, [draft()])


# Redrive


@pytest.mark.parametrize("way", ["dead", "cancelled", "expired"])
def test_redrive_brings_a_job_back_at_its_place_with_its_history_and_new_attempts(
    store: Store, clock: ManualClock, way: str
) -> None:
    job_id = put_one(store, max_attempts=2, expires_s=5.0 if way == "expired" else None)
    later = put_one(store)
    end(store, take_one(store), Retry(0.0, Cause.LOST, crashed=True))
    lease = take_one(store)
    clock.advance(5.0)
    end(store, lease, {"dead": Dead(), "cancelled": Cancelled(), "expired": RELEASE}[way])
    assert state(store, job_id) == way
    assert act(store, Redrive(), job_id).done == (job_id,)
    job = record(store, job_id)
    assert (job.state, job.attempt, job.crashes, job.delivery) == ("ready", 0, 0, 2)
    assert (job.ended_at, len(job.history)) == (None, 2)
    assert [(one.id, one.delivery, one.attempt) for one in take(store, 2)] == [(job_id, 3, 1), (later, 1, 1)]


def test_redrive_forgets_a_requested_cancel(store: Store) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    act(store, Cancel(), job_id)
    end(store, lease, FAIL)
    act(store, Redrive(), job_id)
    assert end(store, take_one(store), FAIL) == "ready"


def test_redrive_refuses_what_has_not_failed(store: Store) -> None:
    done, running, waiting = put(store, draft(), draft(), draft())
    first, _ = take(store, 2)
    end(store, first, Done())
    answer = refused(act(store, Redrive(), done, running, waiting, 99))
    assert answer == {
        "not possible in its state": (done, running, waiting),
        "not found": (99,),
    }


def test_redrive_needs_room_like_an_enqueue(store: Store) -> None:
    store.declare(Q, Settings(capacity=3))
    ids = put(store, draft(), draft(), draft(priority=1))
    for lease in take(store, 3):
        end(store, lease, Dead())
    put(store, draft())
    changed = act(store, Redrive(), *ids)
    assert changed.done == (ids[2], ids[0])
    assert changed.refused == {"queue is full": (ids[1],)}
    assert counts(store).open == 3


def test_redrive_needs_a_free_unique_key(store: Store) -> None:
    job_id = put_one(store, unique_key="ada")
    act(store, Cancel(), job_id)
    other = put_one(store, unique_key="ada")
    assert refused(act(store, Redrive(), job_id)) == {"unique key is taken": (job_id,)}
    act(store, Cancel(), other)
    assert act(store, Redrive(), job_id).done == (job_id,)
    assert put_one(store, unique_key="ada") == job_id


# Other acts of an operator


def test_acts_that_a_live_lease_refuses_need_force(store: Store) -> None:
    job_id = put_one(store)
    lease = take_one(store)
    for change in (Reprioritise(9), Delete()):
        assert refused(act(store, change, job_id)) == {"leased by a worker": (job_id,)}
    assert act(store, Reprioritise(9), job_id, force=True).done == (job_id,)
    assert (record(store, job_id).priority, state(store, job_id)) == (9, "leased")
    assert act(store, Delete(), job_id, force=True).done == (job_id,)
    assert end(store, lease, Done()) is Outcome.STALE


@pytest.mark.parametrize("force", [False, True])
def test_the_payload_of_a_running_job_is_never_edited(store: Store, force: bool) -> None:
    job_id = put_one(store)
    take_one(store)
    changed = act(store, Edit(b"new", "bytes"), job_id, force=force)
    assert refused(changed) == {"not possible in its state": (job_id,)}


def test_an_act_reaches_jobs_of_the_named_queue_only(store: Store) -> None:
    mine = put_one(store)
    other = put_one(store, queue=OTHER)
    changed = store.amend([other, mine], Cancel(), queue=Q)
    assert (changed.done, changed.refused) == ((mine,), {"not found": (other,)})
    assert state(store, other) == "ready"


def test_an_act_goes_in_order_of_priority_then_id_and_names_each_job_once(store: Store) -> None:
    low, high, middle, twin = put(store, *(draft(priority=p) for p in (0, 9, 5, 5)))
    assert act(store, Cancel(), twin, low, high, low, middle).done == (high, middle, twin, low)


def test_reprioritise_moves_a_waiting_job_among_the_others(store: Store) -> None:
    first, second, third = put(store, draft(), draft(), draft(delay_s=0.0))
    act(store, Reprioritise(1), third)
    act(store, Reprioritise(-1), first)
    assert take_ids(store) == [third, second, first]


def test_edit_replaces_the_payload_of_a_dead_job_for_its_redrive(store: Store) -> None:
    job_id = put_one(store)
    end(store, take_one(store), Dead())
    assert act(store, Edit(b"mended", "str"), job_id).done == (job_id,)
    act(store, Redrive(), job_id)
    lease = take_one(store)
    assert (lease.body, lease.codec) == (b"mended", "str")


@pytest.mark.parametrize("change", [Cancel(), Reprioritise(1), Edit(b"", "bytes"), Redrive()])
def test_a_finished_job_can_only_be_deleted(store: Store, change: Cancel) -> None:
    job_id = put_one(store)
    end(store, take_one(store), Done())
    assert refused(act(store, change, job_id, force=True)) == {"not possible in its state": (job_id,)}
    assert act(store, Delete(), job_id).done == (job_id,)
    assert state(store, job_id) is None
    assert (counts(store).totals.deleted, counts(store).pruned) == (0, 1)


def test_a_job_deleted_while_open_counts_as_deleted_and_gives_its_place_and_key_back(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    job_id = put_one(store, unique_key="ada")
    act(store, Delete(), job_id)
    assert put_one(store, unique_key="ada") == job_id + 1
    assert (counts(store).totals.deleted, counts(store).pruned) == (1, 0)


def test_jobs_that_move_about_for_long_are_still_taken_in_order(store: Store, clock: ManualClock) -> None:
    # Long enough for any index that keeps the places of jobs that have moved on to be swept several times.
    draws = random.Random(7)
    ids = put(store, *(draft(task="send") for _ in range(60)))
    for _ in range(12):
        for job_id in draws.sample(ids, 30):
            act(store, Reprioritise(draws.randrange(3)), job_id)
        for lease in take(store, 25):
            end(store, lease, draws.choice((RELEASE, Hold(), give_back(delay_s=5.0))))
        clock.advance(draws.choice((0.0, 5.0)))
    store.configure(Q, Change(paused=False))
    clock.advance(5.0)
    expected = sorted(ids, key=lambda job_id: (-record(store, job_id).priority, job_id))
    assert take_ids(store) == expected
