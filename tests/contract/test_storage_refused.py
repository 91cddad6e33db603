"""Jobs that a worker refused because their payload does not fit their task, and held jobs brought back."""

from __future__ import annotations

import threading

import pytest

from tests.contract.steps import (
    LEASE_S,
    OTHER,
    RELEASE,
    Q,
    act,
    counts,
    draft,
    end,
    put,
    put_one,
    record,
    refused,
    state,
    take,
    take_ids,
    take_one,
)
from ulak.core.job import Cause, Dead, Done, Failure, Hold, Lease, Retry
from ulak.core.store import (
    Cancel,
    Change,
    Delete,
    Edit,
    Filter,
    Redrive,
    Reprioritise,
    Settings,
    Store,
    Until,
)
from ulak.info import info_of
from ulak.testing import ManualClock

MISFIT = Failure("ArgumentMisfit", "parameter 'to' is missing")
REFUSE = Hold(Cause.UNDECODABLE, MISFIT)
SEND = frozenset({"send"})
each_hold = pytest.mark.parametrize("hold", [Hold(), REFUSE], ids=["unknown", "refused"])


def held(store: Store, hold: Hold = REFUSE, **options: object) -> int:
    """One job of the task "send", held so."""
    job_id = put_one(store, **{"task": "send", "priority": 99, **options})
    lease = take_one(store, tasks=frozenset())
    assert lease.id == job_id
    assert end(store, lease, hold) == "held"
    return job_id


# What a hold says


@each_hold
def test_a_hold_keeps_its_cause_and_its_error_and_spends_nothing(store: Store, hold: Hold) -> None:
    job = record(store, held(store, hold))
    assert (job.state, job.attempt, job.delivery) == ("held", 0, 1)
    assert (job.history[-1].cause, job.history[-1].error) == (hold.cause, hold.error)


# Who takes a refused job


def test_a_refused_job_is_left_by_every_claim_that_names_tasks(store: Store) -> None:
    job_id = held(store)
    other = put_one(store, task="send")
    assert take_ids(store, tasks=SEND) == [other]
    assert take(store, tasks=frozenset({"send", "draw", None})) == []
    assert take(store, tasks=frozenset({None})) == []
    _, leases = store.turn((), [Q], 5, worker="w", lease_s=LEASE_S, tasks=SEND)
    assert leases == []
    assert state(store, job_id) == "held"


def test_a_refused_job_is_taken_in_its_place_by_a_claim_that_takes_anything(store: Store) -> None:
    first = held(store, priority=50)
    second = held(store, Hold(), priority=40)
    third = put_one(store, priority=45)
    assert take_ids(store) == [first, third, second]


def test_a_refused_job_that_was_taken_can_be_held_for_its_task_again(store: Store) -> None:
    job_id = held(store)
    end(store, take_one(store), Hold())
    assert take_ids(store, tasks=SEND) == [job_id]


def test_a_job_held_for_its_task_can_be_refused_then(store: Store) -> None:
    job_id = held(store, Hold())
    end(store, take_one(store, tasks=SEND), REFUSE)
    assert take(store, tasks=SEND) == []
    assert take_ids(store) == [job_id]


def test_a_refused_job_that_was_handed_back_is_ready_for_all(store: Store) -> None:
    job_id = held(store)
    end(store, take_one(store), RELEASE)
    assert take_ids(store, tasks=SEND) == [job_id]


def test_a_refused_job_without_a_task_is_left_by_whoever_takes_those(store: Store) -> None:
    job_id = held(store, task=None)
    assert take(store, tasks=frozenset({None})) == []
    assert take_ids(store) == [job_id]


def test_refused_jobs_are_open_and_counted_as_held(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    held(store)
    assert (counts(store).held, counts(store).open) == (1, 1)
    assert not store.add(Q, [draft()])


def test_nothing_but_time_is_awaited_beside_refused_jobs(store: Store) -> None:
    held(store)
    assert store.horizon([Q]) is None
    put_one(store, delay_s=0.5)
    assert store.horizon([Q]) == 0.5


def test_refused_jobs_expire_like_others_that_wait(store: Store, clock: ManualClock) -> None:
    job_id = held(store, expires_s=5.0)
    clock.advance(5.0)
    assert take(store, 9) == []
    store.prune()
    assert state(store, job_id) == "expired"


def test_operators_cancel_delete_and_move_refused_jobs(store: Store) -> None:
    one, two, low, high = (held(store, priority=p) for p in (60, 70, 80, 90))
    act(store, Cancel(), one)
    act(store, Delete(), two)
    act(store, Reprioritise(95), low)
    assert take(store, tasks=SEND) == []
    assert take_ids(store) == [low, high]


def test_held_jobs_of_a_task_are_found_by_it(store: Store) -> None:
    unknown, misfit = held(store, Hold(), priority=9), held(store, priority=8)
    draw = held(store, task="draw", priority=7)
    put(store, draft(task="send"), draft())
    put_one(store, queue=OTHER, task="send")
    of_send = Filter(queue=Q, states="held", task="send")
    assert [job.id for job in store.scan(of_send)] == [unknown, misfit]
    assert [job.id for job in store.scan(of_send, after=unknown)] == [misfit]
    assert [job.id for job in store.scan(of_send, limit=1)] == [unknown]
    assert [job.id for job in store.scan(Filter(states="held", task="draw"))] == [draw]
    assert [job.id for job in store.scan(Filter(queue=Q, states="held"))] == [unknown, misfit, draw]


def test_refused_jobs_are_found_among_the_others(store: Store) -> None:
    held(store)
    # Held for its task, by the last who had it.
    end(store, take_one(store), Hold())
    unknown, misfit, draw = held(store, Hold()), held(store), held(store, task="draw")
    back, edited, gone = held(store), held(store), held(store)
    other = put_one(store, queue=OTHER, task="send")
    end(store, take_one(store, queue=OTHER), REFUSE)
    act(store, Redrive(), back)
    act(store, Edit(b"other", "bytes"), edited)
    act(store, Delete(), gone)
    which = Filter(queue=Q, refused=True)
    assert [job.id for job in store.scan(which)] == [misfit, draw, edited]
    assert [job.id for job in store.scan(which, after=misfit, limit=1)] == [draw]
    assert [job.id for job in store.scan(Filter(refused=True))] == [misfit, draw, edited, other]
    assert [job.id for job in store.scan(Filter(queue=Q, refused=True, task="draw"))] == [draw]
    assert store.scan(Filter(queue=Q, refused=True, states=["ready", "dead"])) == []
    assert len(store.scan(Filter(queue=Q, refused=True, states=["ready", "held"]))) == 3
    assert store.scan(Filter(queue="nowhere", refused=True)) == []
    assert store.amend(which, Redrive()).done == (misfit, draw, edited)
    assert record(store, unknown).state == "held"


# What an operator does with a held job


@each_hold
def test_an_edit_of_a_held_job_keeps_it_held(store: Store, hold: Hold) -> None:
    job_id = held(store, hold)
    assert act(store, Edit(b"mended", "str"), job_id).done == (job_id,)
    job = record(store, job_id)
    assert (job.state, job.payload, job.codec) == ("held", b"mended", "str")
    assert (take(store, tasks=SEND) == []) is (hold is REFUSE)


@each_hold
def test_redrive_makes_a_held_job_ready_at_its_place_with_its_attempts(store: Store, hold: Hold) -> None:
    job_id = put_one(store, task="send")
    later = put_one(store, task="send")
    end(store, take_one(store), Retry(0.0, Cause.LOST, crashed=True))
    end(store, take_one(store), hold)
    before = counts(store)
    assert act(store, Redrive(), job_id).done == (job_id,)
    job = record(store, job_id)
    assert (job.state, job.attempt, job.crashes, job.delivery) == ("ready", 1, 1, 2)
    assert len(job.history) == 2
    now = counts(store)
    assert (now.ready, now.held, now.totals) == (before.ready + 1, before.held - 1, before.totals)
    assert [(one.id, one.attempt) for one in take(store, 2, tasks=SEND)] == [(job_id, 2), (later, 1)]


def test_redrive_of_a_held_job_needs_neither_room_nor_its_key(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    job_id = held(store, unique_key="ada")
    assert act(store, Redrive(), job_id).done == (job_id,)
    assert (counts(store).open, counts(store).ready) == (1, 1)
    assert put_one(store, unique_key="ada") == job_id


def test_a_redrive_of_all_takes_held_jobs_and_those_that_ended(store: Store) -> None:
    job_id, misfit = held(store, Hold()), held(store)
    dead = put_one(store)
    lease: Lease = take(store, tasks=frozenset({None}))[0]
    end(store, lease, Dead())
    assert act(store, Redrive(), *store_ids(store)).done == (job_id, misfit, dead)
    assert counts(store).totals.redriven == 1
    assert take_ids(store, tasks=SEND) == [job_id, misfit, dead]


def store_ids(store: Store) -> list[int]:
    return [job.id for job in store.scan(Filter())]


def test_a_held_job_that_is_redriven_after_its_time_has_no_expiry_any_more(
    store: Store, clock: ManualClock
) -> None:
    # As if a prune had ended it just before.
    job_id, kept = held(store, expires_s=5.0), held(store, expires_s=6.0)
    clock.advance(5.0)
    act(store, Redrive(), job_id, kept)
    clock.advance(1.0)
    assert take_ids(store) == [job_id]
    assert record(store, job_id).expires_at is None


def test_redrive_wakes_a_waiter_for_work(store: Store) -> None:
    job_id = held(store)
    signal = threading.Event()
    store.line(Until.READY, Q).join(signal)
    act(store, Redrive(), job_id)
    assert signal.is_set()


def test_a_refused_job_wakes_nobody_who_waits_for_work(store: Store) -> None:
    if store.capabilities.poll_s is not None:
        pytest.skip("waiters of this storage are also woken to be on the safe side; see its own tests")
    put_one(store, task="send")
    lease = take_one(store)
    signal = threading.Event()
    store.line(Until.READY, Q).join(signal)
    end(store, lease, REFUSE)
    act(store, Reprioritise(5), lease.id)
    act(store, Edit(b"other", "bytes"), lease.id)
    assert not signal.is_set()


def test_a_paused_queues_held_job_is_redriven_too(store: Store) -> None:
    job_id = held(store)
    store.configure(Q, Change(paused=True))
    assert act(store, Redrive(), job_id).done == (job_id,)
    assert take(store) == []
    store.configure(Q, Change(paused=False))
    assert take_ids(store, tasks=SEND) == [job_id]


def test_a_redriven_job_is_redriven_no_further(store: Store) -> None:
    job_id = held(store)
    act(store, Redrive(), job_id)
    assert refused(act(store, Redrive(), job_id)) == {"not possible in its state": (job_id,)}


# What is shown


def test_a_held_job_says_what_it_waits_for(store: Store, clock: ManualClock) -> None:
    def next_of(job_id: int) -> str:
        now, now_at = clock.interval(), clock.calendar()
        return info_of(record(store, job_id), now=now, now_at=now_at, paused=False).next

    unknown, misfit = held(store, Hold()), held(store)
    assert next_of(unknown) == "waits for a worker that knows send"
    assert next_of(misfit) == (
        "its payload does not fit its task here; edit it and redrive it, or deploy a task it fits"
    )
    act(store, Redrive(), misfit)
    assert next_of(misfit) == "runs as soon as a worker is free"


def test_a_result_is_shown_as_the_value_it_is(store: Store, clock: ManualClock) -> None:
    ids = put(store, draft(), draft())
    for lease, result in zip(take(store, 2), (b'{"sent":1}', None), strict=True):
        end(store, lease, Done(result))
    infos = [
        info_of(record(store, job_id), now=clock.interval(), now_at=clock.calendar(), paused=False)
        for job_id in ids
    ]
    assert [(info.result, info.result_body) for info in infos] == [({"sent": 1}, b'{"sent":1}'), (None, None)]
    assert "sent" not in repr(infos[0])
