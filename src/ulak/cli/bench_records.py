"""The moments of every job of a run, in memory that worker processes can share.

On the interval clock, which counts the same in all processes of a machine. 0 is what has not happened.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

COLUMNS = ("due", "called", "returned", "blocked", "started", "first_settled", "settled")
_ITEM_BYTES = 8
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - made by mkstemp, for this user alone


class Records:
    """A row for each job, by its ordinal; a context manager.

    due: when it should be enqueued. called, returned: its enqueue call. blocked: how long that slept for
    room. started: its handler first ran. first_settled: its first attempt was settled. settled: its last was.
    path: a file that another process has made by `shared`, or None for memory of this process alone.
    """

    def __init__(self, jobs: int, path: Path | None = None) -> None:
        size = max(1, len(COLUMNS) * jobs * _ITEM_BYTES)
        if path is None:
            # Pages come into being as they are written to.
            self._map = mmap.mmap(-1, size)
        else:
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), size)
        self._whole = memoryview(self._map).cast("d")
        parts = [self._whole[number * jobs : (number + 1) * jobs] for number in range(len(COLUMNS))]
        self.due, self.called, self.returned, self.blocked = parts[:4]
        self.started, self.first_settled, self.settled = parts[4:]
        self._parts = parts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in (*self._parts, self._whole):
            part.release()
        self._map.close()


def shared(jobs: int) -> Path:
    """A file for the records of so many jobs, in memory if there is room; whoever asks removes it."""
    size = max(1, len(COLUMNS) * jobs * _ITEM_BYTES)
    folders = [_SHARED_MEMORY] if os.access(_SHARED_MEMORY, os.W_OK) else []
    for folder in (*folders, Path(tempfile.gettempdir())):
        handle, name = tempfile.mkstemp(prefix="ulak-bench-", dir=folder)
        try:
            _reserve(handle, size)
        except OSError:
            Path(name).unlink()
            if folder is not _SHARED_MEMORY:
                raise
        else:
            return Path(name)
        finally:
            os.close(handle)
    raise AssertionError("a folder was left")


def _reserve(handle: int, size: int) -> None:
    """Make the file so large, at once: else whoever writes where there is no room dies of it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)
