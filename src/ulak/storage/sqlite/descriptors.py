"""Whether what ulak has open in this process is still open: other code may close any number it likes."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ulak.errors import StorageGone

_OPEN_NOW = "/dev/fd"

Identity = tuple[int, int]


def identity(found: os.stat_result) -> Identity:
    """What tells one file from all others."""
    return found.st_dev, found.st_ino


def are_open(files: Mapping[Identity, int]) -> bool:
    """Whether this process has each of these files open, at least so many times; also where none can tell."""
    found: Counter[Identity] = Counter()
    try:
        for each in Path(_OPEN_NOW).iterdir():
            with contextlib.suppress(OSError):
                found[identity(os.fstat(int(each.name)))] += 1
    except OSError:
        return True
    return all(found[each] >= count for each, count in files.items())


def torn(path: str) -> StorageGone:
    """What is raised where other code has closed what ulak has open: nothing goes through any more."""
    error = StorageGone(
        f'"{path}" is lost to this process: a job, or other code in it, has closed its files\n'
        f"  start it again; look for os.close and os.closerange in what it runs"
    )
    error.is_lost_here_only = True
    return error
