"""An oracle of cron ticks, written apart from the code it judges: it walks every real minute and looks at the
local clock. Expressions are drawn as what they mean, with the text that says so.
"""

from __future__ import annotations

import calendar
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MINUTE = timedelta(minutes=1)

REACH_MINUTES = 36 * 60
# No clock of these years was put back by more.
LEAD_MINUTES = 6 * 60

CHANGES = {
    "an hour's gap at 2": ("Europe/Berlin", "2026-03-29T01:00"),
    "an hour's overlap at 2": ("Europe/Berlin", "2026-10-25T01:00"),
    "gap in New York": ("America/New_York", "2026-03-08T07:00"),
    "overlap in New York": ("America/New_York", "2026-11-01T06:00"),
    "the south's gap": ("America/Santiago", "2026-09-06T04:00"),
    "the south's overlap": ("America/Santiago", "2026-04-05T03:00"),
    "half an hour's gap": ("Australia/Lord_Howe", "2026-10-03T15:30"),
    "half an hour's overlap": ("Australia/Lord_Howe", "2026-04-04T15:00"),
    "a day left out": ("Pacific/Apia", "2011-12-30T10:00"),
    "another day left out": ("Pacific/Kwajalein", "1993-08-21T12:00"),
    "gap at midnight": ("Asia/Beirut", "2026-03-28T22:00"),
    "overlap into the day before": ("America/Sao_Paulo", "2019-02-17T02:00"),
    "overlap at one past midnight": ("America/St_Johns", "2006-10-29T02:31"),
    "half an hour's gap before midnight": ("Asia/Pyongyang", "2018-05-04T15:00"),
    "half an hour's overlap at midnight": ("Asia/Pyongyang", "2015-08-14T15:00"),
    "a quarter of an hour's gap": ("Asia/Kathmandu", "1985-12-31T18:30"),
    "three hours' overlap": ("Antarctica/Casey", "2010-03-04T15:00"),
    "three hours' gap": ("Antarctica/Casey", "2020-10-03T16:01"),
    "winter time that is the exception": ("Europe/Dublin", "2026-10-25T01:00"),
    "no change": ("Asia/Kolkata", "2026-01-01T00:00"),
}


@dataclass(frozen=True)
class Expression:
    """A cron expression. day: whether a date matches. follows: local times, or else the wall clock."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    day: Callable[[datetime], bool]
    is_real_time: bool

    def matches(self, local: datetime) -> bool:
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and local.month in self.months
            and self.day(local)
        )


def change(name: str) -> tuple[ZoneInfo, datetime]:
    """A zone, and when its clock is changed."""
    zone, at = CHANGES[name]
    return ZoneInfo(zone), datetime.fromisoformat(at).replace(tzinfo=UTC)


@functools.cache
def _minutes(name: str) -> list[tuple[float, datetime]]:
    """Every real minute around a change, as an instant and as the local clock shows it."""
    zone, at = change(name)
    start = at - (LEAD_MINUTES + REACH_MINUTES) * MINUTE
    moments = [start + n * MINUTE for n in range(LEAD_MINUTES + 2 * REACH_MINUTES)]
    return [(moment.timestamp(), moment.astimezone(zone).replace(tzinfo=None)) for moment in moments]


def walked(expression: Expression, name: str) -> list[float]:
    """The ticks in the day and a half before a change and after it."""
    minutes = _minutes(name)
    if expression.is_real_time:
        return [at for at, local in minutes[LEAD_MINUTES:] if expression.matches(local)]
    ticks = []
    latest = minutes[0][1]
    for n, (at, local) in enumerate(minutes):
        # All times that the clock shows for the first time now, or has just been put past.
        fresh = False
        while latest < local:
            latest += MINUTE
            fresh = fresh or expression.matches(latest)
        if fresh and n >= LEAD_MINUTES:
            ticks.append(at)
    return ticks


def span(name: str) -> tuple[float, float]:
    """From when to when `walked` looks: after the one instant, and not after the other."""
    minutes = _minutes(name)
    return minutes[LEAD_MINUTES][0] - 1, minutes[-1][0]


MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")


@st.composite
def _term(draw: st.DrawFn, least: int, most: int, words: tuple[str, ...] = ()) -> tuple[str, frozenset[int]]:
    """One term of a list, and what it means."""

    def written(number: int) -> str:
        word = words[number - least] if words and draw(st.booleans()) else str(number)
        return draw(st.sampled_from((word, word.lower())))

    numbers = st.integers(least, most)
    form = draw(st.sampled_from(("one", "range", "steps in a range", "steps from")))
    first = draw(numbers)
    step = draw(st.integers(1, most - least - 1))
    if form == "one":
        return written(first), frozenset({first})
    if form == "steps from":
        return f"{written(first)}/{step}", frozenset(range(first, most + 1, step))
    last = draw(st.integers(first, most))
    text = f"{written(first)}-{written(last)}"
    if form == "range":
        return text, frozenset(range(first, last + 1))
    return f"{text}/{step}", frozenset(range(first, last + 1, step))


@st.composite
def _field(draw: st.DrawFn, least: int, most: int, words: tuple[str, ...] = ()) -> tuple[str, frozenset[int]]:
    """A field, and what it means."""
    everything = frozenset(range(least, most + 1))
    form = draw(st.sampled_from(("all", "steps", "terms", "terms")))
    if form == "all":
        return "*", everything
    if form == "steps":
        step = draw(st.integers(1, most - least - 1))
        return f"*/{step}", frozenset(range(least, most + 1, step))
    terms = draw(st.lists(_term(least, most, words), min_size=1, max_size=3))
    return ",".join(text for text, _ in terms), frozenset().union(*(meant for _, meant in terms))


_SPECIAL_DATES = {
    "L": lambda day: day.day == _last(day),
    "LW": lambda day: day.day == max(d for d in range(1, _last(day) + 1) if day.replace(day=d).weekday() < 5),
}


def _last(day: datetime) -> int:
    return calendar.monthrange(day.year, day.month)[1]


@st.composite
def _dates(draw: st.DrawFn) -> tuple[str, Callable[[datetime], bool]]:
    special = draw(st.sampled_from((None, None, None, *_SPECIAL_DATES)))
    if special is not None:
        return special, _SPECIAL_DATES[special]
    text, meant = draw(_field(1, 31))
    return text, lambda day: day.day in meant


@st.composite
def _weekdays(draw: st.DrawFn) -> tuple[str, Callable[[datetime], bool]]:
    form = draw(st.sampled_from(("", "", "", "last", "nth")))
    number = draw(st.integers(0, 7))
    written = draw(st.sampled_from((str(number), DAYS[number])))
    if form == "last":
        return f"{written}L", lambda day: day.isoweekday() % 7 == number % 7 and day.day + 7 > _last(day)
    if form == "nth":
        nth = draw(st.integers(1, 5))
        return (
            f"{written}#{nth}",
            lambda day: day.isoweekday() % 7 == number % 7 and 7 * (nth - 1) < day.day <= 7 * nth,
        )
    text, meant = draw(_field(0, 7))
    days = {one % 7 for one in meant}
    return text, lambda day: day.isoweekday() % 7 in days


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """A cron expression that has something to do on most days."""
    minute, minutes = draw(_field(0, 59))
    hour, hours = draw(_field(0, 23))
    month, months = draw(st.one_of(st.just(("*", frozenset(range(1, 13)))), _field(1, 12, MONTHS)))
    every_day: tuple[str, Callable[[datetime], bool]] = ("*", lambda _: True)
    date, on_date = draw(st.one_of(st.just(every_day), _dates()))
    weekday, on_weekday = draw(st.one_of(st.just(every_day), _weekdays()))
    needs_both = date.startswith("*") or weekday.startswith("*")

    def day(local: datetime) -> bool:
        return (on_date(local) and on_weekday(local)) if needs_both else (on_date(local) or on_weekday(local))

    return Expression(
        f"{minute} {hour} {date} {month} {weekday}",
        minutes,
        hours,
        months,
        day,
        is_real_time=hour.startswith("*") or len(hours) == 24,
    )
