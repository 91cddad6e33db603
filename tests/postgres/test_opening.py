"""Opening a store on a server: its schema is made once, whoever comes first; a stranger's is left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from tests.support.children import Parent, child
from tests.support.postgres import execute, fresh_url
from tests.support.roles import LONG_S, QUEUE
from tests.support.waiting import eventually
from ulak import Queue, SchemaError, StorageUnavailable
from ulak.local import server_of
from ulak.storage.postgres.halves import newest
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.store import PostgresStore


def schema_of(url: str) -> str:
    return server_of(url).schema


def open_when_told(parent: Parent, url: str) -> None:
    store = PostgresStore(server_of(url))
    parent.say("ready")
    parent.wait_for("go")
    store.open()
    parent.say("open", [store.uid, store.epoch])
    store.close()


def test_all_who_open_a_new_store_at_once_find_the_same():
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            url = fresh_url()
            openers = [stack.enter_context(child(open_when_told, url)) for _ in range(4)]
            for opener in openers:
                opener.hear("ready")
            for opener in openers:
                opener.tell("go")
            assert len({tuple(opener.hear("open")) for opener in openers}) == 1


def test_what_is_there_is_opened_as_it_is(url):
    with Queue(url, QUEUE) as q:
        job_id = q.enqueue("kept")
    with Queue(url, QUEUE) as q:
        assert q.deliver().id == job_id


def test_a_newer_schema_is_refused_and_left_alone(url):
    with Queue(url, QUEUE) as q:
        q.enqueue("there")
    execute(url, f"UPDATE {schema_of(url)}.store SET version = {newest() + 1}")
    with pytest.raises(SchemaError, match="update ulak"):
        Queue(url, QUEUE).counts()
    assert execute(url, f"SELECT version FROM {schema_of(url)}.store") == [(newest() + 1,)]


def test_a_schema_of_somebody_elses_is_refused_and_left_alone(url):
    execute(url, f"CREATE SCHEMA {schema_of(url)}")
    execute(url, f"CREATE TABLE {schema_of(url)}.jobs (id int)")
    with pytest.raises(SchemaError, match="holds no store"):
        Queue(url, QUEUE).counts()
    assert execute(
        url, f"SELECT count(*) FROM pg_class WHERE relnamespace = '{schema_of(url)}'::regnamespace"
    ) == [(1,)]


def test_an_empty_schema_that_was_made_for_it_is_used(url):
    execute(url, f"CREATE SCHEMA {schema_of(url)}")
    with Queue(url, QUEUE) as q:
        assert q.enqueue("first") == 1


def test_a_user_who_may_not_make_a_schema_is_told(url):
    execute(url, f"DROP ROLE IF EXISTS {schema_of(url)}_guest")
    execute(url, f"CREATE ROLE {schema_of(url)}_guest LOGIN")
    user = f"{schema_of(url)}_guest"
    with pytest.raises(StorageUnavailable, match="may not do that") as caught:
        Queue(url.replace("ulak@", f"{user}@", 1), QUEUE).counts()
    assert "nothing was changed" in str(caught.value)
    execute(url, f"DROP ROLE {user}")


# Forks


def in_child(call) -> int:
    """Run it in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_connections_of_its_own_and_leaves_the_parents_alone(make, url):
    q = make()
    q.enqueue_many(range(10))
    mine = q.deliver()

    def take() -> None:
        lease = q.deliver()
        assert lease.id != mine.id
        assert q.ack(lease)

    store = q._open().edge.store
    before = {*store.backends, store.presence.session.backend}
    assert [in_child(take) for _ in range(3)] == [0, 0, 0]
    there = execute(url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'ulak'")
    assert before <= {pid for (pid,) in there}
    assert q.ack(mine)
    assert q.crash() == 0
    assert (q.counts().acked, q.counts().leased, q.counts().ready) == (4, 0, 6)


def test_a_child_that_lives_on_does_not_keep_its_killed_parent_present(make, url):
    q = make()
    q.enqueue("held by the parent")
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            with Queue(url, QUEUE, visibility_timeout=LONG_S) as own:
                assert own.deliver() is not None
                child = os.fork()
                if child == 0:
                    time.sleep(30)
                    os._exit(0)
                os.write(writing, f"{child}\n".encode())
                time.sleep(30)
        finally:
            os._exit(1)
    try:
        child = int(os.read(reading, 32))
        assert q.deliver() is None
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        eventually(q.tick_timeouts)
        assert q.deliver().attempt == 2
        os.kill(child, signal.SIGKILL)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_session_whose_thread_died_without_giving_it_back_is_closed_with_the_store(url):
    store = PostgresStore(place_of(url))
    store.open()
    taken = []
    thread = threading.Thread(target=lambda: taken.append(store._pool.take()))
    thread.start()
    thread.join()
    in_use = store._pool.take()
    store.close()
    assert taken[0].db.closed
    # Its thread lives, and may be in the midst of something.
    assert not in_use.db.closed
    store._pool.put(in_use)
    assert in_use.db.closed
