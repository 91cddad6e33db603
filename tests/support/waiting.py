"""Waiting for a fact: the only place where a test looks again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

from ulak.testing import ManualClock

WAIT_S = 20.0
"""How long a test waits, in real time, for what should happen at once."""


def eventually(
    fact: Callable[[], object],
    within_s: float = WAIT_S,
    *,
    clock: ManualClock | None = None,
    step_s: float = 0.1,
) -> None:
    """Look until the fact holds; after `within_s` fail, so that a bug never hangs.

    clock: gains `step_s` after each look. The leases must be long then: a pool whose threads get no processor
    meanwhile could not renew them.
    """
    until = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < until, "what the test waits for did not happen"
        time.sleep(0.001)
        if clock is not None:
            clock.advance(step_s)


def let_time_pass(clock: ManualClock, duration_s: float, *, sleepers: int) -> None:
    """Advance the clock once so many threads sleep on it, so that none computes with the old time."""
    eventually(lambda: clock.sleepers == sleepers)
    clock.advance(duration_s)
