from __future__ import annotations

import math
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.durations import Duration, format_duration, parse_duration, seconds
from ulak.errors import ArgumentError

CENTURY_S = 3_155_760_000
FORMS = 'must be seconds (a number), a timedelta, or text such as "5m"'
RANGE = "must be from 0 to 3,155,760,000 seconds (100 years)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.05, 0.05),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (timedelta(0), 0.0),
        ("1.5m", 90.0),
        ("30", 30.0),
        (CENTURY_S, 3_155_760_000.0),
        (timedelta(days=36_525), 3_155_760_000.0),
    ],
)
def test_seconds_takes_numbers_timedeltas_and_text(value: Duration, expected: float) -> None:
    got = seconds(value, name="delay")
    assert got == expected
    assert type(got) is float


def test_seconds_turns_minus_zero_into_zero() -> None:
    assert math.copysign(1.0, seconds(-0.0, name="delay")) == 1.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, f"{FORMS}, not bool"),
        (False, f"{FORMS}, not bool"),
        ("soon", ": cannot read 'soon' as a duration; write a number with ms, s, m, h or d"),
        ("101000d", ": the duration '101000d' must be from 0 to 3,155,760,000 seconds"),
        (None, f"{FORMS}, not NoneType"),
        (1j, f"{FORMS}, not complex"),
        (math.nan, RANGE),
        (-0.001, RANGE),
        (-math.inf, RANGE),
        (timedelta(microseconds=-1), RANGE),
        (-(10**5000), RANGE),
        (math.inf, RANGE),
        (10**5000, RANGE),
        (CENTURY_S + 1, RANGE),
        (timedelta.max, RANGE),
    ],
    ids=range(15),
)
def test_Y4_Y5_what_is_no_duration_is_refused_by_the_name_of_the_argument(value: object, reason: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        seconds(value, name="visibility_timeout")  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"visibility_timeout{' ' * (reason[0] != ':')}{reason}")


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)])
def test_zero_is_refused_where_it_makes_no_sense(value: float | timedelta) -> None:
    with pytest.raises(ArgumentError, match="grace must be more than 0 seconds"):
        seconds(value, name="grace", allow_zero=False)
    assert seconds(5e-324, name="grace", allow_zero=False) > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1ms", 0.001),
        ("20ms", 0.02),
        ("57ms", 0.057),
        ("1.5ms", 0.0015),
        ("2s", 2.0),
        ("0s", 0.0),
        ("0.25s", 0.25),
        (".5s", 0.5),
        ("1.5m", 90.0),
        ("3h", 10_800.0),
        ("1d", 86_400.0),
        ("36525d", 3_155_760_000.0),
        ("5", 5.0),
        ("0.5", 0.5),
        (" 2 s ", 2.0),
    ],
)
def test_a_duration_on_the_command_line_is_a_number_and_a_unit(text: str, expected: float) -> None:
    got = parse_duration(text)
    assert got == expected
    assert type(got) is float


@given(st.integers(0, 10**9))
def test_milliseconds_are_the_nearest_float(milliseconds: int) -> None:
    assert parse_duration(f"{milliseconds}ms") == float(f"{milliseconds}e-3")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        "+1s",
        "1e3",
        "nan",
        "inf",
        "1 2",
        "1,5s",
        "5.",
        "2w",
        "2S",
        "1h30m",
        "\u0661s",
        "1s\nx",
    ],
)
def test_an_unreadable_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_duration(text)
    start = f"cannot read {text!r} as a duration; write a number with ms, s, m, h or d"
    assert str(caught.value).startswith(start)
    assert "such as 20ms or 1.5m" in str(caught.value)


def test_a_long_text_is_refused_without_being_repeated() -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_duration("1" * 1_000_000)
    assert f"cannot read '{'1' * 32}…' as" in str(caught.value)
    assert parse_duration("0" * 31 + "1") == 1.0


def test_Y5_a_duration_of_more_than_100_years_is_refused_on_the_command_line() -> None:
    with pytest.raises(ArgumentError, match=r"^the duration '36526d' must be from 0 to"):
        parse_duration("36526d")


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0, "0s"),
        (4e-7, "0s"),
        (-0.0, "0s"),
        (1e-6, "1µs"),
        (0.00025, "250µs"),
        (0.000_999, "999µs"),
        (0.001, "1.0ms"),
        (0.001_26, "1.3ms"),
        (0.009_949, "9.9ms"),
        (0.009_95, "10ms"),
        (0.0412, "41ms"),
        (0.390, "390ms"),
        (0.999_499, "999ms"),
        (0.999_5, "1.00s"),
        (1.2, "1.20s"),
        (1.2049, "1.20s"),
        (1.205, "1.21s"),
        (59.994_999, "59.99s"),
        (59.995, "1m 00s"),
        (185, "3m 05s"),
        (3_599.499, "59m 59s"),
        (3_599.5, "1h 00m"),
        (7_500, "2h 05m"),
        (86_369, "23h 59m"),
        (86_370, "1d 00h"),
        (187_200, "2d 04h"),
        (10_000_000, "115d 18h"),
        (-0.041, "-41ms"),
        (-185.0, "-3m 05s"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_a_duration_is_shown_as_short_as_its_size_allows(value_s: float, text: str) -> None:
    assert format_duration(value_s) == text


UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


@given(st.floats(1e-6, CENTURY_S))
def test_what_is_shown_is_near_the_duration_and_never_a_full_unit(value_s: float) -> None:
    text = format_duration(value_s)
    parts = re.findall(r"([0-9.]+)(ms|µs|[dhms])", text)
    shown_s = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    assert shown_s == pytest.approx(value_s, rel=0.5 if value_s < 1e-5 else 0.055)
    limits = {"h": 24, "m": 60, "s": 60, "ms": 1_000, "µs": 1_000}
    assert all(float(number) < limits.get(unit, math.inf) for number, unit in parts)
    assert len(text) <= 10
