"""Which programs that are not ulak have a store's file open for writing, where the system tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ulak.cli.inspect_parts import Finding, Part

_PROC = Path("/proc")
_LOCKS = _PROC / "locks"
# A byte of the -shm file that each connection to a log has locked for as long as it lives: WAL_DMS_LOCK.
_CONNECTED = range(128, 129)
# Every process of ulak has loaded this, and next to no other program has.
_MARK = "/msgspec/_core"
_NAME_CHARS_MAX = 40


class Stranger(msgspec.Struct, frozen=True):
    """A process that is not ulak, by its number and its program's name."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


def others_part(path: str, *, has_race: bool) -> Part:
    """Whether something else than ulak may write the file, with a log: its checkpoints are not guarded.

    has_race: the library can lose commits then.
    """
    found = list(strangers_of(path))
    named = ", ".join(map(str, found))
    findings: tuple[Finding, ...] = ()
    if found:
        what = (
            f"{'a program that is' if len(found) == 1 else 'programs that are'} not ulak may write the file: "
        )
        what += f"process {named}"
        fix = "have it read only (sqlite3 -readonly, mode=ro in the URI), or end it"
        if has_race:
            what += "; with this SQLite library its checkpoints can lose commits"
            fix += "; or use SQLite 3.51.3 or newer; or add ?journal=truncate to the URL"
        findings = (Finding(what, fix, is_problem=has_race),)
    text = f"{named} may write it" if found else "no program that is not ulak may write it now"
    values = {"writers": [{"pid": one.pid, "name": one.name} for one in found]}
    return Part("others", text, values, findings)


def strangers_of(path: str) -> Iterator[Stranger]:
    """Processes that have the file open for writing and cannot be ulak's; by number.

    What cannot be told, as of another user's process, is left out.
    """
    for pid in sorted(lock_holders(Path(f"{path}-shm"), _CONNECTED) - {os.getpid()}):
        try:
            if not _is_ulak(pid) and _may_write(pid, path):
                name = (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
                yield Stranger(pid, name[:_NAME_CHARS_MAX])
        except OSError:
            continue


def _is_ulak(pid: int) -> bool:
    maps = (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="surrogateescape")
    return _MARK in maps


def _may_write(pid: int, path: str) -> bool:
    there = Path(path).stat()
    folder = _PROC / str(pid)
    for opened in (folder / "fd").iterdir():
        try:
            if not os.path.samestat(opened.stat(), there):
                continue
            told = (folder / "fdinfo" / opened.name).read_text(encoding="ascii")
        except FileNotFoundError:
            continue
        # As in "flags:	0100002", in octal.
        flags = int(told.partition("flags:")[2].split()[0], 8)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return True
    return False


def lock_holders(file: Path, bytes_: range) -> set[int]:
    """The processes that have locked one of these bytes of a file, where the system tells."""
    try:
        there = file.stat()
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return set()
    wanted = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    found = (line.split() for line in lines)
    # As in "1: POSIX  ADVISORY  READ 4242 fd:01:1234 124 124".
    return {
        int(words[4])
        for words in found
        if len(words) == 8 and words[5] == wanted and words[6].isdigit() and int(words[6]) in bytes_
    }
