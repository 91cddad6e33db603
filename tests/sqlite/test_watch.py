"""Waking for what other processes have written: who is woken, who is not, and what a look costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.contract.steps import Q, act, draft, end, put, put_one, take, take_one
from tests.contract.test_storage_ends import each_end
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak.clock import MACHINE
from ulak.core import flows
from ulak.core.job import Cause, Dead, Done, Hold, State
from ulak.core.store import Cancel, Change, Delete, Keep, Retention, Until
from ulak.errors import Closed
from ulak.storage.drive import Edge, arun, run
from ulak.storage.sqlite import looks, watch
from ulak.storage.sqlite.store import SqliteStore

REFUSE = Hold(Cause.UNDECODABLE)
KNOWN = frozenset({"send"})


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[[], SqliteStore]]:
    """Opens the file once more, with lines of its own, as another process does."""
    with ExitStack() as stack:

        def opened() -> SqliteStore:
            store = SqliteStore(str(path))
            store.open()
            stack.callback(store.close)
            return store

        yield opened


@pytest.fixture
def here(open_store: Callable[[], SqliteStore]) -> SqliteStore:
    """Where somebody waits."""
    return open_store()


@pytest.fixture
def there(open_store: Callable[[], SqliteStore]) -> SqliteStore:
    """Where things happen."""
    return open_store()


def waits_for(store: SqliteStore, job_id: int) -> threading.Event:
    signal = threading.Event()
    store.ends(job_id).join(signal)
    return signal


def waits_for_work(store: SqliteStore) -> threading.Event:
    signal = threading.Event()
    store.line(Until.READY, Q).join(signal)
    return signal


def have_looked(here: SqliteStore) -> None:
    """See to it that its watcher, which somebody has begun, has told of all that was written before."""
    eventually(lambda: here._watcher._before == here.link.read(looks.queue_rows))


def looks_of(store: SqliteStore) -> list[str]:
    """Notes the statements of its watcher from now on."""
    said: list[str] = []
    eventually(lambda: store._watcher._db is not None)
    with store._watcher.lock:
        assert store._watcher._db is not None
        store._watcher._db.set_trace_callback(said.append)
    return said


# Ends


@each_end
def test_whoever_waits_is_woken_by_an_end_of_his_own_process_before_its_call_returns(
    here: SqliteStore, finish: Callable[[SqliteStore, int], None]
) -> None:
    job_id = put_one(here, expires_s=30.0)
    signal = waits_for(here, job_id)
    finish(here, job_id)
    assert signal.is_set()


@pytest.mark.parametrize("way", ["ack", "bury", "cancel", "delete", "prune"])
def test_whoever_waits_is_woken_by_an_end_in_another_process(
    here: SqliteStore, there: SqliteStore, way: str
) -> None:
    job_id = put_one(there, expires_s=3600.0)
    lease = take_one(there)
    if way == "prune":
        end(there, lease, Done())
        there.configure(Q, Change(retention=Retention(*[Keep(0, 60.0)] * 4)))
    signal = waits_for(here, job_id)
    have_looked(here)
    # The first look tells of what had ended before it.
    signal.clear()
    match way:
        case "ack":
            end(there, lease, Done())
        case "bury":
            end(there, lease, Dead())
        case "cancel":
            end(there, lease, Hold())
            act(there, Cancel(), job_id)
        case "delete":
            act(there, Delete(), job_id, force=True)
        case _:
            assert there.prune() == {State.SUCCEEDED: 1}
    assert signal.wait(WAIT_S)


def test_the_wait_for_an_end_in_another_process_takes_no_second(
    here: SqliteStore, there: SqliteStore
) -> None:
    # Whoever is not woken looks again after a second; so ten waits in turn would take ten.
    begun = MACHINE.interval()
    for _ in range(10):
        job_id = put_one(there)
        waiting = Running(partial(run, Edge(here, MACHINE), flows.wait_end(job_id, timeout_s=None)))
        eventually(lambda: len(here.ends(job_id)) == 1)  # noqa: B023
        end(there, take_one(there), Done(b"1"))
        job = waiting.result()
        assert job is not None
        assert (job.state, job.result) == (State.SUCCEEDED, b"1")
    assert MACHINE.interval() - begun < 5.0


def test_of_a_thousand_waiters_only_those_are_woken_whose_jobs_have_ended(
    here: SqliteStore, there: SqliteStore
) -> None:
    ids = put(there, *(draft() for _ in range(1000)))
    waiters = {job_id: waits_for(here, job_id) for job_id in ids}
    ended = [lease.id for lease in take(there, 3) if end(there, lease, Done()) is State.SUCCEEDED]
    assert all(waiters[job_id].wait(WAIT_S) for job_id in ended)
    have_looked(here)
    assert [job_id for job_id, signal in waiters.items() if signal.is_set()] == ended


def test_a_look_asks_once_for_all_who_wait_and_only_if_something_has_ended(
    here: SqliteStore, there: SqliteStore
) -> None:
    for job_id in put(there, *(draft() for _ in range(1000))):
        waits_for(here, job_id)
    have_looked(here)
    said = looks_of(here)
    for _ in range(5):
        put_one(there)
        have_looked(here)
    assert [text for text in said if "FROM queues" in text]
    assert not [text for text in said if "FROM jobs" in text]
    end(there, take_one(there), Done())
    have_looked(here)
    (asked,) = [text for text in said if "FROM jobs" in text]
    assert asked.count(",") == 999


def test_a_waiter_whose_loop_is_gone_is_not_watched_for(here: SqliteStore) -> None:
    job_id, loop = put_one(here), asyncio.new_event_loop()
    waiting = loop.create_task(arun(Edge(here, MACHINE), flows.wait_end(job_id, timeout_s=None)))

    def is_standing() -> bool:
        loop.run_until_complete(asyncio.sleep(0))
        return len(here.ends(job_id)) == 1

    eventually(is_standing)
    loop.close()
    eventually(lambda: not here._awaited.waiting)
    eventually(lambda: not here._watcher._wanted.is_set())
    assert not waiting.done()


def test_whoever_waits_in_a_store_that_is_closed_hears_of_it(here: SqliteStore) -> None:
    job_id = put_one(here)
    waiting = Running(partial(run, Edge(here, MACHINE), flows.wait_end(job_id, timeout_s=None)))
    eventually(lambda: len(here.ends(job_id)) == 1)
    signal = waits_for(here, job_id)
    here.close()
    assert signal.is_set()
    with pytest.raises(Closed):
        waiting.result()


# Refused jobs


def test_refused_jobs_wake_nobody_who_waits_for_work(here: SqliteStore, there: SqliteStore) -> None:
    put(there, *(draft(task="send") for _ in range(1000)))
    there.settle([(lease, REFUSE) for lease in take(there, 1000)])
    signal = waits_for_work(here)
    have_looked(here)
    # The first look wakes everybody.
    signal.clear()
    for _ in range(5):
        put_one(there, queue="other")
        have_looked(here)
    assert not signal.is_set()
    job_id = put_one(there, task="send", priority=9)
    assert signal.wait(WAIT_S)
    assert take_one(there, tasks=KNOWN).id == job_id
    have_looked(here)
    signal.clear()
    (lease,) = there.leased(Q)
    end(there, lease, Hold())
    assert signal.wait(WAIT_S)


def test_a_job_that_is_refused_in_this_process_wakes_nobody_either(here: SqliteStore) -> None:
    put(here, draft(task="send"), draft(task="send"))
    one, other = take(here, 2)
    signal = waits_for_work(here)
    have_looked(here)
    signal.clear()
    end(here, one, REFUSE)
    have_looked(here)
    assert not signal.is_set()
    end(here, other, Hold())
    assert signal.is_set()


def test_whoever_knows_the_task_of_refused_jobs_takes_the_file_from_nobody(here: SqliteStore) -> None:
    put(here, *(draft(task="send") for _ in range(1000)))
    here.settle([(lease, REFUSE) for lease in take(here, 1000)])
    begun: list[str] = []
    here.link.writer.set_trace_callback(begun.append)
    for _ in range(5):
        assert take(here, tasks=KNOWN) == []
        assert here.turn((), [Q], 1, worker="w", lease_s=1.0, tasks=frozenset({"send", None})) == ([], [])
    assert begun == []
    assert len(take(here)) == 1


# Jobs held for whoever knows their task


def hold(store: SqliteStore, task: str | None = "unknown") -> int:
    """One more job that waits for a worker who knows its task."""
    put_one(store, task=task, priority=9)
    lease = take_one(store, tasks=frozenset())
    end(store, lease, Hold())
    return lease.id


def test_held_jobs_wake_those_who_wait_for_work_as_they_come_and_not_again(
    here: SqliteStore, there: SqliteStore
) -> None:
    for _ in range(20):
        hold(there)
    signals = [waits_for_work(here) for _ in range(8)]
    have_looked(here)
    # The first look wakes everybody.
    for signal in signals:
        signal.clear()
    said = looks_of(here)
    for _ in range(5):
        put_one(there, queue="other")
        have_looked(here)
    assert [text for text in said if "FROM queues" in text]
    assert not [text for text in said if "FROM jobs" in text]
    assert not any(signal.is_set() for signal in signals)
    hold(there)
    assert signals[0].wait(WAIT_S)


def test_what_is_ready_in_a_paused_queue_wakes_nobody_again_and_again(
    here: SqliteStore, there: SqliteStore
) -> None:
    put(there, draft(), draft())
    there.configure(Q, Change(paused=True))
    signal = waits_for_work(here)
    have_looked(here)
    signal.clear()
    for _ in range(3):
        put_one(there, queue="other")
        have_looked(here)
    assert not signal.is_set()
    there.configure(Q, Change(paused=False))
    assert signal.wait(WAIT_S)


def test_a_look_for_held_jobs_of_many_tasks_takes_one_statement(here: SqliteStore) -> None:
    job_id = hold(here)
    tasks = frozenset({f"task-{number}" for number in range(400)} | {None})
    said: list[str] = []
    here.link.reader.set_trace_callback(said.append)
    here.link.writer.set_trace_callback(said.append)
    assert take(here, tasks=tasks) == []
    put_one(here, task="task-7")
    assert take_one(here, tasks=tasks).id == job_id + 1
    assert len([text for text in said if "state = 3 AND refused = 0" in text]) == 2
    assert take_one(here, tasks=tasks | {"unknown"}).id == job_id


def test_of_more_tasks_than_one_statement_takes_each_is_found(here: SqliteStore) -> None:
    ids = [hold(here, task) for task in ("task-1", "task-2000")]
    tasks = frozenset(f"task-{number}" for number in range(2_001))
    assert [lease.id for lease in take(here, 5, tasks=tasks)] == ids
    plain = hold(here, None)
    assert [lease.id for lease in take(here, 5, tasks=tasks | {None})] == [plain]


# How often it looks


def test_a_change_soon_after_a_wake_up_is_looked_for_sooner_and_a_store_that_never_rests_is_not() -> None:
    # The times that matter: of a look, since somebody was woken, and how many looks in a row found one.
    quiet, near, busy = 60.0, watch.NEAR_S / 2, watch.BUSY_LOOKS
    assert watch._rest_s(1e-5, since_ring_s=near, changes=0) == watch.NEAR_POLL_S
    assert watch._rest_s(1e-5, since_ring_s=near, changes=busy - 1) == watch.NEAR_POLL_S
    assert watch._rest_s(1e-5, since_ring_s=near, changes=busy) == watch.POLL_S
    assert watch._rest_s(1e-5, since_ring_s=quiet, changes=0) == watch.POLL_S
    assert watch._rest_s(0.1, since_ring_s=near, changes=0) == 0.1 * watch.RESTS


def test_a_watcher_looks_often_for_a_while_after_a_job_came_and_not_after_other_changes_nor_its_own_work(
    here: SqliteStore, there: SqliteStore
) -> None:
    waits_for_work(here)
    have_looked(here)
    said = looks_of(here)

    def looks_after(change: Callable[[], object]) -> int:
        change()
        del said[:]
        begun = MACHINE.interval()
        eventually(lambda: MACHINE.interval() - begun > watch.NEAR_S / 2)
        return len(said)

    def rest() -> None:
        begun = MACHINE.interval()
        eventually(lambda: MACHINE.interval() - begun > watch.NEAR_S)

    often = looks_after(lambda: put_one(there))
    # Its process says that it is there before it takes the job, and may be seen between the two.
    take_one(there)
    rest()
    assert often > 2 * looks_after(
        lambda: there.configure(Q, Change(retention=Retention(*[Keep(0, 60.0)] * 4)))
    )
    rest()
    # Its own process has woken all whom that job concerns.
    assert often > 2 * looks_after(lambda: put_one(here))
