"""The schema in the database: which version it has, and how an older one, or none, becomes this one."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from importlib import resources
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from ulak.errors import SchemaError
from ulak.storage.postgres.asks import Execute, Rows
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.faults import explained
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.place import Place

VERSION = 1
"""The newest schema this version knows: the number of its last migration."""

_LOCK = 0x756C616B
Begun: TypeAlias = tuple[Any, ...]
"""The store's name, its epoch, the server's time."""

_BEGUN = "SELECT uid, epoch, extract(epoch FROM clock_timestamp())::float8 FROM store"
# Asked of the catalogue itself: what looks names up may not have heard yet of what another has just made.
_TABLE = (
    "SELECT (SELECT oid FROM pg_class WHERE relnamespace = named.oid AND relname = 'store'), named.oid "
    "FROM (SELECT 1) AS always LEFT JOIN pg_namespace named ON named.nspname = %s"
)


def begun(place: Place) -> Generator[Execute, Rows, Begun | None]:
    """The store as it is now; None if there is something to do first. Raises SchemaError."""
    version = yield from version_of(place)
    if version < VERSION:
        return None
    (found,) = yield Execute(_BEGUN, alone=True)
    return found


def version_of(place: Place) -> Generator[Execute, Rows, int]:
    """The schema's number, 0 if there is none. Raises SchemaError for a newer one, or a stranger's."""
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
        return 0
    ((version,),) = yield Execute("SELECT version FROM store", alone=True)
    if version > VERSION:
        raise SchemaError(
            f"{place} has schema {version}, which is newer than {VERSION}, the newest this ulak knows\n"
            f"  update ulak; nothing was changed"
        )
    return int(version)


def check_current(place: Place) -> int:
    """The schema's number, 0 if there is none. Raises SchemaError if it is not this version's.

    For who only looks, and so must not change it under others that may be of an older version.
    """
    session = Session(place)
    try:
        version = session.drive(Attempt(version_of(place), session.begin, is_proxied=True).work())
    except psycopg.Error as error:
        raise explained(error, str(place)) from None
    finally:
        session.close()
    if 0 < version < VERSION:
        raise SchemaError(
            f"{place} has schema {version}, and this ulak works with {VERSION}\n"
            f"  a worker of this version brings it up to date when it starts: ulak work module:app"
        )
    return version


def begin(place: Place) -> Generator[Execute, Rows, Begun]:
    """Make the schema, or bring it up to date, in one transaction; of several at once, one does it."""
    yield Execute("SELECT set_config('lock_timeout', '30s', true)")
    yield Execute("SELECT pg_advisory_xact_lock(%s::int, hashtext(%s))", (_LOCK, place.schema))
    version = yield from version_of(place)
    if version == 0:
        name = sql.Identifier(place.schema)
        yield Execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name).as_string())
    for number in range(version + 1, VERSION + 1):
        yield Execute(statements(number))
    if version == 0:
        yield Execute(
            "INSERT INTO store (uid, epoch, version) "
            "VALUES (%s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, %s)",
            (f"postgres-{secrets.token_hex(8)}", VERSION),
        )
    elif version < VERSION:
        yield Execute("UPDATE store SET version = %s", (VERSION,))
    (found,) = yield Execute(_BEGUN)
    return found


def statements(number: int) -> str:
    """The statements of one migration."""
    return resources.files(__package__).joinpath(f"migrations/{number:04}.sql").read_text(encoding="utf-8")
