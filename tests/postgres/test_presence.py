"""Processes that lose their presence, and are back before anybody has acted on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.steps import LOST, end, put_one
from tests.postgres.roles import look
from tests.support.waiting import eventually
from ulak.core.job import Done, Lease, Outcome
from ulak.storage.postgres import book
from ulak.storage.postgres.asks import Execute, Scene, Step
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
    presence.session.close()
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    eventually(lambda: not look(url, f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND {here}"))
    presence.take()
    noting = looking.send([(row[0], True, *row[2:])])
    store.run(lambda _: _asked(noting))
    assert look(url, "SELECT absent_since FROM {0}.holders") == [(None,)]


def _asked(ask: Execute) -> Step[Any]:
    return (yield ask)
