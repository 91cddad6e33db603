"""Mutual exclusion for sections of well under a microsecond, which Python threads enter very often."""

from __future__ import annotations

import time

_SPINS = 100
_NAP_S = 50e-6


class Gate:
    """Open while it has its attribute. Whoever deletes that is inside; whoever sets it again lets others in.

    In a section of 0.3 µs a `threading.Lock` costs as much as the work (0.1 µs), and worse: a thread that
    blocks on it may be handed it while another one runs, which then blocks too, so that from there on every
    section costs a switch of threads, which is ten times slower. A thread that finds this gate shut lets
    others run and tries again.

    `del gate.open` is one instruction that either deletes the attribute or raises AttributeError, and between
    it and the `try` after it, and between the end of a section and `gate.open = None`, the interpreter lets
    neither another thread nor a signal's exception in. So write exactly this, without any call in between:

        while True:
            try:
                del gate.open
                break
            except AttributeError:
                wait_outside()
        try:
            ...
        finally:
            gate.open = None

    That rests on the interpreter's global lock: on a build without it nothing here is promised.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: None = None


def wait_outside(tries: int = 0) -> None:
    """Let other threads run; longer naps where the one inside does not get to run at all."""
    time.sleep(0 if tries < _SPINS else _NAP_S)
