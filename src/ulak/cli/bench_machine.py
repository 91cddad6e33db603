"""What a run takes of its machine, and what others take meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from ulak import __version__
from ulak.clock import SYSTEM

_TICKS_MIN_S = 0.5
"""The system counts in hundredths of a second; in less time than this that says nothing."""


class Meter:
    """What a run takes of the machine: memory since this was made, processor time since it began."""

    def __init__(self) -> None:
        self._began_bytes = resident_bytes(os.getpid())
        self._peak_bytes = 0
        self.begin()

    def begin(self, pids: Iterable[int] = ()) -> None:
        """Count processor time from now on: these children have used some to get ready."""
        self._began_at, self._began_busy_s = SYSTEM.interval(), busy_s()
        self._began_cpu_s = _cpu_s() + sum(map(_cpu_of, pids))

    def look(self, pids: Iterable[int] = ()) -> None:
        """Look how much memory is in use, in this process and in children, of whom all is the run's."""
        now_bytes = resident_bytes(os.getpid()) or 0
        grown = max(0, now_bytes - (self._began_bytes or 0))
        children = sum(resident_bytes(pid) or 0 for pid in pids)
        self._peak_bytes = max(self._peak_bytes, grown + children)

    @property
    def memory_bytes(self) -> int | None:
        """The most memory that was in use beyond what was at first; None where the system does not tell."""
        return None if self._began_bytes is None else self._peak_bytes

    def cpu(self) -> tuple[float, float | None]:
        """Processor seconds of the run, and how many processors worked for others (None: unknown)."""
        took_s, used_s, busy = SYSTEM.interval() - self._began_at, _cpu_s() - self._began_cpu_s, busy_s()
        if busy is None or self._began_busy_s is None or took_s < _TICKS_MIN_S:
            return used_s, None
        return used_s, max(0.0, (busy - self._began_busy_s - used_s) / took_s)


def _cpu_s() -> float:
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _cpu_of(pid: int) -> float:
    """What a child that still runs has used; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def busy_s(path: Path = Path("/proc/stat")) -> float | None:
    """How long all processors together have worked since the boot; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = [int(word) for word in path.read_text("ascii").splitlines()[0].split()[1:9]]
        # user, nice, system, idle, iowait, irq, softirq, steal: what others took of a virtual machine counts.
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
    return None


def resident_bytes(pid: int) -> int | None:
    """Memory that is a process's own, without files and what it shares; None where nobody tells."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
        (line,) = (line for line in lines if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024
    return None


def machine() -> dict[str, object]:
    """What a reader of the figures must know of it."""
    return {
        "processors": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "switch_interval_s": sys.getswitchinterval(),
        "ulak": __version__,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2].strip()
    return platform.processor() or "unknown"
