"""Cron expressions as instants: five fields, in a time zone, with rules for changes of its clocks.

cronsim reads the fields and walks wall-clock times that no zone touches. What those mean as instants is
decided here, where the rules can be stated and tested.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple, NoReturn

import msgspec
from cronsim import CronSim, CronSimError

from ulak.errors import ArgumentError

EXPRESSION_CHARS_MAX = 256

# What is outside is a broken clock. cronsim looks 50 years ahead, and dates end with the year 9999.
AT_MIN: Final = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp())
AT_MAX: Final = int(datetime(9900, 1, 1, tzinfo=UTC).timestamp())

# Of all zones and years, no clock has been changed and changed back within less than four days.
_UNCHANGED_S = 2 * 86_400

# As many ticks as a cron expression can have in so many seconds.
_TICK_S = 60

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall-clock times are counted from here, in any zone
_SECOND = timedelta(seconds=1)

# Any leap year will do: whatever can ever match does within 40 years.
_LOOK_FROM = datetime(2000, 1, 1)  # noqa: DTZ001 - as above

_NO_WORDS: dict[str, str] = {}
_MONTHS = {
    name: str(number)
    for number, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), 1
    )
}
_DAYS = {name: str(number) for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}


class _Field(NamedTuple):
    """One field: what it may hold, and how that is told to whoever wrote something else."""

    name: str
    least: int
    most: int
    words: dict[str, str]
    special: re.Pattern[str] | None
    allowed: str

    @property
    def step_max(self) -> int:
        """The longest step that leads anywhere."""
        return self.most - self.least - (self.name == "day of week")


_FIELDS = (
    _Field("minute", 0, 59, _NO_WORDS, None, "0-59"),
    _Field("hour", 0, 23, _NO_WORDS, None, "0-23"),
    _Field("day of month", 1, 31, _NO_WORDS, re.compile("LW?"), "1-31, L (the last), LW (the last weekday)"),
    _Field("month", 1, 12, _MONTHS, None, "1-12 or JAN-DEC"),
    _Field(
        "day of week",
        0,
        7,
        _DAYS,
        re.compile("[0-7](L|#[1-5])"),
        "0-7 (0 and 7 are Sunday) or SUN-SAT, 5L (the last Friday), 5#2 (the second Friday)",
    ),
)
_TERM = re.compile(r"(?:\*|([0-9]{1,4})(?:-([0-9]{1,4}))?)(?:/([0-9]{1,4}))?")
_FORMS = "lists 1,5, ranges 1-5, steps */2 and 1-5/2"


class Cron(msgspec.Struct, frozen=True):
    """The instants that a cron expression of five fields means in a time zone, to the minute.

    An hour field that begins with `*`, or names all 24, follows real time: a tick at every minute whose local
    time matches. Any other follows the wall clock, each of whose times comes once: the first of the two if it
    is shown twice, the first moment after it if it is left out. If neither day field begins with `*`, a day
    that matches one of them is enough.
    Raises ArgumentError, naming the field and what it may hold; also for a day that never comes.
    """

    expression: str
    zone: tzinfo = UTC
    _fields: str = ""
    _in_real_time: bool = False

    def __post_init__(self) -> None:
        parts = _parts(self.expression)
        fields = " ".join(
            _read(self.expression, field, part) for field, part in zip(_FIELDS, parts, strict=True)
        )
        try:
            walk = CronSim(fields, _LOOK_FROM)
            next(walk)
        except (CronSimError, StopIteration):
            raise ArgumentError(f"cron {self.expression!r} names a day that never comes") from None
        msgspec.structs.force_setattr(self, "_fields", fields)
        is_hourly = parts[1].startswith("*") or len(walk.hours) == 24
        msgspec.structs.force_setattr(self, "_in_real_time", is_hourly)

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={str(self.zone)!r})"

    def after(self, at: float) -> Iterator[float]:
        """The ticks after an instant, in order."""
        if at >= AT_MAX:
            return iter(())
        # Ticks are whole seconds: what is after `at` is after its last whole one.
        start = max(AT_MIN, math.floor(at))
        ticks = self._real_ticks(start) if self._in_real_time else self._wall_ticks(start)
        return itertools.takewhile(lambda tick: tick <= AT_MAX, ticks)

    def next_after(self, at: float) -> float | None:
        """The first tick after an instant; None: never."""
        return next(self.after(at), None)

    def due(self, last_tick_at: float, now_at: float, limit: int) -> list[float]:
        """The last `limit` ticks after the one and not after the other, in order."""
        latest = self._latest(last_tick_at, now_at)
        if latest is None:
            return []
        ticks: deque[float] = deque([latest], maxlen=limit)
        start, reach_s = latest, limit * _TICK_S
        # Back from the latest, twice as far each time: so what is walked is no more than what is asked for.
        while len(ticks) < limit and start > last_tick_at:
            start = max(last_tick_at, latest - reach_s)
            ticks = deque(itertools.takewhile(lambda tick: tick <= now_at, self.after(start)), maxlen=limit)
            reach_s *= 2
        return list(ticks)

    def _latest(self, after_at: float, until_at: float) -> float | None:
        """The last tick after the one instant and not after the other."""
        tick = self.next_after(after_at)
        if tick is None or tick > until_at:
            return None
        late = until_at
        while True:
            following = self.next_after(tick)
            if following is None or following > until_at:
                return tick
            # Halving what lies between costs the same for ten years as for a day.
            middle = (following + late) / 2
            found = self.next_after(middle)
            if found is not None and found <= until_at:
                tick = found
            else:
                tick, late = following, middle

    def _wall_ticks(self, at: int) -> Iterator[float]:
        """Each matching time of the wall clock once: at the first moment that shows it or a later one."""
        # There is always a next one: dates that never come are refused, and `after` stops before dates end.
        walls = CronSim(self._fields, _wall_time(at + self._offset_s(at)))
        while True:
            tick = self._first_moment(next(walls))
            # In the second pass of an hour that is shown twice, and where several times fall into a gap.
            if tick > at:
                yield float(tick)
                at = tick

    def _first_moment(self, wall: datetime) -> int:
        wall_s = (wall - _EPOCH) // _SECOND
        at = wall_s - _seconds(wall.replace(tzinfo=self.zone).utcoffset())
        if at + self._offset_s(at) == wall_s:
            return at
        # The clock was put forward past this time: between these two.
        before = wall_s - _seconds(wall.replace(tzinfo=self.zone, fold=1).utcoffset())
        gap = range(before, at + 1)
        return gap[bisect_left(gap, wall_s, key=lambda moment: moment + self._offset_s(moment))]

    def _real_ticks(self, at: int) -> Iterator[float]:
        """Every moment whose local time matches."""
        offset_s = self._offset_s(at)
        while True:
            walls = CronSim(self._fields, _wall_time(at + offset_s))
            while True:
                tick = (next(walls) - _EPOCH) // _SECOND - offset_s
                change = self._change(offset_s, at, tick)
                if change is not None:
                    break
                yield float(tick)
                at = tick
            # From the change on with the new offset, as if it had been so a second before.
            at, offset_s = change - 1, self._offset_s(change)

    def _change(self, offset_s: int, after: int, until: int) -> int | None:
        """The first moment after the one and not after the other with another offset."""
        while after < until:
            look = min(until, after + _UNCHANGED_S)
            if self._offset_s(look) != offset_s:
                span = range(after + 1, look + 1)
                return span[bisect_left(span, 1, key=lambda moment: self._offset_s(moment) != offset_s)]
            after = look
        return None

    def _offset_s(self, at: int) -> int:
        return _seconds(datetime.fromtimestamp(at, self.zone).utcoffset())


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // _SECOND


def _wall_time(wall_s: int) -> datetime:
    return _EPOCH + timedelta(seconds=wall_s)


def _parts(expression: object) -> list[str]:
    """The five fields in capitals, not looked at yet."""
    if type(expression) is not str:
        raise ArgumentError(f"a cron expression must be a str, got {type(expression).__name__}")
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ArgumentError(f"a cron expression has at most {EXPRESSION_CHARS_MAX} characters")
    # Other alphabets have digits of their own, and letters whose capitals are ours.
    if not expression.isascii():
        raise ArgumentError("a cron expression is written in ASCII")
    parts = expression.upper().split()
    if len(parts) != len(_FIELDS):
        raise ArgumentError(
            f"cron {expression!r} must have five fields: minute, hour, day of month, month, day of week\n"
            f"  it has {len(parts)}; there are none for seconds and years, and every(10) counts in seconds"
        )
    return parts


def _read(expression: str, field: _Field, part: str) -> str:
    """A field in digits only, as cronsim takes it; else ArgumentError."""
    # Sunday ends a range as 7, and begins one as 0.
    in_digits = re.sub("(?<!SUN)-SUN", "-7", part) if field.words is _DAYS else part
    for word, number in field.words.items():
        in_digits = in_digits.replace(word, number)
    return ",".join(
        _read_term(expression, field, term, given)
        for term, given in zip(in_digits.split(","), part.split(","), strict=True)
    )


def _read_term(expression: str, field: _Field, term: str, given: str) -> str:
    if field.special is not None and field.special.fullmatch(term):
        return term
    match = _TERM.fullmatch(term)
    if match is None:
        _refuse(expression, field, given)
    first, last, step = (None if text is None else int(text) for text in match.groups())
    if any(number is not None and not field.least <= number <= field.most for number in (first, last)):
        _refuse(expression, field, given)
    if first is not None and last is not None and last < first:
        _refuse(expression, field, given, "a range ends where it begins or later; write two, with a comma")
    if step is not None and not 1 <= step <= field.step_max:
        _refuse(expression, field, given, f"a step is from 1 to {field.step_max}")
    # cronsim takes a range of one, "5-5/15", for "5/15", which goes on to the end.
    return str(first) if first is not None and first == last else term


def _refuse(expression: str, field: _Field, given: str, why: str = "") -> NoReturn:
    raise ArgumentError(
        f"cron {expression!r}: {field.name} cannot be {given!r}{why and f': {why}'}\n"
        f"  allowed: {field.allowed}; *, {_FORMS}"
    )
