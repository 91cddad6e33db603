"""What hurt users of other queues, with a file and several processes: jobs run twice, late outcomes.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.support.children import child
from tests.support.pools import causes
from tests.support.roles import (
    LONG_S,
    QUEUE,
    Ahead,
    die_in_each_place,
    enqueue_same_keys,
    hold,
    reap_in_two_steps,
    work,
    work_till_drained,
)
from tests.support.waiting import WAIT_S, eventually
from ulak import Duplicate, Outcome, Queue, Terminal

# A delay longer than the lease


def test_S1_a_delay_longer_than_the_lease_gives_one_delivery_to_three_processes(make, url):
    lease_s = 0.5
    q = make()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child(work, url, lease_s, "def")) for _ in range(3)]
        for worker in workers:
            worker.hear("ready")
        job_id = q.enqueue({"name": "later"}, delay=3 * lease_s)
        due_at = q.get(job_id).run_at.timestamp()
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        for worker in workers:
            worker.tell("leave")
        said = [words for worker in workers for words in worker.rest()]
    ((name, attempt, delivery, started_at),) = [value for word, value in said if word == "started"]
    assert (name, attempt, delivery) == ("later", 1, 1)
    assert started_at >= due_at
    assert causes(q.get(job_id)) == ["ack"]


# A worker that is slow or frozen


def test_S2_a_process_that_was_frozen_longer_than_its_lease_completes_nothing(make, url, clock):
    q = make()
    job_id = q.enqueue("payload")
    with child(hold, url, 60.0, 1, None) as slow:
        assert slow.hear("held") == [[job_id, 1, 1]]
        slow.freeze()
        clock.ahead_s = 60.0
        lease = q.deliver()
        assert (lease.id, lease.attempt, lease.delivery) == (job_id, 2, 2)
        slow.thaw()
        slow.tell("ack")
        assert slow.hear("acked") == ["stale"]
        assert (q.terminal_of(job_id), q.counts().leased) == (None, 1)
        assert q.ack(lease) is Outcome.OK
    assert (q.counts().totals.succeeded, causes(q.get(job_id))) == (1, ["lost", "ack"])


def freeze_between_writes(worker, path):
    """Freeze it while it does not hold the file's write lock, for which all others would have to wait."""

    def is_frozen():
        worker.freeze()
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                worker.thaw()
                return False
        return True

    eventually(is_frozen)


def test_S2_a_pool_that_was_frozen_longer_than_its_lease_completes_nothing(make, url, path, clock):
    q = make()
    job_id = q.enqueue({"name": "slow", "waits": True})
    with child(work, url, 60.0, "def") as slow:
        slow.hear("ready")
        slow.hear("started")
        freeze_between_writes(slow, path)
        clock.ahead_s = 100.0
        # The pool has stored a backoff with its queue.
        lease = q.deliver(timeout=WAIT_S)
        assert (lease.id, lease.delivery) == (job_id, 2)
        slow.thaw()
        slow.tell("return")
        # Its handler returns now. What it says of the job counts for nothing, and it works on.
        q.enqueue({"name": "next"})
        assert slow.hear("started")[0] == "next"
        eventually(lambda: q.counts().acked == 1)
        assert q.terminal_of(job_id) is None
        assert q.ack(lease) is Outcome.OK
        slow.tell("leave")
        assert slow.hear("left") == 1
    assert q.counts().totals.succeeded == 2


def test_S2_a_lapsed_lease_that_nobody_reclaimed_is_still_its_holders(make, url, clock):
    q = make()
    job_id = q.enqueue("payload")
    with child(hold, url, 0.001, 1, None) as slow:
        slow.hear("held")
        slow.freeze()
        clock.ahead_s = 60.0
        slow.thaw()
        slow.tell("ack")
        assert slow.hear("acked") == ["ok"]
    assert (q.terminal_of(job_id), q.tick_timeouts()) == (Terminal.ACKED, 0)


def test_S3_a_job_of_five_leases_is_delivered_once_beside_an_idle_process(make, url):
    lease_s = 1.0
    q = make()
    with child(work, url, lease_s, "def") as busy, child(work, url, lease_s, "def") as idle:
        for worker in (busy, idle):
            worker.hear("ready")
        job_id = q.enqueue({"name": "long", "takes_s": 5 * lease_s})
        # Every look reclaims what it can, as a third process would.
        eventually(lambda: q.tick_timeouts() or q.terminal_of(job_id) is not None)
        for worker in (busy, idle):
            worker.tell("leave")
        said = busy.rest() + idle.rest()
    assert [value[1:3] for word, value in said if word == "started"] == [[1, 1]]
    assert [value for word, value in said if word == "left"] == [0, 0]
    assert causes(q.get(job_id)) == ["ack"]


# A recovery that acts on what it has read before


def test_S5_a_job_that_ends_while_another_process_reclaims_it_stays_ended(make, url):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    with child(reap_in_two_steps, url, 2 * LONG_S) as reaper:
        reaper.hear("read")
        reaper.freeze()
        assert q.ack(lease) is Outcome.OK
        reaper.thaw()
        reaper.tell("write")
        assert reaper.hear("reclaimed") == 0
    assert (q.terminal_of(job_id), causes(q.get(job_id))) == (Terminal.ACKED, ["ack"])
    assert q.counts().totals.reclaimed == 0


@pytest.mark.parametrize("act", ["extend", "hand on"])
def test_S5_a_lease_that_moved_while_another_process_reclaims_it_lives(make, url, act):
    q = make()
    job_id = q.enqueue("payload")
    lease = q.deliver()
    with child(reap_in_two_steps, url, 2 * LONG_S) as reaper:
        reaper.hear("read")
        if act == "extend":
            assert q.extend(lease, 2 * LONG_S) is Outcome.OK
        else:
            assert q.nack(lease) is Outcome.OK
            lease = q.deliver()
        reaper.tell("write")
        assert reaper.hear("reclaimed") == 0
    assert q.ack(lease) is Outcome.OK
    assert "lost" not in causes(q.get(job_id))


# Moves of two steps


@pytest.mark.parametrize("place", ["statement", "instruction"])
@pytest.mark.parametrize("way", ["promote", "deliver"])
def test_S8_a_promotion_cut_short_anywhere_leaves_one_copy_of_its_job(tmp_path, way, place):
    template = tmp_path / "template.db"
    with Queue(f"sqlite:///{template}", QUEUE, visibility_timeout=LONG_S) as q:
        job_id = q.enqueue("payload", delay=0.001, priority=7)
        q.enqueue("another", delay=LONG_S)
    with child(die_in_each_place, str(template), way, place) as driver:
        said = driver.rest(within_s=50.0)
    assert [word for word, _ in said].count("survived") == 1
    assert len(said) > 4
    states = Counter(look_at_one_copy(Path(path), job_id) for _, path in said)
    # Both before and after the step that counts.
    assert states["scheduled"] > 0
    assert states["ready" if way == "promote" else "leased"] > 0


def look_at_one_copy(path, job_id):
    """Open the file anew: the job is there once and works; the state it was found in."""
    with Queue(f"sqlite:///{path}", QUEUE, clock=Ahead(2 * LONG_S)) as q:
        with contextlib.closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT id FROM jobs WHERE payload = ?", (b"payload",)).fetchall()
            assert rows == [(job_id,)]
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        counts, state = q.counts(), q.get(job_id).state
        assert (counts.open, counts.total, getattr(counts, state)) == (2, 2, 1 + (state == "scheduled"))
        lease = q.deliver()
        assert (lease.id, lease.payload, lease.delivery) == (job_id, "payload", 2 if state == "leased" else 1)
        assert q.ack(lease) is Outcome.OK
        return state


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
    assert {q.terminal_of(job_id) for job_id in ids} == {Terminal.ACKED}
    totals = q.counts().totals
    assert (totals.succeeded, totals.processed, totals.reclaimed) == (5000, 5000, 0)


# Keys


@pytest.mark.parametrize("end", [Terminal.ACKED, Terminal.DEAD])
def test_S13_a_unique_key_is_free_again_once_its_job_has_ended_and_is_known_to_all(url, end):
    with Queue(url, QUEUE, max_attempts=1) as q:
        first = q.enqueue("first", unique_key="K")
        assert q.enqueue("second", unique_key="K") == first
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        # Another opening of the file knows it as well.
        told = q.enqueue("third", unique_key="K")
        assert (told, type(told)) == (first, Duplicate)
        lease = q.deliver()
        assert (q.ack if end is Terminal.ACKED else q.nack)(lease) is Outcome.OK
        assert q.terminal_of(first) is end
    with Queue(url, QUEUE) as q:
        again = q.enqueue("again", unique_key="K")
        assert (again != first, type(again)) == (True, int)


def test_S13_a_unique_key_outlives_the_process_that_set_it_and_the_one_that_held_its_job(make, url):
    with child(enqueue_same_keys, url, 1) as producer:
        producer.hear("ready")
        producer.tell("go")
        ((first, _),) = producer.hear("told")
    q = make()
    with child(hold, url, LONG_S, 1, None) as worker:
        assert worker.hear("held") == [[first, 1, 1]]
    assert q.enqueue("while its holder is dead", unique_key="K0") == first
    eventually(lambda: q.tick_timeouts() == 1)
    assert q.enqueue("while it waits again", unique_key="K0") == first
    assert q.counts().total == 1
    assert q.ack(q.deliver()) is Outcome.OK
    assert q.enqueue("free", unique_key="K0") != first


def test_S13_of_processes_that_use_a_key_at_once_one_wins_and_all_are_told_the_same_id(make, url):
    q = make(capacity=100)
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(child(enqueue_same_keys, url, 100)) for _ in range(3)]
        for producer in producers:
            producer.hear("ready")
        for producer in producers:
            producer.tell("go")
        told = [producer.hear("told") for producer in producers]
    for key, answers in enumerate(zip(*told, strict=True)):
        assert len({job_id for job_id, _ in answers}) == 1, key
        assert sorted(kind for _, kind in answers) == ["Duplicate", "Duplicate", "int"]
    assert (q.counts().ready, q.counts().total) == (100, 100)
