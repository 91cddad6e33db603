"""Why a value cannot travel as what it is annotated: looked for once a call has failed, so it may take time.

Each answer is where inside the value, as in `[3].price`, and what: " got int, expected str".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias, cast
from uuid import UUID

import msgspec

from ulak import codec
from ulak.annotations import as_text, stranger, why_not
from ulak.bounds import TOO_DEEP, too_large, why_beyond
from ulak.errors import PayloadError
from ulak.exact import Different, check_same, fields_of, shown, type_name, why_too_long
from ulak.shape import decoder_of, encode_json

Reason: TypeAlias = tuple[str, str]

_PARTS_MAX = 100_000
_DEPTH_MAX = 64
_SENTENCE_MAX = 120

_JSON_TYPES = frozenset({str, int, float, bool, type(None)})
_PLACED = re.compile(r"(?P<said>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)

# What msgspec says without showing a value. Anything else may come from a class of the user's.
_HARMLESS = (
    "Expected `",
    "Object missing required field",
    "Invalid RFC3339",
    "Invalid UUID",
    "Invalid base64",
)

# As what a text should have been written, and the type that is.
_WRITTEN: tuple[tuple[str, type], ...] = (
    ("invalid RFC3339 encoded datetime", datetime),
    ("invalid RFC3339 encoded date", date),
    ("invalid RFC3339 encoded time", time),
    ("invalid UUID", UUID),
    ("invalid base64", bytes),
)

# What makes one of a text.
_OF_TEXT: Mapping[type, str] = {
    datetime: "datetime.fromisoformat(text)",
    date: "date.fromisoformat(text)",
    time: "time.fromisoformat(text)",
    UUID: "UUID(text)",
    Decimal: "Decimal(text)",
    bytes: "text.encode()",
}


def why_refused(
    hint: Any,  # noqa: ANN401 - a type, in any of its forms
    value: object,
    *,
    is_any: bool = False,
    limit_bytes: int = codec.PAYLOAD_BYTES_MAX,
    level: int = 1,
) -> Reason | None:
    """Why a value would not arrive as it is; None if nothing is wrong with it alone.

    is_any: it is not annotated, and has to be exact JSON. level: how deep in other JSON it is.
    """
    try:
        return _why_refused(hint, value, is_any=is_any, limit_bytes=limit_bytes, level=level)
    except Exception as error:  # noqa: BLE001 - of the value's own classes, and its text may hold a value
        return "", _struck(value, error)


def _struck(value: object, error: Exception) -> str:
    try:
        return f" is {type_name(type(value))}; looking into it raised {type_name(type(error))}"
    except Exception:  # noqa: BLE001 - even a class may have a class of the user's
        return " cannot be looked into"


def _why_refused(
    hint: Any,  # noqa: ANN401 - as above
    value: object,
    *,
    is_any: bool,
    limit_bytes: int,
    level: int,
) -> Reason | None:
    if (beyond := _why_beyond(value, limit_bytes, level)) is not None:
        return "", beyond
    if is_any and (why := _why_not_json(value)) is not None:
        return why
    try:
        body = encode_json(value)
    except Exception as error:  # noqa: BLE001 - of the value's own classes too
        return _why_not_encoded(value, type(error))
    if len(body) > limit_bytes:
        return "", too_large(limit_bytes)
    if codec.is_too_deep(body):
        return "", TOO_DEEP
    try:
        back = decoder_of(hint)(body)
    except Exception as error:  # noqa: BLE001 - as above
        return _mismatch(hint, value, error)
    try:
        check_same(value, back)
    except Different as different:
        path = "".join(reversed(different.steps))
        instead = _of_text(_at(path, value), _at(path, back))
        if not path and different.reason.startswith("got "):
            return "", f" got {type_name(type(value))}, expected {as_text(hint)}{instead}"
        return path, f": {different.reason}{instead}"
    except Exception:  # noqa: BLE001 - an `==` of the user's
        return "", f" is {type_name(type(value))}, which cannot be compared with what would arrive"
    return None


def why_not_read(hint: Any, raw: bytes | msgspec.Raw) -> Reason | None:  # noqa: ANN401 - as above
    """Why stored JSON is not of a type; None if it is."""
    try:
        decoder_of(hint)(raw)
    except Exception as error:  # noqa: BLE001 - as above
        path, said = _placed(error, hint)
        return path, f": {said}"
    return None


def _why_beyond(value: object, limit_bytes: int, level: int) -> str | None:
    try:
        return why_beyond([value], limit_bytes, level)
    except Exception:  # noqa: BLE001 - of the value's own classes
        return None


def _mismatch(hint: object, value: object, error: Exception) -> Reason:
    path, said = _placed(error, hint)
    expected = next((kind for begin, kind in _WRITTEN if said.startswith(begin)), None)
    if "`, got `null`" in said and _at(path, value) is float:
        return path, " is NaN or infinite, which JSON does not have"
    found = _at(path, value) if expected else None
    instead = _of_text(found, expected)
    if not path and (expected or "`, got `" in said):
        return "", f" got {type_name(type(value))}, expected {as_text(hint)}{instead}"
    if expected is None:
        return path, f": {said}"
    got = "" if found is None else f"got {type_name(found)}, "
    return path, f": {got}expected {type_name(expected)}{instead}"


def _of_text(found: type | None, expected: type | None) -> str:
    """What to pass in place of a text, if that is known."""
    if found is not str or expected is None or expected not in _OF_TEXT:
        return ""
    return f"; pass {_OF_TEXT[expected]}"


def _at(path: str, value: object) -> type | None:
    """The type of what is at a place inside a value."""
    try:
        return next((type(part) for place, part in _parts(value) if place == path), None)
    except Exception:  # noqa: BLE001 - of the value's own classes
        return None


def _placed(error: Exception, hint: object) -> tuple[str, str]:
    """Where a decoder found something wrong, and what, without a value that it may have shown."""
    match = _PLACED.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
    if match is None:
        return "", f"not what {as_text(hint)} takes"
    said, path = match["said"], (match["path"] or "")[:_SENTENCE_MAX]
    # What a class of the user's raised is wrapped, and its text may hold a value, whatever it begins with.
    is_msgspecs = error.__cause__ is None and error.__context__ is None
    if is_msgspecs and said.startswith(_HARMLESS):
        return path, f"{said[0].lower()}{said[1:_SENTENCE_MAX]}"
    if said.startswith("Invalid enum value"):
        return path, "not one of the values that are allowed"
    return path, f"not what {as_text(hint)} takes"


def _why_not_json(value: object) -> Reason | None:
    """What `codec.encode` would say of it, or better, if it is known what the culprit is."""
    try:
        codec.check_json(value, what="")
    except PayloadError as error:
        path, _, said = str(error.args[0]).rpartition(": ")
    else:
        return None
    for place, part in _parts(value):
        kind = type(part)
        if kind in _JSON_TYPES:
            continue
        if (known := stranger(kind)) is not None:
            return place, f" is {known[0]} and cannot travel; {known[1]}"
        if not place and kind is not object and _children(part) is None and why_not(kind) is None:
            name = type_name(kind)
            return (
                "",
                f" is {name}, which travels only where it is annotated\n  annotate the parameter: {name}",
            )
    return path, f": {said}"


def _why_not_encoded(value: object, error: type[Exception]) -> Reason:
    if issubclass(error, RecursionError):
        return "", TOO_DEEP
    for place, part in _parts(value):
        try:
            encode_json(part)
        except UnicodeEncodeError:
            if isinstance(part, str):
                return place, " holds a lone surrogate, which is no valid text; pass bytes, or replace it"
        except Exception:  # noqa: BLE001 - as above
            if type(part) is int and (why := why_too_long(part)) is not None:
                return place, f": {why}"
            if not _children(part):
                known = stranger(type(part)) or (type_name(type(part)), "pass what it is made of, or an id")
                return place, f" is {known[0]} and cannot travel; {known[1]}"
    return "", f" is {type_name(type(value))} and cannot be encoded as JSON"


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """A value and all that it holds, with the way to each."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    for _ in range(_PARTS_MAX):
        if not waiting:
            return
        path, part, depth = waiting.pop()
        yield path, part
        children = _children(part) if depth < _DEPTH_MAX else None
        waiting += reversed([(f"{path}{step}", child, depth + 1) for step, child in children or ()])


def _children(part: object) -> list[tuple[str, object]] | None:
    """What a value holds directly; None if it is not known to hold anything."""
    if isinstance(part, Mapping):
        items = cast("Mapping[object, object]", part).items()
        return [(f"[{shown(key)}]" if isinstance(key, str) else "[...]", child) for key, child in items]
    if isinstance(part, list | tuple | set | frozenset):
        return [(f"[{number}]", child) for number, child in enumerate(cast("list[object]", part))]
    if isinstance(part, type) or (fields := fields_of(part)) is None:
        return None
    return [(f".{name}", getattr(part, name)) for name in fields]
