"""Periods, which of the due ticks are to be fired, and what a clock that was set back means."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.core.cron import AT_MAX, Cron
from ulak.core.schedule import (
    BEHIND_S,
    CAUGHT_UP_MAX,
    LATE_S,
    CatchUp,
    Every,
    Plan,
    is_behind,
    latest,
    plan,
    record_of,
)
from ulak.durations import Duration
from ulak.errors import ArgumentError

DAY_S = 86_400.0
NOW = 1_767_225_600.0  # a full hour
MINUTELY = Cron("* * * * *")
SKIP, ONCE, ALL = CatchUp

periods = st.one_of(
    st.sampled_from([0.1, 0.3, 1 / 3, 1.0, 30.0, 60.0, DAY_S, 7 * DAY_S, 1e8]), st.floats(0.1, 1e6)
)
instants = st.floats(-1e9, 1e11)


# Periods


@given(periods, instants)
def test_ticks_of_a_period_are_its_whole_multiples_since_the_epoch(period_s: float, at: float) -> None:
    every = Every(period_s)
    ticks = list(itertools.islice(every.after(at), 4))
    first = math.floor(Fraction(at) / Fraction(period_s))
    # Of the multiples, rounded as each worker rounds them, those that are after the instant.
    expected = [(first + n) * period_s for n in range(-1, 8) if (first + n) * period_s > at][:4]
    assert ticks == expected
    assert every.next_after(at) == expected[0]


@given(periods, st.floats(0, 1e11))
def test_the_tick_after_a_tick_is_the_next_multiple(period_s: float, at: float) -> None:
    gone = int(at / period_s)
    assert Every(period_s).next_after(gone * period_s) == (gone + 1) * period_s


@given(periods, instants, st.integers(0, 50), st.integers(1, 60))
def test_due_of_a_period_are_the_last_ticks_of_a_span(
    period_s: float, start: float, count: int, limit: int
) -> None:
    every = Every(period_s)
    ticks = list(itertools.islice(every.after(start), count + 1))
    last = ticks.pop()
    # Just before the tick that is too late.
    assert every.due(start, math.nextafter(last, -math.inf), limit) == ticks[-limit:]
    assert every.due(start, start, limit) == []
    assert every.due(start, start - period_s, limit) == []


def test_ten_years_of_ticks_cost_what_a_day_of_them_does() -> None:
    assert Every(0.1).due(0.0, NOW, 1) == [NOW]
    assert len(Every(0.1).due(0.0, NOW, CAUGHT_UP_MAX)) == CAUGHT_UP_MAX


@pytest.mark.parametrize("period", [30, 30.0, timedelta(seconds=30), "30s", "0.5m"])
def test_a_period_is_seconds_a_timedelta_or_text(period: Duration) -> None:
    assert Every(period) == Every(30.0)
    assert Every(period).next_after(45.0) == 60.0


@pytest.mark.parametrize("period", [0, 0.09, -1, True, "soon", None, float("nan"), float("inf"), 1e12])
def test_what_is_no_period_is_refused(period: object) -> None:
    with pytest.raises(ArgumentError, match=r"every\(period\)"):
        Every(period)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [-1e300, -1e12, 0, AT_MAX - 1.0, AT_MAX, 1e300, math.inf])
def test_instants_of_a_broken_clock_have_ticks_of_a_period_or_none(at: float) -> None:
    following = Every(60).next_after(at)
    assert (following is None) == (at >= AT_MAX)
    assert following is None or following > at
    assert Every(60).due(0.0, at, 3) == (
        [] if following is None or at <= 0 else [following - n for n in (180, 120, 60)]
    )


# Which are fired


@pytest.mark.parametrize("rule", [MINUTELY, Every(60)], ids=["cron", "every"])
@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_tick_that_comes_in_time_is_fired(rule: Cron | Every, catch_up: CatchUp) -> None:
    assert plan(rule, catch_up, NOW - 60, NOW - 0.001) == Plan()
    assert plan(rule, catch_up, NOW - 60, NOW) == Plan(fire=(NOW,))
    assert plan(rule, catch_up, NOW - 60, NOW + 59.9) == Plan(fire=(NOW,))
    assert plan(rule, catch_up, NOW, NOW + 59.9) == Plan()


@pytest.mark.parametrize("rule", [MINUTELY, Every(60)], ids=["cron", "every"])
@pytest.mark.parametrize("missed", [1, 10])
def test_c5_missed_ticks_are_fired_as_the_schedule_says(rule: Cron | Every, missed: int) -> None:
    ticks = tuple(NOW + 60 * n for n in range(missed + 1))
    now_at = ticks[-1] + 30
    assert plan(rule, ALL, NOW - 60, now_at) == Plan(fire=ticks)
    assert plan(rule, ONCE, NOW - 60, now_at) == Plan(fire=ticks[-1:], missed_from=NOW)
    assert plan(rule, SKIP, NOW - 60, now_at) == Plan(fire=ticks[-1:], missed_from=NOW)


def test_c5_a_tick_that_is_seen_too_late_is_passed_over_where_missed_ones_are_to_be_skipped() -> None:
    daily = Cron("0 0 * * *")
    assert NOW % DAY_S == 0
    assert plan(daily, SKIP, NOW - DAY_S, NOW + LATE_S) == Plan(fire=(NOW,))
    late = NOW + LATE_S + 0.001
    assert plan(daily, SKIP, NOW - DAY_S, late) == Plan(pass_over=NOW, missed_from=NOW)
    assert plan(daily, ONCE, NOW - DAY_S, late) == Plan(fire=(NOW,))
    # One that was seen in time, but found no room, is not late.
    assert plan(daily, SKIP, NOW - DAY_S, late, tried_at=NOW) == Plan(fire=(NOW,))
    assert plan(daily, SKIP, NOW - DAY_S, late, tried_at=NOW - DAY_S) == Plan(pass_over=NOW, missed_from=NOW)


@pytest.mark.parametrize("rule", [MINUTELY, Every(60)], ids=["cron", "every"])
def test_c3_of_ten_years_of_missed_ticks_one_is_fired_or_the_last_thousand(rule: Cron | Every) -> None:
    far = NOW + 10 * 365 * DAY_S
    assert plan(rule, ONCE, NOW, far) == Plan(fire=(far,), missed_from=NOW + 60)
    assert plan(rule, SKIP, NOW, far) == Plan(fire=(far,), missed_from=NOW + 60)
    todo = plan(rule, ALL, NOW, far)
    assert todo.fire == tuple(far - 60 * n for n in range(CAUGHT_UP_MAX - 1, -1, -1))
    assert todo.missed_from == NOW + 60
    assert plan(rule, ALL, far - 60 * CAUGHT_UP_MAX, far).missed_from is None


# A clock that was set back


def test_a_clock_is_behind_when_the_last_tick_is_neither_near_nor_the_next_one() -> None:
    assert not is_behind(MINUTELY, NOW, NOW)
    assert not is_behind(MINUTELY, NOW, NOW - 60)
    assert is_behind(MINUTELY, NOW, NOW - 61)
    # Of short periods a clock that is corrected by a little repeats nothing.
    assert not is_behind(Every(1), NOW, NOW - BEHIND_S)
    assert is_behind(Every(1), NOW, NOW - BEHIND_S - 1)
    # The next tick of a long period may be far, and has been fired.
    daily = Every(DAY_S)
    assert not is_behind(daily, NOW, NOW - DAY_S)
    assert is_behind(daily, NOW, NOW - DAY_S - 1)


def test_ticks_before_the_last_one_are_counted_under_a_name_that_holds_it() -> None:
    ticks = {"job": NOW}
    assert record_of("job", MINUTELY, {}, NOW) == ("job", None)
    assert record_of("job", MINUTELY, ticks, NOW + 60) == ("job", NOW)
    back = f"job@{NOW!r}"
    assert record_of("job", MINUTELY, ticks, NOW - DAY_S) == (back, None)
    ticks[back] = NOW - DAY_S + 60
    assert record_of("job", MINUTELY, ticks, NOW - DAY_S + 120) == (back, NOW - DAY_S + 60)
    # The clock returns: nothing that was fired under the own name is due again.
    assert record_of("job", MINUTELY, ticks, NOW + 30) == ("job", NOW)
    # It is set back again, by more than before.
    assert record_of("job", MINUTELY, ticks, NOW - 2 * DAY_S) == (f"job@{NOW - DAY_S + 60!r}", None)


def test_another_time_of_being_behind_is_counted_apart() -> None:
    ticks = {"job": NOW, f"job@{NOW!r}": NOW - 60, "other": NOW + 10 * DAY_S}
    ticks["job"] = NOW + 5 * DAY_S
    assert record_of("job", MINUTELY, ticks, NOW) == (f"job@{NOW + 5 * DAY_S!r}", None)


def test_records_that_lead_to_each_other_are_not_followed_for_ever() -> None:
    ticks = {"job": NOW, f"job@{NOW!r}": NOW}
    assert record_of("job", MINUTELY, ticks, NOW - DAY_S) == (f"job@{NOW!r}", NOW)


# The first sight of a schedule


@given(
    st.sampled_from(
        [MINUTELY, Cron("0 9 * * 1"), Cron("30 2 29 2 *"), Cron("0 0 L * *"), Every(7.0), Every(1e8)]
    ),
    st.floats(0, 4e9),
)
def test_the_latest_tick_is_the_one_before_the_next(rule: Cron | Every, now_at: float) -> None:
    found = latest(rule, now_at)
    assert found <= now_at
    following = rule.next_after(found)
    assert following is not None
    assert following > now_at
    assert rule.next_after(found - 1) == found


def test_where_there_was_no_tick_before_the_latest_is_now() -> None:
    assert latest(MINUTELY, -1e10) == -1e10
