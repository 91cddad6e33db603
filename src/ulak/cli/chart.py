"""Line charts as SVG, written by hand: panels with axes, linear or logarithmic, lines and a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PANEL_HEIGHT = 860, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 46, 46
_TITLE_HEIGHT = 30
_LINE_HEIGHT = 15
_TICKS = 6
# Told apart also by those who do not see red beside green (Okabe and Ito), the dashes by those who see none.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Points that are joined, in order of x."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Axis:
    """label: what is along it. ticks: (value, text); None for some that suit. show: a value as text.

    includes: values that it reaches, whatever there is. On a logarithmic axis a value of 0 or less is not
    drawn.
    """

    label: str
    is_log: bool = False
    show: Callable[[float], str] = lambda value: f"{value:g}"
    ticks: Sequence[tuple[float, str]] | None = None
    includes: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]


def svg(title: str, panels: Sequence[Panel], notes: Sequence[str] = ()) -> str:
    """A picture of panels, one below the other, with notes at its foot."""
    height = _TITLE_HEIGHT + len(panels) * PANEL_HEIGHT + len(notes) * _LINE_HEIGHT + 10
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 20, title, anchor="middle", extra=' font-size="15"'),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TITLE_HEIGHT + number * PANEL_HEIGHT)
    foot = _TITLE_HEIGHT + len(panels) * PANEL_HEIGHT + _LINE_HEIGHT
    parts += [
        _text(_LEFT, foot + number * _LINE_HEIGHT, note, anchor="start", extra=' fill="#444"')
        for number, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    from_px: float
    to_px: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.from_px + (value - low) / (high - low) * (self.to_px - self.from_px)


def _panel(panel: Panel, top: float) -> list[str]:
    shown = [
        Line(line.name, [point for point in line.points if _is_drawn(panel, point)]) for line in panel.lines
    ]
    points = [point for line in shown for point in line.points]
    bottom, right = top + PANEL_HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = [_text(_LEFT, top + 16, panel.title, anchor="start", extra=' font-weight="bold"')]
    if not points:
        return [*parts, _text(_LEFT, top + 60, "nothing to show", anchor="start")]
    xs, ys = zip(*points, strict=True)
    x = _scale(panel.x, xs, _LEFT, right)
    y = _scale(panel.y, ys, bottom, top + _TOP)
    for value, text in _ticks(panel.x, x):
        parts.append(_rule(x.at(value), top + _TOP, x.at(value), bottom))
        parts.append(_text(x.at(value), bottom + 16, text, anchor="middle"))
    for value, text in _ticks(panel.y, y):
        parts.append(_rule(_LEFT, y.at(value), right, y.at(value)))
        parts.append(_text(_LEFT - 6, y.at(value) + 4, text, anchor="end"))
    parts.append(
        f'<rect x="{_LEFT}" y="{top + _TOP}" width="{right - _LEFT}" height="{bottom - top - _TOP}" '
        'fill="none" stroke="#888"/>'
    )
    parts.append(_text((_LEFT + right) / 2, bottom + 34, panel.x.label, anchor="middle"))
    middle = (top + _TOP + bottom) / 2
    turned = f' transform="rotate(-90 16 {middle:.1f})"'
    parts.append(_text(16, middle, panel.y.label, anchor="middle", extra=turned))
    for number, line in enumerate(shown):
        parts += _curve(line, number, x, y)
    return [*parts, *_legend(shown, top + _TOP - 10)]


def _is_drawn(panel: Panel, point: Point) -> bool:
    return all(
        math.isfinite(value) and (value > 0 or not axis.is_log)
        for value, axis in zip(point, (panel.x, panel.y), strict=True)
    )


def _scale(axis: Axis, values: Sequence[float], from_px: float, to_px: float) -> _Scale:
    low, high = min([*values, *axis.includes]), max([*values, *axis.includes])
    if axis.is_log:
        low, high = (low / 1.2, high * 1.2) if axis.ticks is None else (low, high)
        high = max(high, low * 2)
    else:
        low = min(0.0, low)
        high = high if high > low else low + 1.0
    return _Scale(low, high, from_px, to_px, axis.is_log)


def _ticks(axis: Axis, scale: _Scale) -> list[tuple[float, str]]:
    if axis.ticks is not None:
        return [(value, text) for value, text in axis.ticks if scale.low <= value <= scale.high]
    values = _log_steps(scale) if axis.is_log else _linear_steps(scale)
    return [(value, axis.show(value)) for value in values]


def _log_steps(scale: _Scale) -> list[float]:
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 4 else (1,)
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    return [value for value in values if scale.low <= value <= scale.high]


def _linear_steps(scale: _Scale) -> list[float]:
    rough = (scale.high - scale.low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(scale.low / step)
    return [number * step for number in range(first, math.floor(scale.high / step) + 1)]


def _curve(line: Line, number: int, x: _Scale, y: _Scale) -> list[str]:
    style = _style(number)
    places = [(x.at(point[0]), y.at(point[1])) for point in line.points]
    if len(places) == 1:
        return [f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{_colour(number)}"/>']
    joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    return [f'<polyline fill="none" {style} points="{joined}"/>']


def _legend(lines: Sequence[Line], y: float) -> list[str]:
    parts, x = [], float(_LEFT)
    for number, line in enumerate(lines):
        parts.append(
            f'<line x1="{x:.0f}" y1="{y - 4:.0f}" x2="{x + 24:.0f}" y2="{y - 4:.0f}" {_style(number)}/>'
        )
        parts.append(_text(x + 29, y, line.name, anchor="start"))
        x += 29 + 6.6 * len(line.name) + 20
    return parts


def _style(number: int) -> str:
    dash = _DASHES[number % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_colour(number)}" stroke-width="1.8"{dashed}'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e2e2e2"/>'


def _text(x: float, y: float, text: str, *, anchor: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'
