"""Whether the process that took a job still lives, by record locks that the system drops when one dies.

A record lock (`fcntl.lockf`) belongs to one process: a forked child does not inherit it, so a handler's
surviving child does not keep a dead worker alive. Its one trap: closing *any* descriptor of a file drops the
lock its process has on it. So each process has a file of its own that it never opens a second time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import threading
from pathlib import Path

from ulak.clock import SYSTEM
from ulak.errors import StorageFull, StorageUnavailable
from ulak.storage.sqlite.descriptors import identity, torn

_SWEPT_MAX = 200
_SUFFIX = ".lock"
_END = re.compile(r"(by|with) [A-Za-z0-9 ]+")
_END_BYTES_MAX = 50
_NOTED_S = 60.0
"""For so long a note of how a process has ended is left to whoever reclaims what it held."""

# Tokens come from a file that anybody who may write it can have edited: only these become file names.
_TOKEN = re.compile(r"[0-9a-f]{32}")

# Tokens taken by this process. Looking at one of their files would drop its lock.
_own: set[str] = set()
os.register_at_fork(after_in_child=_own.clear)


class Presence:
    """This process's presence beside a database file, and a look at others'."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._token = secrets.token_hex(16)
        self._fd: int | None = None
        # What the descriptor was opened on: other code may close it, and another file gets its number.
        self._file = (0, 0)
        self._is_torn = False

    @property
    def token(self) -> str:
        """What names this process to the others: 32 hex digits, used by nobody before."""
        self.after_fork()
        return self._token

    def take(self) -> None:
        """Be present from now on. Taken already: nothing, unless the file was removed; then it is made again.

        Call it before the token is written where others read it. Raises StorageGone if code beside ulak has
        closed it: the others have found this process gone, or will.
        """
        self.after_fork()
        with self._lock:
            if self._is_torn or (self._fd is not None and not self._is_ours(self._fd)):
                self._fd, self._is_torn = None, True
                raise torn(str(self._directory).removesuffix("-workers"))
            if self._fd is not None and self._is_named():
                return
            try:
                fd = self._locked_file()
            except OSError as error:
                if self._fd is None:
                    _own.discard(self._token)
                raise _unusable(self._directory, error) from error
            if self._fd is not None:
                os.close(self._fd)
            self._fd, self._file = fd, identity(os.fstat(fd))
            self._sweep()

    def drop(self) -> None:
        """Be absent from now on: release the lock and remove the file. Not taken: nothing."""
        self.after_fork()
        with self._lock:
            if self._fd is None:
                return
            # Removed before it is released, so that nobody finds it unlocked; own until then.
            _remove(self._path(self._token))
            if self._is_ours(self._fd):
                os.close(self._fd)
            self._fd = None
            _own.discard(self._token)

    def after_fork(self) -> None:
        """In a forked child: start anew with a token of its own, untaken; the parent's stays the parent's.

        In the process that made it: nothing. A child that does not call it does so at its first other call.
        """
        if self._pid == os.getpid():
            return
        fd = self._fd if self._fd is not None and self._is_ours(self._fd) else None
        self._reset()
        if fd is not None:
            # The lock is the parent's process's, so closing the child's descriptor does not touch it.
            os.close(fd)

    def is_present(self, token: str) -> bool:
        """Whether that token's process lives now; if that cannot be told, yes: the deadline then decides."""
        if token in _own:
            return True
        return _is_token(token) and not _is_free(self._path(token))

    @property
    def path(self) -> str:
        """This process's file, once it is taken; its parent may write there how it has ended."""
        return str(self._path(self.token))

    def end_of(self, token: str) -> str:
        """How the process of a token that is gone has ended, as its parent noted it; else ""."""
        if not _is_token(token) or token in _own:
            return ""
        try:
            fd = os.open(self._path(token), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ""
        try:
            noted = os.read(fd, _END_BYTES_MAX).decode("ascii", "replace")
        except OSError:
            return ""
        finally:
            os.close(fd)
        return noted if _END.fullmatch(noted) else ""

    def forget(self, token: str) -> None:
        """Remove the file that is left of a token that is gone."""
        if _is_token(token) and token not in _own and _is_free(self._path(token)):
            _remove(self._path(token))

    def _path(self, token: str) -> Path:
        return self._directory / f"{token}{_SUFFIX}"

    def _is_ours(self, fd: int) -> bool:
        """Whether this descriptor is still the one of the file that was locked."""
        try:
            return identity(os.fstat(fd)) == self._file
        except OSError:
            return False

    def _is_named(self) -> bool:
        """Whether the file that this process has locked is still there under its name."""
        try:
            return identity(os.lstat(self._path(self._token))) == self._file
        except OSError:
            return False

    def _locked_file(self) -> int:
        """A descriptor of this process's file, new and locked."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        _own.add(self._token)
        # It gets its name once it is locked: nobody ever finds it unlocked and takes this process for gone.
        unnamed = self._directory / f"{self._token}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(unnamed, flags, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self._path(self._token))
        except OSError:
            _remove(unnamed)
            os.close(fd)
            raise
        return fd

    def _sweep(self) -> None:
        """Remove files of processes that were killed; a bounded number, so that starting stays quick."""
        with os.scandir(self._directory) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_SWEPT_MAX), strict=False)]
        for name in names:
            token = name.removesuffix(_SUFFIX)
            if name.endswith(_SUFFIX) and _is_token(token) and token not in _own:
                path = self._path(token)
                if not _is_fresh_note(path) and _is_free(path):
                    _remove(path)


def _is_token(token: object) -> bool:
    return isinstance(token, str) and _TOKEN.fullmatch(token) is not None


def _is_free(path: Path) -> bool:
    """Whether nobody holds this file's lock, or there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    try:
        # Shared, so that two processes that look at the same moment do not take each other for the holder.
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_fresh_note(path: Path) -> bool:
    """Whether it was noted just now how its process has ended."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_size > 0 and 0 <= SYSTEM.calendar() - found.st_mtime < _NOTED_S


def _remove(path: Path) -> None:
    """Remove a file if it is there and can be; one that stays is only clutter."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _unusable(directory: Path, error: OSError) -> StorageFull | StorageUnavailable:
    text = f'cannot keep this process\'s file in "{directory}": {error.strerror or error}'
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"{text}; free some space")
    return StorageUnavailable(f"{text}; make the directory writable for this user")
