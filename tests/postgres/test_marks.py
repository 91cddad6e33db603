"""Where claims begin: what lies dead is not passed again, and whatever job is ready is found at once."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.postgres.roles import look, schema_of
from tests.support.postgres import conninfo, execute
from tests.support.roles import QUEUE
from tests.support.waiting import eventually
from ulak import Outcome, Queue
from ulak.storage.postgres import link, marks
from ulak.storage.postgres.asks import Execute
from ulak.storage.postgres.marks import BACKS_MAX, INT_MIN, spans_of
from ulak.storage.postgres.place import place_of
from ulak.storage.stored import INT_MAX


@pytest.fixture
def q(make, monkeypatch):
    """A queue whose process sets marks however little lies dead, and keeps them."""
    monkeypatch.setattr(marks, "DEAD_MIN", 0)
    monkeypatch.setattr(marks, "FRESH_S", 3600.0)
    monkeypatch.setattr(marks, "LIFE_S", 3600.0)
    return make(max_attempts=2)


def marked(q):
    return q._open().edge.store.marks


def raise_marks(q):
    """Look twice: who may be given an id at the first look has ended at the second."""
    for _ in range(2):
        marked(q).look()


def spans(q):
    """How claims walk the queue: priorities, then one more from an id on."""
    found = marked(q).spans([QUEUE])
    if found is None:
        return None
    columns = [found[f"w_{name}"] for name in ("whole", "lo", "hi", "at", "since")]
    return [span[1:] for span in zip(*columns, strict=True) if not span[0]]


def ack_next(q, number):
    leases = q.deliver_many(number)
    assert q.ack_many(leases) == [Outcome.OK] * number
    return [lease.id for lease in leases]


def test_a_mark_lies_at_the_first_ready_job_or_behind_all_that_were_stored(q):
    ids = q.enqueue_many(range(10))
    assert ack_next(q, 6) == ids[:6]
    assert spans(q) is None
    raise_marks(q)
    whole_below = (INT_MIN, -1, None, None)
    assert spans(q) == [(1, INT_MAX, 0, ids[6]), whole_below]
    assert ack_next(q, 4) == ids[6:]
    raise_marks(q)
    assert spans(q) == [(1, INT_MAX, 0, ids[-1] + 1), whole_below]
    job_id = q.enqueue("next")
    assert ack_next(q, 1) == [job_id]


def test_each_priority_that_is_met_gets_a_mark_of_its_own(q):
    for number in range(4):
        q.enqueue_many([number] * 2)
        q.enqueue(number, 5)
        q.enqueue(number, -5)
    ack_next(q, 6)
    raise_marks(q)
    assert [(at, since) for _, _, at, since in spans(q)] == [(5, 17), (0, 5), (None, None)]
    ack_next(q, 7)
    raise_marks(q)
    assert [(at, since) for _, _, at, since in spans(q)] == [(5, 17), (0, 17), (-5, 8), (None, None)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, [(INT_MIN, INT_MAX, None, None)]),
        ({7: 3}, [(8, INT_MAX, 7, 3), (INT_MIN, 6, None, None)]),
        ({0: 9, 1: 4}, [(2, INT_MAX, 1, 4), (1, 0, 0, 9), (INT_MIN, -1, None, None)]),
    ],
)
def test_the_spans_of_marks_cover_each_priority_once(found, expected):
    assert spans_of(found) == expected


@pytest.mark.parametrize("priority", [INT_MIN, INT_MAX])
def test_the_outermost_priorities_have_no_mark(q, priority):
    ids = [q.enqueue(number, priority) for number in range(3)]
    ids = ids[len(ack_next(q, 1)) :]
    raise_marks(q)
    assert all(at is None for _, _, at, _ in spans(q))
    assert ack_next(q, 2) == ids


# Jobs below a mark


def nacked(q, url, lease):
    assert q.nack(lease, delay=0) is Outcome.OK


def released(q, url, lease):
    assert q.release(lease) is Outcome.OK


def crashed(q, url, lease):
    assert q.crash() == 1


def due(q, url, lease):
    assert q.nack(lease, delay=3600) is Outcome.OK
    look(url, "UPDATE {0}.jobs SET run_at = run_at - 7200 WHERE state = 1")


def brought_back(q, url, lease):
    assert q.nack(lease, delay=0) is Outcome.OK
    assert q.cancel([lease.id]).done
    assert q.redrive([lease.id]).done


WAYS = [nacked, released, crashed, due, brought_back]


@pytest.mark.parametrize("comes_back", WAYS)
def test_a_job_that_comes_back_to_below_a_mark_is_the_next_one(q, url, comes_back):
    ids = q.enqueue_many(range(10))
    lease = q.deliver()
    ack_next(q, 5)
    raise_marks(q)
    assert spans(q)[0][2:] == (0, ids[6])
    comes_back(q, url, lease)
    again = q.deliver()
    assert (again.id, q.ack(again)) == (ids[0], Outcome.OK)
    # The mark holds again.
    assert ack_next(q, 4) == ids[6:]


@pytest.mark.parametrize("number", [BACKS_MAX, BACKS_MAX + 1])
def test_many_jobs_that_come_back_are_the_next_ones_in_their_order(q, number):
    ids = q.enqueue_many(range(number))
    leases = q.deliver_many(number)
    ids += q.enqueue_many(range(5))
    raise_marks(q)
    assert spans(q)[0][2:] == (0, ids[number])
    for lease in reversed(leases):
        assert q.release(lease) is Outcome.OK
    assert ack_next(q, number + 5) == ids


def test_a_delayed_job_that_is_due_is_found_below_a_mark(q, url):
    job_id = q.enqueue("later", delay=3600)
    ack_next(q, len(q.enqueue_many(range(5))))
    raise_marks(q)
    q.enqueue("after it")
    look(url, "UPDATE {0}.jobs SET created_at = created_at - 3610, run_at = run_at - 3610 WHERE state = 1")
    assert q.deliver().id == job_id


def test_jobs_of_another_priority_are_found_below_a_mark_of_theirs(q):
    low = q.enqueue("low", -1)
    ack_next(q, len(q.enqueue_many(range(5))))
    last = q.enqueue("last")
    raise_marks(q)
    assert q.reprioritise([low], priority=0).done
    assert [q.deliver().id, q.deliver().id] == [low, last]


@pytest.mark.parametrize("ahead_s", [0, 60])
def test_a_cancelled_job_that_never_ran_is_found_below_a_mark(q, url, ahead_s):
    ids = q.enqueue_many(range(5))
    assert q.cancel([ids[0]]).done
    # The server's clock may have been ahead, and been set since.
    look(url, f"UPDATE {{0}}.ended SET created_at = created_at + {ahead_s}")
    ack_next(q, 3)
    raise_marks(q)
    assert q.redrive([ids[0]]).done
    assert [q.deliver().id, q.deliver().id] == [ids[0], ids[4]]


def test_no_mark_passes_a_job_that_a_transaction_has_yet_to_commit(q, url):
    import psycopg

    with psycopg.connect(conninfo(url)) as db:
        db.execute("SELECT 1")
        ack_next(q, len(q.enqueue_many(range(3))))
        early = q.enqueue("early", connection=db)
        ack_next(q, len(q.enqueue_many(range(3))))
        last = q.enqueue("last")
        for _ in range(3):
            marked(q).look()
        db.commit()
    assert [q.deliver().id, q.deliver().id] == [early, last]
    for _ in range(2):
        marked(q).look()
    assert spans(q)[0][2:] == (0, last + 1)


class Model:
    """A queue, and what of it is where: priorities by id."""

    def __init__(self, q, draw):
        self.q = q
        self.draw = draw
        self.ready, self.leased, self.cancelled = {}, {}, {}

    def _take(self, jobs):
        job_id = self.draw.choice(sorted(jobs))
        return job_id, jobs.pop(job_id)

    def enqueue(self):
        priority = self.draw.choice([0, 0, 0, 1, -1])
        self.ready[self.q.enqueue("payload", priority)] = priority

    def deliver(self):
        best = min(self.ready, key=lambda one: (-self.ready[one], one), default=None)
        lease = self.q.deliver()
        assert (None if lease is None else lease.id) == best
        if lease is not None:
            self.leased[best] = lease, self.ready.pop(best)

    def ack(self):
        if self.leased:
            assert self.q.ack(self._take(self.leased)[1][0]) is Outcome.OK

    def release(self):
        if self.leased:
            job_id, (lease, priority) = self._take(self.leased)
            assert self.q.release(lease) is Outcome.OK
            self.ready[job_id] = priority

    def reprioritise(self):
        if self.ready:
            job_id, _ = self._take(self.ready)
            self.ready[job_id] = self.draw.choice([-1, 0, 1])
            assert self.q.reprioritise([job_id], priority=self.ready[job_id]).done

    def cancel(self):
        if self.ready:
            job_id, priority = self._take(self.ready)
            assert self.q.cancel([job_id]).done
            self.cancelled[job_id] = priority

    def redrive(self):
        if self.cancelled:
            job_id, priority = self._take(self.cancelled)
            assert self.q.redrive([job_id]).done
            self.ready[job_id] = priority

    def look(self):
        marked(self.q).look()


ACTS = ["enqueue", "deliver", "ack", "look"] * 3 + ["release", "reprioritise", "cancel", "redrive"]


@pytest.mark.parametrize("seed", range(6))
def test_the_best_ready_job_is_delivered_whatever_happens(q, seed):
    model = Model(q, random.Random(seed))
    for _ in range(150):
        getattr(model, model.draw.choice(ACTS))()
    assert spans(q)


# Plans


@pytest.mark.parametrize("jobs", [0, 20_000])
def test_a_claim_that_begins_at_a_mark_goes_there_by_the_index(q, url, monkeypatch, jobs):
    q.enqueue_many(range(5))
    ack_next(q, 5)
    raise_marks(q)
    if jobs:
        q.enqueue_many(range(jobs))
    execute(url, f"VACUUM ANALYZE {schema_of(url)}.jobs")
    asked, execute_ = [], link.Session.execute

    def noting(self, ask):
        if "walked" in ask.text:
            asked.append((ask.text, ask.params))
        return execute_(self, ask)

    monkeypatch.setattr(link.Session, "execute", noting)
    lease = q.deliver()
    monkeypatch.undo()
    assert (lease is None) is (jobs == 0)
    ((text, params),) = asked
    with contextlib.closing(link.Session(place_of(url))) as session:
        ((plan,),) = session.execute(Execute(f"EXPLAIN (FORMAT JSON) {text}", params))
    found = {(part["Index Name"], part.get("Index Cond", "").count("AND")) for part in of_jobs(plan)}
    assert ("jobs_ready", 2) in found
    names = {name for name, _ in found}
    assert "jobs_back" in names
    others = {"jobs_due", "jobs_expiring", "jobs_held", "jobs_held_by_task", "jobs_pkey"}
    assert names <= {"jobs_ready", "jobs_back", *others}


def of_jobs(plan):
    """The parts of a plan that look into the table of open jobs, by one of its indexes each."""
    parts = [plan[0]["Plan"]]
    while parts:
        part = parts.pop()
        parts += part.get("Plans", [])
        if part.get("Relation Name") == "jobs" and part["Node Type"] != "ModifyTable":
            yield part


# When there are none


def test_marks_go_with_time_and_where_ids_are_given_again(q, url, monkeypatch):
    ack_next(q, len(q.enqueue_many(range(5))))
    raise_marks(q)
    assert spans(q) is not None
    monkeypatch.setattr(marks, "FRESH_S", 0.0)
    assert spans(q) is None
    monkeypatch.setattr(marks, "FRESH_S", 3600.0)
    look(url, "SELECT setval('{0}.job_ids', 2)")
    marked(q).look()
    assert spans(q) is None
    look(url, "DELETE FROM {0}.ended")
    assert ack_next(q, len(q.enqueue_many(["again"]))) == [3]


def test_no_mark_is_set_where_little_lies_dead(make):
    q = make()
    ack_next(q, len(q.enqueue_many(range(5))))
    raise_marks(q)
    assert spans(q) is None


def test_a_look_that_fails_leaves_no_mark(q, url):
    ack_next(q, len(q.enqueue_many(range(5))))
    raise_marks(q)
    look(url, "ALTER SEQUENCE {0}.job_ids RENAME TO gone")
    marked(q).look()
    assert spans(q) is None


def test_marks_are_set_by_themselves_while_jobs_end(q, monkeypatch):
    monkeypatch.setattr(marks, "EVERY", 10)
    monkeypatch.setattr(marks, "PAUSE_S", 0.0)

    def is_marked():
        ack_next(q, len(q.enqueue_many(range(10))))
        return spans(q) is not None

    eventually(is_marked)


def test_marks_are_renewed_by_who_goes_on_slowly(q, monkeypatch):
    monkeypatch.setattr(marks, "FRESH_S", 1.0)
    ack_next(q, len(q.enqueue_many(range(5))))
    raise_marks(q)
    first = spans(q)

    def is_renewed():
        ack_next(q, len(q.enqueue_many(["next"])))
        return spans(q) not in (None, first)

    eventually(is_renewed)


def test_marks_hold_for_the_queues_that_have_them_and_others_are_walked_from_their_head(q, url):
    with Queue(url, "other") as other:
        ack_next(q, len(q.enqueue_many(range(5))))
        raise_marks(q)
        job_id = other.enqueue("first of the other")
        assert other.deliver().id == job_id
