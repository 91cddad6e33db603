"""What hurt users of other queues, on a server with several processes: orphans, double runs, late outcomes.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import pytest

from tests.postgres.roles import (
    IN_THIS_DATABASE,
    let_leases_end,
    look,
    reap_in_two_steps,
    sessions,
    tick_ahead,
    work_ahead,
)
from tests.support.children import child
from tests.support.pools import causes
from tests.support.roles import LONG_S, QUEUE, hold, work, work_till_drained
from tests.support.waiting import WAIT_S, eventually
from ulak import Backoff, Outcome, Queue, Terminal
from ulak.storage.postgres.others import GONE_AFTER_S

LATE = Backoff(base=LONG_S, cap=LONG_S, floor=LONG_S)
"""What waits for it is not seen again in a test."""

LONG_JOBS = [{"name": f"long {number}", "waits": True} for number in (1, 2)]


def started(worker):
    """What the next started handler of a `work` child says: name, attempt, delivery."""
    return worker.hear("started")[:3]


def ticked_for(q, duration_s):
    """Tick for so long; how many jobs that reclaimed. Who is gone is found out in real time."""
    until = time.monotonic() + duration_s
    reclaimed = 0
    while time.monotonic() < until:
        reclaimed += q.tick_timeouts()
        time.sleep(0.005)
    return reclaimed


# A killed worker


def test_L4_a_neighbour_takes_up_the_orphans_and_no_process_is_started(make, url):
    q = make(backoff=LATE)
    with child(work, url, LONG_S, "def") as killed, child(work, url, LONG_S, "def") as neighbour:
        killed.hear("ready")
        neighbour.hear("ready")
        q.enqueue_many(LONG_JOBS * 2)
        names = sorted(started(worker)[0] for worker in (killed, killed, neighbour, neighbour))
        assert names == ["long 1", "long 1", "long 2", "long 2"]
        killed.kill()
        # Both of its seats are taken, so it only does its duties.
        eventually(lambda: q.counts().ready == 2)
        assert q.counts().totals.reclaimed == 2
        orphans = q.deliver_many(9)
    assert [(lease.attempt, lease.delivery, lease.crashes) for lease in orphans] == [(2, 2, 1)] * 2


def test_L4_a_free_neighbour_runs_the_orphan_at_once(make, url):
    q = make(backoff=LATE)
    job_id = q.enqueue({"name": "long", "waits": True})
    with child(work, url, LONG_S, "def") as killed:
        killed.hear("ready")
        assert started(killed) == ["long", 1, 1]
        with child(work, url, LONG_S, "def") as neighbour:
            neighbour.hear("ready")
            killed.kill()
            # Neither its lease of an hour nor a backoff of an hour is waited for.
            assert started(neighbour) == ["long", 2, 2]
            neighbour.tell("return")
            eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
    assert causes(q.get(job_id)) == ["lost", "ack"]


# What is known of workers


def forget_workers(url):
    """Remove every trace of who works there, as an operator does, or a cleaner."""
    look(url, "WITH gone AS (DELETE FROM {0}.workers) DELETE FROM {0}.holders")


def test_L5_an_orphan_is_found_by_its_own_deadline_when_nothing_is_known_of_its_worker(make, url):
    q = make()
    job_id = q.enqueue("orphan")
    with child(hold, url, LONG_S, 1, None) as worker:
        worker.hear("held")
    forget_workers(url)
    assert ticked_for(q, 3 * GONE_AFTER_S) == 0
    let_leases_end(url)
    assert q.tick_timeouts() == 1
    lease = q.deliver()
    assert (lease.id, lease.attempt) == (job_id, 2)


def test_L5_a_living_worker_that_was_forgotten_keeps_its_jobs(make, url):
    q = make()
    job_id = q.enqueue({"name": "long", "waits": True})
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        started(worker)
        forget_workers(url)
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        worker.tell("return")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert q.get(job_id).delivery == 1


def test_L5_a_forgotten_worker_is_known_again_by_itself(make, url):
    q = make(backoff=LATE)
    q.enqueue_many(LONG_JOBS)
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        started(worker)
        forget_workers(url)
        eventually(lambda: look(url, "SELECT count(*) FROM {0}.holders")[0][0] >= 1)
        worker.kill()
        eventually(lambda: q.tick_timeouts() > 0)


def test_L5_a_worker_whose_presence_was_ended_takes_it_again_and_keeps_its_jobs(make, url):
    q = make(backoff=LATE)
    job_id = q.enqueue({"name": "long", "waits": True})
    holds = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 "
        f"AND {IN_THIS_DATABASE}"
    )
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        started(worker)
        before = set(look(url, holds))
        assert before
        look(url, f"SELECT pg_terminate_backend(pid) FROM ({holds}) AS holds")
        eventually(lambda: set(look(url, holds)) - before)
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        worker.tell("return")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
    assert causes(q.get(job_id)) == ["ack"]


# A recovery that acts on what it has read before


def test_S5_a_job_that_ends_while_another_process_reclaims_it_stays_ended(make, url):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    let_leases_end(url)
    with child(reap_in_two_steps, url) as reaper:
        reaper.hear("read")
        assert q.ack(lease) is Outcome.OK
        reaper.tell("write")
        assert reaper.hear("reclaimed") == 0
    assert (q.terminal_of(job_id), causes(q.get(job_id))) == (Terminal.ACKED, ["ack"])
    assert q.counts().totals.reclaimed == 0


@pytest.mark.parametrize("act", ["extend", "hand on"])
def test_S5_a_lease_that_moved_while_another_process_reclaims_it_lives(make, url, act):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    let_leases_end(url)
    with child(reap_in_two_steps, url) as reaper:
        reaper.hear("read")
        if act == "extend":
            assert q.extend(lease, LONG_S) is Outcome.OK
        else:
            assert q.nack(lease) is Outcome.OK
            lease = q.deliver()
        reaper.tell("write")
        assert reaper.hear("reclaimed") == 0
    assert q.ack(lease) is Outcome.OK
    assert "lost" not in causes(q.get(job_id))


# Many at once


def test_S11_eight_processes_execute_each_of_five_thousand_jobs_once(make, url):
    q = make()
    ids = q.enqueue_many(range(5000))
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child(work_till_drained, url)) for _ in range(8)]
        for worker in workers:
            worker.hear("ready")
        for worker in workers:
            worker.tell("go")
        ran = [worker.hear("ran", within_s=50.0) for worker in workers]
    assert sorted(itertools.chain(*ran)) == list(range(5000))
    # It was a race, and not one that came before all others.
    assert sum(bool(numbers) for numbers in ran) > 1
    assert {q.terminal_of(job_id) for job_id in (ids[0], ids[2500], ids[-1])} == {Terminal.ACKED}
    totals = q.counts().totals
    assert (totals.succeeded, totals.processed, totals.reclaimed) == (5000, 5000, 0)


# Clocks of different machines


AHEAD_S = 600.0


def test_C7_a_worker_whose_clocks_are_ahead_keeps_and_runs_its_jobs(make, url):
    q = make()
    with child(work_ahead, url, 60.0, AHEAD_S) as worker:
        worker.hear("ready")
        job_id = q.enqueue({"name": "long", "waits": True})
        started(worker)
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        worker.tell("return")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
    assert (q.get(job_id).delivery, causes(q.get(job_id))) == (1, ["ack"])


def test_C7_a_machine_whose_clock_is_ahead_reclaims_nobodys_jobs(make, url):
    q = make(visibility_timeout=60.0)
    later = q.enqueue("later", delay=AHEAD_S / 2)
    q.enqueue("payload")
    lease = q.deliver()
    with child(tick_ahead, url, AHEAD_S) as other:
        other.hear("ready")
        for _ in range(3):
            other.tell("tick")
            assert other.hear("reclaimed") == 0
    assert q.get(later).state == "scheduled"
    assert q.ack(lease) is Outcome.OK


# Transactions


def test_T11_no_session_of_ours_has_a_transaction_open_while_a_handler_runs(url):
    begun, looked = threading.Event(), threading.Event()

    def handler(payload):
        begun.set()
        looked.wait(WAIT_S)

    with Queue(url, QUEUE) as q, q.workers(handler, count=2):
        q.enqueue_many(range(3))
        assert begun.wait(WAIT_S)
        # Between two statements of a short one is no time.
        time.sleep(1.5)
        assert len(sessions(url)) >= 2
        assert sessions(url, "xact_start < clock_timestamp() - interval '1 s'") == []
        looked.set()
