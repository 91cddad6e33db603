"""A queue's history cut into slices: what happened in each, whoever recorded it and when."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.core.history import HOUR_S, KEPT_S, MINUTE_S, Moment, Took
from ulak.core.job import Counts, Totals
from ulak.core.trend import SLICES_MAX, Plan, Trend, plan_of, trend_of
from ulak.metrics import bucket_of

MINUTES = Plan(MINUTE_S, 60.0, 3)


def moment(seen_at: float, succeeded: int, *run_s: float) -> Moment:
    counts = Counts(totals=Totals(succeeded=succeeded, processed=succeeded))
    return Moment(seen_at // 60 * 60, seen_at, counts, Took(run=Counter(map(bucket_of, run_s))))


def succeeded(trend: Trend) -> list[float]:
    return [one.succeeded for one in trend.slices]


def test_a_slice_has_what_was_added_between_its_ends() -> None:
    trend = trend_of([moment(0, 10), moment(60, 15), moment(120, 15), moment(180, 40)], 180.0, MINUTES)
    assert succeeded(trend) == [5, 0, 25]
    assert trend.whole.succeeded == 30
    assert [(one.from_at, one.until_at) for one in trend.slices] == [(0, 60), (60, 120), (120, 180)]


def test_what_is_known_of_a_longer_time_only_is_spread_over_it() -> None:
    trend = trend_of([moment(0, 0), moment(150, 50), moment(180, 50)], 180.0, MINUTES)
    assert succeeded(trend) == pytest.approx([20, 20, 10])


def test_before_the_first_record_nothing_is_known() -> None:
    trend = trend_of([moment(130, 7), moment(180, 9)], 180.0, MINUTES)
    assert [one.is_known for one in trend.slices] == [False, False, True]
    assert succeeded(trend) == [0, 0, 2]
    nothing = trend_of([], 180.0, MINUTES)
    assert not any(one.is_known for one in (*nothing.slices, nothing.whole))


def test_the_first_row_is_compared_with_how_it_stood_when_it_was_recorded_first() -> None:
    first = msgspec.structs.replace(moment(110, 9), first=Totals(succeeded=4), first_at=65.0)
    later = msgspec.structs.replace(moment(180, 10), first=Totals(succeeded=9), first_at=130.0)
    trend = trend_of([first, later], 180.0, MINUTES)
    assert (trend.whole.succeeded, [one.is_known for one in trend.slices]) == (6, [False, True, True])


def test_a_record_before_the_slices_is_where_they_begin() -> None:
    assert succeeded(trend_of([moment(-60, 0), moment(60, 12), moment(180, 12)], 180.0, MINUTES)) == [6, 0, 0]


def test_durations_are_of_the_slice_in_which_they_were_recorded_and_of_none_before() -> None:
    rows = [
        moment(-5, 0, 9.0),
        moment(0, 0, 9.0),
        moment(60, 1, 0.5),
        moment(90, 2, 1.0, 2.0),
        moment(180, 2),
    ]
    trend = trend_of(rows, 180.0, MINUTES)
    assert [one.run.count for one in trend.slices] == [1, 2, 0]
    assert trend.whole.run.count == 3
    assert trend.whole.run.percentile(100) == pytest.approx(2.0, rel=0.04)


def test_a_calendar_that_was_set_back_takes_nothing_away() -> None:
    rows = [moment(0, 10), moment(100, 20), moment(50, 30), moment(180, 31)]
    trend = trend_of(rows, 180.0, MINUTES)
    assert all(number >= 0 for number in succeeded(trend))
    assert trend.whole.succeeded == 21


@given(
    st.lists(st.tuples(st.floats(1, 100), st.integers(0, 100)), min_size=1, max_size=30),
    st.integers(1, 30),
)
def test_slices_add_up_to_the_whole(steps: list[tuple[float, int]], count: int) -> None:
    at, total, rows = 0.0, 0, [moment(0, 0)]
    for step_s, more in steps:
        at, total = at + step_s, total + more
        rows.append(moment(at, total))
    trend = trend_of(rows, at, Plan(MINUTE_S, 60.0, count))
    assert sum(succeeded(trend)) == pytest.approx(trend.whole.succeeded)
    assert trend.whole.succeeded <= total
    if 60.0 * count >= at:
        assert trend.whole.succeeded == total


@given(st.floats(60, KEPT_S[HOUR_S]))
def test_a_time_is_covered_by_few_slices_of_whole_rows_that_are_kept(since_s: float) -> None:
    plan = plan_of(since_s)
    assert 1 <= plan.count <= SLICES_MAX
    assert plan.step_s % plan.grain == 0
    assert since_s <= plan.since_s < since_s + plan.step_s + plan.grain
    assert since_s <= KEPT_S[plan.grain]


@pytest.mark.parametrize(
    ("since_s", "step_s", "count"),
    [(60, 60, 1), (600, 60, 10), (3600, 120, 30), (86_400, 48 * 60, 30), (3 * 86_400, 3 * 3600, 24)],
)
def test_usual_times_are_cut_so(since_s: float, step_s: float, count: int) -> None:
    plan = plan_of(since_s)
    assert (plan.step_s, plan.count) == (step_s, count)
    assert math.isclose(plan.since_s, since_s)
