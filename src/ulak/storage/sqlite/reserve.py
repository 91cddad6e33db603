"""Space set aside beside a database file, so that jobs can be finished on a full disk.

On a full disk an acknowledgement still has to write: into the log, or into a rollback journal. What would
need room for new jobs is refused while the reserve is not there.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from pathlib import Path

from ulak.clock import MACHINE

WAL_BYTES = 8 * 1024 * 1024
"""As much as a log holds before it is written back, and more: a whole one must fit into the database."""

JOURNAL_BYTES = 1024 * 1024
LOOK_S = 0.1


class Reserve:
    """The reserve of one file. All processes that have the file open share it."""

    def __init__(self, path: str, reserve_bytes: int) -> None:
        self._path = Path(f"{path}-reserve")
        self._bytes = reserve_bytes
        self._looked_at = -math.inf

    def is_there(self) -> bool:
        """Whether it is as large as it should be; looked at now and then, since others may give it up."""
        now = MACHINE.interval()
        if now < self._looked_at + LOOK_S:
            return True
        try:
            found = self._path.stat().st_size >= self._bytes
        except OSError:
            return False
        if found:
            self._looked_at = now
        return found

    def hold(self) -> bool:
        """Set it aside, unless it is; False if there is no room for it."""
        if self.is_there():
            return True
        unfinished = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(unfinished, flags, 0o600)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(fd, 0, self._bytes)
                else:
                    os.pwrite(fd, bytes(self._bytes), 0)
            finally:
                os.close(fd)
            unfinished.rename(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return False
        return True

    def release(self) -> bool:
        """Give it up; whether there was any."""
        self._looked_at = -math.inf
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
