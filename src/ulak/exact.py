"""Whether a value came back from its encoded form as it was given: equal, and of the right types.

`==` alone would not do: it takes True for 1, and a class may answer what it likes.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias, cast
from uuid import UUID

import msgspec

from ulak.codec import INT_BITS_MAX

Step: TypeAlias = str
"""One step into a value, as it is written: `[3]`, `["to"]`, `.price`."""

_PLAIN = frozenset({str, bool, type(None), float, bytes, bytearray, UUID, date, timedelta, Decimal})
_INT_MAX = 2**INT_BITS_MAX


class Different(Exception):
    """A part did not come back as it was given. steps: the way to it, innermost first."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.steps: list[Step] = []


def check_same(given: object, back: object) -> None:
    """Raise Different unless `back` is equal to `given`, with the types that were given.

    `back` comes from a strict decoder, so its types are right for what was annotated. Given may be a float's
    int, or an object of a subclass of what arrives, as long as nothing is lost: dataclasses, structs and the
    like have to be of the very class.
    """
    kind = type(back)
    if type(given) is kind and kind in _PLAIN:
        _check_equal(given, back)
    elif kind is float and type(given) is int:
        if given != back:
            raise Different("an int that a float cannot hold exactly")
    elif (fields := fields_of(back)) is not None:
        _check_fields(given, back, fields)
    elif not isinstance(given, Mapping if kind is dict else kind):
        raise _other(given, back)
    else:
        _check_one_of(given, back)


def _check_one_of(given: Any, back: object) -> None:  # noqa: ANN401 - of the type of `back`, or like it
    match back:
        case int():
            _check_int(given, back)
        case dict():
            _check_dict(given, cast("dict[object, object]", back))
        case list() | tuple():
            for number, (item, back_item) in enumerate(zip(given, cast("list[object]", back), strict=True)):
                _check_part(item, back_item, f"[{number}]")
        case set() | frozenset():
            _check_set(given, cast("AbstractSet[object]", back))
        case datetime() | time():
            _check_time(given, back)
        case _:
            _check_equal(given, back)
            if is_pydantic(type(back)):
                _check_fields(given, back, tuple(cast("Any", type(back)).model_fields))


def _check_equal(given: object, back: object) -> None:
    if given != back:
        raise Different("it would not come back equal")


def why_too_long(given: int) -> str | None:
    """Why an int has too many digits, if it has."""
    if -_INT_MAX < given < _INT_MAX:
        return None
    return f"an int of {given.bit_length():,} bits, more than {INT_BITS_MAX:,}; pass it as a hex str"


def _check_int(given: int, back: object) -> None:
    if (why := why_too_long(given)) is not None:
        raise Different(why)
    _check_equal(given, back)


def _check_dict(given: Mapping[object, object], back: dict[object, object]) -> None:
    if len(given) != len(back):
        lost = next((key for key in given if type(key) is str and key not in back), None)
        if lost is not None:
            raise Different(f"there is no key {shown(lost)} in its type")
        raise Different("two of its keys would become one")
    # In the same order on both sides, since the encoder keeps it.
    for (key, value), (back_key, back_value) in zip(given.items(), back.items(), strict=True):
        try:
            check_same(key, back_key)
            if type(key) is not str:
                # Times in an overlap are told apart here, but are never found under those of another zone.
                _check_equal(key, back_key)
        except Different as different:
            raise Different(f"a key: {different.reason}") from None
        _check_part(value, back_value, f"[{shown(key)}]" if isinstance(key, str) else "[...]")


def _check_set(given: AbstractSet[object], back: AbstractSet[object]) -> None:
    if len(given) != len(back):
        raise Different("two of its items would become one")
    # Equal ones need not be the same: a time without a zone is equal to the one that comes an hour later.
    there = {item: item for item in back}
    for item in given:
        if item not in there:
            raise Different("it would not come back equal")
        try:
            check_same(item, there[item])
        except Different as different:
            raise Different(f"an item: {different.reason}") from None


def _check_fields(given: object, back: object, fields: tuple[str, ...]) -> None:
    if type(given) is not type(back):
        raise _other(given, back)
    for name in fields:
        _check_part(getattr(given, name), getattr(back, name), f".{name}")


def _check_part(given: object, back: object, step: Step) -> None:
    try:
        check_same(given, back)
    except Different as different:
        different.steps.append(step)
        raise


def _check_time(given: Any, back: Any) -> None:  # noqa: ANN401 - both a datetime or both a time
    if given.tzinfo is None and given.fold:
        raise Different("a time without a zone that has fold=1, which would be lost; give it its zone")
    if given.tzinfo is not None and back.tzinfo is None:
        raise Different("a time of day in a zone whose offset depends on the date; pass a datetime")
    if given.utcoffset() != back.utcoffset():
        raise Different("its zone's offset has seconds, which would be lost; convert it to UTC")
    _check_equal(given.replace(tzinfo=None, fold=0), back.replace(tzinfo=None, fold=0))


def fields_of(value: object) -> tuple[str, ...] | None:
    """The fields of a value that is made of named fields, if it is."""
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if isinstance(value, Enum):
        return None
    if isinstance(value, tuple):
        return getattr(kind, "_fields", None)
    if dataclasses.is_dataclass(value):
        return _fields_of_dataclass(kind)
    return None


def is_pydantic(kind: object) -> bool:
    """Whether a class is a pydantic model; pydantic is not imported to find out."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


@functools.lru_cache(1_000)
def _fields_of_dataclass(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _other(given: object, back: object) -> Different:
    return Different(f"got {type_name(type(given))}, which would come back as {type_name(type(back))}")


def type_name(kind: type) -> str:
    """A class as an error names it, in at most 60 characters."""
    # Where it is defined inside functions is a long way to say little.
    name, inside = kind.__qualname__.rpartition("<locals>.")[2], "<locals>" in kind.__qualname__
    is_near = inside or kind.__module__ in ("builtins", "__main__")
    return shown(name if is_near else f"{kind.__module__}.{name}", 60)[1:-1]


def shown(name: str, chars_max: int = 40) -> str:
    """A name on one line, quoted and escaped."""
    escaped = repr(name[: chars_max + 1])[1:-1].replace('"', '\\"')
    return f'"{escaped if len(escaped) <= chars_max else escaped[: chars_max - 1] + "…"}"'
