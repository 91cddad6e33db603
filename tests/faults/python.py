"""What Python itself does to watched files: a store may mend a file that SQLite cannot."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from tests.faults import library as lib
from tests.faults.vfs import Call, Kind, Watch

_ERRNO = {lib.FULL: errno.ENOSPC, lib.BUSY: errno.EAGAIN}


@contextlib.contextmanager
def seen(watch: Watch) -> Iterator[None]:
    """Let `os.pwrite` and `os.fsync` on files of the directory be seen and struck like SQLite's calls.

    Those are what the store may use; another way of writing would go unseen, and look like a loss.
    """
    real_pwrite, real_fsync = os.pwrite, os.fsync

    def path_of(fd: int) -> str | None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        return path if path.startswith(watch.directory + "/") else None

    def make(call: Call, act: Callable[[], int]) -> int:
        with watch.lock:
            strike = watch.strike(call)
            if strike is not None:
                watch.failed(call, strike._replace(half_done=False))
                raise OSError(_ERRNO.get(strike.code, errno.EIO), "struck")
            done = act()
            watch.saw(call)
            return done

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        path = path_of(fd)
        if path is None:
            return real_pwrite(fd, data, offset)
        return make(Call(Kind.WRITE, path, offset, bytes(data)), lambda: real_pwrite(fd, data, offset))

    def fsync(fd: int) -> None:
        def act() -> int:
            real_fsync(fd)
            return lib.OK

        path = path_of(fd)
        if path is None:
            act()
        else:
            make(Call(Kind.SYNC, path), act)

    with mock.patch.multiple(os, pwrite=pwrite, fsync=fsync):
        yield
