"""Payloads as bytes and back: a value either returns equal in value and type, or is refused here.

Pure: no I/O, clock or randomness, so that every storage accepts and refuses the same payloads. Error texts
hold paths, type names and sizes, never a value: payloads are secret.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from ulak.errors import ArgumentError, PayloadError

Codec = Literal["bytes", "str", "json"]

PAYLOAD_BYTES_MAX = 256 * 1024
HEADERS_BYTES_MAX = 8 * 1024
NESTING_MAX = 32

# Every int of this many bits has at most 640 digits, the fewest that a Python process can be told to accept
# (sys.int_info.str_digits_check_threshold). msgspec itself stops at 4,300 characters, the sign included, but
# an int between the two could be stored by one process and then be unreadable for another.
INT_BITS_MAX = 2126

_NAME_CHARS_MAX = 40

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode

# Type -> (what it would come back as, what to pass instead). Keyed by name and looked up along the MRO, so
# that subclasses find their nearest base and nothing needs importing only to be refused.
_REMEDIES = {
    "builtins.tuple": ("a list", "a list"),
    "builtins.set": ("a list", "a list"),
    "builtins.frozenset": ("a list", "a list"),
    "builtins.bytes": ("a str", "the bytes alone as the payload, or a base64 str"),
    "builtins.bytearray": ("a str", "bytes"),
    "builtins.memoryview": ("a str", "bytes"),
    "builtins.bool": ("a bool", "bool(value)"),
    "builtins.int": ("an int", "int(value)"),
    "builtins.float": ("a float", "float(value)"),
    "builtins.str": ("a str", "str(value)"),
    "builtins.list": ("a list", "list(value)"),
    "builtins.dict": ("a dict", "dict(value)"),
    "datetime.datetime": ("a str", "value.isoformat()"),
    "datetime.date": ("a str", "value.isoformat()"),
    "datetime.time": ("a str", "value.isoformat()"),
    "datetime.timedelta": ("a str", "value.total_seconds()"),
    "uuid.UUID": ("a str", "str(value)"),
    "decimal.Decimal": ("a str", "str(value)"),
    "enum.IntEnum": ("an int", "value.value"),
    "enum.StrEnum": ("a str", "value.value"),
    "enum.Enum": ("its bare value", "value.value"),
    "msgspec.Struct": ("a dict", "a dict"),
}
_JSON_VALUES = "None, bool, int, float, str, list, dict, or bytes alone as the payload"

_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_TOO_DEEP = f"nested more than {NESTING_MAX} deep, or contains itself; flatten it, or pass bytes"


class _Refused(Exception):
    """Why an item does not fit; each container it passes on its way up adds the step that led there."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.steps: list[str | int] = []


def encode(
    value: object, *, limit_bytes: int = PAYLOAD_BYTES_MAX, what: str = "payload"
) -> tuple[bytes, Codec]:
    """Turn a payload into bytes that `decode` turns back into an equal value of the same types.

    value: bytes and str pass as they are; None, bool, int, float, list and dict with str keys, nested at most
    32 deep, become JSON. Exact types only; ints of at most 2,126 bits (640 digits); no NaN, infinity or lone
    surrogate.
    limit_bytes: the most bytes the encoded form may have.
    what: how error messages call the value, such as "result".
    Returns (body, codec).
    Raises PayloadError, which is a TypeError, for anything else; its text names the path, as in
    `payload["to"][3]`, and never holds the value.

    >>> encode({"to": ["ada@example.org"]})
    (b'{"to":["ada@example.org"]}', 'json')
    """
    if type(value) is bytes:
        if len(value) > limit_bytes:
            raise _too_large(what, limit_bytes, f" ({len(value):,})")
        return value, "bytes"
    if type(value) is str:
        return _encode_str(value, limit_bytes, what), "str"
    # The walk counts a lower bound and stops early, so that nothing much larger than the limit is encoded;
    # only escapes in strings and the digits of numbers can make the true size larger.
    check_json(value, limit_bytes=limit_bytes, what=what)
    body = _encode_json(value)
    if len(body) > limit_bytes:
        raise _too_large(what, limit_bytes, f" ({len(body):,} as JSON)")
    return body, "json"


def check_json(value: object, *, limit_bytes: int = PAYLOAD_BYTES_MAX, what: str) -> None:
    """Raise PayloadError unless `encode` would take this as JSON; bytes, which have none, are refused too."""
    try:
        room = _room_after(value, 0, limit_bytes)
    except _Refused as refused:
        raise PayloadError(f"{what}{_path(refused.steps)}: {refused.reason}") from None
    if room < 0:
        raise _too_large(what, limit_bytes)


def is_too_deep(body: bytes) -> bool:
    """Whether JSON is nested more than 32 deep (or malformed); to be asked before it is decoded."""
    # Few brackets cannot be deep.
    return body.count(b"[") + body.count(b"{") > NESTING_MAX and _is_too_deep(body)


def decode(body: bytes, codec: str) -> Any:  # noqa: ANN401 - the caller knows what it stored, mypy cannot
    """Turn what `encode` returned back into the value: equal, of the same types, a new object each time.

    Raises PayloadError for a codec other than "bytes", "str" and "json", and for a body that is not of its
    codec or is nested more than 32 deep; its text never holds the body.
    """
    if codec == "bytes":
        return body
    if codec == "str":
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    elif codec == "json":
        # The depth is looked at before the decoder recurses.
        if is_too_deep(body):
            raise _damaged(f"is JSON nested more than {NESTING_MAX} deep, or malformed")
        try:
            return _decode_json(body)
        except (msgspec.DecodeError, ValueError):
            pass
    else:
        raise _damaged(f'has the codec "{_shown(codec)}", which this version does not know')
    # Raised out here and not where it was caught, since a UnicodeError holds the body.
    raise _damaged(f"of {len(body):,} bytes is not valid {'UTF-8' if codec == 'str' else 'JSON'}")


def encode_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Copy and check the headers of a job; None gives an empty dict.

    headers: exact str keys and values, without lone surrogates, at most 8 KiB of UTF-8 in total.
    Raises ArgumentError for something that is not a mapping, PayloadError for what is in it; the text never
    holds a header's value.
    """
    if headers is None:
        return {}
    copied: dict[str, str] = {}
    room = HEADERS_BYTES_MAX
    for key, value in _items_of(headers):
        if type(key) is not str:
            raise PayloadError(f"headers: a key is {_a(_type_name(type(key)))}; use str keys")
        if type(value) is not str:
            reason = f"the value is {_a(_type_name(type(value)))}; pass a str"
            raise PayloadError(f"headers{_path([key])}: {reason}")
        try:
            room = _room_after_text(value, _room_after_text(key, room))
        except _Refused as refused:
            raise PayloadError(f"headers{_path([key])}: {refused.reason}") from None
        if room < 0:
            raise _too_large("headers", HEADERS_BYTES_MAX)
        copied[key] = value
    return copied


def _items_of(headers: object) -> ItemsView[object, object]:
    if not isinstance(headers, Mapping):
        kind = _a(_type_name(type(headers)))
        raise ArgumentError(f"headers must be a mapping of str to str, not {kind}; pass a dict")
    return cast(Mapping[object, object], headers).items()


def _encode_str(value: str, limit_bytes: int, what: str) -> bytes:
    if len(value) > limit_bytes:
        raise _too_large(what, limit_bytes, f" ({len(value):,} characters)")
    body = _utf8(value)
    if body is None:
        raise PayloadError(f"{what}: {_surrogate('the str')}")
    if len(body) > limit_bytes:
        raise _too_large(what, limit_bytes, f" ({len(body):,} as UTF-8)")
    return body


def _utf8(text: str) -> bytes | None:
    # The error is dropped here, not chained: it holds the text.
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _room_after(value: object, level: int, room: int) -> int:
    """Take the least size of the value's JSON from `room` (bytes); below 0 it cannot fit.

    A container takes at least one byte for each item before it visits any, so the walk is bounded even where
    one list is reached by many paths.
    """
    if type(value) is str:
        return room - 2 - len(value) if value.isascii() else _room_after_text(value, room - 2)
    if type(value) is int:
        bits = value.bit_length()
        if bits > INT_BITS_MAX:
            raise _Refused(f"an int of {bits:,} bits, more than {INT_BITS_MAX:,}; pass it as a hex str")
        return room - bits // 4
    if value is None or type(value) is bool:
        return room - 4
    if type(value) is float:
        if not math.isfinite(value):
            raise _Refused("NaN and infinity have no JSON form; pass None or a str")
        return room - 3
    if type(value) is dict:
        items = cast(dict[object, object], value)
        return _room_after_dict(items, level + 1, room - 1 - 2 * len(items))
    if type(value) is list:
        elements = cast(list[object], value)
        return _room_after_list(elements, level + 1, room - 1 - len(elements))
    raise _Refused(_remedy(type(value)))


def _room_after_list(items: list[object], level: int, room: int) -> int:
    if level > NESTING_MAX:
        raise _Refused(_TOO_DEEP)
    for index, item in enumerate(items):
        if room < 0:
            break
        try:
            room = _room_after(item, level, room)
        except _Refused as refused:
            refused.steps.append(index)
            raise
    return room


def _room_after_dict(items: dict[object, object], level: int, room: int) -> int:
    if level > NESTING_MAX:
        raise _Refused(_TOO_DEEP)
    for key, item in items.items():
        if room < 0:
            break
        if type(key) is not str:
            name = _a(_type_name(type(key)))
            raise _Refused(f"a dict key that is {name} would come back as a str; use str keys")
        try:
            room = room - 2 - len(key) if key.isascii() else _room_after_text(key, room - 2)
            room = _room_after(item, level, room)
        except _Refused as refused:
            refused.steps.append(key)
            raise
    return room


def _room_after_text(text: str, room: int) -> int:
    if text.isascii() or len(text) > room:
        return room - len(text)
    body = _utf8(text)
    if body is None:
        raise _Refused(_surrogate("a str here"))
    return room - len(body)


def _is_too_deep(body: bytes) -> bool:
    # Without escapes every second piece between quotes is outside strings. Of the brackets there, each round
    # removes the innermost pairs, so that n rounds empty n levels.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    brackets = outside.translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(NESTING_MAX):
        brackets = brackets.replace(b"[]", b"")
    return brackets != b""


def _too_large(what: str, limit_bytes: int, size: str = "") -> PayloadError:
    return PayloadError(
        f"{what}: larger than the limit of {limit_bytes:,} bytes{size}; "
        "keep the data elsewhere and pass a reference to it"
    )


def _surrogate(subject: str) -> str:
    return f"{subject} holds a lone surrogate, which UTF-8 cannot; pass bytes, or replace it"


def _damaged(reason: str) -> PayloadError:
    return PayloadError(f"a stored payload {reason}; edit the job's payload, or delete the job")


def _remedy(kind: type) -> str:
    name = _a(_type_name(kind))
    for base in kind.__mro__:
        known = _REMEDIES.get(f"{base.__module__}.{base.__qualname__}")
        if known is not None:
            return f"{name} would come back as {known[0]}; pass {known[1]}"
    if hasattr(kind, "__dataclass_fields__"):
        return f"{name} would come back as a dict; pass a dict"
    return f"{name} has no exact JSON form; pass {_JSON_VALUES}"


def _type_name(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return _shown(f"{module}{kind.__qualname__}")


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def _path(steps: Sequence[str | int]) -> str:
    parts = (f"[{step}]" if isinstance(step, int) else f'["{_shown(step)}"]' for step in reversed(steps))
    return "".join(parts)


def _shown(name: str) -> str:
    """The name on one line, escaped, in at most 40 characters."""
    escaped = repr(name[: _NAME_CHARS_MAX + 1])[1:-1].replace('"', '\\"')
    return escaped if len(escaped) <= _NAME_CHARS_MAX else f"{escaped[: _NAME_CHARS_MAX - 1]}…"
