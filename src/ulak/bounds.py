"""Whether values can fit into a payload at all: looked at before anything of them is encoded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import UNSET

from ulak.codec import NESTING_MAX
from ulak.exact import fields_of

# None of these holds anything; what they take themselves is not counted.
_SMALL = frozenset(
    {int, float, bool, type(None), type(UNSET), UUID, datetime, date, time, timedelta, Decimal}
)
TOO_DEEP = f" contains itself, or is nested more than {NESTING_MAX} deep"

_SEVERAL: tuple[Any, ...] = (list, tuple, set, frozenset)
_TEXTS = (str, bytes, bytearray)


def why_beyond(values: Iterable[Any], limit_bytes: int, level: int = 0) -> str | None:
    """Why the JSON of values is too large or too deep, if that is sure; after a walk that the limit bounds.

    As in `codec.encode`, the size is a lower bound, and a container takes its share for each item before any
    is visited, so the walk is bounded even where one list is reached by many paths. level: how deep in other
    JSON they are.
    """
    room, waiting = limit_bytes, [(values, level)]
    while waiting:
        items, level = waiting.pop()
        for item in items:
            kind = type(item)
            if kind in _SMALL:
                continue
            if kind is str or isinstance(item, _TEXTS):
                room -= len(item)
            elif (held := (len(item), item) if kind is list else _held_by(item)) is not None:
                if level == NESTING_MAX:
                    return TOO_DEEP
                # A digit and a comma each.
                room -= 2 * held[0]
                if room >= 0:
                    waiting.append((held[1], level + 1))
            if room < 0:
                return too_large(limit_bytes)
    return None


def too_large(limit_bytes: int) -> str:
    """What is said of a value that is."""
    remedy = "keep the data elsewhere, and pass a reference to it"
    return f" is more than {limit_bytes:,} bytes as JSON\n  {remedy}"


def _held_by(value: object) -> tuple[int, Iterable[Any]] | None:
    """How many things a value holds, and which; None if it is not known to hold any."""
    # Not by its own methods, where its class is derived from these: the encoder does not ask them either.
    if isinstance(value, dict):
        there = cast("dict[object, object]", value)
        return dict.__len__(there), itertools.chain(dict.__iter__(there), dict.values(there))
    for base in _SEVERAL:
        if isinstance(value, base):
            return base.__len__(value), base.__iter__(value)
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct) and value.__struct_config__.omit_defaults:
        return None
    if (fields := fields_of(value)) is not None:
        return len(fields), [getattr(value, name) for name in fields]
    # A pydantic model says itself what is written of it.
    return None
