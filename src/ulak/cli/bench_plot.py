"""A benchmark as a picture: how its latency is spread, and how it went along."""

from __future__ import annotations

import re

from ulak.cli import bench_report
from ulak.cli.bench_plan import Figures
from ulak.cli.bench_result import Result, Series, name_of
from ulak.cli.chart import Axis, Line, Panel, svg

_PERCENTILES = ("0", "90", "99", "99.9", "99.99", "99.999", "99.9999")
_SECONDS = Axis("seconds into the run")


def drawn(result: Result) -> str:
    """The picture, as SVG. Of several runs it shows the one whose median latency is the middle one."""
    # SVG shows several blanks as one.
    head = [re.sub(" {2,}", " · ", line.strip()) for line in bench_report.header(result.plan)]
    notes = head[1:]
    if any(series.fail_rate for series in result.series):
        notes.append("with failures, the tail until a job is settled with its retries is the backoff")
    notes += [f"not valid: {problem}" for problem in result.problems[:3]]
    panels = [_percentiles(result), _latency_in_time(result), _open_in_time(result)]
    return svg(head[0], panels, notes)


def _percentiles(result: Result) -> Panel:
    origin = "due" if result.plan.rate else "call"
    lines = []
    for series in result.series:
        run = series.middle
        lines.append(Line(f"first attempt, {_short(series)}", _curve(run, f"first_{origin}")))
        if series.fail_rate:
            lines.append(Line(f"with retries, {_short(series)}", _curve(run, f"settled_{origin}")))
    decades = max((len(line.points) for line in lines), default=0) // 10 + 1
    ticks = [(10.0**number, text) for number, text in enumerate(_PERCENTILES[: decades + 1])]
    since = "it was due" if result.plan.rate else "its enqueue call"
    x = Axis("percentile", is_log=True, ticks=ticks, includes=(1.0,))
    return Panel(f"Latency from when {since} until a job is settled", x, _latency_axis(), lines)


def _curve(run: Figures, measure: str) -> list[tuple[float, float]]:
    """Drawn so that each further nine takes the same room."""
    return [(100 / (100 - p), value_s) for p, value_s in run.latency[measure].curve]


def _latency_in_time(result: Result) -> Panel:
    lines = []
    for series in result.series:
        slices = [part for part in series.middle.slices if part.due]
        lines += [
            Line(f"p50, {_short(series)}", [(part.at_s, part.p50_s) for part in slices]),
            Line(f"p99, {_short(series)}", [(part.at_s, part.p99_s) for part in slices]),
        ]
    return Panel("First attempts in the course of the run", _SECONDS, _latency_axis(), lines)


def _open_in_time(result: Result) -> Panel:
    lines = [
        Line(_short(series), [(part.at_s, part.open) for part in series.middle.slices])
        for series in result.series
    ]
    return Panel("Open jobs", _SECONDS, Axis("jobs"), lines)


def _latency_axis() -> Axis:
    return Axis("latency", is_log=True, show=bench_report.shown)


def _short(series: Series) -> str:
    return f"{100 * series.fail_rate:g}% fail" if series.fail_rate else name_of(series)
