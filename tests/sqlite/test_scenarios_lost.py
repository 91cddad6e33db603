"""What hurt users of other queues, with a file and several processes: lost jobs and orphans.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import shutil
import signal
import sqlite3
import time

import pytest

from tests.support.children import Child, child
from tests.support.pools import KINDS, causes
from tests.support.roles import LONG_S, QUEUE, Ahead, hold, reap, serve_shortly, work
from tests.support.stores import is_write, refuse
from tests.support.waiting import eventually
from ulak import Backoff, Outcome, Queue, StorageBusy, StorageUnavailable, Terminal
from ulak.core.flows import REAP_MAX
from ulak.storage.sqlite import link
from ulak.storage.sqlite.others import GONE_AFTER_S

LATE = Backoff(base=LONG_S, cap=LONG_S, floor=LONG_S)
"""What waits for it is not seen again in a test."""


def run_sql(path, statement, values=()):
    """Change the file as an operator does, past ulak; how many rows changed."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).rowcount


def ticked_for(q, duration_s, ticks=1):
    """Tick for so long, and at least so often; how many jobs that reclaimed.

    Who is gone is found out by looks that lie apart in real time, so real time has to pass.
    """
    reclaimed = 0
    until = time.monotonic() + duration_s
    for tick in itertools.count(1):
        reclaimed += q.tick_timeouts()
        if tick >= ticks and time.monotonic() > until:
            return reclaimed
        time.sleep(0.005)
    raise AssertionError


def started(worker: Child):
    """What the next started handler of a `work` child says: name, attempt, delivery."""
    return worker.hear("started")[:3]


# A killed worker


@pytest.mark.parametrize("kind", KINDS)
def test_L1_a_job_whose_handler_killed_its_process_comes_again_at_once(make, url, kind):
    q = make(backoff=LATE)
    job_id = q.enqueue({"name": "deadly", "dies": 1})
    with child(work, url, LONG_S, kind) as first:
        first.hear("ready")
        assert started(first) == ["deadly", 1, 1]
        assert first.ended() == -signal.SIGKILL
        assert q.terminal_of(job_id) is None
    # Neither its lease of an hour nor a backoff of an hour is waited for.
    with child(work, url, LONG_S, kind) as second:
        second.hear("ready")
        assert started(second) == ["deadly", 2, 2]
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
    job = q.get(job_id)
    assert causes(job) == ["lost", "ack"]
    assert (job.crashes, q.counts().totals.succeeded) == (1, 1)


def test_L1_a_job_that_kills_its_worker_again_and_again_waits_longer_and_longer(make, url):
    q = make(backoff=LATE)
    job_id = q.enqueue({"name": "deadly", "dies": 9})
    for attempt in (1, 2):
        with child(work, url, LONG_S, "def") as worker:
            worker.hear("ready")
            assert started(worker) == ["deadly", attempt, attempt]
            worker.ended()
    other = q.enqueue({"name": "harmless"}, -1)
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        # The crash storm is over: what does no harm runs, the other one waits.
        assert started(worker)[0] == "harmless"
        eventually(lambda: q.counts().scheduled == 1 and q.terminal_of(other) is not None)
    job = q.get(job_id)
    assert (job.state, job.attempt, job.crashes, causes(job)) == ("scheduled", 2, 2, ["lost", "lost"])
    assert LONG_S - 60 < job.run_at.timestamp() - time.time() <= LONG_S


def test_L1_a_crash_on_the_last_attempt_ends_dead_with_its_payload(make, url):
    q = make(max_attempts=1)
    job_id = q.enqueue({"name": "deadly", "dies": 1})
    with child(work, url, LONG_S, "def") as worker:
        assert worker.ended() == -signal.SIGKILL
    eventually(lambda: q.tick_timeouts() == 1)
    job = q.get(job_id)
    assert (q.terminal_of(job_id), job.payload) == (Terminal.DEAD, {"name": "deadly", "dies": 1})
    assert causes(job) == ["lost"]


def test_L1_a_surviving_child_of_a_handler_does_not_keep_a_dead_worker_alive(make, url):
    q = make(backoff=LATE)
    q.enqueue({"name": "deadly", "dies": 1, "has child": True})
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        worker.hear("started")
        survivor = worker.hear("child")
        try:
            assert worker.ended() == -signal.SIGKILL
            eventually(lambda: q.tick_timeouts() == 1)
            os.kill(survivor, 0)
        finally:
            os.kill(survivor, signal.SIGKILL)


def test_L1_a_process_reborn_under_a_workers_name_does_not_hide_its_predecessors_orphans(make, url):
    # In a container each process has the same host name and the same process id, hence the same name.
    q = make(backoff=LATE)
    orphan, later = q.enqueue("orphan"), q.enqueue("later", -1)
    with child(hold, url, LONG_S, 1, "worker-1") as first:
        assert first.hear("held") == [[orphan, 1, 1]]
    with child(hold, url, LONG_S, 1, "worker-1") as second:
        held = second.hear("held")
        if held == [[later, 1, 1]]:
            # It came too early to find its predecessor gone.
            eventually(lambda: q.tick_timeouts() == 1)
            assert q.deliver().id == orphan
        else:
            assert held == [[orphan, 2, 2]]
        second.tell("ack")
        assert second.hear("acked") == ["ok"]


def test_L2_whatever_moment_its_worker_is_killed_at_no_job_is_lost(make, url):
    q = make(backoff=Backoff(base=0.001, cap=0.001), max_attempts=100)
    ids = q.enqueue_many(range(1000))
    draw = random.Random(20)
    lives = [(draw.randint(1, 80), draw.uniform(0.0, 0.004)) for _ in range(20)]
    with child(serve_shortly, url, lives) as worker:
        for _ in lives:
            worker.hear("killed")
    ran = []
    with q.workers(ran.append):
        eventually(lambda: q.counts().open == 0)
    assert {q.terminal_of(job_id) for job_id in ids} == {Terminal.ACKED}
    counts = q.counts()
    assert (counts.acked, counts.totals.succeeded, counts.total) == (1000, 1000, 1000)
    # The kills did strike running jobs.
    assert counts.totals.reclaimed >= 20


def test_L3_a_retry_that_waits_outlives_every_process(url):
    policy = Backoff(base=60, cap=60, floor=60)
    with Queue(url, QUEUE, backoff=policy) as q:
        job_id = q.enqueue({"name": "fails once", "fails": 1})
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        assert started(worker) == ["fails once", 1, 1]
        with Queue(url, QUEUE) as q:
            eventually(lambda: q.counts().scheduled == 1)
            told = q.get(job_id)
        worker.kill()
    clock = Ahead()
    with Queue(url, QUEUE, clock=clock) as reopened:
        job = reopened.get(job_id)
        assert (job.state, job.attempt, causes(job)) == ("scheduled", 1, ["error"])
        assert job.run_at == told.run_at
        assert reopened.deliver() is None
        clock.ahead_s = 61.0
        lease = reopened.deliver()
        assert (lease.id, lease.attempt, lease.delivery) == (job_id, 2, 2)
        assert reopened.ack(lease) is Outcome.OK


LONG_JOBS = [{"name": f"long {number}", "waits": True} for number in (1, 2)]


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


def test_L4_a_neighbour_that_was_alone_before_finds_the_orphans_too(make, url):
    q = make(backoff=LATE)
    with child(work, url, LONG_S, "def") as neighbour:
        neighbour.hear("ready")
        q.enqueue_many(LONG_JOBS)
        assert sorted(started(neighbour)[0] for _ in LONG_JOBS) == ["long 1", "long 2"]
        q.enqueue("orphan")
        with child(hold, url, LONG_S, 1, None) as killed:
            killed.hear("held")
        eventually(lambda: q.counts().ready == 1)
        assert q.counts().totals.reclaimed == 1


# What is known of workers


def forget_workers(path):
    """Remove every trace of who works there, as an operator does, or a cleaner of old files."""
    for table in ("holders", "workers"):
        run_sql(path, f"DELETE FROM {table}")
    shutil.rmtree(path.with_name(f"{path.name}-workers"))


def test_L5_an_orphan_is_found_by_its_own_deadline_when_nothing_is_known_of_its_worker(
    make, url, path, clock
):
    q = make()
    job_id = q.enqueue("orphan")
    with child(hold, url, 60.0, 1, None) as worker:
        worker.hear("held")
    forget_workers(path)
    assert q.tick_timeouts() == 0
    clock.ahead_s = 60.0
    assert q.tick_timeouts() == 1
    lease = q.deliver()
    assert (lease.id, lease.attempt) == (job_id, 2)


def test_L5_a_living_worker_that_was_forgotten_keeps_its_jobs(make, url, path):
    q = make()
    job_id = q.enqueue({"name": "long", "waits": True})
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        started(worker)
        forget_workers(path)
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        worker.tell("return")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert q.get(job_id).delivery == 1


def test_L5_a_living_worker_whose_file_was_removed_makes_it_again(make, url, path):
    q = make()
    job_id = q.enqueue({"name": "long", "waits": True})
    files = path.with_name(f"{path.name}-workers")
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        started(worker)
        (file,) = files.iterdir()
        file.unlink()
        eventually(file.exists)
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        worker.kill()
        # And now it is found gone.
        eventually(lambda: q.tick_timeouts() == 1)
    assert q.get(job_id).crashes == 1


def test_L5_a_worker_that_was_forgotten_is_not_taken_for_a_later_one(make, url, path):
    q = make(backoff=LATE)
    first_job = q.enqueue("first")
    with child(hold, url, LONG_S, 1, None) as first:
        first.hear("held")
        run_sql(path, "DELETE FROM holders")
        q.enqueue("second")
        with child(hold, url, LONG_S, 1, None) as second:
            assert second.hear("held")[0][0] != first_job
        # The death of the second is none of the first.
        eventually(lambda: q.tick_timeouts() > 0)
        assert (q.get(first_job).state, q.counts().totals.reclaimed) == ("leased", 1)
        first.tell("ack")
        assert first.hear("acked") == ["ok"]


# Recovery that fails half-way


def test_L7_a_reaper_that_is_killed_leaves_the_rest_to_the_next_tick(make, url):
    q = make()
    q.enqueue_many(range(1000))
    assert len(q.deliver_many(1000)) == 1000
    with child(reap, url, 2 * LONG_S) as reaper:
        for _ in range(3):
            reaper.hear("writes")
        reaper.kill()
    # What it had written stands, what it had only read does not count.
    done = q.counts().totals.reclaimed
    assert 0 < done < 1000
    assert q.counts().leased == 1000 - done
    with child(reap, url, 2 * LONG_S) as reaper:
        *writes, last = reaper.rest()
    assert last == ("reclaimed", 1000 - done)
    assert sum(jobs for _, jobs in writes) == 1000 - done
    assert (q.counts().leased, q.counts().totals.reclaimed) == (0, 1000)
    assert {lease.attempt for lease in q.deliver_many(1000)} == {2}


def test_F4_fifty_thousand_orphans_of_one_worker_are_reclaimed_in_bounded_writes(make, url, caplog):
    # A line of the log for each and a disk that is waited for, is most of what this would cost.
    caplog.set_level(logging.ERROR, "ulak")
    url += "?durability=relaxed"
    q = make(url=url, capacity=50_000)
    ids = q.enqueue_many([b""] * 50_000)
    with child(hold, url, LONG_S, 50_000, None) as worker:
        assert len(worker.hear("held")) == 50_000
    writes = []
    refuse(q, lambda name, args: writes.append(len(args[0])) if is_write(name, args) else None)
    eventually(lambda: q.tick_timeouts() > 0)
    assert (sum(writes), max(writes)) == (50_000, REAP_MAX)
    counts = q.counts()
    assert (counts.leased, counts.ready, counts.totals.reclaimed) == (0, 50_000, 50_000)
    # The queue lives, and in order.
    assert [(lease.id, lease.attempt) for lease in q.deliver_many(3)] == [(x, 2) for x in ids[:3]]


# Leases that are no leases


@pytest.mark.parametrize("of", ["a leased job", "a ready job"])
def test_L9_a_lease_without_an_end_is_repaired_by_a_tick(make, path, of):
    q = make()
    job_id = q.enqueue("payload")
    if of == "a leased job":
        q.deliver()
    assert run_sql(path, "UPDATE jobs SET state = 2, lease_end = NULL, holder = NULL") == 1
    # Every pool does both again and again; the counters knew nothing of the lease of a ready job.
    reclaimed = q.tick_timeouts()
    q.prune()
    counts = q.counts()
    assert (reclaimed, counts.ready, counts.leased, counts.open) == (1, 1, 0, 1)
    lease = q.deliver()
    assert (lease.id, lease.payload) == (job_id, "payload")
    assert q.ack(lease) is Outcome.OK
    assert q.counts().open == 0


def test_L9_the_leases_in_a_backup_are_nobodys_where_it_is_restored(make, url, path, tmp_path):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    restored = tmp_path / "restored" / "jobs.db"
    restored.parent.mkdir()
    with (
        contextlib.closing(sqlite3.connect(path)) as db,
        contextlib.closing(sqlite3.connect(restored)) as copy,
    ):
        db.backup(copy)
    with child(work, f"sqlite:///{restored}", LONG_S, "def") as worker:
        worker.hear("ready")
        worker.tell("leave")
        worker.ended()
    with child(hold, f"sqlite:///{restored}", LONG_S, 1, None) as worker:
        assert worker.hear("held") == [[job_id, 2, 2]]
    # The original is not touched by it.
    assert q.ack(lease) is Outcome.OK


# A store that refuses


def refuse_nacks(path):
    """Have the library itself refuse what a nack writes."""
    run_sql(
        path,
        "CREATE TRIGGER refuse BEFORE UPDATE ON jobs WHEN OLD.state = 2 AND NEW.state IN (0, 1, 5) "
        "BEGIN SELECT RAISE(ABORT, 'no'); END",
    )


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_L14_a_nack_that_the_file_refuses_raises_and_changes_nothing(make, path, clock, max_attempts):
    q = make(max_attempts=max_attempts, backoff=LATE)
    job_id = q.enqueue("payload")
    lease = q.deliver()
    before = q.counts()
    refuse_nacks(path)
    with pytest.raises(StorageUnavailable):
        q.nack(lease, error=ValueError("it failed"))
    assert q.counts() == before
    assert q.get(job_id).state == "leased"
    run_sql(path, "DROP TRIGGER refuse")
    clock.ahead_s = LONG_S
    assert q.tick_timeouts() == 1
    assert (q.get(job_id).attempt, causes(q.get(job_id))) == (1, ["lost"])
    assert (q.counts().open, q.counts().dead) == ((0, 1) if max_attempts == 1 else (1, 0))


def test_L14_a_nack_that_finds_the_file_locked_raises_and_may_be_repeated(make, path, monkeypatch):
    q = make(backoff=LATE)
    job_id = q.enqueue("payload")
    lease = q.deliver()
    before = q.counts()
    monkeypatch.setattr(link, "BUSY_S", 0.05)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusy):
            q.nack(lease, error=ValueError("it failed"))
        # Who only looks does not wait for the writer.
        assert q.counts() == before
        db.rollback()
    assert q.nack(lease, error=ValueError("it failed")) is Outcome.OK
    assert (q.get(job_id).state, q.counts().totals.retries) == ("scheduled", 1)


# Between the claim and the start


@pytest.mark.parametrize("frozen", [True, False])
def test_L16_no_tick_touches_a_job_before_its_deadline_though_its_worker_says_nothing(
    make, url, clock, frozen
):
    q = make()
    job_id = q.enqueue("payload")
    with child(hold, url, 60.0, 1, None) as worker:
        worker.hear("held")
        if frozen:
            worker.freeze()
        clock.ahead_s = 50.0
        assert ticked_for(q, 2 * GONE_AFTER_S, ticks=100) == 0
        assert q.get(job_id).delivery == 1
        clock.ahead_s = 60.0
        assert q.tick_timeouts() == 1
        if frozen:
            worker.thaw()
        worker.tell("ack")
        assert worker.hear("acked") == ["stale"]
