"""A handler's own connection to the database, as the library makes it: the pool's are set otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from ulak.storage.postgres.faults import explained, unreachable
from ulak.storage.postgres.link import CONNECT_S
from ulak.storage.postgres.place import Place, options_of


def connect(place: Place) -> psycopg.Connection[Any]:
    """A connection that commits when it is told. Raises StorageUnavailable."""
    with _reached(place):
        db = psycopg.connect(place.conninfo, **_asked(place))
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return db


async def aconnect(place: Place) -> psycopg.AsyncConnection[Any]:
    """The same for an event loop."""
    with _reached(place):
        db = await psycopg.AsyncConnection.connect(place.conninfo, **_asked(place))
    await db.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    return db


@contextlib.contextmanager
def _reached(place: Place) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise unreachable(error, str(place)) from None


@contextlib.contextmanager
def told(place: Place) -> Iterator[None]:
    """Tell the library's errors as ulak's."""
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, str(place)) from None


def _asked(place: Place) -> dict[str, Any]:
    wanted = {"connect_timeout": CONNECT_S, "application_name": "ulak handler"}
    return {name: value for name, value in wanted.items() if name not in options_of(place)}
