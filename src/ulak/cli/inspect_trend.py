"""`ulak counts --since 1h`: what each queue has done of late, and how long its jobs took."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from ulak.cli.inspect_open import opened, settings_of
from ulak.cli.inspect_table import Column, age, iso_time, print_json, print_table
from ulak.cli.output import say
from ulak.core.history import HOUR_S, KEPT_S, MINUTE_S, Moment
from ulak.core.trend import NUMBERS, Plan, Slice, Trend, plan_of, trend_of
from ulak.errors import ConfigError
from ulak.metrics import Histogram
from ulak.storage.drive import Edge

_DRAWN = ("enqueued", "succeeded", "failed")
_PERCENTS = (50, 95)
_UNKNOWN = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.:=+*#@"


class Past(msgspec.Struct, frozen=True):
    """What has happened in each queue since an instant, by slices."""

    plan: Plan
    by_queue: Mapping[str, Trend]


def run(args: argparse.Namespace) -> int:
    """Print what has happened; 0."""
    check_since(args.since)
    with opened(args) as edge:
        past = past_of(edge, args.since, args.queue)
    if args.json:
        print_json(as_json(past), to=sys.stdout)
    else:
        print_past(past, blocks=blocks_for(sys.stdout), to=sys.stdout)
        if not any(trend.whole.is_known for trend in past.by_queue.values()):
            say("nothing was recorded then: workers of an App do so, each minute", to=sys.stderr)
    return 0


def check_since(since_s: float) -> None:
    """Raises ConfigError for a time that no history is of."""
    if not MINUTE_S <= since_s <= KEPT_S[HOUR_S]:
        raise ConfigError(
            "--since goes from 1m, which is as often as is recorded, to 90d, as long as is kept"
        )


def past_of(edge: Edge, since_s: float, queue: str | None = None) -> Past:
    """The past of one queue, or of all, by name. Raises Missing if there is no such queue."""
    store, plan = edge.store, plan_of(since_s)
    if queue is not None:
        settings_of(store, queue)
    names = sorted(store.queues()) if queue is None else [queue]
    now_at = edge.clock.calendar()
    histories = store.history(names, now_at - plan.since_s, grain=plan.grain)
    counts = store.counts(names)
    # Up to now, whenever it was recorded last.
    now = {name: Moment(now_at, now_at, counts[name]) for name in names}
    trends = {name: _trend(histories[name], now[name], plan) for name in names}
    return Past(plan, trends)


def _trend(history: Sequence[Moment], now: Moment, plan: Plan) -> Trend:
    # Without a row there is nothing to compare the present with.
    return trend_of([*history, now] if history else [], now.seen_at, plan)


def blocks_for(stream: TextIO | None) -> str:
    """What a line is drawn with, from low to high: blocks, or ASCII where they cannot be shown."""
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in named if name), "")
    if locale in ("C", "POSIX"):
        return _ASCII
    try:
        _BLOCKS.encode((stream and stream.encoding) or "utf-8")
    except UnicodeEncodeError:
        return _ASCII
    return _BLOCKS


def spark(numbers: Sequence[float | None], blocks: str) -> str:
    """A line of one character each: the lowest for nothing, the highest for the most; a dash: not known.

    >>> spark([None, 0, 1, 50, 100], "_.:=+*#@")
    '-_.+@'
    """
    most = max((number for number in numbers if number is not None), default=0.0)
    return "".join(
        _UNKNOWN if number is None else blocks[_level(number, most, len(blocks))] for number in numbers
    )


def _level(number: float, most: float, levels: int) -> int:
    if number <= 0:
        return 0
    return 1 + min(levels - 2, int(number / most * (levels - 1)))


_NUMBERS = (
    Column("queue"),
    *(Column(name, right=True) for name in ("enqueued", "succeeded", "failed", "dead")),
    *(Column(f"{kind} p{percent}", right=True) for kind in ("wait", "run") for percent in _PERCENTS),
)


def print_past(past: Past, *, blocks: str, to: TextIO | None) -> None:
    """Print a line per queue; on a terminal its lines are drawn below, else they are columns."""
    numbers = [[name, *_numbers(trend.whole)] for name, trend in past.by_queue.items()]
    step = _step_text(past.plan)
    lines = {name: _lines(trend, blocks) for name, trend in past.by_queue.items()}
    if to is not None and to.isatty():
        print_table(_NUMBERS, numbers, to=to)
        to.write("\n")
        drawn = [
            [name, kind, *line]
            for name, of_queue in lines.items()
            for kind, line in zip(_DRAWN, of_queue, strict=True)
        ]
        print_table(
            (Column("queue"), Column(""), Column(f"each {step}"), Column("most", right=True)), drawn, to=to
        )
    else:
        rows = [[*row, *(line for line, _ in lines[row[0]])] for row in numbers]
        print_table((*_NUMBERS, *(Column(f"{kind} each {step}") for kind in _DRAWN)), rows, to=to)


def _step_text(plan: Plan) -> str:
    return f"{plan.step_s / HOUR_S:g}h" if plan.step_s % HOUR_S == 0 else f"{plan.step_s / MINUTE_S:g}m"


def _numbers(whole: Slice) -> list[str]:
    if not whole.is_known:
        return [""] * (len(_NUMBERS) - 1)
    totals = (whole.enqueued, whole.succeeded, whole.failed, whole.dead_lettered)
    return [
        *(str(round(total)) for total in totals),
        *(age(_percentile(kind, percent)) for kind in (whole.wait, whole.run) for percent in _PERCENTS),
    ]


def _lines(trend: Trend, blocks: str) -> list[tuple[str, str]]:
    """Each line, and how much its highest point stands for."""
    found = []
    for kind in _DRAWN:
        values = [getattr(one, kind) if one.is_known else None for one in trend.slices]
        most = max((value for value in values if value is not None), default=None)
        found.append((spark(values, blocks), "" if most is None else str(round(most))))
    return found


def _percentile(of: Histogram, percent: int) -> float | None:
    return of.percentile(percent) if of.count else None


def as_json(past: Past) -> dict[str, object]:
    """The same for a program: numbers as they are, durations in seconds, null where nothing is known."""
    return {
        "step_s": past.plan.step_s,
        "queues": {
            name: {**_slice_json(trend.whole), "slices": list(map(_slice_json, trend.slices))}
            for name, trend in past.by_queue.items()
        },
    }


def _slice_json(one: Slice) -> dict[str, object]:
    percentiles = {
        f"{kind}_p{percent}_s": _percentile(getattr(one, kind), percent)
        for kind in ("wait", "run")
        for percent in (*_PERCENTS, 99)
    }
    numbers = {name: round(getattr(one, name), 3) if one.is_known else None for name in NUMBERS}
    return {"from": iso_time(one.from_at), "until": iso_time(one.until_at), **numbers, **percentiles}
