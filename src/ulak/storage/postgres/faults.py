"""What the server's and the library's errors mean to a caller of ulak, and which of them are tried again.

Nothing of an error but its code, its condition's name and, where it is about the server itself, its first
line is told on: a detail may hold a row, and so a payload.
"""

from __future__ import annotations

import psycopg
from psycopg import errors

from ulak.errors import (
    SchemaError,
    StorageBusy,
    StorageFull,
    StorageUnavailable,
    UlakError,
)

UNIQUE = "23505"
LOCKED = "55P03"
AGAIN = frozenset({"40001", "40P01", UNIQUE})
"""Serialisation failure, deadlock, a key that another call has stored just now: the step is run again."""

_BUSY = frozenset({LOCKED, "57014", *AGAIN, "25P03", "55006"})
_FULL = frozenset({"53100", "53200", "53400"})
_SCHEMA = frozenset({"42P01", "42703", "42883", "3F000", "42704", "42P02"})
READ_ONLY = "25006"
_DENIED = "42501"
_AWAY = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300"})
"""The server shuts down, starts, was told to end the session, or takes no more."""


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection ended with it, so that another one may do better."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _AWAY or state.startswith("08")


def is_of_all(error: psycopg.Error) -> bool:
    """Whether what was waited for is what all calls of a kind need: room of their queue, or its tallies.

    Else it is a job or a key, which one of them needs. The server names what it waited for, if at all.
    """
    context = error.diag.context or ""
    return "has_room" in context or '"tallies"' in context


def explained(error: psycopg.Error, place: str, *, is_unknown: bool = False) -> UlakError:
    """An error as callers get it. is_unknown: a commit was sent, and whether it came through is not known."""
    state = error.sqlstate or ""
    if is_unknown and is_lost(error):
        return StorageUnavailable(
            f"{place} ended the connection before it said whether the call is stored ({_name(error)})\n"
            f"  look, or repeat it: safe for a settlement, and under an idempotency key"
        )
    if is_lost(error):
        return StorageUnavailable(
            f"{place} cannot be reached ({_reason(error)}); nothing was changed\n"
            f"  see whether the server runs and takes connections, then try again"
        )
    if state in _BUSY:
        return StorageBusy(
            f"others hold what this call needs in {place} ({_name(error)}); nothing was changed\n"
            f"  look for a transaction that is kept open there, then try again"
        )
    if state in _FULL:
        return StorageFull(
            f"{place} has no space left ({_name(error)}); nothing was changed\n"
            f"  make room on the server's disk; workers go on by themselves then"
        )
    if state == READ_ONLY:
        return StorageUnavailable(
            f"{place} takes no writes; nothing was changed\n"
            f"  it is a standby, or set to read only: name the primary, as by target_session_attrs=read-write"
        )
    if state in _SCHEMA:
        return SchemaError(
            f"{place} has no store of this version ({_name(error)}); nothing was changed\n"
            f"  ulak migrate makes it, or correct the URL's schema="
        )
    if state == _DENIED:
        return StorageUnavailable(
            f"this user may not do that in {place}; nothing was changed\n"
            f"  its owner runs ulak migrate, and what ulak migrate --grants prints; see ulak doctor"
        )
    return StorageUnavailable(f"{place} refused a statement of ulak ({_name(error)}); nothing was changed")


def unreachable(error: psycopg.Error, place: str) -> StorageUnavailable:
    """A connection that could not be made."""
    return StorageUnavailable(
        f"{place} cannot be reached ({_reason(error)}); nothing was changed\n"
        f"  see whether the server runs, and the URL's host, database, user and password"
    )


def _name(error: psycopg.Error) -> str:
    if error.sqlstate is None:
        return type(error).__name__
    try:
        return f"{errors.lookup(error.sqlstate).__name__}, {error.sqlstate}"
    except KeyError:
        return error.sqlstate


def _reason(error: psycopg.Error) -> str:
    """The first line of what the library says about a connection, which holds no more than host and user."""
    if error.sqlstate is not None:
        return _name(error)
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
