"""What a run says: its figures as a table, what was reached, and all of it as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from bench.kit.targets import YARDSTICK_SHARE

SHORT, VOID = 1, 3
NAME_WIDTH = 18


def cpu_name():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


def print_figure(label, side, spread, unit, ours):
    """A row of a case's table; ours: ulak's spread of the same figure."""
    median, low, high = map(rounded, (spread.median, spread.low, spread.high))
    line = f"  {label:{NAME_WIDTH}} {median:>12} {unit:7} ({low} to {high})"
    ratio = "" if side == "ulak" else f"ulak {ours.median / spread.median:.2f} x"
    print(f"{line:66} {ratio}".rstrip())


def rounded(value):
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def conclude(run, results, targets, yardsticks, path, **more):
    """Say what was reached; write everything to `path`, if there is one; the exit status.

    run: what describes it, with `took_s`. more: what else stands in the JSON.
    """
    lead = f"Yardsticks: their lead over a peer, as a share of what it was (below {YARDSTICK_SHARE:g}: void)"
    print_judgements(lead, yardsticks, results, "VOID")
    print_judgements("Targets: reached (range over the rounds)", targets, results, "SHORT")
    status = verdict(targets, yardsticks)
    print(f"\n{summary(targets, status)} in {run['took_s']:.0f} s")
    if path:
        everything = {
            "run": run,
            "cases": as_json(results),
            **more,
            "targets": judged(targets),
            "yardsticks": judged(yardsticks),
            "status": status,
        }
        path.write_text(json.dumps(everything, indent=1) + "\n")
    return status


def print_judgements(title, judgements, cases, bad):
    if not judgements:
        return
    print(f"\n{title}")
    for found in judgements:
        if found.case not in cases:
            continue
        if found.is_ok is None:
            print(f"  {'not measured':14} {found.case:13} {found.text}")
            continue
        spread = "" if found.low is None else f" ({found.low:.3g} to {found.high:.3g})"
        verdict = "ok" if found.is_ok else bad
        print(f"  {verdict:14} {found.case:13} {found.text}: {found.reached:.3g}{spread}")


def verdict(targets, yardsticks):
    if any(found.is_ok is False for found in yardsticks):
        return VOID
    return SHORT if any(found.is_ok is False for found in targets) else 0


def summary(targets, status):
    if status == VOID:
        return "void: a yardstick is slower than it should be, so nothing can be said;"
    ok = sum(found.is_ok is True for found in targets)
    short = sum(found.is_ok is False for found in targets)
    return f"{ok} targets reached, {short} short, {len(targets) - ok - short} not measured;"


def as_json(results):
    return {
        case: {
            side: {
                figure: {"median": spread.median, "low": spread.low, "high": spread.high, "runs": spread.runs}
                for figure, spread in figures.items()
            }
            for side, figures in sides.items()
        }
        for case, sides in results.items()
    }


def judged(found):
    return [{field: getattr(item, field) for field in item.__slots__} for item in found]
