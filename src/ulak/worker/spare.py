"""Memory that a process of workers sets aside, and gives back once there is none: so it ends in order."""

from __future__ import annotations

import contextlib
import mmap

PARTS, PART_BYTES = 4, 8 * 2**20
"""Untouched, they take nothing of the machine's memory."""

_kept: list[mmap.mmap] = []


class Memory:
    """was_short: there was none left, where that was not for a job. Set it by hand: a call may need some."""

    __slots__ = ("was_short",)

    def __init__(self) -> None:
        self.was_short = False


MEMORY = Memory()


def set_aside() -> None:
    """Set it aside, unless there is too little left for that; once a process."""
    with contextlib.suppress(OSError, ValueError, MemoryError):
        while len(_kept) < PARTS:
            _kept.append(mmap.mmap(-1, PART_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def spend() -> None:
    """Give a part back, to who is about to end the process; earlier, a job may be taking all there is."""
    MEMORY.was_short = True
    if len(_kept) > 1:
        _kept.pop().close()


def is_short() -> bool:
    """Whether a process that has set some aside had none left, and is to end."""
    return MEMORY.was_short and bool(_kept)
