from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.errors import ArgumentError
from ulak.metrics import Histogram, bucket_of, coarse

durations_s = st.floats(1e-6, 3 * 3600)
any_durations_s = st.floats(0, 1e300) | durations_s
percents = st.integers(0, 100) | st.sampled_from([0.1, 12.5, 99.9, 99.99])


def filled(values_s: list[float]) -> Histogram:
    histogram = Histogram()
    for value_s in values_s:
        histogram.record(value_s)
    return histogram


def percentiles(histogram: Histogram) -> list[float]:
    return [histogram.percentile(p) for p in range(0, 101, 10)]


def nearest_rank(values_s: list[float], p: float) -> float:
    position = math.ceil(Fraction(str(p)) * len(values_s) / 100)
    return sorted(values_s)[max(position, 1) - 1]


@given(st.lists(durations_s, min_size=1), percents)
def test_a_percentile_is_within_two_percent_of_the_sorted_list(values_s: list[float], p: float) -> None:
    expected = nearest_rank(values_s, p)
    assert filled(values_s).percentile(p) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("exponent", range(-20, 14))
def test_a_percentile_is_within_two_percent_over_the_whole_range(exponent: int) -> None:
    # Three values so that rank 2 is answered by its bucket, not by the exact ends.
    for step in range(200):
        value_s = 2.0**exponent * (1 + step / 200)
        assert filled([0.0, value_s, 1e9]).percentile(50) == pytest.approx(value_s, rel=0.01)


@given(st.lists(any_durations_s, min_size=1), percents)
def test_a_percentile_is_never_outside_the_recorded_range(values_s: list[float], p: float) -> None:
    histogram = filled(values_s)
    assert min(values_s) <= histogram.percentile(p) <= max(values_s)
    assert min(values_s) <= histogram.mean_s <= max(values_s)


@given(st.lists(any_durations_s, min_size=1))
def test_percentiles_never_fall_as_p_grows_and_end_exactly(values_s: list[float]) -> None:
    answers = percentiles(filled(values_s))
    assert answers == sorted(answers)
    assert (answers[0], answers[-1]) == (min(values_s), max(values_s))


@given(st.lists(durations_s, min_size=1))
def test_count_minimum_maximum_and_mean_are_exact(values_s: list[float]) -> None:
    histogram = filled(values_s)
    assert histogram.count == len(values_s)
    assert (histogram.min_s, histogram.max_s) == (min(values_s), max(values_s))
    assert histogram.mean_s == pytest.approx(math.fsum(values_s) / len(values_s), rel=1e-12)


def test_an_empty_histogram_answers_zero() -> None:
    empty = Histogram()
    assert (empty.count, empty.min_s, empty.max_s, empty.mean_s) == (0, 0.0, 0.0, 0.0)
    assert [empty.percentile(p) for p in (0, 50, 100)] == [0.0, 0.0, 0.0]


@given(st.lists(any_durations_s), st.lists(any_durations_s))
def test_merging_equals_recording_everything_in_one(left: list[float], right: list[float]) -> None:
    merged, other, whole = filled(left), filled(right), filled(left + right)
    merged.merge(other)
    assert (merged.count, merged.min_s, merged.max_s) == (whole.count, whole.min_s, whole.max_s)
    assert merged.mean_s == pytest.approx(whole.mean_s)
    assert percentiles(merged) == percentiles(whole)
    assert percentiles(other) == percentiles(filled(right))


def test_merging_with_itself_doubles() -> None:
    histogram = filled([1.0, 2.0])
    histogram.merge(histogram)
    assert (histogram.count, histogram.mean_s, histogram.min_s, histogram.max_s) == (4, 1.5, 1.0, 2.0)


def test_durations_below_the_range_answer_the_minimum_and_above_it_the_maximum() -> None:
    histogram = filled([0.0, 1e-9, 2e-9, 1.0, 30_000.0, 50_000.0, 90_000.0])
    assert histogram.percentile(30) == 0.0
    assert histogram.percentile(50) == pytest.approx(1.0, rel=0.01)
    assert histogram.percentile(80) == 90_000.0


def test_the_lowest_and_the_highest_rank_are_answered_exactly() -> None:
    # Neither is the middle of its bucket, and each lies on the side that clamping does not mend.
    histogram = filled([0.297, 0.3])
    assert (histogram.percentile(50), histogram.percentile(51)) == (0.297, 0.3)


def test_the_mean_of_equal_durations_is_that_duration() -> None:
    # 0.1 + 0.1 + 0.1 is more than 0.3 in floats.
    assert filled([0.1] * 3).mean_s == 0.1


def test_a_negative_duration_counts_as_zero() -> None:
    histogram = filled([-1.0, 3.0])
    assert (histogram.count, histogram.min_s, histogram.mean_s) == (2, 0.0, 1.5)


@pytest.mark.parametrize("value_s", [math.nan, math.inf, -math.inf])
def test_a_duration_that_is_no_number_is_refused_and_changes_nothing(value_s: float) -> None:
    histogram = filled([1.0])
    with pytest.raises(ArgumentError, match="finite number of seconds"):
        histogram.record(value_s)
    assert (histogram.count, histogram.mean_s) == (1, 1.0)


@pytest.mark.parametrize("p", [-0.1, 100.1, math.nan, math.inf])
def test_a_percent_outside_0_to_100_is_refused(p: float) -> None:
    with pytest.raises(ArgumentError, match="0 <= p <= 100"):
        filled([1.0]).percentile(p)


def test_one_slow_call_in_a_thousand_shows_at_99_9_only_from_its_rank_on() -> None:
    histogram = filled([0.001] * 999 + [5.0])
    assert histogram.percentile(99.9) == pytest.approx(0.001, rel=0.02)
    assert histogram.percentile(99.91) == 5.0


def buckets_of(values_s: list[float]) -> dict[int, int]:
    return dict(Counter(map(bucket_of, values_s)))


@given(st.lists(durations_s, min_size=1), percents)
def test_what_is_stored_of_durations_has_their_percentiles_within_four_percent(
    values_s: list[float], p: float
) -> None:
    read = Histogram()
    read.add(coarse(buckets_of(values_s)))
    assert read.percentile(p) == pytest.approx(nearest_rank(values_s, p), rel=0.04)
    assert read.count == len(values_s)


@given(st.lists(any_durations_s))
def test_counted_buckets_are_as_the_histogram_counts(values_s: list[float]) -> None:
    read = Histogram()
    read.add(buckets_of(values_s))
    assert read._buckets == filled(values_s)._buckets
    assert read.count == len(values_s)


@given(st.lists(any_durations_s), st.lists(any_durations_s))
def test_what_is_stored_adds_up_like_what_it_was_made_of(one: list[float], other: list[float]) -> None:
    both, whole = Histogram(), Histogram()
    for part in (one, other):
        both.add(coarse(buckets_of(part)))
    whole.add(coarse(buckets_of(one + other)))
    assert both._buckets == whole._buckets
    assert coarse(coarse(buckets_of(one))) == coarse(buckets_of(one))


@pytest.mark.parametrize("value_s", [0.0, -1.0, -1e300, 1e-9, 5e-324])
def test_a_duration_below_all_buckets_counts_as_nothing(value_s: float) -> None:
    read = Histogram()
    read.add({bucket_of(value_s): 1})
    assert (read.count, read.percentile(50)) == (1, 0.0)


def test_a_bucket_that_there_is_not_is_left_out() -> None:
    read = Histogram()
    read.add({-1: 5, 100_000: 7, 3: 1, 4: -2})
    assert read.count == 1


@given(st.lists(durations_s), st.floats(1e-5, 1e4))
def test_how_many_were_as_long_or_shorter_is_right_but_for_those_close_to_it(
    values_s: list[float], bound_s: float
) -> None:
    histogram = filled(values_s)
    at_least = sum(value_s <= bound_s for value_s in values_s)
    at_most = sum(value_s <= bound_s * 1.016 for value_s in values_s)
    assert at_least <= histogram.count_to(bound_s) <= at_most
    assert histogram.sum_s == pytest.approx(sum(values_s))
