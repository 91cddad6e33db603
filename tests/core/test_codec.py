from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import struct
import sys
import traceback
import tracemalloc
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.codec import HEADERS_BYTES_MAX, NESTING_MAX, PAYLOAD_BYTES_MAX, decode, encode, encode_headers
from ulak.errors import ArgumentError, PayloadError

SECRET = "hunter2"
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


def refusal(value: object, **options: object) -> str:
    with pytest.raises(PayloadError) as caught:
        encode(value, **options)  # type: ignore[arg-type]
    return str(caught.value)


numbers = st.integers(-WIDEST_INT, WIDEST_INT) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


# Round trips


@settings(deadline=None)
@given(values)
def test_Y1_every_json_value_comes_back_equal_in_value_and_type(value: object) -> None:
    body, codec = encode(value)
    assert same(value, decode(body, codec))


@settings(deadline=None)
@given(values)
def test_Y1_another_json_reader_reads_the_same_value(value: object) -> None:
    body, codec = encode(value)
    if codec == "json":
        assert same(value, json.loads(body))
    else:
        assert same(value, body.decode("utf-8"))


@settings(deadline=None)
@given(st.binary())
def test_Y1_bytes_pass_as_they_are(value: bytes) -> None:
    assert encode(value) == (value, "bytes")
    assert decode(value, "bytes") == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, (b"null", "json")),
        ("", (b"", "str")),
        (b"", (b"", "bytes")),
        ([], (b"[]", "json")),
        ({}, (b"{}", "json")),
        (0, (b"0", "json")),
        (1, (b"1", "json")),
        (False, (b"false", "json")),
        (True, (b"true", "json")),
        (0.0, (b"0.0", "json")),
        (-0.0, (b"-0.0", "json")),
        (1.0, (b"1.0", "json")),
        ([1, 1.0, True], (b"[1,1.0,true]", "json")),
        ({"": None}, (b'{"":null}', "json")),
        ("null", (b"null", "str")),
        ("ş", (b"\xc5\x9f", "str")),
    ],
)
def test_Y11_empty_and_look_alike_values_stay_themselves(value: object, stored: tuple[bytes, str]) -> None:
    assert encode(value) == stored
    assert same(value, decode(*stored))


@pytest.mark.parametrize("text", ["a\x00b", "\x00", "\ud7ff\ue000\uffff\U0010ffff", '\\"[{\u2028\x7f'])
def test_Y2_nul_and_odd_characters_survive_as_payload_value_and_key(text: str) -> None:
    for value in (text, [text], {text: text}):
        assert same(value, decode(*encode(value)))


@pytest.mark.parametrize(
    "number",
    [2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**639, WIDEST_INT, -WIDEST_INT],
    ids=range(10),
)
def test_Y5_ints_up_to_2126_bits_are_exact(number: int) -> None:
    assert same(number, decode(*encode(number)))
    assert same([number], decode(*encode([number])))


@pytest.mark.parametrize(
    "number", [5e-324, 2.2250738585072014e-308, sys.float_info.max, 0.1, 1e16, 1e22, 1e23]
)
def test_Y1_floats_at_the_edges_are_exact(number: float) -> None:
    assert same(number, decode(*encode(number)))


def test_Y5_the_widest_int_is_readable_by_a_process_with_the_strictest_digit_limit() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        assert decode(*encode(-WIDEST_INT)) == -WIDEST_INT
    finally:
        sys.set_int_max_str_digits(limit)


def test_each_decode_gives_an_object_of_its_own() -> None:
    body, codec = encode({"tags": ["a"]})
    first = decode(body, codec)
    first["tags"].append("b")
    assert decode(body, codec) == {"tags": ["a"]}


# Refusals


REFUSED_TYPES = [
    ((1,), "a tuple would come back as a list; pass a list"),
    (Spot(1), "a test_codec.Spot would come back as a list; pass a list"),
    ({1}, "a set would come back as a list; pass a list"),
    (frozenset([1]), "a frozenset would come back as a list; pass a list"),
    (bytearray(b"x"), "a bytearray would come back as a str; pass bytes"),
    (memoryview(b"x"), "a memoryview would come back as a str; pass bytes"),
    (BytesKind(b"x"), "a test_codec.BytesKind would come back as a str; pass the bytes alone"),
    (
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "a datetime.datetime would come back as a str; pass value.isoformat()",
    ),
    (dt.date(2020, 1, 1), "a datetime.date would come back as a str; pass value.isoformat()"),
    (dt.time(1), "a datetime.time would come back as a str; pass value.isoformat()"),
    (dt.timedelta(1), "a datetime.timedelta would come back as a str; pass value.total_seconds()"),
    (uuid.UUID(int=1), "a uuid.UUID would come back as a str; pass str(value)"),
    (decimal.Decimal(1), "a decimal.Decimal would come back as a str; pass str(value)"),
    (Card("1"), "a test_codec.Card would come back as a dict; pass a dict"),
    (Record("1"), "a test_codec.Record would come back as a dict; pass a dict"),
    (Level.HIGH, "a test_codec.Level would come back as an int; pass value.value"),
    (Tint.RED, "a test_codec.Tint would come back as a str; pass value.value"),
    (Shape.ROUND, "a test_codec.Shape would come back as its bare value; pass value.value"),
    (StrKind("x"), "a test_codec.StrKind would come back as a str; pass str(value)"),
    (IntKind(1), "a test_codec.IntKind would come back as an int; pass int(value)"),
    (FloatKind(1), "a test_codec.FloatKind would come back as a float; pass float(value)"),
    (ListKind(), "a test_codec.ListKind would come back as a list; pass list(value)"),
    (DictKind(), "a test_codec.DictKind would come back as a dict; pass dict(value)"),
    (collections.OrderedDict(), "a collections.OrderedDict would come back as a dict; pass dict(value)"),
    (object(), "an object has no exact JSON form; pass None, bool, int, float, str, list, dict"),
    (msgspec.Raw(b"1"), "a msgspec.Raw has no exact JSON form"),
    (Opaque(), "a test_codec.Opaque has no exact JSON form"),
    (..., "an ellipsis has no exact JSON form"),
    (1j, "a complex has no exact JSON form"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED_TYPES)
def test_Y1_what_would_return_as_another_type_is_a_type_error_in_the_caller(
    value: object, reason: str
) -> None:
    # The module's own name depends on how pytest imports it.
    reason = reason.replace("test_codec.", f"{__name__}.")
    with pytest.raises(TypeError, match=r"^payload: "):
        encode(value)
    assert f"payload: {reason}" in refusal(value)
    assert f'payload["to"][3]: {reason}' in refusal({"to": [1, 2, 3, value]})
    assert f'result[0]["a"]["b"]: {reason}' in refusal([{"a": {"b": value}}], what="result")


def test_Y1_bytes_inside_json_are_refused_with_the_two_ways_out() -> None:
    assert (
        'payload["body"]: a bytes would come back as a str; '
        "pass the bytes alone as the payload, or a base64 str" in refusal({"body": b"x"})
    )


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"k", ("a",), StrKind("k"), Tint.RED])
def test_Y1_dict_keys_other_than_str_are_refused(key: object) -> None:
    name = type(key).__name__
    text = refusal({"a": {key: 1}})
    assert text.startswith('payload["a"]: a dict key that is a')
    assert f"{name} would come back as a str; use str keys" in text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_Y4_nan_and_infinities_are_refused_in_the_caller(number: float) -> None:
    assert "payload: NaN and infinity" in refusal(number)
    assert 'payload["x"][0]: NaN and infinity' in refusal({"x": [number]})


@pytest.mark.parametrize("number", [2**2126, -(2**2126), 10**640, 10**5000], ids=range(4))
def test_Y5_ints_of_more_than_2126_bits_are_refused(number: int) -> None:
    assert f"payload: an int of {number.bit_length():,} bits" in refusal(number)
    assert 'payload["n"]: an int of' in refusal({"n": number})


def test_Y3_lone_surrogates_are_refused_as_payload_value_and_key() -> None:
    assert "payload: the str holds a lone surrogate" in refusal("a\ud800")
    assert "payload[0]: a str here holds a lone surrogate" in refusal(["\udfff"])
    assert r'payload["k\ud800"]: a str here holds a lone surrogate' in refusal({"k\ud800": 1})


@pytest.mark.parametrize("around", [lambda inner: [inner], lambda inner: {"k": inner}])
def test_Y9_nesting_is_bounded_and_never_a_recursion_error(around: Callable[[object], object]) -> None:
    deepest = nested(NESTING_MAX, around)
    assert same(deepest, decode(*encode(deepest)))
    for levels in (NESTING_MAX + 1, 100_000):
        assert "nested more than 32 deep" in refusal(nested(levels, around))


def test_Y9_a_value_that_contains_itself_is_refused() -> None:
    circle: list[object] = [1]
    circle.append(circle)
    ring: dict[str, object] = {}
    ring["self"] = [ring]
    for value in (circle, ring):
        assert "contains itself" in refusal(value)


def test_every_item_is_judged_before_anything_is_encoded_however_little_room_is_left() -> None:
    for limit_bytes in (2, 3):
        assert "an object has no exact JSON form" in refusal([object()], limit_bytes=limit_bytes)
    assert "larger than the limit of 1 bytes" in refusal([object()], limit_bytes=1)


def test_a_payload_of_exactly_256_kib_fits_and_one_byte_more_does_not() -> None:
    room = PAYLOAD_BYTES_MAX
    assert room == 262_144
    fitting = [
        b"x" * room,
        "x" * room,
        "ş" * (room // 2),
        ["x" * (room - 4)],
        ["ş" * (room // 2 - 2)],
        {"k": "x" * (room - 8)},
        {"ş" * (room // 2 - 5): "şx"},
        [8] * (room // 2 - 2) + [10],
    ]
    for value in fitting:
        assert len(encode(value)[0]) == room
    assert encode([None, True], limit_bytes=11) == (b"[null,true]", "json")
    too_large = [
        (b"x" * (room + 1), " (262,145)"),
        ("x" * (room + 1), " (262,145 characters)"),
        ("ş" * (room // 2 + 1), " (262,146 as UTF-8)"),
        (["x" * (room - 3)], ""),
        (["\n" * (room // 2)], " (262,148 as JSON)"),
        ({"k": "x" * (room - 7)}, ""),
        ({"x" * room: 1}, ""),
        (["ş" * (room // 2)], ""),
        (["ş" * room], ""),
        ([10**639] * 500, ""),
        ([None] * (room // 5 + 1), ""),
    ]
    for value, size in too_large:
        text = refusal(value)
        assert text.startswith(f"payload: larger than the limit of 262,144 bytes{size};")


sized = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-WIDEST_INT, WIDEST_INT) | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(sized), st.sampled_from([-1, 0, 1]))
def test_the_limit_is_exact_for_json(value: object, spare: int) -> None:
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if spare < 0:
        assert f"limit of {size - 1:,} bytes" in refusal(value, limit_bytes=size - 1)
    else:
        assert len(encode(value, limit_bytes=size + spare)[0]) == size


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_the_limit_is_exact_for_floats(value: list[float]) -> None:
    size = len(encode(value)[0])
    assert encode(value, limit_bytes=size)[1] == "json"
    refusal(value, limit_bytes=size - 1)


def wide_circle() -> object:
    circle: list[object] = [0] * 2_000
    circle.append(circle)
    return circle


OVERSIZED: dict[str, Callable[[], object]] = {
    "many items": lambda: [0] * 3_000_000,
    "many keys": lambda: dict.fromkeys(map(str, range(140_000))),
    "long ints": lambda: [10**639] * 10_000,
    "long str": lambda: "x" * 30_000_000,
    "long str that is not ASCII": lambda: "ş" * 30_000_000,
    "long str in a list": lambda: ["ş" * 30_000_000],
    "long key": lambda: {"ş" * 30_000_000: 1},
    # Each list holds the one before it a hundred times: 100**30 visits, were they not counted.
    "exponential lists": lambda: nested(30, lambda inner: [inner] * 100),
    "exponential dicts": lambda: nested(30, lambda inner: dict.fromkeys("abcdefgh", inner)),
    "wide again on each of 32 levels": wide_circle,
}


@pytest.mark.parametrize("case", OVERSIZED)
def test_an_oversized_payload_is_refused_in_bounded_memory(case: str) -> None:
    value = OVERSIZED[case]()
    tracemalloc.start()
    try:
        text = refusal(value, limit_bytes=32_768)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "larger than the limit of 32,768 bytes" in text
    assert peak_bytes < 1_000_000


# Error texts


def test_error_texts_show_keys_escaped_and_truncated_to_forty_characters() -> None:
    shown = {
        "k" * 40: "k" * 40,
        "k" * 41: "k" * 39 + "…",
        "k" * 1_000_000: "k" * 39 + "…",
        "\x00" * 11: r"\x00" * 9 + r"\x0" + "…",
        'say "hi"': r"say \"hi\"",
        "it's": "it's",
        "a\nb\u202e": r"a\nb\u202e",
        "\\": r"\\",
        "ş": "ş",
    }
    for key, expected in shown.items():
        assert refusal({key: ()}, limit_bytes=2_000_000).startswith(f'payload["{expected}"]: a tuple')


def test_error_texts_show_long_type_names_truncated() -> None:
    kind = type("K" * 1_000_000, (), {"__module__": "builtins"})
    assert f"payload: a {'K' * 39}… has no exact JSON form" in refusal(kind())


def secret_refusals() -> Iterator[Callable[[], object]]:
    lone = f"{SECRET}\ud800"
    for value in [
        StrKind(SECRET),
        [{SECRET}],
        [(SECRET,)],
        [Card(SECRET)],
        [SECRET.encode()],
        bytearray(SECRET.encode()),
        lone,
        [lone],
        {"k": lone},
        [SECRET, float("nan")],
        [SECRET, 2**9999],
        [SECRET, {1: SECRET}],
        [SECRET, nested(99)],
        SECRET * 99_999,
        SECRET.encode() * 99_999,
        "ş" * 200_000 + SECRET,
        [SECRET] * 99_999,
        [SECRET + "\n" * 200_000],
    ]:
        yield lambda value=value: encode(value)  # type: ignore[misc]
    for body in [f'["{SECRET}"', f"{SECRET}", f'["{SECRET}",1e999]', "[" * 99 + SECRET]:
        yield lambda body=body: decode(body.encode(), "json")  # type: ignore[misc]
    yield lambda: decode(SECRET.encode() + b"\xff", "str")
    yield lambda: decode(SECRET.encode(), "pickle")
    yield lambda: encode_headers({"k": lone})
    yield lambda: encode_headers({"k": SECRET * 9_999})
    yield lambda: encode_headers({"k": StrKind(SECRET)})
    yield lambda: encode_headers(SECRET)  # type: ignore[arg-type]


@pytest.mark.parametrize("act", list(secret_refusals()))
def test_errors_and_what_they_are_chained_to_never_hold_the_value(act: Callable[[], object]) -> None:
    with pytest.raises((PayloadError, ArgumentError)) as caught:
        act()
    assert len(str(caught.value).splitlines()) <= 6
    assert "During handling" not in "".join(traceback.format_exception(caught.value))
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {vars(error)}"
        # A UnicodeError keeps the whole text in an attribute that neither of these shows.
        assert not isinstance(error, UnicodeError)
        error = error.__context__


# Decoding what is not ours


@pytest.mark.parametrize("codec", ["", "JSON", "pickle", "x" * 1_000_000, 'a"\n'], ids=range(5))
def test_an_unknown_codec_is_refused(codec: str) -> None:
    with pytest.raises(PayloadError, match="does not know") as caught:
        decode(b"1", codec)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [b"\xff", b"a\xed\xa0\x80", b"\xc5"])
def test_Y3_a_str_that_is_not_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadError, match=rf"of {len(body)} bytes is not valid UTF-8"):
        decode(body, "str")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1",
        b"1 2",
        b"NaN",
        b"Infinity",
        b"1e999",
        b"'a'",
        b'"\xff"',
        b'"\\ud800"',
        b"{1:2}",
        b"[1,]",
        b"9" * 5_000,
    ],
    ids=range(13),
)
def test_Y4_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadError, match=rf"of {len(body):,} bytes is not valid JSON"):
        decode(body, "json")


def test_Y5_an_int_above_the_digit_limit_of_the_process_is_refused_not_a_value_error() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        with pytest.raises(PayloadError, match="not valid JSON"):
            decode(b"9" * 700, "json")
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 500, 100_000])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"]":', b"}"), (b'[{"\\"[\\\\":', b"}]"), (b"[", b"")])
def test_Y9_json_nested_too_deep_is_refused_and_never_a_recursion_error(
    levels: int, pair: tuple[bytes, bytes]
) -> None:
    body = pair[0] * levels + b"0" + pair[1] * levels
    with pytest.raises(PayloadError, match="nested more than 32 deep"):
        decode(body, "json")


@pytest.mark.parametrize(
    "text", ["[" * 99, "{" * 99, '"[' * 99, '\\"[' * 99, "\\" * 3 + "[" * 99, "]" * 99], ids=range(6)
)
def test_Y9_brackets_inside_strings_do_not_count_as_nesting(text: str) -> None:
    value = [text, {text: [text + "\\"]}] * 20
    assert decode(*encode(value)) == value


def test_Y9_many_shallow_containers_are_not_deep() -> None:
    value = [[], {}, [[{}]]] * 5_000 + [nested(NESTING_MAX - 1)]
    assert decode(*encode(value)) == value


def test_Y9_the_depth_is_judged_in_linear_time_whatever_the_body() -> None:
    # Each of these would take minutes if one quote or bracket could make the scan start over.
    for piece in (b'"', b'\\"', b"\\", b"[", b"[]", b'"[', b'[\\"'):
        with pytest.raises(PayloadError):
            decode(b"[" * 33 + piece * 1_000_000, "json")


# Headers


def test_headers_are_copied() -> None:
    headers = {"trace": "a\x00b", "": ""}
    copied = encode_headers(headers)
    headers["trace"] = "changed"
    assert copied == {"trace": "a\x00b", "": ""}
    assert encode_headers(types.MappingProxyType({"a": "b"})) == {"a": "b"}


def test_no_headers_are_an_empty_dict_of_ones_own() -> None:
    assert encode_headers(None) == {}
    assert encode_headers({}) == {}
    assert encode_headers(None) is not encode_headers(None)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({1: "a"}, "headers: a key is an int; use str keys"),
        ({StrKind("k"): "a"}, f"headers: a key is a {__name__}.StrKind; use str keys"),
        ({"k": 1}, 'headers["k"]: the value is an int; pass a str'),
        ({"k": None}, 'headers["k"]: the value is a NoneType; pass a str'),
        ({"k": b"v"}, 'headers["k"]: the value is a bytes; pass a str'),
        ({"k": StrKind("v")}, f'headers["k"]: the value is a {__name__}.StrKind; pass a str'),
        ({"k\ud800": "v"}, r'headers["k\ud800"]: a str here holds a lone surrogate'),
        ({"k": "\ud800"}, 'headers["k"]: a str here holds a lone surrogate'),
    ],
)
def test_Y3_headers_other_than_exact_str_are_refused(headers: Mapping[str, str], reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode_headers(headers)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("headers", [[("a", "b")], "a", 1, {"a"}, [], "", 0])
def test_headers_must_be_a_mapping(headers: Mapping[str, str]) -> None:
    with pytest.raises(ArgumentError, match=r"headers must be a mapping of str to str, not a.*; pass a dict"):
        encode_headers(headers)


def test_headers_of_8_kib_in_total_fit_and_one_byte_more_does_not() -> None:
    assert HEADERS_BYTES_MAX == 8_192
    for key, value in (("k" * 4_096, "v" * 4_092), ("ş" * 2_048, "ş" * 2_046)):
        assert len(encode_headers({key: value, "é": "é"})) == 2
        for extra in ({"é": "éx"}, {"éx": "é"}, {"é": "é", "x": ""}):
            with pytest.raises(PayloadError, match="headers: larger than the limit of 8,192 bytes;"):
                encode_headers({key: value, **extra})


def test_endless_headers_are_refused_in_bounded_time() -> None:
    class Endless(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            return "v"

        def __iter__(self) -> Iterator[str]:
            yield from map(str, range(10**18))

        def __len__(self) -> int:
            return 10**18

    with pytest.raises(PayloadError, match="larger than the limit"):
        encode_headers(Endless())
