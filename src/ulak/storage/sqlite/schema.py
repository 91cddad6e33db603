"""Which file is ulak's, of which version, and how an older one becomes this one."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from importlib import resources

from ulak.clock import boot_id
from ulak.errors import SchemaError

APPLICATION_ID = 0x756C616B
"""What SQLite keeps in the file's head: "ulak"."""

VERSION = 3
"""The newest schema this version knows: the number of its last migration."""

LIBRARY_MIN = (3, 37, 0)


def check_library() -> None:
    """Raises SchemaError if the SQLite library is too old for the schema."""
    if sqlite3.sqlite_version_info < LIBRARY_MIN:
        needed = ".".join(map(str, LIBRARY_MIN))
        raise SchemaError(
            f"this Python's SQLite library is {sqlite3.sqlite_version}; sqlite:// needs {needed} or newer\n"
            f"  use a newer Python or system; memory:// needs none"
        )


def version_of(db: sqlite3.Connection, path: str) -> int:
    """The schema's number, 0 for an empty file. Raises SchemaError for a newer file, or a stranger's."""
    with _one_snapshot(db):
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID:
        if application or version or tables:
            raise SchemaError(
                f'"{path}" is a SQLite database, but not one of ulak; nothing was changed\n'
                f"  give ulak a file of its own"
            )
        return 0
    if version < 1:
        raise SchemaError(
            f'"{path}" is ulak\'s, but the number of its schema is gone; nothing was changed\n'
            f"  restore it from a backup"
        )
    if version > VERSION:
        raise SchemaError(
            f'"{path}" has schema {version}, which is newer than {VERSION}, the newest this ulak knows\n'
            f"  update ulak; nothing was changed"
        )
    return int(version)


@contextlib.contextmanager
def _one_snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """What is read inside is of one moment: a store that another process makes just then is there, or not."""
    is_ours = not db.in_transaction
    if is_ours:
        db.execute("BEGIN")
    try:
        yield
    finally:
        if is_ours and db.in_transaction:
            db.execute("COMMIT")


def check_current(db: sqlite3.Connection, path: str) -> int:
    """The schema's number, 0 for an empty file. Raises SchemaError if it is not this version's.

    For who only looks, and so must not change the file under others that may be of an older version.
    """
    version = version_of(db, path)
    if 0 < version < VERSION:
        raise SchemaError(
            f'"{path}" has schema {version}, and this ulak works with {VERSION}\n'
            f"  bring it up to date: ulak migrate; a worker of this version does so too when it starts"
        )
    return version


def migrate(db: sqlite3.Connection, path: str, boot: str, now_at: float) -> None:
    """Bring the schema up to date, in the transaction that is open; idempotent."""
    version = version_of(db, path)
    for number in range(version + 1, VERSION + 1):
        for statement in statements(number):
            db.execute(statement)
    if version == 0:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("INSERT INTO queues (id, name) VALUES (0, '')")
        db.execute(
            "INSERT INTO store (id, uid, epoch, boot) VALUES (1, ?, ?, ?)",
            (f"sqlite-{secrets.token_hex(8)}", int(now_at * 1_000_000), boot),
        )
    if version < VERSION:
        db.execute(f"PRAGMA user_version = {VERSION}")


def begun(db: sqlite3.Connection, *, path: str) -> tuple[str, int] | None:
    """The store's name and epoch; None if there is something to do first."""
    if version_of(db, path) < VERSION:
        return None
    uid, epoch, boot = db.execute("SELECT uid, epoch, boot FROM store").fetchone()
    return (uid, epoch) if boot == boot_id() else None


def begin(db: sqlite3.Connection, *, path: str, now_at: float) -> tuple[str, int]:
    """Make the schema in an empty file, or bring it up to date; after a reboot, end all leases of before."""
    if version_of(db, path) < VERSION:
        migrate(db, path, boot_id(), now_at)
    uid, epoch, boot = db.execute("SELECT uid, epoch, boot FROM store").fetchone()
    if boot != boot_id():
        # Whoever held a lease is gone with the machine's last run. A claim that was not synced then may have
        # been lost, and its delivery's number comes again: so tokens grow by the epoch.
        epoch += 1
        db.execute("UPDATE store SET epoch = ?, boot = ?", (epoch, boot_id()))
        db.execute("UPDATE jobs SET lease_end = 0, holder = NULL WHERE state = 2")
        db.execute("DELETE FROM holders")
        db.execute("DELETE FROM workers")
    return uid, epoch


def statements(number: int) -> list[str]:
    """The statements of one migration."""
    text = resources.files(__package__).joinpath(f"migrations/{number:04}.sql").read_text(encoding="utf-8")
    found, part = [], ""
    for line in text.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found
