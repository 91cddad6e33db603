"""Cron expressions against an oracle that walks every minute, and the rules for clocks that are changed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core import walls
from ulak.core.cron import AT_MAX, AT_MIN, Cron
from ulak.errors import ArgumentError

BERLIN = ZoneInfo("Europe/Berlin")
changes = st.sampled_from(sorted(walls.CHANGES))


def instant(text: str, zone: ZoneInfo | None = None) -> float:
    """An instant, as the clock of a zone shows it, or else as UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def shown(expression: str, zone: str, start: str, count: int) -> list[str]:
    """The next ticks, as the zone's clock shows them."""
    clock = ZoneInfo(zone)
    ticks = itertools.islice(Cron(expression, clock).after(instant(start, clock)), count)
    return [datetime.fromtimestamp(tick, clock).isoformat() for tick in ticks]


def on_day(expression: str, zone: str, day: str) -> list[str]:
    """The ticks of one local day, as times of day."""
    before = datetime.fromisoformat(day) - timedelta(minutes=1)
    ticks = shown(expression, zone, before.isoformat(), 100)
    return [tick[11:16] for tick in ticks if tick.startswith(day)]


# Against the oracle


@pytest.mark.parametrize("name", walls.CHANGES)
def test_each_clock_of_the_table_is_changed_when_it_says(name: str) -> None:
    zone, at = walls.change(name)
    minute = timedelta(minutes=1)
    before, after = ((at + step).astimezone(zone).utcoffset() for step in (-minute, 0 * minute))
    assert (before != after) == (name != "no change")


@given(walls.expressions(), changes)
def test_ticks_are_the_minutes_that_the_oracle_finds(expression: walls.Expression, name: str) -> None:
    cron = _cron(expression, name)
    start, end = walls.span(name)
    ticks = list(itertools.takewhile(lambda tick: tick <= end, cron.after(start)))
    assert ticks == walls.walked(expression, name)


@given(walls.expressions(), changes, st.sampled_from((1, 2, 10, 1000)), st.floats(0, 1), st.floats(0, 1))
def test_due_are_the_last_ticks_of_a_span(
    expression: walls.Expression, name: str, limit: int, begin: float, length: float
) -> None:
    cron = _cron(expression, name)
    start, end = walls.span(name)
    first = start + begin * (end - start)
    last = first + length * (end - first)
    between = [tick for tick in walls.walked(expression, name) if first < tick <= last]
    assert cron.due(first, last, limit) == between[-limit:]
    if between:
        assert cron.next_after(first) == between[0]


def _cron(expression: walls.Expression, name: str) -> Cron:
    try:
        return Cron(expression.text, walls.change(name)[0])
    except ArgumentError as error:
        # Drawn without looking at how long months are.
        assume("never comes" not in str(error))
        raise


# Where clocks are changed


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_c1_a_daily_tick_that_the_clock_leaves_out_comes_once_at_the_first_moment_after_it(zone: str) -> None:
    day = {"Europe/Berlin": "2026-03-29", "America/New_York": "2026-03-08"}[zone]
    assert on_day("30 2 * * *", zone, day) == ["03:00"]
    # All that fall into the gap are one.
    assert on_day("*/10 2 * * *", zone, day) == ["03:00"]
    assert on_day("0 2,3 * * *", zone, day) == ["03:00"]
    assert on_day("30 2,3 * * *", zone, day) == ["03:00", "03:30"]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_c1_a_daily_tick_that_the_clock_shows_twice_comes_at_the_first(zone: str) -> None:
    day, at = {"Europe/Berlin": ("2026-10-25", "02:30"), "America/New_York": ("2026-11-01", "01:30")}[zone]
    clock = ZoneInfo(zone)
    expression = f"30 {int(at[:2])} * * *"
    assert on_day(expression, zone, day) == [at]
    (tick, *_) = shown(expression, zone, f"{day}T00:00", 1)
    assert tick == datetime.fromisoformat(f"{day}T{at}").replace(tzinfo=clock, fold=0).isoformat()


@pytest.mark.parametrize(
    ("zone", "day", "count"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Europe/Berlin", "2026-06-01", 24),
    ],
)
@pytest.mark.parametrize("expression", ["0 * * * *", "0 0-23 * * *", "30 */1 * * *"])
def test_c1_an_hourly_tick_comes_every_real_hour(zone: str, day: str, count: int, expression: str) -> None:
    ticks = shown(expression, zone, f"{day}T00:00", 40)
    moments = [datetime.fromisoformat(tick) for tick in ticks]
    assert {later - earlier for earlier, later in itertools.pairwise(moments)} == {timedelta(hours=1)}
    assert len(on_day(expression, zone, day)) == count


def test_a_tick_on_a_day_that_the_zone_left_out_comes_as_the_next_day_begins() -> None:
    assert shown("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00", 3) == [
        "2011-12-29T09:00:00-10:00",
        "2011-12-31T00:00:00+14:00",
        "2011-12-31T09:00:00+14:00",
    ]
    assert on_day("0 * * * *", "Pacific/Apia", "2011-12-30") == []


def test_half_an_hour_can_be_left_out_or_shown_twice() -> None:
    assert on_day("15 2 * * *", "Australia/Lord_Howe", "2026-10-04") == ["02:30"]
    assert on_day("45 1 * * *", "Australia/Lord_Howe", "2026-04-05") == ["01:45"]
    assert on_day("45 * * * *", "Australia/Lord_Howe", "2026-04-05").count("01:45") == 2


def test_midnight_can_be_left_out() -> None:
    assert on_day("0 0 * * *", "Asia/Beirut", "2026-03-29") == ["01:00"]


def test_a_zone_whose_offset_has_seconds_is_served_to_the_second() -> None:
    # Liberia's clocks were 44 minutes and 30 seconds behind until 1972, then put forward by as much.
    ticks = shown("0 12 * * *", "Africa/Monrovia", "1972-01-05T00:00", 4)
    assert ticks[0] == "1972-01-05T12:00:00-00:44:30"
    assert ticks[3] == "1972-01-08T12:00:00+00:00"
    assert shown("10 0 7 1 *", "Africa/Monrovia", "1972-01-06T00:00", 1) == ["1972-01-07T00:44:30+00:00"]


def test_of_two_showings_none_is_lost_though_the_next_tick_is_in_another_summer() -> None:
    assert shown("30 */23 17 2,12 *", "America/Sao_Paulo", "2018-02-17T12:00", 3) == [
        "2018-02-17T23:30:00-02:00",
        "2018-02-17T23:30:00-03:00",
        "2018-12-17T00:30:00-02:00",
    ]


@pytest.mark.parametrize("expression", ["0 * * * *", "0 0-22 * * *"])
def test_a_tick_is_after_every_instant_before_it_and_not_after_itself(expression: str) -> None:
    cron, hour = Cron(expression, BERLIN), instant("2026-01-01T10:00")
    assert [cron.next_after(hour - before) for before in (3600, 0.5, 1e-6, 0)] == [hour] * 3 + [hour + 3600]


# What is accepted


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 0 * * FRI-SUN", "0 0 * * 5-7"),
        ("0 0 * * sun-tue", "0 0 * * 0-2"),
        ("0 0 * * SUN", "0 0 * * 7"),
        ("0 0 1 jan,Jul *", "0 0 1 1,7 *"),
        ("0 0 * * FRIL", "0 0 * * 5L"),
        ("0 0 * * MON#2", "0 0 * * 1#2"),
        ("5-5/15 * * * *", "5 * * * *"),
        ("  0   0\t* * *  ", "0 0 * * *"),
        ("10/20 * * * *", "10,30,50 * * * *"),
    ],
)
def test_two_ways_to_write_the_same(expression: str, same: str) -> None:
    ticks, expected = (
        list(itertools.islice(Cron(text).after(instant("2026-01-01")), 50)) for text in (expression, same)
    )
    assert ticks == expected


def test_the_29th_of_february_comes_in_leap_years() -> None:
    ticks = shown("0 0 29 2 *", "UTC", "2096-01-01T00:00", 2)
    assert [tick[:10] for tick in ticks] == ["2096-02-29", "2104-02-29"]


def test_a_restricted_date_and_a_restricted_weekday_are_either_or() -> None:
    fifth = shown("0 0 13 * FRI", "UTC", "2026-01-01T00:00", 3)
    assert [tick[:10] for tick in fifth] == ["2026-01-02", "2026-01-09", "2026-01-13"]
    both = shown("0 0 */12 * FRI", "UTC", "2026-01-01T00:00", 3)
    assert [tick[:10] for tick in both] == ["2026-02-13", "2026-03-13", "2026-05-01"]


def test_a_cron_without_a_zone_is_in_utc() -> None:
    assert Cron("0 9 * * *").next_after(instant("2026-07-01T08:59")) == instant("2026-07-01T09:00")
    assert repr(Cron("0 9 * * *")) == "Cron('0 9 * * *', tz='UTC')"


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("60 * * * *", "minute cannot be '60'\n  allowed: 0-59"),
        ("-5 * * * *", "minute cannot be '-5'"),
        ("0 24 * * *", "hour cannot be '24'\n  allowed: 0-23"),
        ("0 0 0 * *", "day of month cannot be '0'\n  allowed: 1-31, L (the last)"),
        ("0 0 * 13 *", "month cannot be '13'\n  allowed: 1-12 or JAN-DEC"),
        ("0 0 * MAI *", "month cannot be 'MAI'"),
        ("0 0 * * 8", "day of week cannot be '8'\n  allowed: 0-7 (0 and 7 are Sunday) or SUN-SAT"),
        ("0 0 * * MONDAY", "day of week cannot be 'MONDAY'"),
        ("0 0 * * 5#6", "day of week cannot be '5#6'"),
        ("*/90 * * * *", "minute cannot be '*/90': a step is from 1 to 59"),
        ("*/0 * * * *", "minute cannot be '*/0': a step is from 1 to 59"),
        ("0 */24 * * *", "hour cannot be '*/24': a step is from 1 to 23"),
        ("0 22-2 * * *", "hour cannot be '22-2': a range ends where it begins or later"),
        ("0 0 L/2 * *", "day of month cannot be 'L/2'"),
        ("0 0 L-3 * *", "day of month cannot be 'L-3'"),
        ("0 0 ? * *", "day of month cannot be '?'"),
        ("1,,2 * * * *", "minute cannot be ''"),
        ("1-2-3 * * * *", "minute cannot be '1-2-3'"),
        ("9" * 200 + " * * * *", "minute cannot be '999"),
    ],
)
def test_a_field_that_cannot_be_is_named_with_what_it_may_hold(expression: str, told: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        Cron(expression)
    assert told in str(raised.value)


@pytest.mark.parametrize("expression", ["0 0 * * * *", "*/5 * * *", "@daily", "", "0 0 * * * 2026 *"])
def test_other_than_five_fields_are_refused(expression: str) -> None:
    with pytest.raises(
        ArgumentError, match="must have five fields: minute, hour, day of month, month, day of"
    ):
        Cron(expression)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */30 4 2#5", "0 0 30-31 2 *"])
def test_a_day_that_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(ArgumentError, match="names a day that never comes"):
        Cron(expression)


@pytest.mark.parametrize(
    "expression", [None, 5, b"* * * * *", "\u0665 * * * *", "0 0 * * \u017fun", "* " * 200]
)
def test_what_is_no_expression_at_all_is_refused(expression: object) -> None:
    with pytest.raises(ArgumentError, match="a cron expression"):
        Cron(expression)  # type: ignore[arg-type]


@given(st.text(max_size=40) | st.from_regex(r"([0-9*/,L#A-Z-]{1,8} ){4}[0-9*/,L#A-Z-]{1,8}", fullmatch=True))
def test_any_text_is_a_cron_expression_or_an_argument_error(text: str) -> None:
    try:
        cron = Cron(text)
    except ArgumentError:
        return
    first = cron.next_after(0.0)
    assert first is not None
    assert first > 0


# Far away


@pytest.mark.parametrize("at", [-1e300, -1e12, AT_MIN, 0, AT_MAX - 1, AT_MAX, 1e18, 1e300, float("inf")])
@pytest.mark.parametrize("expression", ["* * * * *", "0 9 * * 1", "0 0 29 2 MON#5"])
def test_instants_of_a_broken_clock_have_ticks_or_none(at: float, expression: str) -> None:
    following = Cron(expression, BERLIN).next_after(at)
    assert following is None if at >= AT_MAX else following is None or following > at
    assert following is not None or at > 0


@pytest.mark.parametrize("expression", ["0 * * * *", "0 0-22 * * *", "0 0 1 1 *", "0 * 29 2 *"])
def test_ticks_end_before_dates_do(expression: str) -> None:
    ticks = list(Cron(expression, BERLIN).after(instant("9899-12-31")))
    assert len(ticks) == {"0 * * * *": 24, "0 0-22 * * *": 23}.get(expression, expression == "0 0 1 1 *")
    assert all(tick <= AT_MAX for tick in ticks)


def test_ten_years_of_minutes_are_looked_through_without_walking_them() -> None:
    now_at = instant("2036-01-01")
    steps = 0

    class Counted(Cron):
        def next_after(self, at: float) -> float | None:
            nonlocal steps
            steps += 1
            return super().next_after(at)

    assert Counted("* * * * *", BERLIN).due(instant("2026-01-01"), now_at, 1) == [now_at]
    assert steps < 100
    assert len(Cron("* * * * *", BERLIN).due(instant("2026-01-01"), now_at, 1000)) == 1000
