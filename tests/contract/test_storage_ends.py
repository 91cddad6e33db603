"""Who waits for the end of a job, case by case."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.contract.steps import (
    FAIL,
    RELEASE,
    Q,
    act,
    draft,
    end,
    put,
    put_one,
    record,
    take,
    take_one,
)
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak.core import flows
from ulak.core.job import ENDED, Dead, Done, Hold, Job, Retry, Verdict
from ulak.core.store import Cancel, Change, Delete, Edit, Keep, Redrive, Reprioritise, Retention, Store
from ulak.storage.drive import Edge, run
from ulak.testing import ManualClock

KEEP_NONE = Retention(*[Keep(0, 60.0)] * 4)


class Waiter(threading.Event):
    """Somebody who waits for the end of one job."""

    def __init__(self, store: Store, job_id: int) -> None:
        super().__init__()
        self.line = store.ends(job_id)
        self.line.join(self)

    def is_woken(self) -> bool:
        """Whether somebody wakes it, in time."""
        return self.wait(WAIT_S)


def ack(store: Store, job_id: int) -> None:
    end(store, take_one(store), Done())


def ack_with_a_result(store: Store, job_id: int) -> None:
    end(store, take_one(store), Done(b"1"))


def ack_in_a_batch(store: Store, job_id: int) -> None:
    put_one(store)
    store.settle([(lease, Done()) for lease in take(store, 2)])


def ack_in_a_turn(store: Store, job_id: int) -> None:
    store.turn([(take_one(store), Done())], [Q], 1, worker="w", lease_s=1.0)


def bury(store: Store, job_id: int) -> None:
    end(store, take_one(store), Dead())


def cancel(store: Store, job_id: int) -> None:
    act(store, Cancel(), job_id)


def cancel_while_it_runs(store: Store, job_id: int) -> None:
    lease = take_one(store)
    act(store, Cancel(), job_id)
    end(store, lease, FAIL)


def come_back_too_late(store: Store, job_id: int) -> None:
    end(store, take_one(store), Retry(60.0))


def delete(store: Store, job_id: int) -> None:
    act(store, Delete(), job_id)


def delete_while_it_runs(store: Store, job_id: int) -> None:
    take_one(store)
    act(store, Delete(), job_id, force=True)


def end_and_be_forgotten_at_once(store: Store, job_id: int) -> None:
    store.configure(Q, Change(retention=KEEP_NONE))
    ack(store, job_id)


ENDS = (
    *(ack, ack_with_a_result, ack_in_a_batch, ack_in_a_turn, bury, cancel, cancel_while_it_runs),
    *(come_back_too_late, delete, delete_while_it_runs, end_and_be_forgotten_at_once),
)
each_end = pytest.mark.parametrize("finish", ENDS, ids=lambda finish: finish.__name__)


@each_end
def test_whoever_waits_for_the_end_of_a_job_is_woken_by_it(
    store: Store, finish: Callable[[Store, int], None]
) -> None:
    job_id = put_one(store, expires_s=30.0)
    one, other = Waiter(store, job_id), Waiter(store, job_id)
    finish(store, job_id)
    assert one.is_woken()
    assert other.is_woken()


@pytest.mark.parametrize("how", ["claim", "add", "prune"])
def test_whoever_waits_for_a_job_is_woken_when_it_expires(store: Store, clock: ManualClock, how: str) -> None:
    waiter = Waiter(store, put_one(store, expires_s=5.0))
    clock.advance(5.0)
    match how:
        case "claim":
            assert take(store) == []
        case "add":
            put_one(store)
        case _:
            store.prune()
    assert waiter.is_woken()


def test_whoever_waits_for_a_job_that_has_ended_is_woken_when_it_is_forgotten(
    store: Store, clock: ManualClock
) -> None:
    job_id = put_one(store)
    ack(store, job_id)
    waiter = Waiter(store, job_id)
    clock.advance(10 * 86_400.0)
    assert store.prune()
    assert waiter.is_woken()


@pytest.mark.parametrize("verdict", [FAIL, Retry(5.0), RELEASE, Hold()])
def test_whoever_waits_for_an_end_sleeps_through_what_is_none(store: Store, verdict: Verdict) -> None:
    job_id = put_one(store)
    waiter = Waiter(store, job_id)
    end(store, take_one(store), verdict)
    act(store, Reprioritise(1), job_id)
    act(store, Edit(b"other", "bytes"), job_id)
    assert not waiter.is_set()


def test_of_many_waiters_only_those_of_the_jobs_that_end_are_woken(store: Store) -> None:
    ids = put(store, *(draft() for _ in range(1000)))
    waiters = {job_id: Waiter(store, job_id) for job_id in ids}
    ended: list[int] = []
    for lease in take(store, 3):
        end(store, lease, Done())
        ended.append(lease.id)
    assert all(waiters[job_id].is_woken() for job_id in ended)
    assert [job_id for job_id, waiter in waiters.items() if waiter.is_set()] == ended


def test_whoever_has_left_is_woken_no_more_and_leaves_no_trace(store: Store) -> None:
    job_id = put_one(store)
    stays, leaves = Waiter(store, job_id), Waiter(store, job_id)
    assert len(store.ends(job_id)) == 2
    assert [stays.line.is_first(one) for one in (stays, leaves)] == [True, False]
    leaves.line.leave(leaves)
    ack(store, job_id)
    assert stays.is_woken()
    assert not leaves.is_set()
    stays.line.leave(stays)
    leaves.line.leave(leaves)
    assert len(store.ends(job_id)) == 0


def test_all_who_wait_for_one_job_can_be_made_to_look_again(store: Store) -> None:
    job_id, other_id = put(store, draft(), draft())
    waiter, other = Waiter(store, job_id), Waiter(store, other_id)
    store.ends(job_id).wake_all()
    assert (waiter.is_set(), other.is_set()) == (True, False)
    store.ends(other_id).ring(1)
    assert other.is_set()
    store.ends(99).ring(1)


# The flow


@pytest.fixture
def edge(store: Store, clock: ManualClock) -> Edge:
    """A store in its clock's time, as flows reach it."""
    return Edge(store, clock)


def await_end(edge: Edge, job_id: int, timeout_s: float | None = None) -> Job | None:
    return run(edge, flows.wait_end(job_id, timeout_s=timeout_s))


@each_end
def test_the_wait_for_a_jobs_end_brings_its_record_or_none_if_it_is_gone(
    store: Store, edge: Edge, finish: Callable[[Store, int], None]
) -> None:
    job_id = put_one(store, expires_s=30.0)
    waiting = Running(partial(await_end, edge, job_id))
    eventually(lambda: len(store.ends(job_id)) == 1)
    finish(store, job_id)
    job = waiting.result()
    if finish in (delete, delete_while_it_runs, end_and_be_forgotten_at_once):
        assert job is None
    else:
        assert job is not None
        assert job.state in ENDED
        assert job == record(store, job_id)
    assert len(store.ends(job_id)) == 0


def test_the_wait_for_a_job_that_has_ended_is_none(store: Store, edge: Edge) -> None:
    job_id = put_one(store)
    ack(store, job_id)
    assert await_end(edge, job_id) == record(store, job_id)
    assert await_end(edge, job_id, 0.0) == record(store, job_id)


def test_the_wait_for_an_unknown_job_is_over_at_once(store: Store, edge: Edge) -> None:
    assert await_end(edge, 99) is None


def test_the_wait_for_an_end_that_does_not_come_brings_the_open_record(
    store: Store, edge: Edge, clock: ManualClock
) -> None:
    job_id = put_one(store)
    assert await_end(edge, job_id, 0.0) == record(store, job_id)
    waiting = Running(partial(await_end, edge, job_id, 5.0))
    for _ in range(5):
        eventually(lambda: clock.sleepers == 1)
        assert not waiting.is_over
        clock.advance(1.0)
    assert waiting.result() == record(store, job_id)
    assert len(store.ends(job_id)) == 0


def test_a_redrive_that_comes_before_the_look_is_waited_out(store: Store, edge: Edge) -> None:
    job_id = put_one(store, max_attempts=1)
    waiting = Running(partial(await_end, edge, job_id))
    eventually(lambda: len(store.ends(job_id)) == 1)
    act(store, Cancel(), job_id)
    act(store, Redrive(), job_id)
    if not waiting.is_over:
        ack(store, job_id)
    job = waiting.result()
    assert job is not None
    assert job.state in ENDED
