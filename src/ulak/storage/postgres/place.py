"""Where a PostgreSQL store lives: what its URL says, without a look at any library or server."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec

from ulak.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "ulak"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]#\0]*)(:[0-9]*)?")
_SHOWN = frozenset({"host", "hostaddr", "port", "dbname"})
_NOT_OURS = re.compile(r"pg_.*|public|information_schema")


class Place(msgspec.Struct, frozen=True):
    """conninfo: what the library is given, secrets included. schema: the schema that holds the store."""

    conninfo: str
    schema: str = DEFAULT_SCHEMA

    def __repr__(self) -> str:
        return f"Place({self})"

    def __str__(self) -> str:
        """The store as it may be shown: the servers and the database, no user, password or other option."""
        place, _, _ = self.conninfo.partition("?")
        _, _, rest = place.partition("://")
        _, at, after = rest.rpartition("@")
        told = {name: value for name, value in options_of(self).items() if name in _SHOWN}
        if self.schema != DEFAULT_SCHEMA:
            told["schema"] = self.schema
        query = f"?{urlencode(told, safe='/,')}" if told else ""
        return f"postgresql://{'***@' if at else ''}{after}{query}"


def place_of(url: str) -> Place:
    """Takes `schema=` out of `postgresql://user@host/name?schema=jobs`; the rest is the library's.

    Raises ConfigError, without any part of the URL that may be secret.

    >>> place_of("postgresql://ada:secret@db.example/app?schema=jobs")
    Place(postgresql://***@db.example/app?schema=jobs)
    """
    place, mark, query = url.partition("?")
    _check_whole(place, query)
    kept, schemas = [], []
    for part in query.split("&") if mark else []:
        name, _, value = part.partition("=")
        if unquote(name) == "schema":
            schemas.append(unquote(value))
        elif part:
            kept.append(part)
    if len(schemas) > 1:
        raise ConfigError("schema= is given twice in the store's URL")
    schema = schemas[0] if schemas else DEFAULT_SCHEMA
    if not _SCHEMA.fullmatch(schema) or _NOT_OURS.fullmatch(schema):
        raise ConfigError(
            f"schema= names a schema of ulak's own: it matches {_SCHEMA.pattern}, and is not public "
            f"or pg_...; got {schema[:70]!r}"
        )
    _, _, rest = place.partition("://")
    return Place(f"postgresql://{rest}{'?' if kept else ''}{'&'.join(kept)}", schema)


def _check_whole(place: str, query: str) -> None:
    """Refuse what would be read otherwise than it was meant, and be shown in parts as what it is not."""
    authority, _, database = place.partition("://")[2].partition("/")
    *users, hosts = authority.split("@")
    is_meant = len(users) <= 1 and all(_HOST.fullmatch(host) for host in hosts.split(","))
    if not is_meant or any(mark in part for part in (database, query) for mark in "@#\0") or "#" in authority:
        raise ConfigError(
            "the URL of a PostgreSQL store cannot be read: it is postgresql://user:password@host:port/database\n"
            "  write @ : / ? # % in a user or a password as %40 %3A %2F %3F %23 %25"
        )


def options_of(place: Place) -> dict[str, str]:
    """The options after the question mark, as the library will read them."""
    return dict(parse_qsl(place.conninfo.partition("?")[2], keep_blank_values=True))
