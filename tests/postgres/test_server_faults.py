"""A server that refuses or takes no writes: every call ends in a typed error, and later ones work."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.postgres.roles import look, sessions
from tests.support.postgres import conninfo, execute, own_server
from tests.support.roles import LONG_S, QUEUE
from tests.support.waiting import WAIT_S, eventually
from ulak import Outcome, Queue, StorageBusy, StorageUnavailable
from ulak.storage.postgres.pool import SESSIONS_MAX

CONNECTIONS_MAX = 1_000


def test_more_callers_than_sessions_are_all_served(make, url):
    q = make()
    with ThreadPoolExecutor(4 * SESSIONS_MAX) as threads:
        ids = list(threads.map(q.enqueue, range(20 * SESSIONS_MAX)))
        leases = list(threads.map(lambda _: q.deliver(), ids))
        assert set(threads.map(q.ack, leases)) == {Outcome.OK}
    assert sorted(lease.id for lease in leases) == sorted(ids)
    # One more is this process's presence.
    assert len(sessions(url)) <= SESSIONS_MAX + 2


def take_all_connections(url: str, others: contextlib.ExitStack) -> None:
    import psycopg

    with contextlib.suppress(psycopg.OperationalError):
        for _ in range(CONNECTIONS_MAX):
            others.enter_context(psycopg.connect(conninfo(url)))
        pytest.fail("the server takes any number of connections")


def test_a_server_that_takes_no_more_connections_is_told_and_later_calls_work(server):
    with Queue(server.url, QUEUE) as q, contextlib.ExitStack() as others:
        q.enqueue("before")
        take_all_connections(server.url, others)
        # Whoever is connected works on.
        q.enqueue("meanwhile")
        another = Queue(f"{server.url}&application_name=another", QUEUE)
        start = time.monotonic()
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            another.enqueue("never")
        assert time.monotonic() - start < WAIT_S
        others.close()
        with another:
            another.enqueue("after")
            assert [job.payload for job in another.jobs()] == ["before", "meanwhile", "after"]


def test_a_standby_is_told_and_works_once_it_is_promoted():
    with own_server(durable=True) as server, Queue(server.url, QUEUE, visibility_timeout=LONG_S) as q:
        q.enqueue("before")
        lease = q.deliver()
        server.stop()
        (Path(server.place) / "data" / "standby.signal").touch()
        server.start()
        start = time.monotonic()
        for call in (lambda: q.enqueue("meanwhile"), lambda: q.ack(lease), q.deliver):
            with pytest.raises(StorageUnavailable):
                call()
        assert time.monotonic() - start < WAIT_S
        # Whoever only looks may.
        assert q.counts().leased == 1
        execute(server.url, "SELECT pg_promote()")
        assert q.ack(lease) is Outcome.OK
        q.enqueue("after")
        assert q.deliver().payload == "after"


def test_a_call_that_an_operator_cancels_is_busy_and_the_session_works_on(make, url):
    import psycopg

    q = make(capacity=10)
    q.enqueue("before")
    told = []

    def enqueue() -> None:
        try:
            q.enqueue("meanwhile", timeout=5)
        except StorageBusy as error:
            told.append(error)

    with psycopg.connect(conninfo(url)) as other:
        q.enqueue("first", connection=other)
        calling = threading.Thread(target=enqueue)
        calling.start()
        here = "datname = current_database() AND wait_event_type = 'Lock'"
        eventually(lambda: look(url, f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {here}"))
        calling.join(WAIT_S)
    assert len(told) == 1
    assert q.enqueue("after") > 1
    assert sorted(job.payload for job in q.jobs()) == ["after", "before", "first"]
