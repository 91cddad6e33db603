"""The schema in the database: which version it has, and how an older one, or none, becomes this one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

import msgspec
import psycopg
from psycopg import sql

from ulak.errors import SchemaError
from ulak.storage.postgres.asks import Execute, Rows, Step
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.faults import explained
from ulak.storage.postgres.halves import Half, Part, newest, parts
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.place import Place

R = TypeVar("R")

_LOCK = 0x756C616B
Begun: TypeAlias = tuple[Any, ...]
"""The store's name, its epoch, the server's time."""

_BEGUN = "SELECT uid, epoch, extract(epoch FROM clock_timestamp())::float8 FROM store"
# Asked of the catalogue itself: what looks names up may not have heard yet of what another has just made.
_TABLE = (
    "SELECT (SELECT c.oid FROM pg_class c WHERE relnamespace = named.oid AND relname = 'store' "
    "AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'uid')), named.oid "
    "FROM (SELECT 1) AS always LEFT JOIN pg_namespace named ON named.nspname = %s"
)


class Found(msgspec.Struct, frozen=True):
    """What is there. prepared: the last migration whose first half is done. version: both its halves."""

    version: int = 0
    prepared: int = 0

    @property
    def is_there(self) -> bool:
        """Whether there is a store at all."""
        return self.prepared > 0

    @property
    def is_behind(self) -> bool:
        """Whether there is something to do before this version can work with it."""
        return self.prepared < newest()

    def pending(self, half: Half) -> list[Part]:
        """What is to be done before a deploy of this version, or after it."""
        if half is Half.BEFORE:
            return parts(self.prepared, half)
        # Nobody is at work on what is only being made.
        return parts(self.version, half) if self.is_there else []


def begun(place: Place) -> Generator[Execute, Rows, Begun | None]:
    """The store as it is now; None if there is something to do first. Raises SchemaError."""
    found = yield from found_in(place)
    if found.is_behind:
        return None
    (row,) = yield Execute(_BEGUN, alone=True)
    return row


def found_in(place: Place) -> Generator[Execute, Rows, Found]:
    """What is there. Raises SchemaError for what only a newer version can work with, or a stranger's."""
    ((table, schema),) = yield Execute(_TABLE, (place.schema,), alone=True)
    if table is None:
        if schema is not None:
            ((others,),) = yield Execute(
                "SELECT count(*) FROM pg_class WHERE relnamespace = %s::oid", (schema,), alone=True
            )
            if others:
                raise SchemaError(
                    f"the schema {place.schema!r} of {place} is there, and holds no store; nothing was done\n"
                    f"  give ulak a schema of its own: add ?schema=name to the URL"
                )
        return Found()
    # By its whole name: a schema that this user may not use is refused then, and not taken for an empty one.
    name = sql.Identifier(place.schema, "store")
    text = sql.SQL("SELECT version, prepared FROM {}").format(name).as_string()
    rows = yield Execute(text, alone=True)
    if not rows:
        raise SchemaError(
            f"the store in {place} says nothing of itself, as one without its data; nothing was done\n"
            f"  restore the data too, or drop the schema {place.schema!r} to have a new one made"
        )
    ((version, prepared),) = rows
    if version > newest():
        raise SchemaError(
            f"{place} has schema {version}, which is newer than {newest()}, the newest this ulak knows\n"
            f"  update ulak; nothing was changed"
        )
    return Found(int(version), int(prepared))


def check_current(place: Place) -> int:
    """The schema's number, 0 if there is none. Raises SchemaError if it is not this version's.

    For who only looks, and so must not change it under others that may be of an older version.
    """
    found = run(place, found_in(place))
    if found.is_there and found.is_behind:
        raise SchemaError(
            f"{place} has schema {found.prepared}, and this ulak works with {newest()}\n"
            f"  bring it up to date: ulak migrate; a worker of this version does so too when it starts"
        )
    return found.prepared


def run(place: Place, step: Step[R]) -> R:
    """Run a step in a session of its own."""
    session = Session(place)
    try:
        return session.drive(Attempt(step, session.begin, is_proxied=True).work())
    except psycopg.Error as error:
        raise explained(error, str(place)) from None
    finally:
        session.close()


def begin(place: Place) -> Generator[Execute, Rows, Begun]:
    """Make the schema, or do what comes before a deploy; of several who come at once, one does it."""
    yield from change(place, Half.BEFORE)
    (row,) = yield Execute(_BEGUN)
    return row


def change(place: Place, half: Half) -> Generator[Execute, Rows, list[Part]]:
    """Do a half of all migrations that wait for it; which. Raises SchemaError: the first half comes first."""
    yield Execute("SELECT set_config('lock_timeout', '30s', true)")
    yield Execute("SELECT pg_advisory_xact_lock(%s::int, hashtext(%s))", (_LOCK, place.schema))
    found = yield from found_in(place)
    if half is Half.AFTER and found.is_behind:
        raise SchemaError(
            f"{place} is not yet prepared for this version; nothing was changed\n"
            f"  what comes before the deploy is done first: ulak migrate, without --after"
        )
    for text in statements(place, found, half):
        yield Execute(text)
    return found.pending(half)


def statements(place: Place, found: Found, half: Half) -> list[str]:
    """What brings the schema from there through this half of its migrations, and notes that it has."""
    wanted = found.pending(half)
    if not wanted:
        return []
    last = newest()
    if half is Half.AFTER:
        return [part.text for part in wanted] + [f"UPDATE store SET version = {wanted[-1].number}"]
    if found.is_there:
        return [part.text for part in wanted] + [f"UPDATE store SET prepared = {last}"]
    both = sorted([*wanted, *parts(0, Half.AFTER)], key=lambda part: part.number)
    name = sql.Identifier(place.schema)
    return [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name).as_string(),
        *(part.text for part in both),
        "INSERT INTO store (uid, epoch, version, prepared) "
        "SELECT 'postgres-' || left(replace(gen_random_uuid()::text, '-', ''), 16), "
        f"(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {last}, {last}",
    ]
