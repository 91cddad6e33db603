"""How long a failed job waits before its next attempt: capped exponential backoff with full jitter."""

from __future__ import annotations

from typing import cast

import msgspec

from ulak.durations import Kept, seconds
from ulak.errors import ArgumentError

# 2.0 ** 1023 is the largest power of two a float holds, and attempts have no end, so the exponent is
# clamped before the power is taken.
_EXPONENT_MAX = 1023


class Backoff(msgspec.Struct, frozen=True):
    """A stored retry policy: `uniform(0, min(cap, base * 2**(k-1)))` seconds after failed attempt k.

    base: > 0. The widest delay after the first failure.
    cap: >= base. No delay is ever longer.
    floor: 0 <= floor <= cap. No delay is shorter; full jitter alone may give almost 0.
    Each in seconds, as a timedelta, or as text such as "5m".
    Raises ArgumentError for anything else.

    Source of the formula: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015
    ("Full Jitter").
    """

    base: Kept = 1.0
    cap: Kept = 300.0
    floor: Kept = 0.0

    def __post_init__(self) -> None:
        base, cap, floor = (seconds(getattr(self, name), name=name) for name in ("base", "cap", "floor"))
        if not 0 < base <= cap:
            raise ArgumentError(f"Backoff needs 0 < base <= cap, got base={base} s and cap={cap} s")
        if floor > cap:
            raise ArgumentError(f"Backoff needs floor <= cap, got floor={floor} s and cap={cap} s")
        for name, value in zip(("base", "cap", "floor"), (base, cap, floor), strict=True):
            msgspec.structs.force_setattr(self, name, value)

    def delay_s(self, failed_attempt: int, draw: float) -> float:
        """Seconds to wait after failed attempt number `failed_attempt` (from 1), given a draw in [0, 1].

        Never raises for any positive attempt; always 0 <= floor <= delay <= cap.
        """
        # In seconds since __post_init__, whatever was given.
        base, cap, floor = cast("tuple[float, float, float]", (self.base, self.cap, self.floor))
        # The product may overflow to infinity, which is no error for floats; the cap mends it.
        widest = min(cap, base * 2.0 ** min(failed_attempt - 1, _EXPONENT_MAX))
        return min(max(floor, draw * widest), cap)
