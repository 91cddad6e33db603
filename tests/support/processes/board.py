"""Numbers that several processes share, and that a killed one leaves as they were."""

from __future__ import annotations

import mmap

STOP = 0
"""Not 0: workers are to leave."""
ALLOWED = 1
"""How many jobs may have been asked for by now, of each producer."""
_FIRST_SLOT = 2
_PER_SLOT = 3
ASKED, TOLD, DONE = range(_PER_SLOT)
"""Of each slot: a producer's next job when it last asked, and when it was last told; a worker's jobs done."""


class Board:
    """The numbers of one trial, made before its processes are forked; each has one writer at a time."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, 8 * (_FIRST_SLOT + _PER_SLOT * slots))
        self._numbers = memoryview(self._memory).cast("q")
        self._slots = slots

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def __setitem__(self, index: int, number: int) -> None:
        self._numbers[index] = number

    def of(self, slot: int, what: int) -> int:
        """A number of one slot."""
        return self._numbers[_FIRST_SLOT + _PER_SLOT * slot + what]

    def put(self, slot: int, what: int, number: int) -> None:
        """Set a number of one slot."""
        self._numbers[_FIRST_SLOT + _PER_SLOT * slot + what] = number

    def total(self, what: int) -> int:
        """A number, summed over all slots."""
        return sum(self.of(slot, what) for slot in range(self._slots))

    def close(self) -> None:
        """Let go of the memory."""
        self._numbers.release()
        self._memory.close()
