"""What the codec refuses to store, where it says the fault is, and what its errors never show."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import json
import traceback
import tracemalloc
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payloads import (
    WIDEST_INT,
    BytesKind,
    Card,
    DictKind,
    FloatKind,
    IntKind,
    Level,
    ListKind,
    Opaque,
    Record,
    Shape,
    Spot,
    StrKind,
    Tint,
    nested,
    same,
)
from ulak.codec import NESTING_MAX, PAYLOAD_BYTES_MAX, decode, encode, encode_headers
from ulak.errors import ArgumentError, PayloadError

SECRET = "hunter2"


def refusal(value: object, **options: object) -> str:
    with pytest.raises(PayloadError) as caught:
        encode(value, **options)  # type: ignore[arg-type]
    return str(caught.value)


REFUSED_TYPES = [
    ((1,), "a tuple would come back as a list; pass a list"),
    (Spot(1), "a tests.core.payloads.Spot would come back as a list; pass a list"),
    ({1}, "a set would come back as a list; pass a list"),
    (frozenset([1]), "a frozenset would come back as a list; pass a list"),
    (bytearray(b"x"), "a bytearray would come back as a str; pass bytes"),
    (memoryview(b"x"), "a memoryview would come back as a str; pass bytes"),
    (BytesKind(b"x"), "a tests.core.payloads.BytesKind would come back as a str; pass the bytes alone"),
    (
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "a datetime.datetime would come back as a str; pass value.isoformat()",
    ),
    (dt.date(2020, 1, 1), "a datetime.date would come back as a str; pass value.isoformat()"),
    (dt.time(1), "a datetime.time would come back as a str; pass value.isoformat()"),
    (dt.timedelta(1), "a datetime.timedelta would come back as a str; pass value.total_seconds()"),
    (uuid.UUID(int=1), "a uuid.UUID would come back as a str; pass str(value)"),
    (decimal.Decimal(1), "a decimal.Decimal would come back as a str; pass str(value)"),
    (Card("1"), "a tests.core.payloads.Card would come back as a dict; pass a dict"),
    (Record("1"), "a tests.core.payloads.Record would come back as a dict; pass a dict"),
    (Level.HIGH, "a tests.core.payloads.Level would come back as an int; pass value.value"),
    (Tint.RED, "a tests.core.payloads.Tint would come back as a str; pass value.value"),
    (Shape.ROUND, "a tests.core.payloads.Shape would come back as its bare value; pass value.value"),
    (StrKind("x"), "a tests.core.payloads.StrKind would come back as a str; pass str(value)"),
    (IntKind(1), "a tests.core.payloads.IntKind would come back as an int; pass int(value)"),
    (FloatKind(1), "a tests.core.payloads.FloatKind would come back as a float; pass float(value)"),
    (ListKind(), "a tests.core.payloads.ListKind would come back as a list; pass list(value)"),
    (DictKind(), "a tests.core.payloads.DictKind would come back as a dict; pass dict(value)"),
    (collections.OrderedDict(), "a collections.OrderedDict would come back as a dict; pass dict(value)"),
    (object(), "an object has no exact JSON form; pass None, bool, int, float, str, list, dict"),
    (msgspec.Raw(b"1"), "a msgspec.Raw has no exact JSON form"),
    (Opaque(), "a tests.core.payloads.Opaque has no exact JSON form"),
    (..., "an ellipsis has no exact JSON form"),
    (1j, "a complex has no exact JSON form"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED_TYPES)
def test_Y1_what_would_return_as_another_type_is_a_type_error_in_the_caller(
    value: object, reason: str
) -> None:
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


@given(st.lists(sized), st.sampled_from([-1, 0, 1]))
def test_the_limit_is_exact_for_json(value: object, spare: int) -> None:
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if spare < 0:
        assert f"limit of {size - 1:,} bytes" in refusal(value, limit_bytes=size - 1)
    else:
        assert len(encode(value, limit_bytes=size + spare)[0]) == size


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
