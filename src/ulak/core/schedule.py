"""When the ticks of a schedule are, and which of those that are due are to be fired.

All of it is a function of the schedule's rule, of the last ticks that are stored, and of an instant, so that
any worker comes to the same end and none has to lead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import TypeAlias

import msgspec

from ulak.core.cron import AT_MAX, AT_MIN, Cron
from ulak.durations import Kept, seconds
from ulak.errors import ArgumentError

PERIOD_MIN_S = 0.1

LATE_S = 60.0
"""How late a tick may be seen first, and still be fired where missed ones are to be skipped."""

CAUGHT_UP_MAX = 1_000
"""The most ticks of one gap that are caught up with; what comes before them is skipped."""

BEHIND_S = 60.0
"""How far the clock may be behind the last tick without being taken for a clock that was set back."""


class Every(msgspec.Struct, frozen=True):
    """The whole multiples of a period since the epoch, so that all workers agree on them.

    period_s: at least 0.1; a timedelta or text is turned into them. Raises ArgumentError for anything else.
    """

    period_s: Kept

    def __post_init__(self) -> None:
        period_s = seconds(self.period_s, name="every(period)")
        if period_s < PERIOD_MIN_S:
            raise ArgumentError(f"every(period) must be at least {PERIOD_MIN_S} seconds, got {period_s:g}")
        msgspec.structs.force_setattr(self, "period_s", period_s)

    @property
    def zone(self) -> tzinfo:
        """The zone its ticks are shown in; they are the same in all."""
        return UTC

    def after(self, at: float) -> Iterator[float]:
        """The ticks after an instant, in order."""
        if at >= AT_MAX:
            return iter(())
        return map(self._tick, itertools.count(self._periods(max(AT_MIN, at)) + 1))

    def next_after(self, at: float) -> float | None:
        """The first tick after an instant; None: never."""
        return next(self.after(at), None)

    def due(self, last_tick_at: float, now_at: float, limit: int) -> list[float]:
        """The last `limit` ticks after the one and not after the other, in order."""
        if now_at >= AT_MAX:
            return []
        latest = self._periods(max(AT_MIN, now_at))
        first = max(self._periods(max(AT_MIN, last_tick_at)) + 1, latest - limit + 1)
        return [self._tick(periods) for periods in range(first, latest + 1)]

    def _periods(self, at: float) -> int:
        """How many whole periods there are until an instant."""
        assert isinstance(self.period_s, float)
        periods = math.floor(at / self.period_s)
        # The division may be rounded up; a tick is what multiplying gives, for every worker.
        return periods - (self._tick(periods) > at) + (self._tick(periods + 1) <= at)

    def _tick(self, periods: int) -> float:
        assert isinstance(self.period_s, float)
        return periods * self.period_s


Rule: TypeAlias = Cron | Every


class CatchUp(StrEnum):
    """What becomes of ticks that came while nobody fired them.

    ONCE: the last of them is fired. SKIP: likewise, unless that one was first seen more than a minute late.
    ALL: each is fired, in order; of more than 1,000 only the last 1,000.
    """

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Plan(msgspec.Struct, frozen=True):
    """What to do about a schedule now.

    fire: these ticks, in order. pass_over: move the last tick to this one, without a job. missed_from: the
    first of the ticks that will never be fired, if there are any.
    """

    fire: tuple[float, ...] = ()
    pass_over: float | None = None
    missed_from: float | None = None


NOTHING = Plan()


def plan(
    rule: Rule, catch_up: CatchUp, last_tick_at: float, now_at: float, *, tried_at: float | None = None
) -> Plan:
    """Which of the ticks after the last one are to be fired.

    tried_at: the tick that was seen in time, but found no room.
    """
    due = rule.due(last_tick_at, now_at, CAUGHT_UP_MAX if catch_up is CatchUp.ALL else 1)
    if not due:
        return NOTHING
    first = rule.next_after(last_tick_at)
    if catch_up is CatchUp.SKIP and now_at - due[0] > LATE_S and due[0] != tried_at:
        return Plan(pass_over=due[0], missed_from=first)
    if first == due[0]:
        return Plan(fire=tuple(due))
    return Plan(fire=tuple(due), missed_from=first)


def record_of(
    name: str, rule: Rule, last_ticks: Mapping[str, float], now_at: float
) -> tuple[str, float | None]:
    """Under which name a schedule's ticks are counted now, and the last one there (None: none yet).

    It is the schedule's own, unless the last tick under it lies further ahead than the next one and than a
    minute: then the clock has been set back, and would fire nothing until it is there again. So the ticks
    until then are counted anew, under a name that holds the tick they lead up to. Once the clock has passed
    that one, the schedule's own name counts again, and what was fired before under it is not fired twice.
    """
    record, bound_at = name, math.inf
    # Each of these names lies before the tick it holds; what does not is nobody's work of ours.
    while (last_at := last_ticks.get(record)) is not None and last_at < bound_at:
        if not is_behind(rule, last_at, now_at):
            break
        record, bound_at = f"{name}@{last_at!r}", last_at
    return record, last_at


def is_behind(rule: Rule, last_tick_at: float, now_at: float) -> bool:
    """Whether the clock is behind the last tick by more than a minute and more than one tick."""
    if last_tick_at <= now_at + BEHIND_S:
        return False
    following = rule.next_after(now_at)
    return following is not None and following < last_tick_at


def latest(rule: Rule, now_at: float) -> float:
    """The last tick not after an instant; the instant itself, if there is none."""
    reach_s = 60.0
    while now_at - reach_s > AT_MIN:
        if found := rule.due(now_at - reach_s, now_at, 1):
            return found[0]
        reach_s *= 4
    return now_at
