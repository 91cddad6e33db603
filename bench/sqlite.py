"""The benchmark of the SQLite store: ulak beside other libraries and raw yardsticks, on one disk, in one run.

Exit status: 0 all targets reached, 1 some not, 2 a measurement failed, 3 void: a yardstick is slower than it
should be, so nothing can be said.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path

from bench.kit import environment, report
from bench.kit.cases import QUICK_DIVISOR
from bench.kit.report import NAME_WIDTH
from bench.kit.rounds import interleaved, run_apart
from bench.onefile import disk, peers
from bench.onefile.plan import CASES, PEERS, SETTINGS
from bench.onefile.targets import judge_all, judge_yardsticks

ROUNDS = 5
QUICK_ROUNDS = 3
FSYNCS = 500


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench sqlite", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs, to see that it works")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each measurement (default {ROUNDS})")
    parser.add_argument("--only", metavar="CASES", help=f"of {', '.join(CASES)}")
    parser.add_argument("--no-peers", action="store_true", help="only ulak and the yardsticks")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where the files lie, on a real disk")
    parser.add_argument("--depth", type=int, metavar="N", help="waiting jobs of `flat` (default 1,000,000)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    if args.rounds is None:
        args.rounds = QUICK_ROUNDS if args.quick else ROUNDS
    elif args.rounds < 1:
        parser.error("--rounds is at least 1")
    args.cases = list(CASES) if args.only is None else args.only.split(",")
    for name in args.cases:
        if name not in CASES:
            parser.error(f"no case is called {name!r}; there are {', '.join(CASES)}")
    if args.folder is None:
        args.folder = disk.real_folder(environment.ROOT)
    if not args.folder.is_dir():
        parser.error(f"--folder: {args.folder} is no folder")
    return args


def measure_case(name, args, missing):
    """All sides of a case, interleaved; side -> figure -> Spread."""
    sides = [side for side in CASES[name].sides if side not in missing]

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        jobs = jobs_of(name, side, args)
        return run_apart(python, "bench.onefile.measure", side, name, jobs, args.folder)

    def tell(side, number):
        print(f"{name} round {number + 1} of {args.rounds}: {side}", file=sys.stderr, flush=True)

    return interleaved(measure, sides, args.rounds, tell)


def jobs_of(case, side, args):
    if case == "flat" and args.depth is not None:
        return args.depth
    return CASES[case].sides[side] // (QUICK_DIVISOR if args.quick else 1)


def print_case(name, sides, args):
    case = CASES[name]
    print(f"\n{name}  {case.title}")
    for side, figures in sides.items():
        for figure, unit in case.figures.items():
            if figure not in figures:
                continue
            shown = figure if name == "flat" else side
            report.print_figure(shown, side, figures[figure], unit, sides["ulak"][figure])
    jobs = ", ".join(f"{side} {jobs_of(name, side, args):,}" for side in sides)
    print(f"  jobs: {jobs}", flush=True)


def describe_run(args, missing):
    """What is needed to read the figures."""
    fsyncs = sorted(disk.fsync_times(args.folder, FSYNCS))
    described = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "folder": str(args.folder),
        "file_system": disk.file_system(args.folder),
        "fsync_p50_us": fsyncs[len(fsyncs) // 2] * 1e6,
        "fsync_p99_us": fsyncs[len(fsyncs) * 99 // 100] * 1e6,
        "rounds": args.rounds,
        "quick": args.quick,
        "settings": SETTINGS,
        "missing": missing,
        "peers": {},
    }
    if not args.no_peers:
        names = ["huey", *(side for side in peers.DISTRIBUTIONS if side not in missing)]
        described["peers"] = environment.versions(environment.PEERS_PYTHON, names)
    return described


def print_run(run):
    print(f"CPython {run['python']}, SQLite {run['sqlite']}, {run['machine']}, load {run['load']:.2f}")
    print(f"files in {run['folder']}, on {run['file_system']}; one fsync there: ", end="")
    print(f"p50 {run['fsync_p50_us']:.0f} µs, p99 {run['fsync_p99_us']:.0f} µs")
    if run["file_system"] in disk.MEMORY_FILE_SYSTEMS:
        print("NO REAL DISK: an fsync there says nothing; give another folder by --folder")
    if run["load"] > os.cpu_count() / 2:
        print("BUSY: other programs run here; every wait for the disk may then wait for a processor too")
    print(f"{run['rounds']} rounds, sides in alternating order, a process and a file each; median (range)")
    print(
        "payload of 100 bytes, made anew for each job; logs begun anew at least once before the clock starts"
    )
    print(f"peers: {', '.join(' '.join(peer) for peer in run['peers'].items()) or 'left out'}")
    for side, why in run["missing"].items():
        if why:
            print(f"  not installed here: {side}: {why}")
    print("sides:")
    for side, setting in SETTINGS.items():
        if side not in run["missing"]:
            print(f"  {side:{NAME_WIDTH}} {setting}")
    if run["quick"]:
        print("QUICK: small backlogs and few rounds; only a full run says whether a target is reached")


def main(arguments=None):
    args = read_arguments(arguments)
    missing = dict.fromkeys(PEERS, "") if args.no_peers else peers.prepare()
    run = describe_run(args, missing)
    print_run(run)
    start = time.monotonic()
    results = {}
    for name in args.cases:
        results[name] = measure_case(name, args, missing)
        print_case(name, results[name], args)
    targets, yardsticks = judge_all(results), judge_yardsticks(results)
    run["took_s"] = time.monotonic() - start
    return report.conclude(run, results, targets, yardsticks, args.json)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
