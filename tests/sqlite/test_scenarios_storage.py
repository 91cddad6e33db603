"""What hurt users of other queues, with a file and several processes: locks, forks, kills, lost answers.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sqlite.roles_storage import (
    contend,
    die_in_a_write_loop,
    die_while_acking,
    fork_often,
    hold_the_write_lock,
    stand_in_line_in_a_fork,
    wait_for_an_end_in_a_fork,
)
from tests.support.children import child
from tests.support.roles import LONG_S, QUEUE
from tests.support.stores import stand_before
from tests.support.waiting import WAIT_S
from ulak import Outcome, Queue, StorageUnavailable, Terminal

JOURNALS = ("", "?journal=truncate")
PROCESSES, THREADS, JOBS = 4, 4, 20
LOCKED_S = 3.0
FORKS = 25
"""In each journal."""
KILLS = 100


def is_whole(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# A file that others hold


@pytest.mark.parametrize("options", JOURNALS)
def test_T1_no_thread_of_any_process_ever_hears_that_the_database_is_locked(url, path, options):
    url += options
    with Queue(url, QUEUE) as q, contextlib.ExitStack() as stack:
        q.counts()
        other = stack.enter_context(child(hold_the_write_lock, str(path), LOCKED_S))
        workers = [stack.enter_context(child(contend, url, THREADS, JOBS)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.hear("ready")
        other.tell("hold")
        other.hear("held")
        for worker in workers:
            worker.tell("go")
        # A child that an error reached ends before it says this.
        told = [{word: worker.hear(word, 4 * WAIT_S) for word in ANSWERS} for worker in workers]
        enqueued = [job_id for said in told for job_id in said["enqueued"]]
        acked = [job_id for said in told for job_id in said["acked"]]
        assert max(said["longest"] for said in told) > LOCKED_S / 2, "the lock was in nobody's way"
        assert sorted(enqueued) == sorted(acked) == list(range(1, PROCESSES * THREADS * JOBS + 1))
        assert (q.counts().open, q.counts().acked) == (0, len(acked))


ANSWERS = ("enqueued", "acked", "longest")


# Forks


@pytest.mark.parametrize("options", JOURNALS)
def test_T2_a_queue_that_is_open_at_a_fork_works_on_both_sides(url, path, options):
    with child(fork_often, url + options, FORKS) as forking:
        said = forking.rest(4 * WAIT_S)
        assert forking.ended() == 0
    told = {word: value for word, value in said if word != "child"}
    children = [value for word, value in said if word == "child"]
    assert told["statuses"] == [0] * FORKS
    assert len(children) == FORKS, "a parent's producer was the child's too"
    # The lease that was held through all the forks was neither released nor taken for a dead process's.
    assert told["acked"] == "ok"
    with Queue(url + options, QUEUE) as q:
        mine = [job_id for job_id, _, _ in children]
        assert Counter(Counter(mine).values()) == {1: FORKS}
        assert set(mine) | set(told["enqueued"]) <= {job.id for job in q.jobs(limit=100_000)}
        assert all(q.terminal_of(job_id) is Terminal.ACKED for _, job_id, is_acked in children if is_acked)
        assert q.counts().totals.enqueued == len(told["enqueued"]) + 1 + 2 * FORKS
    assert is_whole(path)


def test_T2_a_line_of_waiters_is_kept_in_a_fork_too(url):
    with child(stand_in_line_in_a_fork, url) as forking:
        assert forking.hear("status") == 0
        stored = forking.hear("stored")
        assert forking.ended() == 0
    assert stored == ["first", "large", "large", "small"]


@pytest.mark.parametrize("options", JOURNALS)
def test_T2_whoever_waits_for_an_end_is_woken_on_both_sides_of_a_fork(url, options):
    with child(wait_for_an_end_in_a_fork, url + options) as forking:
        assert forking.hear("acked") == "ok"
        assert forking.hear("status") == 0
        assert forking.hear("mine") == "succeeded"
        assert forking.ended() == 0


# Kills


@pytest.mark.parametrize("options", JOURNALS)
def test_T3_whoever_is_killed_in_a_write_loop_leaves_a_file_that_opens_with_all_it_was_told(
    url, path, options
):
    with child(die_in_a_write_loop, url + options, KILLS, 3) as killing:
        lives = [killing.hear("life") for _ in range(KILLS)]
        assert killing.ended() == 0
    for number, returned, there in lives:
        # All that returned is there, in order, and at most the one write that was under way besides.
        assert returned == list(range(len(returned))), number
        assert there in (returned, [*returned, len(returned)]), number
    assert is_whole(path)
    with Queue(url + options, QUEUE) as q:
        assert q.counts().ready == sum(len(there) for *_, there in lives)


# Answers that do not arrive


class AnswersLost:
    """Stands before a store, and loses what it answers to an ack: after it was done, or before."""

    def __init__(self, store: Any, when: str) -> None:
        self._store = store
        self._when = when

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        return self._lose(operation) if name == "settle" and self._when else operation

    def _lose(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            when, self._when = self._when, ""
            if when == "after":
                operation(*args, **kwargs)
            raise StorageUnavailable("the connection was cut; whether it was stored is unknown")

        return call


@pytest.mark.parametrize("when", ["before", "after"])
def test_T8_the_outcome_of_an_ack_whose_answer_was_lost_is_told_by_asking_or_repeating(make, when):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    stand_before(q, lambda store: AnswersLost(store, when))
    with pytest.raises(StorageUnavailable):
        q.ack(lease)
    was_stored = when == "after"
    assert q.acked_by(lease) is was_stored
    assert q.ack(lease) is (Outcome.STALE if was_stored else Outcome.OK)
    assert q.acked_by(lease)
    assert q.terminal_of(job_id) is Terminal.ACKED
    assert q.deliver() is None
    assert q.counts().totals.succeeded == 1


def test_T8_an_ack_cut_short_anywhere_by_a_kill_is_told_by_asking_or_repeating(url):
    with child(die_while_acking, url) as acking:
        looks = [value for word, value in acking.rest() if word == "looked"]
        assert acking.ended() == 0
    for _, was_stored, repeated, is_stored, nothing_left in looks:
        assert repeated == ("stale" if was_stored else "ok")
        assert is_stored
        assert nothing_left
    assert looks[-1][1], "the last one was not killed, and still did not ack"
    assert len(looks) > 3
    assert not looks[0][1]


# Transactions


@pytest.mark.parametrize("options", JOURNALS)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_T11_no_transaction_is_open_while_a_handler_runs(url, path, options, kind):
    found: list[str] = []

    def look(payload: object) -> None:
        # One that lasted as long as the handler would be in the way for all this time.
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_S / 4)) as db:
            db.execute("BEGIN EXCLUSIVE")
            db.execute("INSERT INTO schedules VALUES (?, 0)", (f"seen {payload}",))
            db.execute("COMMIT")
        found.append(f"seen {payload}")

    async def alook(payload: object) -> None:
        look(payload)

    with Queue(url + options, QUEUE, visibility_timeout=LONG_S) as q:
        q.enqueue_many(range(20))
        with q.workers(look if kind == "def" else alook, count=3) as pool:
            pool.drain(timeout=WAIT_S)
        assert q.counts().acked == len(found) == 20
        assert q._open().edge.store.schedules().keys() == set(found)


@pytest.mark.parametrize("options", JOURNALS)
def test_T11_no_call_leaves_a_transaction_open(url, path, options):
    with Queue(url + options, QUEUE, visibility_timeout=LONG_S) as q:
        q.enqueue_many(range(10))
        leases = q.deliver_many(2)
        calls: dict[str, Callable[[], object]] = {
            "enqueue": lambda: q.enqueue("payload"),
            "deliver": lambda: leases.append(q.deliver()),
            "ack": lambda: q.ack(leases.pop()),
            "nack": lambda: q.nack(leases.pop()),
            "jobs": lambda: q.jobs(limit=1),
            "get": lambda: q.get(1),
            "counts": q.counts,
            "tick": q.tick_timeouts,
            "prune": q.prune,
            "stale ack": lambda: q.ack(stale),
            "refused": lambda: q.redrive(1),
        }
        stale = q.deliver()
        q.release(stale)
        for name, call in calls.items():
            call()
            with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as db:
                try:
                    # In a rollback journal this finds readers in the way too.
                    db.execute("BEGIN EXCLUSIVE")
                except sqlite3.OperationalError as error:
                    pytest.fail(f"{name} left a transaction open: {error}")
                db.execute("ROLLBACK")
