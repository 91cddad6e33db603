"""What is kept, what is told, schedules and waiters, case by case."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.contract.conftest import StorageKind
from tests.contract.steps import (
    FAIL,
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
    state,
    take,
    take_one,
)
from ulak.core.backoff import Backoff
from ulak.core.job import FULL, Cancelled, Dead, Done, Duplicate, Hold, Retry, State
from ulak.core.store import (
    Cancel,
    Change,
    Delete,
    Filter,
    Fired,
    Keep,
    Redrive,
    Refusal,
    Retention,
    Settings,
    Store,
    Until,
)
from ulak.testing import ManualClock

DAY_S = 86_400.0
KEEP_ALL = Keep(1000, 1000 * DAY_S)


def keep(**named: Keep) -> Retention:
    """Retention that keeps everything but what is named."""
    kept = dict.fromkeys(("succeeded", "dead", "cancelled", "expired"), KEEP_ALL) | named
    return Retention(**kept)


# What is kept


@pytest.mark.parametrize("kept", ["succeeded", "dead", "cancelled", "expired"])
def test_each_state_is_kept_by_its_own_count_the_oldest_forgotten_first(
    store: Store, clock: ManualClock, kept: str
) -> None:
    ids = {name: finish_three(store, clock, name) for name in ("succeeded", "dead", "cancelled", "expired")}
    store.configure(Q, Change(retention=keep(**{kept: Keep(1, 1000 * DAY_S)})))
    assert store.prune() == {kept: 2}
    for name, (old, middle, new) in ids.items():
        left = [new] if name == kept else [old, middle, new]
        assert [job.id for job in store.scan(Filter(states=name))] == sorted(left)
    assert counts(store).pruned == 2


@pytest.mark.parametrize("kept", ["succeeded", "dead", "cancelled", "expired"])
def test_each_state_is_kept_by_its_own_age_equal_counting_as_passed(
    store: Store, clock: ManualClock, kept: str
) -> None:
    ids = {name: finish_three(store, clock, name) for name in ("succeeded", "dead", "cancelled", "expired")}
    middle_at = record(store, ids[kept][1]).ended_at
    assert middle_at is not None
    store.configure(Q, Change(retention=keep(**{kept: Keep(1000, clock.calendar() - middle_at)})))
    assert store.prune() == {kept: 2}
    assert [job.id for job in store.scan(Filter(states=kept))] == [ids[kept][2]]


def finish_three(store: Store, clock: ManualClock, way: str) -> list[int]:
    """Three jobs that ended that way five seconds apart, in that order; the first has the highest id."""
    put(store, *(draft(priority=priority, expires_s=5.0) for priority in (0, 1, 2)))
    verdicts = {"succeeded": Done(), "dead": Dead(), "cancelled": Cancelled(), "expired": RELEASE}
    leases = take(store, 3)
    for lease in leases:
        clock.advance(5.0)
        assert end(store, lease, verdicts[way]) == way
    return [lease.id for lease in leases]


def test_what_is_kept_is_on_by_default_and_differs_by_state(
    store: Store, clock: ManualClock, kind: StorageKind
) -> None:
    done, dead = put(store, draft(), draft())
    first, second = take(store, 2)
    end(store, first, Done())
    end(store, second, Dead())
    days = 7 if kind.capabilities.durable else 1
    clock.advance(days * DAY_S - 0.5)
    store.prune()
    assert state(store, done) == "succeeded"
    clock.advance(0.5)
    store.prune()
    assert (state(store, done), state(store, dead)) == (None, "dead")
    clock.advance((90 - days) * DAY_S)
    store.prune()
    assert state(store, dead) is None


def test_open_jobs_are_never_pruned(store: Store, clock: ManualClock) -> None:
    store.configure(Q, Change(retention=Retention(*[Keep(0, 1.0)] * 4)))
    put(store, draft(), draft(), draft(delay_s=1000 * DAY_S), draft(priority=1))
    end(store, take_one(store), Hold())
    take(store)
    clock.advance(900 * DAY_S)
    assert sum(store.prune().values()) == 0
    assert counts(store).open == 4


def test_one_prune_forgets_at_most_its_limit(store: Store) -> None:
    ids = put(store, *(draft() for _ in range(5)))
    for lease in take(store, 5):
        end(store, lease, Dead())
    store.configure(Q, Change(retention=keep(dead=Keep(0, DAY_S))))
    assert [store.prune(limit=2) for _ in range(3)] == [{"dead": 2}, {"dead": 2}, {"dead": 1}]
    assert store.get(ids) == [None] * 5


def test_one_prune_ends_at_most_its_limit_of_waiting_jobs_and_tells_how_many(store: Store) -> None:
    # A prune takes the queue's lock, or a transaction: its work must not grow with what has piled up.
    put(store, *(draft(expires_s=0.0) for _ in range(5)))
    assert store.prune(limit=2) == {"expired": 2}
    assert counts(store).expired == 2
    assert store.prune() == {"expired": 3}


def test_a_prune_with_nothing_to_do_tells_so(store: Store) -> None:
    put_one(store)
    assert sum(store.prune().values()) == 0


# What is told


def test_counts_are_a_recount_of_what_is_stored_and_the_totals_add_up(store: Store) -> None:
    store.declare(Q, Settings(capacity=20))
    put(store, *(draft(task="send", max_attempts=2, expires_s=60.0) for _ in range(10)))
    leases = take(store, 8)
    act(store, Cancel(), leases[6].id)
    verdicts = (Done(), FAIL, Dead(), Hold(), RELEASE, Retry(60.0), FAIL)
    for lease, verdict in zip(leases, verdicts, strict=False):
        end(store, lease, verdict)
    act(store, Redrive(), leases[2].id)
    act(store, Delete(), leases[3].id)
    t, now = counts(store).totals, counts(store)
    recount = Counter(job.state.value for job in store.scan(Filter(queue=Q)))
    told = {"ready": now.ready, "leased": now.leased, "succeeded": now.acked, "cancelled": now.cancelled}
    assert recount == told | {"expired": now.expired}
    assert (now.scheduled, now.held, now.dead) == (0, 0, 0)
    assert (t.enqueued, t.redriven, t.deleted) == (10, 1, 1)
    assert (t.processed, t.succeeded, t.failed) == (5, 1, 4)
    assert (t.retries, t.dead_lettered, t.cut) == (1, 1, 2)
    assert (t.cancelled, t.expired, t.reclaimed) == (1, 1, 0)
    assert t.enqueued + t.redriven == 1 + 1 + 1 + 1 + t.deleted + now.open


def test_scan_pages_by_id_and_narrows_by_queue_state_task_and_worker(store: Store) -> None:
    ids = put(store, *(draft(task=task) for task in ("send", None, "send", "draw")))
    other = put_one(store, queue=OTHER, task="send")
    take(store, 2, worker="w1")
    assert [job.id for job in store.scan(Filter())] == [*ids, other]
    assert [job.id for job in store.scan(Filter(), limit=2)] == ids[:2]
    assert [job.id for job in store.scan(Filter(), after=ids[1], limit=2)] == ids[2:]
    assert [job.id for job in store.scan(Filter(queue=OTHER))] == [other]
    assert [job.id for job in store.scan(Filter(states="ready"))] == [*ids[2:], other]
    assert [job.id for job in store.scan(Filter(states=("leased", "dead")))] == ids[:2]
    assert [job.id for job in store.scan(Filter(task="send", queue=Q))] == [ids[0], ids[2]]
    assert [job.id for job in store.scan(Filter(worker="w1", states="leased"))] == ids[:2]


def test_a_filter_of_no_states_matches_nothing(store: Store) -> None:
    put_one(store)
    assert store.scan(Filter(queue=Q, states=())) == []
    assert store.amend(Filter(states=frozenset()), Delete()).done == ()
    assert counts(store).ready == 1


def test_get_answers_in_the_order_asked_with_none_for_unknown_ids(store: Store) -> None:
    ids = put(store, draft(), draft())
    answers = store.get([ids[1], 99, ids[0], ids[1]])
    assert [job and job.id for job in answers] == [ids[1], None, ids[0], ids[1]]
    assert store.get([]) == []


def test_a_queue_keeps_the_settings_it_was_made_with(store: Store) -> None:
    made = Settings(capacity=5, backoff=Backoff(base=1.0, cap=2.0))
    assert store.declare(Q, made) == made
    assert store.declare(Q, Settings(capacity=9)) == made
    changed = store.configure(Q, Change(capacity=None, paused=True))
    assert changed == Settings(capacity=None, paused=True, backoff=made.backoff)
    assert store.declare(OTHER, Settings()) == Settings()
    assert store.queues() == {Q: changed, OTHER: Settings()}


def test_looking_at_a_queue_does_not_make_it(store: Store) -> None:
    # Else a dashboard or a worker that asks first decides that the queue is unbounded.
    store.counts([Q])
    take(store)
    store.ended([Q], 1)
    store.leased(Q)
    store.horizon([Q])
    store.promote([Q])
    assert store.queues() == {}
    assert store.declare(Q, Settings(capacity=3)).capacity == 3


def test_a_store_declares_what_it_can(store: Store, kind: StorageKind) -> None:
    assert store.capabilities == kind.capabilities


def test_migrate_open_and_close_may_be_repeated(store: Store) -> None:
    job_id = put_one(store)
    store.migrate()
    store.open()
    assert state(store, job_id) == "ready"
    store.close()
    store.close()


def test_workers_say_what_they_are_and_when_they_were_seen(store: Store, clock: ManualClock) -> None:
    store.beat("b", {"host": "one"})
    store.beat("a", {})
    clock.advance(5.0)
    store.beat("b", {"host": "two"})
    seen = [(worker.worker, worker.info, worker.seen_at) for worker in store.workers()]
    assert seen == [("a", {}, clock.calendar() - 5.0), ("b", {"host": "two"}, clock.calendar())]


# Schedules


def test_a_schedule_fires_each_tick_once_and_never_an_earlier_one(store: Store) -> None:
    made = [store.fire("daily", 100.0, Q, draft())]
    assert store.fire("daily", 100.0, Q, draft()) is Fired.LOST
    assert store.fire("daily", 99.0, Q, draft()) is Fired.LOST
    made.append(store.fire("daily", 101.0, Q, draft()))
    made.append(store.fire("hourly", 50.0, Q, draft()))
    assert store.schedules() == {"daily": 101.0, "hourly": 50.0}
    # The answer is the job that was stored.
    assert made == [job.id for job in store.scan(Filter(queue=Q))]
    assert len(made) == 3


def test_a_tick_that_found_no_room_can_be_fired_again(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    job_id = put_one(store)
    assert store.fire("daily", 100.0, Q, draft()) is FULL
    assert store.schedules() == {}
    act(store, Cancel(), job_id)
    assert store.fire("daily", 100.0, Q, draft()) == job_id + 1


def test_a_tick_whose_unique_key_is_taken_counts_as_fired(store: Store) -> None:
    job_id = put_one(store, unique_key="report")
    assert store.fire("daily", 100.0, Q, draft(unique_key="report")) == Duplicate(job_id)
    assert store.schedules() == {"daily": 100.0}
    assert store.fire("daily", 100.0, Q, draft()) is Fired.LOST


def test_a_tick_without_a_job_moves_the_last_tick_and_stores_nothing(store: Store) -> None:
    assert store.fire("daily", 100.0, Q) is Fired.FIRED
    assert store.fire("daily", 100.0, Q) is Fired.LOST
    assert store.fire("daily", 99.0, Q, None) is Fired.LOST
    assert store.fire("daily", 100.0, Q, draft()) is Fired.LOST
    assert (store.schedules(), store.queues()) == ({"daily": 100.0}, {})
    assert isinstance(store.fire("daily", 101.0, Q, draft()), int)
    assert store.fire("daily", 102.0, Q) is Fired.FIRED
    assert (store.schedules(), counts(store).total) == ({"daily": 102.0}, 1)


def test_a_tick_without_a_job_needs_no_room(store: Store) -> None:
    store.declare(Q, Settings(capacity=1))
    put_one(store)
    assert store.fire("daily", 100.0, Q) is Fired.FIRED


# Time and waiters


def test_the_horizon_is_when_time_alone_makes_a_job_claimable(store: Store, clock: ManualClock) -> None:
    assert store.horizon([Q]) is None
    put(store, draft(delay_s=0.5), draft())
    assert store.horizon([Q]) == 0.5
    take(store, lease_s=0.25)
    assert store.horizon([Q]) == 0.25
    clock.advance(60.0)
    assert store.horizon([Q]) == 0.0
    assert store.horizon([OTHER]) is None


def test_the_horizon_of_a_paused_queue_is_that_of_its_leases(store: Store) -> None:
    put(store, draft(delay_s=0.5), draft())
    store.configure(Q, Change(paused=True))
    assert store.horizon([Q]) is None
    store.configure(Q, Change(paused=False))
    take(store, lease_s=60.0)
    store.configure(Q, Change(paused=True))
    assert store.horizon([Q]) == 60.0


def wakes(store: Store, until: Until) -> threading.Event:
    """A waiter in line, in the store's own process."""
    signal = threading.Event()
    store.line(until, Q).join(signal)
    return signal


def test_waiters_are_woken_by_what_they_wait_for(store: Store, clock: ManualClock) -> None:
    if store.capabilities.poll_s is not None:
        pytest.skip("wake-ups of this storage may be missed; its waiters look by themselves")
    ready, room, due, drained = (wakes(store, until) for until in Until)
    put_one(store)
    assert [ready.is_set(), room.is_set(), drained.is_set()] == [True, False, False]
    put_one(store, delay_s=5.0)
    assert due.is_set()
    end(store, take_one(store), Done())
    assert [room.is_set(), drained.is_set()] == [True, False]
    ready.clear()
    clock.advance(5.0)
    store.promote([Q])
    assert ready.is_set()
    end(store, take_one(store), Done())
    assert drained.is_set()


@pytest.mark.parametrize("way", ["fails", "released", "held", "redriven", "unpaused"])
def test_a_waiter_for_work_is_woken_however_it_comes_back(store: Store, way: str) -> None:
    if store.capabilities.poll_s is not None:
        pytest.skip("wake-ups of this storage may be missed; its waiters look by themselves")
    job_id = put_one(store)
    lease = take_one(store)
    if way == "redriven":
        end(store, lease, Dead())
    if way == "unpaused":
        end(store, lease, FAIL)
        store.configure(Q, Change(paused=True))
    signal = wakes(store, Until.READY)
    match way:
        case "redriven":
            act(store, Redrive(), job_id)
        case "unpaused":
            store.configure(Q, Change(paused=False))
        case _:
            end(store, lease, {"fails": FAIL, "released": RELEASE, "held": Hold()}[way])
    assert signal.is_set()


@pytest.mark.parametrize("way", ["cancel", "delete", "higher capacity"])
def test_a_waiter_for_room_is_woken_by_an_operator(store: Store, way: str) -> None:
    if store.capabilities.poll_s is not None:
        pytest.skip("wake-ups of this storage may be missed; its waiters look by themselves")
    store.declare(Q, Settings(capacity=1))
    job_id = put_one(store)
    signal = wakes(store, Until.ROOM)
    match way:
        case "cancel":
            act(store, Cancel(), job_id)
        case "delete":
            act(store, Delete(), job_id)
        case _:
            store.configure(Q, Change(capacity=2))
    assert signal.is_set()


@pytest.mark.parametrize("a_dead_one_is", ["given by its id", "found by a filter"])
def test_an_act_on_jobs_of_a_state_leaves_one_alone_that_has_left_it(
    store: Store, a_dead_one_is: str
) -> None:
    dead, brought_back = put(store, draft(), draft())
    for lease in take(store, limit=2):
        end(store, lease, Dead())
    act(store, Redrive(), brought_back)
    which = [dead, brought_back] if a_dead_one_is == "given by its id" else Filter(queue=Q)
    changed = store.amend(which, Delete(), states=frozenset({State.DEAD}))
    assert changed.done == (dead,)
    assert changed.refused == {Refusal.STATE: (brought_back,)}
    assert take_one(store).id == brought_back


def test_an_act_that_makes_retention_forget_another_job_answers_for_both(store: Store) -> None:
    store.configure(Q, Change(retention=keep(cancelled=Keep(1, DAY_S))))
    first, second = put(store, draft(), draft())
    store.amend([second], Cancel())
    changed = store.amend(Filter(queue=Q), Cancel())
    assert changed.done == (first,)
    assert changed.refused == {Refusal.STATE: (second,)}
