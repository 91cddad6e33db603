"""How costs grow: with waiting jobs, workers, payloads, queues and priorities, on each store.

Exit status: 0 what should be flat is, 1 something bends, 2 a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path

from bench.growing.fit import costs, exponent
from bench.growing.plan import DIMENSIONS, FIGURES, QUICK_DIVISOR
from bench.kit import environment, report
from bench.kit.places import STORES, Places, chosen
from bench.kit.rounds import interleaved, run_apart
from bench.onefile import disk
from ulak.cli.chart import Axis, Line, Panel, svg

ROUNDS = 3
QUICK_SIZES = 2
LABELS = {"rate": "jobs/s", "p50_us": "p50, µs", "p99_us": "p99, µs", "memory_mb": "memory, MB"}


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench growth", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="the least sizes and few jobs, to see that it works"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each measurement (default {ROUNDS})")
    parser.add_argument("--only", metavar="NAMES", help=f"of {', '.join(DIMENSIONS)}")
    help_text = f"of {', '.join(STORES)} (those that are here)"
    parser.add_argument("--stores", metavar="NAMES", help=help_text)
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where the files lie, on a real disk")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="where to put a picture for each store")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    args.rounds = args.rounds or (1 if args.quick else ROUNDS)
    args.dimensions = list(DIMENSIONS) if args.only is None else args.only.split(",")
    for name in args.dimensions:
        if name not in DIMENSIONS:
            parser.error(f"there is no {name!r}; there are {', '.join(DIMENSIONS)}")
    args.stores = chosen(args.stores, STORES, parser)
    if args.rounds < 1:
        parser.error("--rounds is at least 1")
    args.folder = args.folder or disk.real_folder(environment.ROOT)
    for folder in (args.folder, args.plot or args.folder):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
    return args


def measure_dimension(store, name, args, places):
    """size -> figure -> Spread."""
    sizes = DIMENSIONS[name].sizes[: QUICK_SIZES if args.quick else None]
    divisor = QUICK_DIVISOR if args.quick else 1

    def measure(size):
        with places.fresh(store) as url:
            return run_apart(sys.executable, "bench.growing.measure", store, name, size, divisor, url)

    def tell(size, number):
        print(f"{store}, {name}, {size:,}: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)

    return interleaved(measure, sizes, args.rounds, tell)


def judged(name, by_size):
    """figure -> its exponent, and the limit that this has, or None."""
    found = {}
    for figure in FIGURES:
        medians = {size: figures[figure].median for size, figures in by_size.items()}
        found[figure] = {
            "exponent": exponent(costs(figure, medians)),
            "limit": DIMENSIONS[name].flat.get(figure),
        }
    return found


def bends(judgement):
    exponent_, limit = judgement["exponent"], judgement["limit"]
    return exponent_ is not None and limit is not None and exponent_ > limit


def print_dimension(store, name, by_size, judgements):
    print(f"\n{store}: {DIMENSIONS[name].title}")
    print(f"  {'':12}" + "".join(f"{unit:>14}" for unit in FIGURES.values()))
    for size, figures in by_size.items():
        cells = "".join(f"{report.rounded(figures[figure].median):>14}" for figure in FIGURES)
        print(f"  {size:<12,}{cells}")
    cells = "".join(f"{shown_exponent(judgements[figure]):>14}" for figure in FIGURES)
    print(f"  {'cost grows':12}{cells}", flush=True)


def shown_exponent(judgement):
    """As size**0.04; with what is wrong with it."""
    if judgement["exponent"] is None:
        return "-"
    verdict = " BENDS" if bends(judgement) else ""
    return f"^{judgement['exponent']:+.2f}{verdict}"


def picture(store, results):
    """A panel for each figure, with a line for each dimension, each size beside the least one."""
    panels = []
    for figure, label in LABELS.items():
        lines = [
            Line(name, relative(costs(figure, {size: row[figure].median for size, row in by_size.items()})))
            for name, by_size in results.items()
        ]
        what = "time for a job (1/rate)" if figure == "rate" else label.partition(",")[0]
        axis = Axis("times the cost at the least size", is_log=True, includes=(0.5, 5.0))
        panels.append(Panel(what, Axis("times the least size", is_log=True), axis, lines))
    return svg(f"How costs grow: {store}", panels, ["a flat line costs the same whatever the size"])


def relative(points):
    first_size, first_cost = points[0] if points else (1, 1)
    return [(size / first_size, cost / first_cost) for size, cost in points]


def describe_run(args):
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "folder": str(args.folder),
        "file_system": disk.file_system(args.folder),
        "rounds": args.rounds,
        "quick": args.quick,
        "titles": {name: DIMENSIONS[name].title for name in args.dimensions},
    }


def main(arguments=None):
    args = read_arguments(arguments)
    run = describe_run(args)
    print(f"CPython {run['python']}, SQLite {run['sqlite']}, {run['machine']}, load {run['load']:.2f}")
    print(f"{run['rounds']} rounds, a process and a store each; medians")
    start = time.monotonic()
    written, bent = {}, []
    with Places(args.folder) as places:
        for store in args.stores:
            results = {}
            for name in args.dimensions:
                results[name] = by_size = measure_dimension(store, name, args, places)
                judgements = judged(name, by_size)
                print_dimension(store, name, by_size, judgements)
                bent += [f"{store}, {name}: {FIGURES[f]}" for f, found in judgements.items() if bends(found)]
                written.setdefault(store, {})[name] = {"sizes": as_json(by_size), "growth": judgements}
            if args.plot:
                (args.plot / f"growth-{store}.svg").write_text(picture(store, results))
    run["took_s"] = time.monotonic() - start
    print(f"\n{'; '.join(bent) + ' bend' if bent else 'what should be flat is flat'}; {run['took_s']:.0f} s")
    if args.json:
        everything = {"run": run, "stores": written, "bent": bent, "status": int(bool(bent))}
        args.json.write_text(json.dumps(everything, indent=1) + "\n")
    return int(bool(bent))


def as_json(by_size):
    return {
        str(size): {
            figure: {"median": spread.median, "low": spread.low, "high": spread.high}
            for figure, spread in figures.items()
        }
        for size, figures in by_size.items()
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
