"""What others hold open is in the way of nobody but of calls that need just that."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgres.roles import look, schema_of
from tests.support.postgres import conninfo
from ulak import Outcome, QueueFull, StorageBusy, Terminal
from ulak.core.job import FULL, Draft
from ulak.core.store import Filter, Fired, Keep, Retention
from ulak.storage.postgres.change import LOOSE_MAX

psycopg = pytest.importorskip("psycopg")


def test_an_answer_of_full_holds_nothing_in_the_callers_transaction(make, url):
    q = make(capacity=1)
    q.enqueue("first")
    with psycopg.connect(conninfo(url)) as db:
        db.execute("SELECT 1")
        with pytest.raises(QueueFull):
            q.enqueue("second", connection=db)
        q.ack(q.deliver())
        assert q.try_enqueue("third")
        q.pause()
        assert db.execute("SELECT 1").fetchone() == (1,)


def test_a_call_that_others_are_in_the_way_of_fails_alone(make, url):
    q = make()
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(12) as threads:
        q.enqueue("mine", unique_key="k", connection=db)
        blocked = [threads.submit(q.enqueue, "theirs", unique_key="k") for _ in range(2)]
        time.sleep(0.2)  # they wait for that transaction, and what comes now is put together
        others = [threads.submit(q.enqueue, number) for number in range(8)]
        assert len({call.result() for call in others}) == 8
        assert all(isinstance(call.exception(), StorageBusy) for call in blocked)
        db.rollback()


def test_a_tick_of_a_full_queue_never_sets_back_what_another_has_fired(make, url):
    q = make(capacity=1)
    q.enqueue("first")
    store = q._open().edge.store
    draft = Draft(b"x", "bytes")
    assert store.fire("nightly", 5.0, q.name) is Fired.FIRED
    schema = schema_of(url)
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(1) as threads:
        # Another process fires tick 10, as `fire` does, and commits while ours waits for it.
        db.execute(f"SET LOCAL search_path TO {schema}")
        db.execute("SELECT pg_advisory_xact_lock(hashtext('ulak fire'), hashtext('nightly'))")
        db.execute("UPDATE schedules SET last_tick = 10 WHERE name = 'nightly'")
        ours = threads.submit(store.fire, "nightly", 11.0, q.name, draft)
        time.sleep(0.2)
        db.commit()
        assert ours.result() is FULL
    assert store.schedules() == {"nightly": 10.0}


def test_what_tells_of_living_processes_goes_with_their_locks_when_the_server_crashes(make, url):
    make().enqueue("x")
    kind = look(url, "SELECT relpersistence::text FROM pg_class WHERE oid = '{0}.holders'::regclass")
    assert kind == [("u",)]


ACTS = {
    "redrive": lambda q: q.redrive(Filter(queue=q.name)),
    "delete": lambda q: q.delete(Filter(queue=q.name)),
    "redrive by id": lambda q: q.redrive([1, 2]),
    "priority": lambda q: q.reprioritise(Filter(queue=q.name), priority=5),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_waits_for_no_running_job_that_it_leaves_alone(make, url, name):
    q = make()
    q.enqueue("runs")
    lease = q.deliver()
    q.enqueue("waits")
    with psycopg.connect(conninfo(url)) as db:
        # Its handler finishes it in a transaction that stays open.
        q.ack(lease, connection=db)
        changed = ACTS[name](q)
        assert changed.done == (() if name.startswith("redrive") else (2,))
        assert 1 in {job_id for ids in changed.refused.values() for job_id in ids}
        db.commit()
    assert q.terminal_of(1) is Terminal.ACKED


def test_retention_waits_for_nobody_who_holds_what_it_would_forget(make, url):
    q = make()
    q.enqueue_many(range(4))
    for lease in q.deliver_many(4):
        q.ack(lease)
    q.configure(retention=Retention(succeeded=Keep(1, 3600.0)))
    store = q._open().edge.store
    with psycopg.connect(conninfo(url)) as db:
        db.execute(f"SELECT FROM {schema_of(url)}.ended WHERE id = 1 FOR UPDATE")
        assert store.prune() == {"succeeded": 2}
        db.rollback()
    assert store.prune() == {"succeeded": 1}
    assert q.counts().acked == 1


def test_differences_that_another_folds_in_just_then_are_left_to_it(make, url):
    q = make()
    store = q._open().edge.store
    with psycopg.connect(conninfo(url)) as db:
        for number in range(2):
            q.enqueue(number, connection=db)
            db.commit()
        db.execute(f"DELETE FROM {schema_of(url)}.tallies WHERE shard IS NULL AND ctid = '(0,1)'")
        store.prune()
        db.rollback()
    assert q.counts().ready == 2
    store.prune()
    assert q.counts().ready == 2
    assert look(url, "SELECT count(*) FROM {0}.tallies WHERE shard IS NULL") == [(0,)]


def loose(url: str) -> int:
    """How many differences of callers' transactions lie there."""
    ((number,),) = look(url, "SELECT count(*) FROM {0}.tallies WHERE shard IS NULL")
    return number


@pytest.mark.parametrize("is_bounded", [False, True])
def test_differences_do_not_pile_up_where_no_worker_folds_them_in(make, url, is_bounded):
    q = make(capacity=1_000 if is_bounded else None)
    with psycopg.connect(conninfo(url)) as db, psycopg.connect(conninfo(url)) as other:
        for number in range(250):
            q.enqueue(number, connection=db)
            db.commit()
        assert loose(url) <= LOOSE_MAX + 2
        for lease in q.deliver_many(250):
            q.ack(lease, connection=db)
            db.commit()
        assert loose(url) <= LOOSE_MAX + 2
        # Who holds them together in an open transaction is in nobody's way.
        while loose(url) <= LOOSE_MAX:
            q.enqueue("more", connection=other)
            other.commit()
        before = q.counts().ready
        q.enqueue("open", connection=db)
        lease = q.deliver()
        if not is_bounded:
            q.enqueue("beside", connection=other)
            other.commit()
        assert q.ack(lease) is Outcome.OK
        db.rollback()
    assert q.counts().ready == before - is_bounded
    assert q.counts().acked == 251


def test_a_transaction_of_one_snapshot_leaves_differences_to_others(make, url):
    q = make()
    with psycopg.connect(conninfo(url)) as db, psycopg.connect(conninfo(url)) as other:
        for _ in range(LOOSE_MAX + 1):
            q.enqueue("x", connection=db)
            db.commit()
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        q.enqueue("x", connection=db)
        db.commit()
        q.enqueue("x", connection=other)
        other.commit()
    assert q.counts().ready == LOOSE_MAX + 3


def test_an_operator_waits_for_no_caller_who_takes_room(make, url):
    q = make(capacity=2)
    with psycopg.connect(conninfo(url)) as db, psycopg.connect(conninfo(url)) as other:
        q.enqueue("open", connection=db)
        q.pause()
        q.resume()
        q.configure(capacity=1)
        with pytest.raises(StorageBusy):
            q.enqueue("more", connection=other)
        db.commit()
    assert not q.try_enqueue("more")
    q.configure(capacity=3)
    assert q.try_enqueue("more")
