"""Steps inside a transaction of the caller's own: they are stored when it commits, and only then.

Nothing here waits: the caller holds the transaction, so nobody else could make room meanwhile.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from ulak.clock import Clock
from ulak.errors import ArgumentError, StorageBusy
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.link import explained, is_busy

R = TypeVar("R")


class _Plain:
    """A caller's connection as ulak uses it: rows are tuples, whatever the caller made of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """As the connection's."""
        return self._cursor().execute(statement, cast("Any", values))

    def executemany(self, statement: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        """As the connection's."""
        return self._cursor().executemany(statement, rows)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor


def run_joined(connection: object, path: str, clock: Clock, step: Callable[[Ledger], R]) -> R:
    """Run a step in the transaction open on a connection to this file; one that fails leaves nothing.

    Raises ArgumentError if the connection is not on this file, or not in a transaction; StorageBusy if
    others write, or have written since that transaction began to read.
    """
    db = _checked(connection, path)
    plain = _Plain(db)
    try:
        # A foreign writer's own checkpoints are what the library's WAL-reset fault needs.
        plain.execute("PRAGMA wal_autocheckpoint = 0")
        plain.execute("SAVEPOINT ulak")
        try:
            ledger = Ledger(cast("sqlite3.Connection", plain), clock.interval(), clock.calendar())
            result = step(ledger)
            ledger.flush()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                plain.execute("ROLLBACK TO ulak")
                plain.execute("RELEASE ulak")
            raise
        plain.execute("RELEASE ulak")
    except sqlite3.Error as error:
        if is_busy(error):
            raise StorageBusy(
                f'others write "{path}", or have since this transaction began to read; nothing was changed\n'
                f"  roll it back and try again, best from BEGIN IMMEDIATE"
            ) from error
        raise explained(error, path) from error
    return result


def _checked(connection: object, path: str) -> sqlite3.Connection:
    if not isinstance(connection, sqlite3.Connection):
        raise ArgumentError(
            f"connection= is a sqlite3.Connection to this store's file, got {type(connection).__name__}"
        )
    if not connection.in_transaction:
        raise ArgumentError(
            "connection= must be inside a transaction, which your commit ends: execute BEGIN IMMEDIATE first"
        )
    if connection.text_factory is not str:
        raise ArgumentError("connection= must have text_factory = str, as it has unless it is changed")
    files = [file for _, name, file in _Plain(connection).execute("PRAGMA database_list") if name == "main"]
    if not files or not files[0] or not _is_same(files[0], path):
        raise ArgumentError(f'connection= is on another database than "{path}"; a commit must cover both')
    return connection


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False
