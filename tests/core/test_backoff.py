from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.core.backoff import Backoff
from ulak.errors import ArgumentError

ALMOST_1 = 1 - 2.0**-53
CENTURY_S = 3_155_760_000.0
SMALLEST = 5e-324


def doublings(base: float, cap: float) -> Iterator[Fraction]:
    """The oracle, without a power and without a float: the widest delay after failed attempt 1, 2, 3, …"""
    widest = Fraction(base)
    while widest < cap:
        yield widest
        widest *= 2
    while True:
        yield Fraction(cap)


@pytest.mark.parametrize("draw", [0.0, ALMOST_1, 1.0])
@pytest.mark.parametrize(
    ("base", "cap"),
    [
        (1.0, 300.0),
        (1, 300),
        (0.05, 2.0),
        (0.1, 0.1),
        (3, 7.5),
        (1e-9, CENTURY_S),
        (1e-290, CENTURY_S),
        (CENTURY_S, CENTURY_S),
        (1 / 3, 1e6),
    ],
)
def test_r1_delay_is_exact_for_the_first_5000_attempts(base: float, cap: float, draw: float) -> None:
    policy = Backoff(base=base, cap=cap)
    for attempt, widest in enumerate(islice(doublings(base, cap), 5_000), start=1):
        delay_s = policy.delay_s(attempt, draw)
        if attempt < 1_500:  # the cap has been reached long before: from there on all are the same
            expected = float(Fraction(draw) * widest)
        assert (attempt, delay_s) == (attempt, expected)
        assert 0 <= delay_s <= cap


@pytest.mark.parametrize("attempt", [1_023, 1_024, 1_025, 1_026, 5_000, 10**6, 2**63, 10**400])
def test_r1_no_attempt_number_is_too_large(attempt: int) -> None:
    policy = Backoff(base=0.05, cap=2.0)
    assert policy.delay_s(attempt, 0.0) == 0.0
    assert policy.delay_s(attempt, 0.25) == 0.5
    assert policy.delay_s(attempt, 1.0) == 2.0


@pytest.mark.parametrize("attempt", [1, 2, 1_024, 5_000, 10**6])
@pytest.mark.parametrize(("base", "cap"), [(SMALLEST, SMALLEST), (SMALLEST, CENTURY_S), (1e-300, 1e-290)])
def test_r1_the_smallest_floats_stay_within_the_bounds(base: float, cap: float, attempt: int) -> None:
    policy = Backoff(base=base, cap=cap)
    assert policy.delay_s(attempt, 0.0) == 0.0
    assert 0 < policy.delay_s(attempt, 1.0) <= cap


@pytest.mark.parametrize(
    ("attempt", "widest"), [(1_022, 2.0**-53), (1_023, 2.0**-52), (1_024, 2.0**-51), (5_000, 2.0**-51)]
)
def test_r1_doubling_goes_on_to_the_largest_power_that_a_float_holds(attempt: int, widest: float) -> None:
    # The one base that is still far below its cap by then.
    assert Backoff(base=SMALLEST, cap=CENTURY_S).delay_s(attempt, 1.0) == widest


@st.composite
def policies(draw: st.DrawFn) -> Backoff:
    base, cap = sorted(draw(st.tuples(*[st.floats(SMALLEST, CENTURY_S)] * 2)))
    return Backoff(base=base, cap=cap, floor=draw(st.floats(0, cap)))


@given(policies(), st.integers(1, 10**9), st.floats(0, 1))
def test_r1_delay_is_between_floor_and_cap_and_never_shrinks(policy: Backoff, attempt: int, u: float) -> None:
    delay_s = policy.delay_s(attempt, u)
    assert 0 <= policy.floor <= delay_s <= policy.cap
    assert delay_s <= policy.delay_s(attempt + 1, u)


@given(policies(), st.integers(1, 10**9), st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted))
def test_a_larger_draw_never_shortens_the_delay(policy: Backoff, attempt: int, draws: list[float]) -> None:
    lower, upper = draws
    assert policy.delay_s(attempt, lower) <= policy.delay_s(attempt, upper)


def test_r5_full_jitter_starts_at_zero() -> None:
    policy = Backoff(base=1.0, cap=300.0)
    assert [policy.delay_s(attempt, 0.0) for attempt in (1, 2, 10)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("attempt", "draw", "expected"),
    [
        (1, 0.0, 0.5),
        (1, 0.25, 0.5),
        (1, 0.75, 0.75),
        (1, 1.0, 1.0),
        (4, 0.0, 0.5),
        (4, 0.125, 1.0),
        (4, 1.0, 8.0),
        (10**6, 0.0, 0.5),
        (10**6, 1.0, 10.0),
    ],
)
def test_r5_floor_keeps_retries_from_being_spent_at_once(attempt: int, draw: float, expected: float) -> None:
    policy = Backoff(base=1.0, cap=10.0, floor=0.5)
    assert policy.delay_s(attempt, draw) == expected


def test_r5_floor_may_be_wider_than_the_first_delay_and_as_wide_as_the_cap() -> None:
    policy = Backoff(base=1.0, cap=4.0, floor=4.0)
    assert [policy.delay_s(attempt, u) for attempt in (1, 2, 3) for u in (0.0, 1.0)] == [4.0] * 6


def test_defaults_are_one_second_to_five_minutes_without_a_floor() -> None:
    assert Backoff() == Backoff(base=1.0, cap=300.0, floor=0.0)


def test_timedeltas_and_ints_are_kept_as_seconds() -> None:
    policy = Backoff(base=timedelta(milliseconds=50), cap=timedelta(minutes=5), floor=0)
    assert (policy.base, policy.cap, policy.floor) == (0.05, 300.0, 0.0)
    assert {type(value) for value in (policy.base, policy.cap, policy.floor)} == {float}
    assert policy == Backoff(base=0.05, cap=300.0)
    assert policy.delay_s(2, 0.5) == 0.05


def test_policy_comes_back_from_json_as_it_was_stored() -> None:
    policy = Backoff(base=timedelta(seconds=2), cap=60, floor=0.1)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Backoff) == policy


def test_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Backoff().base = 5.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"base": 0}, "Backoff needs 0 < base <= cap, got base=0.0 s and cap=300.0 s"),
        ({"base": timedelta(0)}, "Backoff needs 0 < base <= cap, got base=0.0 s and cap=300.0 s"),
        ({"base": 301}, "Backoff needs 0 < base <= cap, got base=301.0 s and cap=300.0 s"),
        ({"base": 2, "cap": 1.5}, "Backoff needs 0 < base <= cap, got base=2.0 s and cap=1.5 s"),
        ({"cap": 0}, "Backoff needs 0 < base <= cap, got base=1.0 s and cap=0.0 s"),
        ({"floor": 300.5}, "Backoff needs floor <= cap, got floor=300.5 s and cap=300.0 s"),
        ({"base": -1}, "base must be from 0 to 3,155,760,000 seconds"),
        ({"cap": timedelta(days=-1)}, "cap must be from 0 to 3,155,760,000 seconds"),
        ({"floor": -0.1}, "floor must be from 0 to 3,155,760,000 seconds"),
        ({"base": float("nan")}, "base must be from 0 to 3,155,760,000 seconds"),
        ({"cap": float("inf")}, "cap must be from 0 to 3,155,760,000 seconds"),
        ({"cap": CENTURY_S + 1}, "cap must be from 0 to 3,155,760,000 seconds"),
        ({"base": True}, 'base must be seconds (a number), a timedelta, or text such as "5m", not bool'),
        ({"cap": "long"}, "cap: cannot read 'long' as a duration; write a number with ms, s, m, h or d"),
        ({"floor": None}, 'floor must be seconds (a number), a timedelta, or text such as "5m", not None'),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Backoff(**arguments)  # type: ignore[arg-type]
    assert text in str(caught.value)
