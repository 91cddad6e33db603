"""Tables in Markdown: figures side by side, and which of them are noisy."""

from __future__ import annotations

from bench.growing.plan import FIGURES

PERCENTILES = ("p50", "p90", "p99", "p99.9", "max")
NOISY = 0.15
"""How far the medians of two runs may be apart."""


def table(heads, rows):
    """A table; a bar inside a cell would end it."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def case_table(case, sides, before, *, has_ratios=True):
    """A row for each side. before: the same sides of an earlier run, or None.

    has_ratios: what others have is compared with ulak's; not where it is a count.
    """
    heads = ["side"]
    for unit in case.figures.values():
        heads += [unit, "ulak x"] if has_ratios else [unit]
    rows = []
    for side, figures in sides.items():
        row = [side]
        for figure in case.figures:
            found = figures.get(figure)
            earlier = (before or {}).get(side, {}).get(figure)
            row.append("" if found is None else cell(found, earlier))
            if has_ratios:
                row.append(ratio(side, sides["ulak"].get(figure), found))
        rows.append(row)
    return table(heads, rows)


def cell(found, before):
    """A median with its range; noisy if another run says otherwise."""
    noisy = ", noisy" if is_noisy(found, before) else ""
    return f"{number(found['median'])} ({number(found['low'])} to {number(found['high'])}){noisy}"


def ratio(side, ours, theirs):
    """ulak's figure over another's; nothing beside its own sides."""
    if side.startswith("ulak") or not ours or not theirs or not theirs["median"]:
        return ""
    return f"{ours['median'] / theirs['median']:.2f}"


def is_noisy(now, before):
    """Whether two runs disagree. Without an earlier one nobody knows."""
    if not before or not before["median"]:
        return False
    return abs(now["median"] / before["median"] - 1) > NOISY


def number(value):
    """In whole numbers from 100 on, below in three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def load_table(series):
    """A row for each measure of each series."""
    measures = {
        "enqueue call": "call",
        "call to start": "start_call",
        "call to settled, first attempt": "first_call",
        "due to settled, first attempt": "first_due",
        "call to settled, with retries": "settled_call",
    }
    rows = []
    for name, found in series.items():
        for title, measure in measures.items():
            if measure == "settled_call" and name == "no failures":
                continue
            at = found["latency_s"][measure]
            rows.append((name, title, *(short(at[p]["median"]) for p in PERCENTILES)))
    return table(("", "", *PERCENTILES), rows)


def short(value_s):
    """Seconds, in µs or ms."""
    return f"{number(value_s * 1e6)} µs" if value_s < 10e-3 else f"{number(value_s * 1e3)} ms"


def kills(sides, settings):
    rows = []
    for side, row in sides.items():
        after = "never"
        if row["again"]:
            first, last = (f"{row['again_s'][place]:.1f}" for place in (0, -1))
            after = f"{first} s" if first == last else f"{first} to {last} s"
        cells = (row[name] for name in ("lost", "stuck", "twice"))
        rows.append((side, row["killed"], row["again"], after, *cells, settings.get(side, "")))
    return table(("side", "killed", "again", "after", "lost", "stuck", "done twice", "set up as"), rows)


def exponents(dimensions):
    """A row for each dimension: from where to where, and the exponent of each cost."""
    rows = []
    for name, found in dimensions.items():
        sizes = [int(size) for size in found["sizes"]]
        cells = [exponent(found["growth"][figure]) for figure in FIGURES]
        rows.append((name, f"{sizes[0]:,} to {sizes[-1]:,}", *cells))
    return table(("more", "sizes", "time for a job", "p50", "p99", "memory"), rows)


def exponent(judgement):
    value, limit = judgement["exponent"], judgement["limit"]
    if value is None:
        return "-"
    # What is nearer to 0 than a rounding shows is 0, not -0.
    text = f"{value:.2f}".replace("-0.00", "0.00")
    return f"**{text}**" if limit is not None and value > limit else text
