from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.errors import ArgumentError
from ulak.failures import fails, predict

ints = st.integers() | st.integers(-(2**200), 2**200)


def draw_of(seed: int, ordinal: int, attempt: int) -> Fraction:
    text = f"{seed:x}:{ordinal:x}:{attempt:x}"
    digest = int(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), 16)
    return Fraction(digest // 2**11, 2**53)


def oracle(seed: int, ordinal: int, attempt: int, rate: float) -> bool:
    return draw_of(seed, ordinal, attempt) < Fraction(rate)


@given(ints, ints, ints, st.floats(0, 1))
def test_whether_an_attempt_fails_is_a_pure_function_of_its_arguments(
    seed: int, ordinal: int, attempt: int, rate: float
) -> None:
    assert fails(seed, ordinal, attempt, rate) == oracle(seed, ordinal, attempt, rate)


def test_the_failures_of_a_seed_are_the_same_on_every_platform_and_version() -> None:
    # Literals, not the oracle: a change of the function would change every demo that was ever written down.
    assert [n for n in range(1, 21) if fails(7, n, 1, 0.5)] == [
        1,
        6,
        7,
        8,
        10,
        12,
        13,
        14,
        16,
        17,
        18,
        19,
        20,
    ]
    assert [n for n in range(1, 21) if fails(-7, 1, n, 0.3)] == [3, 4, 6, 10, 11, 12, 13, 16, 17, 20]
    assert [n for n in range(1, 21) if fails(2**64 + 7, n, 3, 0.3)] == [6, 11, 13, 15, 17, 18, 19]


@given(ints, ints, ints)
def test_rate_0_never_fails_and_rate_1_always(seed: int, ordinal: int, attempt: int) -> None:
    assert fails(seed, ordinal, attempt, 0.0) is False
    assert fails(seed, ordinal, attempt, 1.0) is True


def test_a_draw_is_a_whole_number_of_2_to_the_minus_53_and_fails_only_below_the_rate() -> None:
    # So it can never be rounded up to 1, where rate 1 would let an attempt succeed.
    for ordinal in range(500):
        draw = draw_of(11, ordinal, 1)
        assert not fails(11, ordinal, 1, float(draw))
        assert fails(11, ordinal, 1, float(draw + Fraction(1, 2**53)))


@given(ints, ints, ints, st.floats(0, 1), st.floats(0, 1))
def test_what_fails_at_a_rate_fails_at_every_higher_one(
    seed: int, ordinal: int, attempt: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert fails(seed, ordinal, attempt, low) <= fails(seed, ordinal, attempt, high)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.9])
def test_failures_come_at_the_rate_over_jobs_attempts_and_seeds(rate: float) -> None:
    count = 20_000
    spread = 5 * math.sqrt(rate * (1 - rate) / count)
    for failed in (
        sum(fails(1, n, 1, rate) for n in range(count)),
        sum(fails(1, 1, n, rate) for n in range(count)),
        sum(fails(n, 1, 1, rate) for n in range(count)),
    ):
        assert failed / count == pytest.approx(rate, abs=spread)


def test_the_second_attempt_fails_independently_of_the_first() -> None:
    count = 20_000
    both = sum(fails(3, n, 1, 0.5) and fails(3, n, 2, 0.5) for n in range(count))
    swapped = sum(fails(3, n, 2, 0.5) and fails(3, 2, n, 0.5) for n in range(count))
    assert both / count == pytest.approx(0.25, abs=0.02)
    assert swapped / count == pytest.approx(0.25, abs=0.02)


def test_Y5_a_seed_of_any_size_works() -> None:
    assert fails(10**5000, 1, 1, 1.0)
    assert {fails(-(10**5000), n, 1, 0.5) for n in range(50)} == {True, False}


@pytest.mark.parametrize("rate", [-0.001, 1.001, math.nan, math.inf])
def test_Y4_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match="probability from 0 to 1"):
        fails(1, 1, 1, rate)


@given(st.integers(-50, 50), st.integers(0, 30), st.integers(1, 4), st.floats(0, 1))
def test_the_prediction_is_what_running_every_attempt_gives(
    seed: int, jobs: int, max_attempts: int, rate: float
) -> None:
    succeeded = dead_lettered = 0
    for ordinal in range(1, jobs + 1):
        for attempt in range(1, max_attempts + 1):
            if not oracle(seed, ordinal, attempt, rate):
                succeeded += 1
                break
        else:
            dead_lettered += 1
    assert predict(seed, jobs, max_attempts, rate) == (succeeded, dead_lettered)


def test_the_prediction_at_the_ends_of_the_rate() -> None:
    assert predict(1, 10, 3, 0.0) == (10, 0)
    assert predict(1, 10, 3, 1.0) == (0, 10)
    assert predict(1, 0, 1, 0.5) == (0, 0)


@pytest.mark.parametrize(("jobs", "max_attempts"), [(-1, 1), (1, 0), (1, -1)])
def test_a_prediction_needs_jobs_and_attempts(jobs: int, max_attempts: int) -> None:
    with pytest.raises(ArgumentError, match="jobs >= 0 and max_attempts >= 1"):
        predict(1, jobs, max_attempts, 0.5)
