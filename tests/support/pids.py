"""What the system says of processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

OF_THE_RUN: set[int] = set()
"""Children of this process that serve all of its tests, and are none of theirs."""


def children_of(pid: int | None = None) -> list[int]:
    """The processes that a process (None: this one) has started and has not let go of.

    Without those of the whole run.
    """
    found: list[int] = []
    for thread in Path(f"/proc/{os.getpid() if pid is None else pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found += map(int, (thread / "children").read_text().split())
    return [child for child in found if child not in OF_THE_RUN]


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def is_alive(pid: int) -> bool:
    """Whether a thread of the process is left: it is neither gone nor a zombie that nobody has reaped yet.

    A process whose main thread is dead may have another one that still waits for the disk.
    """
    process = Path(f"/proc/{pid}")
    try:
        is_zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(list((process / "task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
