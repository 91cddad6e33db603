"""What has happened in a queue of late, for views: its history, cut into equal slices of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

import msgspec

from ulak.core.history import HOUR_S, KEPT_S, MINUTE_S, Grain, Moment
from ulak.core.job import Counts
from ulak.metrics import Histogram

SLICES_MAX = 30
"""How many slices `plan_of` makes at most."""

NUMBERS = ("enqueued", "succeeded", "failed", "retries", "dead_lettered")
"""Which totals a slice tells of."""


class Plan(msgspec.Struct, frozen=True):
    """Into which slices a time is cut: `count` of `step_s` each, of rows of this grain."""

    grain: Grain
    step_s: float
    count: int

    @property
    def since_s(self) -> float:
        """How long all of them are."""
        return self.step_s * self.count


def plan_of(since_s: float) -> Plan:
    """Up to 30 slices of whole minutes, or of whole hours where no minutes are kept, that cover a time."""
    grain: Grain = MINUTE_S if since_s <= KEPT_S[MINUTE_S] else HOUR_S
    rows = max(1, _up(since_s, grain))
    step = _up(rows, SLICES_MAX)
    return Plan(grain, float(step * grain), _up(rows, step))


def _up(number: float, part: int) -> int:
    return int(-(-number // part))


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened between two instants. Numbers are fractions where it is known of a longer time only.

    is_known: somebody recorded before it ended. wait, run: as in `history.Took`.
    """

    from_at: float
    until_at: float
    is_known: bool
    enqueued: float
    succeeded: float
    failed: float
    retries: float
    dead_lettered: float
    wait: Histogram
    run: Histogram


class Trend(msgspec.Struct, frozen=True):
    """All slices, and what they are together."""

    slices: tuple[Slice, ...]
    whole: Slice


def trend_of(moments: Sequence[Moment], until_at: float, plan: Plan) -> Trend:
    """A queue's history up to an instant, by `plan`. moments: in order, and what was seen at that instant."""
    begun = [_first_of(moments[0])] if moments and moments[0].first_at else []
    # Where the calendar was set back, a later row was seen earlier.
    rows = sorted([*begun, *moments], key=_seen_at)
    bounds = [until_at - plan.step_s * number for number in range(plan.count, -1, -1)]
    slices = tuple(_slice(rows, from_at, to_at) for from_at, to_at in pairwise(bounds))
    return Trend(slices, _slice(rows, bounds[0], until_at))


def _first_of(row: Moment) -> Moment:
    """How it stood when a row was recorded first, with which the first of all rows is compared."""
    return Moment(row.at, row.first_at, Counts(totals=row.first))


def _slice(rows: Sequence[Moment], from_at: float, until_at: float) -> Slice:
    start, end = _at(rows, from_at), _at(rows, until_at)
    wait, run = Histogram(), Histogram()
    for row in rows[bisect_right(rows, from_at, key=_seen_at) : bisect_right(rows, until_at, key=_seen_at)]:
        wait.add(row.took.wait)
        run.add(row.took.run)
    # A calendar that was set back must not make less of a total.
    grown = [max(0.0, after - before) for before, after in zip(start, end, strict=True)]
    enqueued, succeeded, failed, retries, dead_lettered = grown
    return Slice(
        from_at=from_at,
        until_at=until_at,
        is_known=bool(rows) and rows[0].seen_at < until_at,
        enqueued=enqueued,
        succeeded=succeeded,
        failed=failed,
        retries=retries,
        dead_lettered=dead_lettered,
        wait=wait,
        run=run,
    )


def _at(rows: Sequence[Moment], at: float) -> list[float]:
    """The totals at an instant, as if they had grown evenly between two rows; before the first, as there."""
    number = bisect_right(rows, at, key=_seen_at)
    if not rows or number in (0, len(rows)):
        return _totals(rows[min(number, len(rows) - 1)]) if rows else [0.0] * len(NUMBERS)
    before, after = rows[number - 1], rows[number]
    share = (at - before.seen_at) / (after.seen_at - before.seen_at)
    both = zip(_totals(before), _totals(after), strict=True)
    return [earlier + (later - earlier) * share for earlier, later in both]


def _totals(row: Moment) -> list[float]:
    return [float(getattr(row.counts.totals, name)) for name in NUMBERS]


_seen_at = attrgetter("seen_at")
