"""Processes that lose their presence, and are back before anybody has acted on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.steps import LOST, end, put_one
from tests.postgres.roles import look
from tests.support.postgres import execute, own_server
from tests.support.waiting import eventually
from ulak.clock import MACHINE
from ulak.core.job import Done, Lease, Outcome
from ulak.storage.postgres import book
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.others import LOOK_S
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.presence import Presence
from ulak.storage.postgres.store import PostgresStore


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(place_of(url))
    store.open()
    yield store
    store.close()


@pytest.fixture
def presence(store: PostgresStore) -> Iterator[Presence]:
    """Another process's, which nobody takes again by itself."""
    presence = Presence(store.place, lambda: store.uid, lambda: None)
    yield presence
    presence.drop()


def leased_by(store: PostgresStore, presence: Presence) -> Lease:
    """A job that the other process has leased."""
    put_one(store, queue="q")
    own = presence.take()

    def claim(scene: Scene) -> Any:
        scene.holder = own
        return book.claim(scene, ["q"], 1, worker="w", lease_s=60.0)

    (lease,) = store.run(claim)
    return lease


def lose_and_be_missed(store: PostgresStore, presence: Presence) -> list[Lease]:
    """The session ends; what the store finds to be reclaimed once it takes the process for gone."""
    assert presence.session is not None
    presence.session.close()
    found: list[Lease] = []

    def is_missed() -> bool:
        found[:] = store.ended(["q"], 10)
        return presence.own in store.others._gone

    eventually(is_missed)
    return found


def test_who_is_back_keeps_the_leases_that_were_to_be_reclaimed(store, presence):
    lease = leased_by(store, presence)
    (seen,) = lose_and_be_missed(store, presence)
    presence.take()
    assert end(store, seen, LOST) is Outcome.STALE
    assert end(store, lease, Done()) == "succeeded"


def test_who_is_back_is_not_taken_for_gone_by_a_look_of_before(store, presence):
    lease = leased_by(store, presence)
    lose_and_be_missed(store, presence)
    presence.take()
    # That look stands for a while.
    assert presence.own in store.others._gone
    assert store.ended(["q"], 10) == []
    assert end(store, lease, Done()) == "succeeded"


def test_who_is_back_and_holds_nothing_is_not_struck_out_by_a_look_of_before(store, presence, url):
    end(store, leased_by(store, presence), Done())
    lose_and_be_missed(store, presence)
    presence.take()
    store.drive(store.others.forget_gone())
    assert (presence.own,) in look(url, "SELECT id FROM {0}.holders")


def test_who_has_signed_since_a_look_is_not_noted_as_absent_by_it(store, presence, url):
    presence.take()
    looking = store.others._look(store.scene(0))
    ask = next(looking)
    (row,) = store.run(lambda _: _asked(ask))
    presence.sign_again()
    backend = presence.session.db.info.backend_pid
    presence.session.close()
    held = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = {backend}"
    eventually(lambda: not look(url, held))
    presence.take()
    noting = looking.send([(row[0], True, *row[2:])])  # as if that had been so then
    store.run(lambda _: _asked(noting))
    assert look(url, "SELECT absent_since FROM {0}.holders") == [(None,)]


def test_a_session_that_was_alive_a_moment_ago_counts_as_that_but_not_for_who_knows_better(presence, url):
    own = presence.take()
    before = presence.session.backend
    execute(url, f"SELECT pg_terminate_backend({before})")
    eventually(lambda: not presence.session.is_usable())
    presence._heard_at = MACHINE.interval()
    assert presence.is_held
    presence.take_again()
    assert (presence.own, presence.session.backend != before) == (own, True)
    execute(url, f"SELECT pg_terminate_backend({presence.session.backend})")
    # Nobody tells it.
    eventually(lambda: not presence.is_held)


NOW = "pg_postmaster_start_time()"


def sign(url: str, *, number: int = 1, started: str = NOW, ago_s: float = 0.0) -> None:
    """Others have signed, on a server that was started so, so long ago; nobody knows whether they live."""
    look(
        url,
        "INSERT INTO {0}.holders SELECT nextval('{0}.holder_ids'), "
        f"{started}, extract(epoch FROM now()) - {ago_s} FROM generate_series(1, {number})",
    )


def test_of_many_processes_each_looks_less_often(store, url):
    store.ended(["q"], 1)
    assert store.horizon(["q"]) is None
    sign(url, number=160)
    store.others._looked_at = 0.0
    store.ended(["q"], 1)
    assert store.horizon(["q"]) == pytest.approx(10 * LOOK_S)


def test_nobody_looks_for_those_of_whom_no_lock_tells(store, url):
    sign(url, started="'-infinity'")
    sign(url, started=f"{NOW} - interval '1 h'")
    store.ended(["q"], 1)
    assert store.horizon(["q"]) is None


def test_who_can_be_seen_neither_to_live_nor_to_be_gone_is_forgotten_after_a_day(store, url):
    day_s = 25 * 3600.0
    for started in ("'-infinity'", f"{NOW} - interval '1 h'"):
        sign(url, started=started, ago_s=day_s)
    sign(url, started="'-infinity'", ago_s=day_s)
    look(url, "INSERT INTO {0}.workers VALUES ('dead', '{{}}', 1.0, 1)")
    look(url, "INSERT INTO {0}.workers VALUES ('alive', '{{}}', extract(epoch FROM now()), 3)")
    sign(url, started="'-infinity'")
    store.prune()
    assert look(url, "SELECT id FROM {0}.holders ORDER BY id") == [(3,), (4,)]
    assert [worker.worker for worker in store.workers()] == ["alive"]


def test_a_beat_waits_for_no_disk_and_no_standby():
    with own_server(durable=True) as server, ThreadPoolExecutor(2) as threads:
        store = PostgresStore(place_of(server.url))
        store.open()
        try:
            execute(server.url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            execute(server.url, "SELECT pg_reload_conf()")
            added = threads.submit(put_one, store, queue="q")
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            eventually(lambda: added.done() or execute(server.url, waits))
            beat = threads.submit(store.beat, "w", {"queues": "q"})
            beat.result(timeout=20)
            assert not added.done()
        finally:
            execute(server.url, "ALTER SYSTEM RESET synchronous_standby_names")
            execute(server.url, "SELECT pg_reload_conf()")
        assert added.result() > 0
        assert [worker.worker for worker in store.workers()] == ["w"]
        store.close()


def _asked(ask: Execute) -> Step[Any]:
    return (yield ask)


def test_who_signs_while_it_looks_for_others_keeps_its_session(store: PostgresStore) -> None:
    looking = store.others.gone()
    next(looking)
    store.others.presence.take()
    session = store.others.presence.session
    with contextlib.suppress(StopIteration):
        looking.send([])  # as it was before
    assert store.others.presence.is_held
    store.others.presence.take()
    assert store.others.presence.session is session
