"""This process's connections to one file: how they are set, how a transaction is run, what errors mean.

The library's WAL-reset fault (3.7.0 to 3.51.2, but 3.44.6 and 3.50.7) can lose committed pages when a
checkpoint overlaps a commit that starts the log anew. So the library's own checkpoints are switched off, and
ulak's run from a second connection while the first holds the write lock: then nobody can commit meanwhile.
Only PASSIVE ones: with the write lock held any other kind waits out its whole time, and then is one too.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ulak.clock import MACHINE, pause
from ulak.errors import (
    Closed,
    SchemaError,
    StorageBusy,
    StorageFull,
    StorageGone,
    StorageUnavailable,
    UlakError,
)
from ulak.storage.sqlite.descriptors import are_open, identity, torn
from ulak.storage.stored import text_from

BUSY_S = 10.0
"""How long a call waits for others who hold the file, before StorageBusy."""

NO_FILE = (0, 0)

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.0002, 0.003

CHECKPOINT_PAGES = 1_500
"""After so many pages written to the log, as far as can be told, it is written back: some 6 MB."""

COMMIT_PAGES = 6
"""What a commit writes beside the rows: counters, and the upper pages of the trees."""

SCALE_MIN, SCALE_MAX = 0.1, 4.0
"""How far the estimate of pages a row is corrected by what a checkpoint found."""

JOURNAL_SIZE_LIMIT = 8 * 1024 * 1024
LOG_BYTES = JOURNAL_SIZE_LIMIT + 256 * 1024
LOOK_COMMITS = 4
"""A log longer than that is written back, whoever has filled it; looked at after so many of one's commits."""

PINNED_PAGES = 2_000
PINNED_S = 1.0
PINNED_PAUSE_S = 0.005
"""Readers that pin a log of so many pages are waited for, that long at most, looking that often."""

FILES_S = 0.1
"""How often it is looked whether the files are still those that were opened."""

FORK_WAIT_S = 30.0
_COPIED_BYTES = 1024 * 1024

_SETTINGS = (
    "wal_autocheckpoint = 0",
    "temp_store = MEMORY",
    "trusted_schema = OFF",
    "synchronous = FULL",
)

R = TypeVar("R")

_left_open: list[Link] = []

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_HEAD = b"SQLite format 3\0"
_UNREADABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Options(msgspec.Struct, frozen=True):
    """How a file is opened. durability: full or relaxed. journal: wal, truncate, or as the file has it."""

    durability: str = "full"
    journal: str | None = None


class Link:
    """The connections of one process to one file; one thread at a time may write, and one read."""

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.options = options
        self.journal = ""
        self.writer = connect(self.path)
        self._synchronous = ""
        self._checkpointer: sqlite3.Connection | None = None
        self._pages = 0.0
        self._scale = 1.0
        # COMMIT was begun; after a strike: and came through.
        self._is_committing = False
        self.commits = 0
        self._shared_commits = 0
        self._is_pinned = False
        self._is_suspect = self._is_torn = False
        self._files: dict[str, tuple[int, int]] = {}
        self._files_at = 0.0
        try:
            self.set_journal()
            self.reader = connect(self.path)
        except BaseException:
            self.writer.close()
            raise
        # Nobody may close a connection while another thread is inside the library with it.
        self._read_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._is_closed = False

    def set_journal(self) -> None:
        """Put the file into the journal mode that was asked for."""
        is_new, present = self._patiently("PRAGMA user_version") == 0, self._patiently("PRAGMA journal_mode")
        wanted = self.options.journal or ("wal" if is_new or present == "wal" else "truncate")
        mode = self._patiently(f"PRAGMA journal_mode = {wanted}")
        if mode != wanted:
            raise StorageUnavailable(
                f'"{self.path}" stays in journal mode {mode!r}, and cannot be put into {wanted!r}\n'
                f"  close other programs that have it open, or move it to a local disk"
            )
        self.journal = wanted
        if wanted == "wal":
            self._patiently(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT}")

    def _patiently(self, statement: str) -> Any:  # noqa: ANN401 - what the library says
        return with_patience(lambda: self.writer.execute(statement).fetchone()[0], self.path)

    def close(self) -> None:
        """Close everything. The last connection to a file writes its log back and removes it."""
        # While somebody writes this is not the last one.
        if self._is_suspect and self._is_free():
            with contextlib.suppress(UlakError):
                self.transact(lambda _: None, soft=True)
        with self._write_lock, self._read_lock:
            self.let_go()

    def _is_free(self) -> bool:
        """Whether nobody else writes just then."""
        with self._write_lock:
            try:
                self.writer.execute("BEGIN IMMEDIATE")
                self.writer.execute("ROLLBACK")
            except sqlite3.Error:
                return False
        return True

    def read_anew(self) -> None:
        """Open the connection for reads again.

        One that was opened before the schema was made looks at it only when it can begin a read, and in a
        rollback journal others may be in the way of that.
        """
        with self._read_lock:
            self.reader.close()
            self.reader = connect(self.path)

    def stop(self) -> bool:
        """Have nobody inside the library, as a fork needs it; False if somebody stays there for too long."""
        if not self._write_lock.acquire(timeout=FORK_WAIT_S):
            return False
        if not self._read_lock.acquire(timeout=FORK_WAIT_S):
            self._write_lock.release()
            return False
        return True

    def go_on(self) -> None:
        """After `stop`."""
        self._read_lock.release()
        self._write_lock.release()

    def let_go(self) -> None:
        """Close the connections, while nobody is inside the library with one.

        In a forked child, after a `stop` in its parent, too: no transaction is open, so it writes nothing.
        """
        self._is_closed = True
        if self._is_torn:
            # The numbers that it would close may be those of other files by now.
            _left_open.append(self)
            return
        for db in (self.reader, self._checkpointer, self.writer):
            if db is not None:
                with contextlib.suppress(sqlite3.Error):
                    db.close()

    def remember_files(self) -> None:
        """Note which files are open; called when they are all there."""
        suffixes = ("", "-wal", "-shm") if self.journal == "wal" else ("",)
        self.read(lambda db: db.execute("SELECT count(*) FROM sqlite_schema").fetchone())
        self._files = {path: _identity(path) for path in (self.path + suffix for suffix in suffixes)}
        self._sync_directory()

    def _sync_directory(self) -> None:
        """Have the files' names on the disk; the library does not tell when that fails."""
        try:
            fd = os.open(Path(self.path).parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageUnavailable(
                f'the directory of "{self.path}" cannot be written: {error.strerror}\n  look at its disk'
            ) from error

    def _check_files(self) -> None:
        """Raises StorageGone if what is written is not what others find under the name.

        Not at each commit: a file that was looked at gets a finer time stamp with its next write, and the
        sync after that takes twice as long.
        """
        now = MACHINE.interval()
        if now < self._files_at:
            return
        for path, known in self._files.items():
            if _identity(path) != known:
                raise StorageGone(
                    f'"{path}" was removed or replaced while it was open; what was stored since may be lost\n'
                    f"  stop all programs that use it, then start them again"
                )
        # Not before: what is known to be lost must take nothing in.
        self._files_at = now + FILES_S

    def _check_descriptors(self, error: UlakError) -> None:
        """Raises StorageGone if that is the error's reason: other code has closed what the library has open.

        It would go on with their numbers, whatever files these have become, and tries for long.
        """
        if isinstance(error, StorageGone) or self._is_closed:
            return
        files = dict.fromkeys(set(self._files.values()) - {NO_FILE}, 1)
        if self.path in self._files:
            files[self._files[self.path]] = 2 + (self._checkpointer is not None)
        if not are_open(files):
            self._is_torn = True
            raise torn(self.path) from error

    def _check_open(self) -> None:
        if self._is_torn:
            raise torn(self.path)
        if self._is_closed:
            raise Closed("this store is closed; make another handle on it")

    def transact(self, step: Callable[[sqlite3.Connection], R], *, soft: bool) -> R:
        """Run a step in a transaction of its own, durable before the return unless it is soft.

        Raises what the step raises, after a rollback; StorageBusy, StorageFull, StorageUnavailable.
        """
        with self._write_lock:
            self._check_open()
            try:
                return self._transact(self.writer, step, soft=soft)
            except (StorageUnavailable, SchemaError) as error:
                self._check_descriptors(error)
                raise

    def _transact(self, db: sqlite3.Connection, step: Callable[[sqlite3.Connection], R], *, soft: bool) -> R:
        # Left open where a strike, Ctrl-C for one, fell into the end of the one before.
        self.roll_back()
        self._is_committing = False
        try:
            self.set_synchronous(soft=soft)
            with_patience(lambda: db.execute("BEGIN IMMEDIATE"), self.path)
            if self._is_suspect:
                self._write_log_again()
            result = step(db)
            self._is_committing = True
            if self.journal == "wal":
                db.execute("COMMIT")
            else:
                with_patience(lambda: db.execute("COMMIT"), self.path)
        except sqlite3.Error as error:
            self._suspect(error)
            self.roll_back()
            raise explained(error, self.path) from error
        except BaseException:
            # A strike, before the commit or after it.
            self._is_committing &= not db.in_transaction
            self.roll_back()
            raise
        if not soft:
            # Whoever is told that something is stored must find it again.
            self._check_files()
        return result

    @property
    def has_committed(self) -> bool:
        """Whether the last transaction was committed, for who was struck amid it."""
        return self._is_committing and not self.writer.in_transaction

    def explained(self, error: Exception) -> Exception:
        """An error of a step, as callers get it."""
        if not isinstance(error, sqlite3.Error):
            return error
        self._suspect(error)
        said = explained(error, self.path)
        try:
            self._check_descriptors(said)
        except StorageGone as gone:
            return gone
        return said

    def doubt_log(self) -> None:
        """Write the log anew before anything else is written."""
        self._is_suspect = self.journal == "wal"

    def _suspect(self, error: sqlite3.Error) -> None:
        self._is_suspect |= _primary(error) == sqlite3.SQLITE_IOERR

    def _write_log_again(self) -> None:
        """Write the log anew after a failed sync: the system may take pages for written that are not.

        Called with the write lock held. The log, unlike the database, may be opened beside the library: no
        record lock is ever taken on it.
        """
        try:
            fd = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._is_suspect = False
            return
        except OSError as error:
            raise StorageUnavailable(
                f'the log of "{self.path}" cannot be opened: {error.strerror}'
            ) from error
        try:
            at = 0
            while part := os.pread(fd, _COPIED_BYTES, at):
                os.pwrite(fd, part, at)
                at += len(part)
            os.fsync(fd)
            self._sync_directory()
        except OSError as error:
            raise StorageUnavailable(
                f'the log of "{self.path}" cannot be written: {error.strerror}'
            ) from error
        finally:
            os.close(fd)
        self._is_suspect = False

    def roll_back(self) -> None:
        """Undo the open transaction, if there is one."""
        with contextlib.suppress(sqlite3.Error):
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")

    def set_synchronous(self, *, soft: bool) -> None:
        """Say whether the next commit waits for the disk. In a rollback journal every commit must."""
        wal = self.journal == "wal"
        level = "NORMAL" if wal and (soft or self.options.durability == "relaxed") else "FULL"
        if level != self._synchronous:
            # Not known, should a strike fall in between.
            self._synchronous = ""
            self.writer.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for reads, alone, in one snapshot."""
        with self._read_lock:
            self._check_open()
            db = self.reader
            try:
                with_patience(lambda: db.execute("BEGIN"), self.path)
                yield db
            except sqlite3.Error as error:
                raise explained(error, self.path) from error
            finally:
                with contextlib.suppress(sqlite3.Error):
                    if db.in_transaction:
                        db.execute("COMMIT")

    def read(self, look: Callable[[sqlite3.Connection], R]) -> R:
        """Run a look that changes nothing; again, if others hold the file just then."""

        def attempt() -> R:
            with self._read_lock:
                self._check_open()
                found = look(self.reader)
                self._check_files()
                return found

        try:
            return with_patience(attempt, self.path)
        except (StorageUnavailable, SchemaError) as error:
            self._check_descriptors(error)
            raise

    def note(self, rows: int, *, is_alone: bool) -> None:
        """Note how many rows a commit has written, and write the log back when it is time.

        is_alone: nobody else has committed since this process did. Else others fill the log too, and now and
        then its length is looked at.
        """
        self.commits += 1
        if self.journal != "wal":
            return
        is_due = self.fill(rows)
        if not (is_due or is_alone):
            self._shared_commits += 1
            is_due = self._shared_commits % LOOK_COMMITS == 0 and self._log_bytes() > LOG_BYTES
        if is_due:
            # It is not needed now, so whoever is in the way may stay there.
            with contextlib.suppress(UlakError):
                self.checkpoint()

    def fill(self, rows: int) -> bool:
        """Count what a transaction writes to the log; whether it is time to write that back."""
        self._pages += (COMMIT_PAGES + rows) * self._scale
        if self.journal != "wal" or self._pages < CHECKPOINT_PAGES:
            return False
        self._pages = 0
        return True

    def _log_bytes(self) -> int:
        """How long the log's file is: at most JOURNAL_SIZE_LIMIT if it was begun anew since it was longer."""
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except OSError:
            return 0

    def _outwait_readers(self, db: sqlite3.Connection, log: int, done: int) -> tuple[int, int]:
        """Where readers keep a long log from being written back whole, hold writers until they have gone.

        Whoever reads for longer than that is not waited for again before a checkpoint has gone through.
        """
        if done >= log:
            self._is_pinned = False
        elif log > PINNED_PAGES and not self._is_pinned:
            until = MACHINE.interval() + PINNED_S
            while done < log and MACHINE.interval() < until:
                pause(PINNED_PAUSE_S)
                _, log, done = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._is_pinned = done < log
        return log, done

    def checkpoint(self) -> tuple[int, int]:
        """Write the log back, guarded; (frames in the log, frames written back)."""
        with self._write_lock:
            self._check_open()
            return self._checkpoint()

    def _checkpoint(self) -> tuple[int, int]:
        if self._checkpointer is None:
            self._checkpointer = connect(self.path)
        other = self._checkpointer
        self.roll_back()
        try:
            self.set_synchronous(soft=False)
            with_patience(lambda: self.writer.execute("BEGIN IMMEDIATE"), self.path)
            if self._is_suspect:
                self._write_log_again()
            _, log, done = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            # How many pages that many rows really were, so that the next one comes when it is due.
            self._scale = min(SCALE_MAX, max(SCALE_MIN, self._scale * log / CHECKPOINT_PAGES))
            log, done = self._outwait_readers(other, log, done)
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            self.roll_back()
        return log, done


def _identity(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return NO_FILE
    return identity(found)


def connect_to_look(path: str) -> sqlite3.Connection:
    """A connection that leaves the file as it is, as long as it only looks.

    Who may write would write a log back when it closes; who may not could not roll a rollback journal back.
    """
    return connect(path, only_reads=Path(f"{path}-wal").exists())


def connect(path: str, *, only_reads: bool = False) -> sqlite3.Connection:
    """A connection set as all of ulak's are: no waiting inside the library, no checkpoints of its own."""
    place = f"{Path(path).absolute().as_uri()}?mode={'ro' if only_reads else 'rw'}"
    try:
        db = sqlite3.connect(
            place,
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise explained(error, path) from error
    try:
        db.text_factory = text_from
        for setting in _SETTINGS:
            # Whoever opens the file just then, or writes its log back, is in the way of some of these.
            with_patience(partial(db.execute, f"PRAGMA {setting}"), path)
    except BaseException:
        db.close()
        raise
    return db


def with_patience(call: Callable[[], R], path: str) -> R:
    """Call until nobody is in the way, at most BUSY_S. Raises StorageBusy then, or what else is wrong."""
    until = None
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise explained(error, path) from error
            if until is None:
                until = MACHINE.interval() + BUSY_S
            elif MACHINE.interval() >= until:
                raise explained(error, path) from error
        except sqlite3.Error as error:
            raise explained(error, path) from error
        pause(_PAUSE_MIN_S, _PAUSE_MAX_S)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether others hold the file."""
    return _primary(error) in _BUSY


def _primary(error: sqlite3.Error) -> int:
    """The library's error code, without what refines it."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _begins_as_one(path: str) -> bool:
    """Whether a file begins as SQLite's do; also where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except OSError:
        return True


def explained(error: sqlite3.Error, path: str) -> UlakError:
    """The library's error as ulak's."""
    code = _primary(error)
    if code in _BUSY:
        return StorageBusy(
            f'others have held "{path}" for {BUSY_S:g} s; nothing was changed\n'
            f"  look for a program that keeps a transaction open on it, then try again"
        )
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(
            f'no space is left for "{path}"; nothing was changed\n  free some on its disk, then try again'
        )
    if code == sqlite3.SQLITE_NOTADB and not _begins_as_one(path):
        return SchemaError(
            f'"{path}" is no SQLite database\n  name the file of a store, or one that is not there yet'
        )
    if code in _UNREADABLE:
        return SchemaError(f'"{path}" is no whole SQLite database: {error}\n  restore it from a backup')
    if code == sqlite3.SQLITE_READONLY:
        return StorageUnavailable(f'"{path}" cannot be written: {error}\n  see its owner and mode')
    return StorageUnavailable(
        f'"{path}" did not answer: {error}\n'
        f"  whether the call took effect is unknown; look at the disk, then repeat it"
    )
