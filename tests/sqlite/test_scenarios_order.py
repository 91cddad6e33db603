"""What hurt users of other queues, with a file and several processes: order, and jobs that stand in the way.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3

import pytest

from tests.support.children import child
from tests.support.roles import LONG_S, hold
from tests.support.waiting import eventually
from ulak import Filter, NewJob, Outcome
from ulak.core.job import Cause, Draft, Hold

KNOWN = frozenset({None})
"""What a plain pool knows: jobs without a task."""

# A reclaimed job's place


def test_P4_an_orphan_is_next_and_keeps_its_place_among_equals(make, url):
    q = make()
    urgent = [q.enqueue(f"urgent {number}", 10) for number in range(3)]
    with child(hold, url, LONG_S, 2, None) as killed:
        assert [job_id for job_id, *_ in killed.hear("held")] == urgent[:2]
    q.enqueue_many(range(100))
    later = q.enqueue("urgent, but later", 10)
    eventually(lambda: q.tick_timeouts() == 2)
    leases = q.deliver_many(200)
    assert [lease.id for lease in leases[:4]] == [*urgent, later]
    assert [lease.delivery for lease in leases[:4]] == [2, 2, 1, 1]
    assert [lease.payload for lease in leases[4:]] == list(range(100))


def test_P4_an_orphan_keeps_its_place_when_the_file_is_opened_anew(make, url):
    with contextlib.closing(make()) as q:
        ids = [q.enqueue(number, priority=number % 2) for number in range(6)]
        with child(hold, url, LONG_S, 4, None) as killed:
            assert len(killed.hear("held")) == 4
    q = make()
    eventually(lambda: q.tick_timeouts() == 4)
    assert [lease.id for lease in q.deliver_many(6)] == [*ids[1::2], *ids[0::2]]


# What stands at the head and cannot run

MANY = 10_000


def pause_a_crowd(q, make, jobs):
    """Another queue, listed first, whose jobs may not run."""
    crowd = make("crowd")
    crowd.enqueue_many([b""] * jobs)
    crowd.pause()


def hold_a_crowd(q, make, jobs):
    """Jobs before all others, of a task that nobody here knows."""
    store = q._edge.store
    store.add(q.name, [Draft(b"", "bytes", task="unknown", priority=9)] * jobs)
    leases = store.claim([q.name], jobs, worker="stranger", lease_s=LONG_S)
    store.settle([(lease, Hold()) for lease in leases])


def refuse_a_crowd(q, make, jobs):
    """Jobs before all others, without a task as those that run, but refused."""
    q.enqueue_many([b""] * jobs)
    q._edge.store.settle([(lease, Hold(Cause.UNDECODABLE)) for lease in q.deliver_many(jobs)])
    q.reprioritise(Filter(states="held"), priority=9)


def lease_a_crowd(q, make, jobs):
    """Jobs before all others, which run elsewhere."""
    q.enqueue_many([b""] * jobs)
    assert len(make().deliver_many(jobs)) == jobs


def schedule_a_crowd(q, make, jobs):
    """Jobs of the highest priority, which are not due; and jobs that will expire."""
    q._edge.store.add(q.name, [Draft(b"", "bytes", priority=9, delay_s=LONG_S, expires_s=2 * LONG_S)] * jobs)


CROWDS = {
    "paused": pause_a_crowd,
    "held": hold_a_crowd,
    "refused": refuse_a_crowd,
    "leased": lease_a_crowd,
    "scheduled": schedule_a_crowd,
}


class Meter:
    """Counts what the library does, in its own instructions, and notes the statements it is asked for."""

    def __init__(self, store):
        self.instructions = 0
        self.statements = []
        self._connections = [store.link.writer, store.link.reader]

    def __enter__(self):
        for db in self._connections:
            db.set_progress_handler(self._count, 1)
            db.set_trace_callback(self.statements.append)
        return self

    def _count(self):
        self.instructions += 1

    def __exit__(self, *_):
        for db in self._connections:
            db.set_progress_handler(None, 1)
            db.set_trace_callback(None)


def work_once(q):
    """All that a pool asks of its store for one job: its looks, a claim, a settlement."""
    store, queues = q._edge.store, ["crowd", q.name]
    store.ended(queues, 100)
    store.promote(queues)
    store.horizon(queues)
    (lease,) = store.claim(queues, 1, worker="w", lease_s=LONG_S, tasks=KNOWN)
    assert lease.payload == "runnable"
    assert q.ack(lease) is Outcome.OK
    store.counts(queues)


def metered(q, make, crowd, jobs):
    """The cost of one job behind such a crowd, with the statements it took."""
    CROWDS[crowd](q, functools.partial(make, url=q.url), jobs)
    for _ in range(2):
        q.enqueue("runnable", -1)
    work_once(q)
    with Meter(q._edge.store) as meter:
        work_once(q)
    return meter


@pytest.mark.parametrize("crowd", CROWDS)
def test_P10_ten_thousand_jobs_that_cannot_run_delay_no_other_and_cost_nothing(make, tmp_path, crowd):
    few = metered(make(url=f"sqlite:///{tmp_path / 'few.db'}"), make, crowd, 10)
    many = metered(make(), make, crowd, MANY)
    assert many.instructions <= 1.1 * few.instructions
    assert 20 < few.instructions < 5000


def test_P10_held_jobs_are_found_among_themselves(make, tmp_path):
    def cost(jobs):
        q = make(url=f"sqlite:///{tmp_path / f'{jobs}.db'}")
        refuse_a_crowd(q, make, 20)
        q.enqueue_many([b""] * jobs)
        with Meter(q._edge.store) as meter:
            found = q._edge.store.scan(Filter(queue=q.name, states="held"), limit=100)
        assert [job.id for job in found] == list(range(1, 21))
        return meter.instructions

    assert cost(MANY) <= 1.1 * cost(10)


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "succeeded", "dead"])
def test_P10_few_jobs_of_a_state_are_found_among_themselves(make, tmp_path, state):
    def cost(jobs):
        url = f"sqlite:///{tmp_path / f'{jobs}.db'}"
        q, other = make(url=url, max_attempts=1), make("crowd", url=url)
        other.enqueue_many([b""] * jobs)
        q.enqueue_many([NewJob(b"", 9, delay=3600 if state == "scheduled" else 0)] * 20)
        taken = [] if state in {"ready", "scheduled"} else q.deliver_many(20)
        if state == "succeeded":
            q.ack_many(taken)
        elif state == "dead":
            for lease in taken:
                q.nack(lease)
        with Meter(q._edge.store) as meter:
            found = q._edge.store.scan(Filter(queue=q.name, states=state), after=3, limit=10)
        assert [job.id for job in found] == list(range(jobs + 1, jobs + 11))
        return meter.instructions

    assert cost(MANY) <= 1.1 * cost(10)


def test_P10_a_page_of_many_jobs_costs_the_same_however_many_they_are(make, tmp_path):
    def cost(jobs):
        q = make(url=f"sqlite:///{tmp_path / f'{jobs}.db'}")
        q.enqueue_many([b""] * jobs)
        with Meter(q._edge.store) as meter:
            assert len(q._edge.store.scan(Filter(queue=q.name, states="ready"), after=5, limit=100)) == 100
        return meter.instructions

    assert cost(3 * MANY) <= 1.1 * cost(MANY + 1)


@pytest.mark.parametrize("crowd", CROWDS)
def test_P10_every_look_walks_an_index_in_its_final_order(make, path, crowd):
    meter = metered(make(), make, crowd, 100)
    looks = [text for text in meter.statements if text.startswith(("SELECT", "UPDATE", "DELETE"))]
    assert any("state = 0" in text for text in looks)
    with contextlib.closing(sqlite3.connect(path)) as db:
        for text in looks:
            steps = [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {text}")]
            assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN")], text
