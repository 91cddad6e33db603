"""`ulak bench compare`: two results side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ulak.cli.bench_report import shown
from ulak.cli.options import spelled_size
from ulak.cli.output import say, visible
from ulak.errors import ConfigError

_FILE_CHARS_MAX = 64 * 2**20
_ALIKE = 0.05
"""What lies nearer together than this is no difference, however exact the runs are."""
_MEASURES = {
    "enqueue call": "call",
    "call to start": "start_call",
    "call to settled, first attempt": "first_call",
    "call to settled, with retries": "settled_call",
    "due to settled, first attempt": "first_due",
}
_PERCENTILES = ("p50", "p99", "p99.9")


class _Spread(NamedTuple):
    median: float
    low: float
    high: float


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 0 if both count."""
    before, after = (_read(Path(name)) for name in (args.before, args.after))
    say("\n".join(compared(before, after)), to=sys.stdout)
    invalid = [
        name
        for name, found in zip((args.before, args.after), (before, after), strict=True)
        if not found["valid"]
    ]
    for name in invalid:
        say(f"{visible(name)} is not valid, so this comparison is not: see its problems", to=sys.stderr)
    return 1 if invalid else 0


def _read(path: Path) -> dict[str, Any]:
    """A result. Raises ConfigError for what is none."""
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.read(_FILE_CHARS_MAX))
        is_one = isinstance(found, dict) and found.get("kind") == "ulak bench" and found["series"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not is_one:
        raise ConfigError(f"{path} is not what ulak bench --json printed")
    result: dict[str, Any] = found
    return result


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for each figure that both have: the first, the second, their ratio, and what that means."""
    lines = [*_differences(before, after), f"{'':34}{'A':>11}{'B':>11}{'B/A':>8}"]
    for name in before["series"]:
        if name in after["series"]:
            lines += [name, *_rows(before["series"][name], after["series"][name])]
    if len(lines) == 1:
        raise ConfigError("the two have no series in common: one has failures, the other has others")
    return lines


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What else is not the same: the figures may differ for that."""
    lines = []
    for part in ("settings", "machine"):
        for key, value in before[part].items():
            other = after[part].get(key)
            if value != other:
                lines.append(f"{key}: A {visible(str(value))}, B {visible(str(other))}")
    return lines


def _rows(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = [
        _row("jobs/s", before["jobs_per_s"], after["jobs_per_s"], "{:,.0f}".format, is_more_better=True),
        _row("cpu a job", before["cpu_a_job_s"], after["cpu_a_job_s"], shown),
        _row("memory", before["memory_bytes"], after["memory_bytes"], spelled_size),
    ]
    for name, measure in _MEASURES.items():
        pair = [found["latency_s"][measure] for found in (before, after)]
        lines += [_row(f"{name}, {p}", pair[0][p], pair[1][p], shown) for p in _PERCENTILES]
    return lines


def _row(name: str, before: Any, after: Any, show: Any, *, is_more_better: bool = False) -> str:  # noqa: ANN401
    if before is None or after is None:
        return f"  {name:32}{'-':>11}{'-':>11}"
    one, other = _Spread(**before), _Spread(**after)
    line = f"  {name:32}{show(one.median):>11}{show(other.median):>11}"
    if not one.median:
        return line
    ratio = other.median / one.median
    return f"{line}{ratio:>8.2f}  {_meaning(one, other, ratio, is_more_better=is_more_better)}".rstrip()


def _meaning(one: _Spread, other: _Spread, ratio: float, *, is_more_better: bool) -> str:
    """Where the runs of both overlap, nobody can tell the two apart."""
    if one.low <= other.high and other.low <= one.high:
        return ""
    if abs(ratio - 1) < _ALIKE:
        return ""
    return "better" if (ratio > 1) == is_more_better else "worse"
