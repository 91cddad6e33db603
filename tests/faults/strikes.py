"""Faults of the disk, and of others who hold the file: the n-th call fails, once or from then on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.faults import library as lib
from tests.faults.disk import Files, Tape
from tests.faults.vfs import Call, Kind, Strike


class Fault(NamedTuple):
    """Which calls fail, and how."""

    name: str
    kinds: frozenset[Kind]
    strike: Strike


def _fault(name: str, kind: Kind, code: int, *, half_done: bool = False) -> Fault:
    return Fault(name, frozenset({kind}), Strike(code, half_done))


FAULTS = (
    _fault("EIO at a write", Kind.WRITE, lib.IOERR_WRITE),
    _fault("EIO after half a write", Kind.WRITE, lib.IOERR_WRITE, half_done=True),
    _fault("ENOSPC", Kind.WRITE, lib.FULL),
    _fault("ENOSPC after half a write", Kind.WRITE, lib.FULL, half_done=True),
    _fault("failed fsync", Kind.SYNC, lib.IOERR_FSYNC),
    _fault("EIO at a read", Kind.READ, lib.IOERR_READ),
    _fault("failed truncate", Kind.TRUNCATE, lib.IOERR_TRUNCATE),
    _fault("failed unlink", Kind.DELETE, lib.IOERR_DELETE),
    _fault("cannot open", Kind.OPEN, lib.CANTOPEN),
    Fault("locked by others", frozenset({Kind.LOCK, Kind.SHM_LOCK}), Strike(lib.BUSY)),
    _fault("EIO at a lock", Kind.LOCK, lib.IOERR_LOCK),
    _fault("EIO at a lock of the log", Kind.SHM_LOCK, lib.IOERR_SHMLOCK),
    _fault("ENOSPC for the shared memory", Kind.SHM_MAP, lib.FULL),
    _fault("EIO at the shared memory", Kind.SHM_MAP, lib.IOERR_SHMMAP),
)


class Striker(Tape):
    """Records, and lets calls fail while a fault is armed."""

    hasty = True
    locks = True
    reads = True

    def __init__(self, directory: Path, start: Files | None = None) -> None:
        super().__init__(directory, start)
        self.struck = 0
        # How often each was called, for whoever wants to know where a fault can strike.
        self.calls = dict.fromkeys(Kind, 0)
        self._fault: Fault | None = None
        self._at = 0
        self._persistent = False
        self._is_over = False

    def arm(self, fault: Fault, nth: int, *, persistent: bool) -> None:
        """Let the n-th call from now on that it concerns fail; if persistent, all later ones too."""
        self._fault, self._at, self._persistent = fault, nth, persistent

    def disarm(self) -> None:
        """Let everything succeed again, and count no more calls."""
        self._fault = None
        self._is_over = True

    def strike(self, call: Call) -> Strike | None:
        self.calls[call.kind] += not self._is_over
        if self._fault is None or call.kind not in self._fault.kinds:
            return None
        self._at -= 1
        if self._at > 0 or (self._at < 0 and not self._persistent):
            return None
        self.struck += 1
        return self._fault.strike
