"""What becomes of jobs whose worker is killed: ulak beside other libraries with a file, with their defaults.

Exit status: 0 ulak lost none and left none, 1 it did, 2 a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.killing.plan import CONCURRENCY, JOBS, PEERS, SETTINGS, SIDES, WAIT_S
from bench.kit import environment, report
from bench.kit.rounds import run_apart
from bench.onefile import disk
from bench.onefile import peers as onefile_peers

DISTRIBUTIONS = {"huey": "huey", "dramatiq": "dramatiq-sqlite", "celery": "celery"}
NAME_WIDTH = 15


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench killed", description=__doc__.splitlines()[0])
    help_text = f"how long to wait for jobs to run again, in seconds (default {WAIT_S:g})"
    parser.add_argument("--wait", type=float, metavar="S", default=WAIT_S, help=help_text)
    parser.add_argument("--only", metavar="SIDES", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--no-peers", action="store_true", help="only ulak")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where the files lie")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    args.sides = list(SIDES) if args.only is None else args.only.split(",")
    for side in args.sides:
        if side not in SIDES:
            parser.error(f"no side is called {side!r}; there are {', '.join(SIDES)}")
    if args.no_peers:
        args.sides = [side for side in args.sides if side not in PEERS]
    args.folder = args.folder or disk.real_folder(environment.ROOT)
    if not args.folder.is_dir():
        parser.error(f"--folder: {args.folder} is no folder")
    return args


def measure_all(args, missing):
    """Side -> what became of its jobs. The peers wait for theirs together, since some wait for minutes."""
    found = {}

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        found[side] = run_apart(python, "bench.killing.measure", side, args.wait, args.folder)

    sides = [side for side in args.sides if side not in missing]
    together = [side for side in sides if side in PEERS]
    for group in ([side for side in sides if side not in PEERS], together):
        if group:
            names = ", ".join(group)
            print(f"killing {names}; waiting at most {args.wait:g} s", file=sys.stderr, flush=True)
            with ThreadPoolExecutor(len(group)) as threads:
                list(threads.map(measure, group))
    return {side: found[side] for side in sides}


def rows(found):
    """A line for each side: side, then cells of text."""
    for side, row in found.items():
        again = "never"
        if row["again"]:
            low, high = row["again_s"][0], row["again_s"][-1]
            again = f"{statistics.median(row['again_s']):.1f} s ({low:.1f} to {high:.1f})"
        yield (
            side,
            str(row["killed"]),
            str(row["again"]),
            again,
            *(str(row[name]) for name in ("lost", "stuck", "twice")),
        )


HEADS = ("", "killed", "again", "after", "lost", "stuck", "twice")


def print_table(found):
    print(f"\n{JOBS} jobs of a second, {CONCURRENCY} at the same time; killed: those that ran then")
    for cells in (HEADS, *rows(found)):
        name, killed, again, after, *rest = cells
        line = f"  {name:{NAME_WIDTH}} {killed:>7} {again:>6} {after:>24}"
        print(line + "".join(f"{cell:>7}" for cell in rest))


def describe_run(args, missing):
    names = [DISTRIBUTIONS.get(side, side) for side in args.sides if side in PEERS and side not in missing]
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "wait_s": args.wait,
        "settings": SETTINGS,
        "missing": missing,
        "peers": environment.versions(environment.PEERS_PYTHON, names) if names else {},
    }


def main(arguments=None):
    args = read_arguments(arguments)
    missing = {} if not set(args.sides) & set(PEERS) else onefile_peers.prepare()
    run = describe_run(args, missing)
    for side in args.sides:
        print(f"{side:{NAME_WIDTH}} {missing.get(side) or SETTINGS[side]}", flush=True)
    start = time.monotonic()
    found = measure_all(args, missing)
    run["took_s"] = time.monotonic() - start
    print_table(found)
    ours = found.get("ulak")
    status = int(ours is not None and (ours["lost"] + ours["stuck"] > 0 or ours["again"] < ours["killed"]))
    if args.json:
        args.json.write_text(json.dumps({"run": run, "sides": found, "status": status}, indent=1) + "\n")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
