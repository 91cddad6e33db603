"""The few figures of the first page, between two marks in the README."""

from __future__ import annotations

import re

from bench.comparing.tables import number, table

BEGIN = "<!-- figures: written by python3 dev.py bench all -->"
END = "<!-- end of figures -->"

# What is said, what it takes -> part, case, figure, its unit.
ROWS = (
    ("in memory: enqueue, run, settle; 4 workers", "memory", "W5-4", "rate", "jobs/s"),
    ("in memory: from enqueue to the handler, idle", "memory", "W7-asleep", "p50_us", "µs"),
    ("in memory: tasks, concurrency 8", "tasks", "memory-8", "rate", "jobs/s"),
    ("one file, fsynced: 8 threads enqueue", "sqlite", "enqueue-8", "rate", "jobs/s"),
    ("one file: a backlog done, concurrency 100", "sqlite", "drain-100", "rate", "jobs/s"),
    ("one file: the same, tasks by the worker command", "tasks", "sqlite-100", "rate", "jobs/s"),
    ("PostgreSQL: 8 callers enqueue", "postgres", "enqueue-8", "rate", "jobs/s"),
    ("PostgreSQL: a backlog done, concurrency 100", "postgres", "drain", "rate", "jobs/s"),
)
TITLE = "## How fast"
FOOT = "every figure, its spread, versions and durability: [docs/comparison.md](docs/comparison.md)."


def headline(results, *, date, peers):
    """The table, as far as its figures were measured. peers: part -> the sides that are other libraries."""
    rows = []
    for title, part, case, figure, unit in ROWS:
        sides = results.get(part, {}).get("cases", {}).get(case)
        if sides is None:
            continue
        ours = sides["ulak"][figure]["median"]
        rows.append((title, f"{number(ours)} {unit}", best_of(sides, figure, peers[part], ours, unit)))
    machine = next((each["run"]["machine"] for each in results.values() if "machine" in each["run"]), "")
    figures = table(("", "ulak", "the best of the others"), rows)
    return f"\n{TITLE}\n\n{figures}\n\n{date}, {machine}; {FOOT}\n"


def best_of(sides, figure, peers, ours, unit):
    """The peer that is hardest to beat, and ulak's figure over its."""
    others = {side: sides[side][figure]["median"] for side in peers if figure in sides.get(side, {})}
    if not others:
        return ""
    best = (max if figure == "rate" else min)(others, key=others.get)
    return f"{best} {number(others[best])} {unit} ({ours / others[best]:.2f} x)"


def put_into(text, figures):
    """The page with these figures between the marks; None if it has no marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        return None
    return pattern.sub(lambda _: f"{BEGIN}\n{figures}\n{END}", text)
