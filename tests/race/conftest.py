"""Real threads, switched far more often than usual, on every storage of the contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.contract.conftest import StorageKind, clock, kind, store
from tests.race.threads import WatchedClock

__all__ = ["StorageKind", "clock", "kind", "store"]

SWITCH_S = 1e-5


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """Let the interpreter change threads hundreds of times more often, so that races meet."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(before_s)


@pytest.fixture
def watched() -> WatchedClock:
    """A clock moved by the test, which knows who sleeps on it."""
    return WatchedClock()
