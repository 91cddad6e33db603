"""What ends a worker process beside signals: its memory, threads that die or hang, and changed source."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ulak.cli.options import spelled_size
from ulak.clock import SYSTEM
from ulak.worker import spare

if TYPE_CHECKING:
    from ulak.worker.pool import Pool

LOOK_S = 1.0
"""How often memory and files are looked at."""

DEAD_LOOKS = 4
"""At how many looks in a row a worker is dead that nobody replaces: its pool looks as often."""

NO_MEMORY = "it has no memory left"

FILES_MAX = 10_000
_STATM = Path("/proc/self/statm")

Look = Callable[[], str | None]
"""Tells why the process is to end, or None."""


def watch(look: Look, on_found: Callable[[str], object]) -> None:
    """Look again and again, from a thread of its own, until that tells something; pass it on."""

    def go() -> None:
        try:
            while (why := look()) is None:
                SYSTEM.wait(threading.Event(), LOOK_S)
        except MemoryError:
            why = NO_MEMORY
        on_found(why)

    threading.Thread(target=go, name="ulak-look", daemon=True).start()


# Memory


def rss_bytes() -> int:
    """How much memory this process takes now; where that cannot be had, the most that it has ever taken."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def no_memory() -> str | None:
    """Tells when this process had no memory left where that was not for a job."""
    return NO_MEMORY if spare.is_short() else None


def too_large(max_bytes: int) -> Look:
    """Tells when this process takes more than so much."""

    def look() -> str | None:
        taken = rss_bytes()
        return f"it takes {spelled_size(taken)} of memory" if taken > max_bytes else None

    return look


# Threads that die, and that hang


def dead_threads(pool: Pool, count: int) -> Look:
    """Tells when workers of a pool have died and stay so: the system gives no memory, or no more threads."""
    looks = 0

    def look() -> str | None:
        nonlocal looks
        dead = pool.dead
        looks = looks + 1 if dead else 0
        if looks < DEAD_LOOKS:
            return None
        have, others = ("has", "no other") if dead == 1 else ("have", "no others")
        return f"{dead} of its {count} workers {have} died, and {others} can be started"

    return look


def too_many_late(pool: Pool, count: int, *, is_replaced: bool) -> Look:
    """Tells when too many of a pool's workers have jobs that go on though their timeout is over.

    Of a process that is replaced, half: a start costs less than what they would have run. Else all that are
    left: nobody may start another, and as long as a worker is free it is worth more than none.
    """
    from ulak.worker.overseer import shown

    def look() -> str | None:
        late, left = pool.late, pool.size
        enough = min(left, (count + 1) // 2) if is_replaced else left
        if not late or len(late) < enough:
            return None
        text = "workers have jobs that go on though their timeout is over"
        return f"{len(late)} of its {count} {text}: {shown(late)}"

    return look


def only_late(pool: Pool) -> Look:
    """Tells when nothing else runs any more in a pool that takes no more jobs."""
    return lambda: "only late" if 0 < pool.size <= len(pool.late) else None


# Source


class Sources:
    """Python files below a folder, and when each was last changed.

    files: which they are now. since: what was changed after this instant, of the wall clock, and before the
    first look is a change too. sees_new: so is a file that comes later.
    """

    def __init__(
        self, folder: Path, files: Callable[[], Iterable[Path]], *, since: float, sees_new: bool = False
    ) -> None:
        self._folder = folder
        self._files = files
        self._sees_new = sees_new
        self._known: dict[Path, int] = {}
        for path, changed_ns in self._changed_ns():
            # As if it had been another before. A clock that runs ahead must not make it change for ever.
            is_news = since < changed_ns / 1e9 <= SYSTEM.calendar()
            self._known[path] = 0 if is_news else changed_ns

    def look(self) -> str | None:
        """Tells the first file that is not as it was, or None."""
        for path, changed_ns in self._changed_ns():
            if self._known.setdefault(path, 0 if self._sees_new else changed_ns) != changed_ns:
                return f"{path.relative_to(self._folder)} has changed"
        return None

    def _changed_ns(self) -> Iterator[tuple[Path, int]]:
        for path in self._files():
            try:
                yield path, path.stat().st_mtime_ns
            except OSError:
                continue  # an editor may put another in its place


def imported(folder: Path) -> list[Path]:
    """The Python files below the folder that this process has imported."""
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = Path(file)
            if path.is_relative_to(folder) and not _is_others(path.relative_to(folder)):
                found.append(path)
    return found


def all_in(folder: Path) -> list[Path]:
    """The Python files below the folder, but for those of virtual environments and hidden folders."""
    found: list[Path] = []
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not (_is_others(Path(name)) or _has_python(here, name))]
        found.extend(Path(here, name) for name in names if name.endswith(".py"))
        if len(found) >= FILES_MAX:
            break
    return found[:FILES_MAX]


def _is_others(path: Path) -> bool:
    return any(part.startswith(".") or part in ("node_modules", "site-packages") for part in path.parts)


def _has_python(here: str, name: str) -> bool:
    """Whether it is a virtual environment."""
    return Path(here, name, "pyvenv.cfg").exists()
