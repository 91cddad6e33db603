"""What the codec stores and reads back: payloads, foreign bytes, headers."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payloads import WIDEST_INT, StrKind, nested, same
from ulak.codec import HEADERS_BYTES_MAX, NESTING_MAX, decode, encode, encode_headers
from ulak.errors import ArgumentError, PayloadError

numbers = st.integers(-WIDEST_INT, WIDEST_INT) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


# Round trips


@given(values)
def test_Y1_every_json_value_comes_back_equal_in_value_and_type(value: object) -> None:
    body, codec = encode(value)
    assert same(value, decode(body, codec))


@given(values)
def test_Y1_another_json_reader_reads_the_same_value(value: object) -> None:
    body, codec = encode(value)
    if codec == "json":
        assert same(value, json.loads(body))
    else:
        assert same(value, body.decode("utf-8"))


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
        ({StrKind("k"): "a"}, "headers: a key is a tests.core.payloads.StrKind; use str keys"),
        ({"k": 1}, 'headers["k"]: the value is an int; pass a str'),
        ({"k": None}, 'headers["k"]: the value is a NoneType; pass a str'),
        ({"k": b"v"}, 'headers["k"]: the value is a bytes; pass a str'),
        ({"k": StrKind("v")}, 'headers["k"]: the value is a tests.core.payloads.StrKind; pass a str'),
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
