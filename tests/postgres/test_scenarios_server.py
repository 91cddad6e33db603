"""What hurt users of other queues, with a server or a network that goes away: F1 to F3, T8.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgres.roles import LISTENS, look, sessions
from tests.postgres.test_scenarios_workers import LATE, LONG_JOBS, started, ticked_for
from tests.support.children import child
from tests.support.pools import causes
from tests.support.proxy import FaultProxy
from tests.support.queues import handles
from tests.support.roles import LONG_S, QUEUE, work
from tests.support.waiting import WAIT_S, eventually
from ulak import Outcome, StorageUnavailable, Terminal
from ulak.storage.postgres import listen
from ulak.storage.postgres.others import GONE_AFTER_S
from ulak.storage.postgres.store import POLL_S

BACK_S = 5.0
"""So soon after the server is back workers must work again."""

GONE_NETWORK_S = 15.0
"""So soon a machine that has vanished must be noticed."""


@contextlib.contextmanager
def opened(url, **options):
    with handles(url, QUEUE, visibility_timeout=LONG_S) as make:
        yield make(**options)


# A server that stops


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_F1_a_worker_takes_jobs_again_after_two_restarts_and_is_not_restarted_itself(server, how):
    with opened(server.url, backoff=LATE) as q, child(work, server.url, LONG_S, "def") as worker:
        worker.hear("ready")
        q.enqueue({"name": "before"})
        assert started(worker) == ["before", 1, 1]
        eventually(lambda: q.counts().acked == 1)
        for _ in range(2):
            server.restart(how)
        back_at = time.monotonic()
        job_id = q.enqueue({"name": "after"})
        assert started(worker) == ["after", 1, 1]
        assert time.monotonic() - back_at < BACK_S
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert q.counts().totals.reclaimed == 0


@pytest.mark.parametrize("how", ["fast", "kill"])
def test_F1_jobs_that_run_while_the_server_restarts_are_delivered_once(server, how):
    with (
        opened(server.url, backoff=LATE) as q,
        child(work, server.url, LONG_S, "def") as first,
        child(work, server.url, LONG_S, "def") as second,
    ):
        for worker in (first, second):
            worker.hear("ready")
        ids = q.enqueue_many(LONG_JOBS * 2)
        for worker in (first, second) * 2:
            started(worker)
        server.restart(how)
        # Both presences are gone; neither process is.
        assert ticked_for(q, 4 * GONE_AFTER_S) == 0
        for worker in (first, second):
            worker.tell("return")
        eventually(lambda: q.counts().acked == 4)
        assert [(q.get(job_id).delivery, causes(q.get(job_id))) for job_id in ids] == [(1, ["ack"])] * 4


def test_F1_a_worker_that_dies_while_the_server_is_away_is_found_gone_by_its_deadline(server):
    with opened(server.url, backoff=LATE) as q:
        job_id = q.enqueue({"name": "long", "waits": True})
        with child(work, server.url, LONG_S, "def") as worker:
            worker.hear("ready")
            started(worker)
            server.stop("fast")
            worker.kill()
        server.start()
        # Whether it lived when the server came back nobody can know.
        assert ticked_for(q, 3 * GONE_AFTER_S) == 0
        look(server.url, "UPDATE {0}.jobs SET lease_end = 0")
        assert q.tick_timeouts() == 1
        assert causes(q.get(job_id)) == ["lost"]


def test_F1_a_call_says_that_the_server_is_away_and_works_once_it_is_back(server):
    with opened(server.url) as q:
        q.enqueue("before")
        server.stop("fast")
        start = time.monotonic()
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            q.enqueue("meanwhile")
        assert time.monotonic() - start < BACK_S
        server.start()
        q.enqueue("after")
        assert [q.deliver().payload for _ in range(2)] == ["before", "after"]
        assert q.deliver() is None


# What listens


def pickup_s(q, worker):
    """How long a job waits until an idle worker starts it."""
    start = time.monotonic()
    q.enqueue({"name": "timed"})
    started(worker)
    return time.monotonic() - start


def test_F2_a_listening_session_that_was_ended_is_made_anew_and_jobs_are_taken_at_once_again(make, url):
    q = make()
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        eventually(lambda: sessions(url, LISTENS))
        pickup_s(q, worker)
        (listener,) = sessions(url, LISTENS)
        look(url, f"SELECT pg_terminate_backend({listener})")
        # At the latest when it looks by itself.
        assert pickup_s(q, worker) < POLL_S + BACK_S
        eventually(lambda: set(sessions(url, LISTENS)) - {listener})
        # Each waits for the one before, so that only a worker which hears of it is quicker than a poll.
        assert statistics.median(pickup_s(q, worker) for _ in range(5)) < POLL_S / 2


def test_F2_every_session_may_be_ended_at_any_time(make, url):
    q = make(backoff=LATE)
    with child(work, url, LONG_S, "def") as worker:
        worker.hear("ready")
        for number in range(10):
            everyone = ", ".join(map(str, sessions(url)))
            look(url, f"SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[{everyone}]::int[]) AS pid")
            enqueue_at_last(q, {"name": f"job {number}"}, f"key {number}")
            assert started(worker) == [f"job {number}", 1, 1]
            eventually(lambda: q.counts().open == 0)
    assert q.counts().totals.succeeded == 10


def enqueue_at_last(q, payload, key):
    """Enqueue under a key, again while it is not known whether it is stored."""
    while True:
        with contextlib.suppress(StorageUnavailable):
            return q.enqueue(payload, idempotency_key=key)


# A network that swallows


def test_F3_every_session_has_the_network_find_out_that_its_other_side_is_gone(url):
    with FaultProxy(url) as proxy, opened(proxy.url(url)) as q:
        q.enqueue("payload")
        q.deliver()
        store = q._open().edge.store
        call = store._pool.take()
        store._pool.put(call)
        for session in (call, store.presence.session):
            with socket.fromfd(session.db.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM) as wire:
                assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                if sys.platform == "linux":
                    idle, gap, count, patience_ms = (
                        wire.getsockopt(socket.IPPROTO_TCP, option)
                        for option in (
                            socket.TCP_KEEPIDLE,
                            socket.TCP_KEEPINTVL,
                            socket.TCP_KEEPCNT,
                            socket.TCP_USER_TIMEOUT,
                        )
                    )
                    assert 0 < idle + gap * count <= GONE_NETWORK_S
                    assert 0 < patience_ms <= GONE_NETWORK_S * 1000


def test_F3_a_worker_that_hears_nothing_any_more_takes_jobs_by_polling(url):
    with (
        FaultProxy(url) as proxy,
        opened(url, backoff=LATE) as q,
        child(work, proxy.url(url), LONG_S, "def") as worker,
    ):
        worker.hear("ready")
        pickup_s(q, worker)
        eventually(lambda: sessions(url, LISTENS))
        assert proxy.swallow_those_open(b"LISTEN") == 1
        for _ in range(3):
            assert pickup_s(q, worker) < POLL_S + BACK_S


@pytest.mark.parametrize("has_news", [False, True])
def test_F3_a_listening_session_that_swallows_everything_is_replaced(url, monkeypatch, has_news):
    monkeypatch.setattr(listen, "CHECK_S", 0.2 if not has_news else LONG_S)
    with (
        FaultProxy(url) as proxy,
        handles(proxy.url(url), QUEUE) as make,
        ThreadPoolExecutor(2) as threads,
    ):
        q, other = make(), make("other")
        waiting = [threads.submit(q.deliver, WAIT_S)]
        eventually(lambda: sessions(url, LISTENS))
        (silent,) = sessions(url, LISTENS)
        assert proxy.swallow_those_open(b"LISTEN") == 1
        if has_news:
            # Another queue is to be listened to by that session.
            waiting.append(threads.submit(other.deliver, WAIT_S))
        eventually(lambda: set(sessions(url, LISTENS)) - {silent})
        q.enqueue("end")
        other.enqueue("end")
        assert all(lease.result(WAIT_S).payload == "end" for lease in waiting)


@pytest.mark.parametrize("are_all", [False, True])
def test_F3_a_call_into_a_black_hole_ends_and_says_what_became_of_it(url, are_all):
    # Each try to connect anew takes so long.
    with FaultProxy(url) as proxy, opened(f"{proxy.url(url)}&connect_timeout=2") as q:
        q.enqueue("before")
        proxy.swallow() if are_all else proxy.swallow_those_open()
        told = []

        def ask():
            try:
                told.append(q.enqueue("into nothing"))
            except StorageUnavailable as error:
                told.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(2 * GONE_NETWORK_S)
        is_over = not asking.is_alive()
        proxy.heal()
        proxy.cut()
        asking.join(WAIT_S)
        assert is_over
        (answer,) = told
        # Where it is known that nothing was done it was tried again, by another connection.
        assert isinstance(answer, StorageUnavailable) or q.get(answer).payload == "into nothing"
        enqueue_at_last(q, "after", "key")


# An outcome that is not known


@pytest.fixture
def lost(url):
    """Loses answers: any session's next one, so not always that of the call which follows."""
    with FaultProxy(url) as proxy:
        yield proxy


def test_T8_an_ack_whose_reply_was_lost_may_be_repeated_and_its_job_is_not_run_again(lost, url):
    unknown = []
    with opened(lost.url(url)) as q:
        for number in range(20):
            job_id = enqueue_at_last(q, number, f"key {number}")
            lease = q.deliver()
            lost.lose_next_reply()
            try:
                assert q.ack(lease) is Outcome.OK
            except StorageUnavailable:
                # It may have been lost before the ack was even stored. Whoever asks is told, or tries again.
                unknown.append(q.acked_by(lease))
                assert q.ack(lease) is (Outcome.STALE if unknown[-1] else Outcome.OK)
            lost.heal()
            assert (q.terminal_of(job_id), causes(q.get(job_id))) == (Terminal.ACKED, ["ack"])
            assert q.deliver() is None
        assert q.counts().totals.succeeded == 20
    assert any(unknown)


def test_T8_an_enqueue_whose_reply_was_lost_is_repeated_under_its_key(lost, url):
    unknown = 0
    with opened(lost.url(url)) as q:
        for number in range(20):
            lost.lose_next_reply()
            try:
                told = q.enqueue(number, idempotency_key=f"key {number}")
            except StorageUnavailable as error:
                unknown += "before it said whether" in str(error)
                told = q.enqueue(number, idempotency_key=f"key {number}")
            lost.heal()
            assert q.get(told).payload == number
        assert q.counts().total == 20
    assert unknown
