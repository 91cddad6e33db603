"""Payloads for the tests of the codec: what looks like JSON and is not, and what tells values apart."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec

WIDEST_INT = 2**2126 - 1


class StrKind(str):
    __slots__ = ()


class IntKind(int):
    pass


class FloatKind(float):
    pass


class BytesKind(bytes):
    pass


class ListKind(list):  # type: ignore[type-arg]
    pass


class DictKind(dict):  # type: ignore[type-arg]
    pass


class Level(enum.IntEnum):
    HIGH = 9


class Tint(enum.StrEnum):
    RED = "red"


class Shape(enum.Enum):
    ROUND = 1


class Spot(NamedTuple):
    x: int


@dataclasses.dataclass
class Card:
    number: str


class Record(msgspec.Struct):
    number: str


class Opaque:
    pass


def same(one: object, other: object) -> bool:
    """Equality that tells 1 from 1.0 and True, 0.0 from -0.0, and one order of keys from another."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    return one == other


def nested(levels: int, around: Callable[[object], object] = lambda inner: [inner]) -> object:
    value: object = 0
    for _ in range(levels):
        value = around(value)
    return value
