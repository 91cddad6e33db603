"""Looks for what comes first begin where that was: nothing dead is passed, and nothing missed for long."""

from __future__ import annotations

import math

import pytest

from tests.postgres.roles import look
from tests.support.roles import QUEUE
from ulak import Keep, Outcome, Queue, Retention, State
from ulak.storage.postgres import marks
from ulak.storage.postgres.marks import BACK, DUE, LATE_S, LEASES

KEPT = 5


@pytest.fixture
def q(make, monkeypatch):
    """A queue whose process keeps where the first ones were, however little lies dead."""
    monkeypatch.setattr(marks, "DEAD_MIN", 0)
    monkeypatch.setattr(marks, "FRESH_S", 3600.0)
    q: Queue = make(max_attempts=2, retention=Retention(succeeded=Keep(KEPT, 3600.0)))
    ack(q, 1)
    marks_of(q).look()
    return q


@pytest.fixture
def time_to_renew(monkeypatch):
    """Makes it time for a look from the head."""
    return lambda: monkeypatch.setattr(marks, "LIFE_S", -1.0)


def marks_of(q):
    return q._open().edge.store.marks


def first(q, what):
    """Where a look begins that does not renew it."""
    return marks_of(q).since(what, [QUEUE], renews=False)


def horizon(q):
    return q._open().edge.store.horizon([QUEUE])


def ack(q, number):
    """So many, one after the other."""
    ids = q.enqueue_many(range(number))
    for job_id in ids:
        lease = q.deliver()
        assert (lease.id, q.ack(lease)) == (job_id, Outcome.OK)
    return ids


def ended(url):
    return dict(look(url, "SELECT id, ended_at FROM {0}.ended"))


def test_the_oldest_of_those_kept_goes_for_each_that_comes(q, url):
    ids = [1, *ack(q, KEPT)]
    assert first(q, State.SUCCEEDED) > -math.inf
    for _ in range(3):
        before = ended(url)
        assert sorted(before) == ids[-KEPT:]
        ids += ack(q, 1)
        assert first(q, State.SUCCEEDED) == before[ids[-KEPT - 1]]
    ids += q.enqueue_many(range(KEPT + 3))
    assert q.ack_many(q.deliver_many(KEPT + 3)) == [Outcome.OK] * (KEPT + 3)
    assert len(ended(url)) == KEPT


def test_one_that_ended_before_the_oldest_goes_when_that_is_looked_for_anew(q, url, time_to_renew):
    ids = [1, *ack(q, KEPT + 1)]
    early = ids[-1]
    look(url, f"UPDATE {{0}}.ended SET ended_at = ended_at - 60 WHERE id = {early}")
    ack(q, 1)
    assert early in ended(url)
    time_to_renew()
    ack(q, 1)
    assert early not in ended(url)
    assert len(ended(url)) == KEPT


def test_what_failed_for_good_is_kept_and_goes_the_same_way(make, url, monkeypatch):
    monkeypatch.setattr(marks, "DEAD_MIN", 0)
    monkeypatch.setattr(marks, "FRESH_S", 3600.0)
    q = make(max_attempts=1, retention=Retention(dead=Keep(2, 3600.0)))
    marks_of(q).look()
    ids = q.enqueue_many(range(6))
    for kept in [ids[:1], ids[:2], ids[1:3], ids[2:4], ids[3:5]]:
        assert q.nack(q.deliver()) is Outcome.OK
        assert sorted(ended(url)) == kept
    assert first(q, State.DEAD) > -math.inf


def test_the_lease_that_ends_first_is_found_from_where_it_was(q, url):
    jobs = q.enqueue_many(range(3))
    leases = [q.deliver(), q.deliver()]
    horizon(q)
    ((now,),) = look(url, "SELECT extract(epoch FROM clock_timestamp())::float8")
    assert now - LATE_S - 5.0 < first(q, LEASES) < now - LATE_S + 1.0
    look(url, f"UPDATE {{0}}.jobs SET lease_end = {now} WHERE id = {jobs[0]}")
    assert horizon(q) == 0
    assert q.tick_timeouts() == 1
    assert q.ack(leases[0]) is Outcome.STALE
    assert q.ack(leases[1]) is Outcome.OK


def test_a_lease_that_ended_before_that_is_found_when_it_is_looked_for_anew(q, url, time_to_renew):
    (job_id,) = q.enqueue_many(range(1))
    q.deliver()
    horizon(q)
    look(url, f"UPDATE {{0}}.jobs SET lease_end = lease_end - 7200 WHERE id = {job_id}")
    assert (horizon(q), q.tick_timeouts()) == (None, 0)
    time_to_renew()
    assert horizon(q) == 0
    assert q.tick_timeouts() == 1


def test_a_due_job_is_found_from_where_the_first_one_was(q, url, time_to_renew):
    later, early = q.enqueue("later", delay=3600), q.enqueue("early", delay=3600)
    assert horizon(q) > 0
    assert first(q, DUE) > -math.inf
    look(url, f"UPDATE {{0}}.jobs SET run_at = {first(q, DUE) + LATE_S / 2} WHERE id = {later}")
    assert horizon(q) == 0
    assert q.deliver().id == later
    # As if a transaction had been long in committing it.
    look(url, f"UPDATE {{0}}.jobs SET run_at = run_at - 7200 WHERE id = {early}")
    assert q.deliver() is None
    time_to_renew()
    assert horizon(q) == 0
    assert q.deliver().id == early


def test_a_job_that_has_come_back_is_found_from_where_the_first_one_was(q, url, time_to_renew):
    ids = q.enqueue_many(range(8))
    leases = q.deliver_many(6)
    for _ in range(2):
        marks_of(q).look()
    assert marks_of(q).spans([QUEUE]) is not None
    horizon(q)
    assert first(q, BACK) > -math.inf
    assert [q.release(lease) for lease in leases[:4]] == [Outcome.OK] * 4
    assert q.deliver().id == ids[0]
    look(url, f"UPDATE {{0}}.jobs SET back_at = back_at - 3600 WHERE id = {ids[1]}")
    assert q.deliver().id == ids[2]
    time_to_renew()
    horizon(q)
    assert [lease.id for lease in q.deliver_many(4)] == [ids[1], ids[3], ids[6], ids[7]]


def test_nothing_is_kept_where_little_lies_dead(make):
    q = make(retention=Retention(succeeded=Keep(1, 3600.0)))
    ack(q, 3)
    marks_of(q).look()
    horizon(q)
    ack(q, 3)
    assert [first(q, what) for what in (LEASES, DUE, State.SUCCEEDED)] == [-math.inf] * 3
