"""From the moments of a run's jobs to its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ulak.cli.bench_plan import PERCENTILES, Figures, Latency, Plan, Slice
from ulak.cli.bench_records import Records
from ulak.errors import ConfigError

SLICES = 60
_CURVE_A_DECADE = 10

# Measure -> from which moment to which.
MEASURES: dict[str, tuple[str, str]] = {
    "late": ("due", "called"),
    "call": ("called", "returned"),
    "start_due": ("due", "started"),
    "start_call": ("called", "started"),
    "start_return": ("returned", "started"),
    "first_due": ("due", "first_settled"),
    "first_call": ("called", "first_settled"),
    "first_return": ("returned", "first_settled"),
    "settled_due": ("due", "settled"),
    "settled_call": ("called", "settled"),
    "settled_return": ("returned", "settled"),
}
DRAWN = ("start_due", "first_due", "settled_due", "first_call", "settled_call")
"""The measures whose whole curve is kept."""


def figures(plan: Plan, records: Records) -> Figures:
    """What the jobs that count say; what is not in the records stays as it is by default.

    Raises ConfigError if none counts.
    """
    done = [ordinal for ordinal in range(plan.jobs_all) if records.settled[ordinal]]
    counted = _counted(plan, records, done)
    if not counted:
        raise ConfigError("no job that counts was done in that time; give a longer --duration")
    # Several producers that know no schedule need not call in the order of the ordinals.
    due = [records.due[each] for each in counted]
    first_due, last_due = min(due), max(due)
    elapsed_s = max(records.settled[each] for each in counted) - first_due
    latency = {name: _latency(name, records, counted) for name in MEASURES}
    latency["blocked"] = summary(records.blocked[each] for each in counted)
    blocked_s = sum(records.blocked[each] for each in counted)
    produced_s = max(records.returned[each] for each in counted) - first_due
    return Figures(
        jobs=len(counted),
        jobs_per_s=_ratio(len(counted), elapsed_s),
        elapsed_s=elapsed_s,
        due_span_s=last_due - first_due,
        latency=latency,
        blocked_s=blocked_s,
        blocked_share=_ratio(blocked_s, produced_s * plan.producers),
        lag_p99_s=_own_lag_p99(plan, records, counted) if plan.rate else 0.0,
        behind_s=_behind(records, counted) if plan.rate else 0.0,
        peak_open=_peak_open(plan, records, done),
        slices=_slices(records, counted, done, since=first_due, until=last_due),
    )


def _counted(plan: Plan, records: Records, done: Sequence[int]) -> list[int]:
    """Those after the warm-up: a number of jobs, or, of a run that ends by time, a tenth of that."""
    if plan.duration_s is None or not done:
        return [each for each in done if each >= plan.warm_up]
    from_at = min(records.called[each] for each in done) + plan.duration_s / 10
    return [each for each in done if records.called[each] >= from_at]


def _latency(name: str, records: Records, counted: Iterable[int]) -> Latency:
    since, until = (getattr(records, column) for column in MEASURES[name])
    # A worker may be done with a job before its enqueue call has returned: that counts as no time.
    return summary((max(0.0, until[each] - since[each]) for each in counted), with_curve=name in DRAWN)


def summary(values: Iterable[float], *, with_curve: bool = False) -> Latency:
    """The percentiles of some durations, exactly, by nearest rank."""
    ordered = sorted(values)
    at = {name: percentile(ordered, p) for name, p in PERCENTILES.items()}
    return Latency(len(ordered), at, _curve(ordered) if with_curve else [])


def percentile(ordered: Sequence[float], p: float) -> float:
    """What p percent of the values do not exceed; 0.0 of none."""
    if not ordered:
        return 0.0
    # Rounded first: 99.9 % of 1,000 is 999, whatever the nearest floats have for a product.
    rank = math.ceil(round(p * len(ordered) / 100, 6))
    return ordered[max(1, rank) - 1]


def _curve(ordered: Sequence[float]) -> list[tuple[float, float]]:
    decades = math.log10(len(ordered)) if ordered else 0.0
    points = [
        100 - 100 * 10 ** (-step / _CURVE_A_DECADE) for step in range(int(decades * _CURVE_A_DECADE) + 1)
    ]
    return [(p, percentile(ordered, p)) for p in points]


def _own_lag_p99(plan: Plan, records: Records, counted: Sequence[int]) -> float:
    """By how much calls came late though the producer was free to make them."""
    lags = []
    for each in counted:
        before = each - plan.producers
        free_at = records.returned[before] if before >= 0 else 0.0
        lags.append(max(0.0, records.called[each] - max(records.due[each], free_at)))
    return percentile(sorted(lags), 99)


def _behind(records: Records, counted: Sequence[int]) -> float:
    """How late calls were in the end: the median of the last hundredth of them."""
    last = counted[-max(1, len(counted) // 100) :]
    return percentile(sorted(max(0.0, records.called[each] - records.due[each]) for each in last), 50)


def _peak_open(plan: Plan, records: Records, done: Sequence[int]) -> int:
    """The most open jobs. A settle frees its place a moment before it returns, which is when it is noted: so
    a few that have just gone are counted beside those that took their places.
    """
    peak = peak_open(_comings(records, done), (records.settled[each] for each in done))
    return peak if plan.capacity is None else min(peak, plan.capacity)


def _comings(records: Records, done: Iterable[int]) -> Iterable[float]:
    """When each job was in the queue at the latest: one that waits for room is not yet there."""
    return (min(records.returned[each], records.started[each]) for each in done)


def peak_open(comings: Iterable[float], goings: Iterable[float]) -> int:
    """The most that were there at the same time. Who goes as another comes makes room for it first."""
    peak = gone = 0
    ended = sorted(goings)
    for came, at in enumerate(sorted(comings), 1):
        while gone < len(ended) and ended[gone] <= at:
            gone += 1
        peak = max(peak, came - gone)
    return peak


def _slices(
    records: Records, counted: Sequence[int], done: Sequence[int], *, since: float, until: float
) -> list[Slice]:
    """The time line: from the first job due to the last one due."""
    width_s = (until - since) / SLICES or 1.0
    parts: list[list[float]] = [[] for _ in range(SLICES)]
    for each in counted:
        number = min(SLICES - 1, int((records.due[each] - since) / width_s))
        parts[number].append(max(0.0, records.first_settled[each] - records.due[each]))
    open_at = _open_at(_comings(records, done), (records.settled[each] for each in done))
    slices = []
    for number, values in enumerate(parts):
        values.sort()
        at_s = number * width_s
        there = open_at(since + at_s + width_s / 2)
        slices.append(Slice(at_s, len(values), percentile(values, 50), percentile(values, 99), there))
    return slices


def _open_at(comings: Iterable[float], goings: Iterable[float]) -> Callable[[float], int]:
    from bisect import bisect_right

    came, went = sorted(comings), sorted(goings)
    return lambda at: bisect_right(came, at) - bisect_right(went, at)


def _ratio(number: float, per: float) -> float:
    return number / per if per > 0 else 0.0
