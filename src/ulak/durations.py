"""Durations as callers give them, as a command line spells them, and as people read them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from ulak.errors import ArgumentError

# A century of Julian years. What is longer is a mistake (milliseconds for seconds), and would overflow dates.
SECONDS_MAX = 100 * 365.25 * 86_400

_TEXT_CHARS_MAX = 32
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h|d)?")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


Duration: TypeAlias = float | timedelta | str
"""As callers and command lines give one: a number of seconds, a timedelta, or a text such as "1.5m"."""

if TYPE_CHECKING:
    Kept: TypeAlias = Duration
else:
    # What is stored is read by it, and that is seconds.
    Kept = float
"""A duration that a stored value was given, and which it turns into seconds."""


def seconds(value: Duration, *, name: str, allow_zero: bool = True) -> float:
    """Check a caller's duration and give it in seconds, as a float.

    value: 0 up to 100 years; a text as `parse_duration` reads it.
    name: the argument as the caller knows it, for the message.
    Raises ArgumentError naming the argument for bool, NaN, infinity, negative, zero unless allowed, more
    than 100 years, and every other type.

    >>> seconds(timedelta(minutes=1), name="delay"), seconds("1m", name="delay")
    (60.0, 60.0)
    """
    number = _number_of(value, name)
    # Written so that NaN, which compares with nothing, is outside too.
    if not 0 <= number <= SECONDS_MAX:
        raise ArgumentError(f"{name} must be from 0 to {SECONDS_MAX:,.0f} seconds (100 years)")
    if number == 0 and not allow_zero:
        raise ArgumentError(f"{name} must be more than 0 seconds")
    # Adding 0.0 turns -0.0 into 0.0, which some stores would refuse as a number.
    return float(number) + 0.0


def _number_of(value: object, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ArgumentError as error:
            raise ArgumentError(f"{name}: {error.args[0]}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        forms = 'seconds (a number), a timedelta, or text such as "5m"'
        raise ArgumentError(f"{name} must be {forms}, not {type(value).__name__}")
    return value


def parse_duration(text: str) -> float:
    """Read a duration that is written as text, in seconds: a number and one of ms, s, m, h, d.

    A plain number is seconds; blanks around it are ignored.
    Raises ArgumentError, with examples, for anything else and for more than 100 years.

    >>> parse_duration("20ms"), parse_duration("1.5m"), parse_duration("3")
    (0.02, 90.0, 3.0)
    """
    match = _TEXT.fullmatch(text.strip()) if len(text) <= _TEXT_CHARS_MAX else None
    if match is None:
        shown = text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}…"
        raise ArgumentError(
            f"cannot read {shown!r} as a duration; write a number with ms, s, m, h or d, such as 20ms or 1.5m"
        )
    number, unit = match.groups(default="s")
    # Dividing keeps 57ms the float nearest to 0.057; multiplying by 0.001 would not.
    value_s = float(number) / 1000 if unit == "ms" else float(number) * _UNITS_S[unit]
    return seconds(value_s, name=f"the duration {text.strip()!r}")


def format_duration(value_s: float) -> str:
    """Show a duration in a few characters, rounded to what its size makes readable.

    >>> [format_duration(s) for s in (0.00025, 0.0412, 1.2, 185, 7500, 187200)]
    ['250µs', '41ms', '1.20s', '3m 05s', '2h 05m', '2d 04h']
    """
    if not math.isfinite(value_s):
        return str(float(value_s))
    sign = "-" if value_s < 0 else ""
    # Whole microseconds from here on: rounding floats at each step could print "60.00s" or "1000ms".
    return sign + _in_words(round(abs(value_s) * 1_000_000))


def _in_words(microseconds: int) -> str:
    if microseconds == 0:
        return "0s"
    if microseconds < 1_000:
        return f"{microseconds}µs"
    if microseconds < 9_950:
        tenths = (microseconds + 50) // 100
        return f"{tenths // 10}.{tenths % 10}ms"
    if microseconds < 999_500:
        return f"{(microseconds + 500) // 1_000}ms"
    if microseconds < 59_995_000:
        hundredths = (microseconds + 5_000) // 10_000
        return f"{hundredths // 100}.{hundredths % 100:02d}s"
    whole_s = (microseconds + 500_000) // 1_000_000
    if whole_s < 3_600:
        return f"{whole_s // 60}m {whole_s % 60:02d}s"
    minutes = (whole_s + 30) // 60
    if minutes < 1_440:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = (whole_s + 1_800) // 3_600
    return f"{hours // 24}d {hours % 24:02d}h"
