"""The benchmark of tasks: ulak's beside other libraries', in memory and on a file, in one run.

On a file each side works by its own command; ulak's is killed too, and what came of its jobs is judged.
Exit status: 0 all targets reached, 1 some not, 2 a measurement failed, 3 void: a yardstick is slower than it
should be, so nothing can be said.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from bench.kit import environment, report
from bench.kit.cases import QUICK_DIVISOR
from bench.kit.report import NAME_WIDTH
from bench.kit.rounds import interleaved, run_apart
from bench.onefile import disk
from bench.tasking.loop import ARGUMENT_CHARS
from bench.tasking.plan import CASES, DISTRIBUTIONS, ONCE, PEERS, SETTINGS
from bench.tasking.targets import judge_all, judge_yardsticks, with_median_peer

ROUNDS = 5
QUICK_ROUNDS = 3


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench tasks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs, to see that it works")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each measurement (default {ROUNDS})")
    parser.add_argument("--only", metavar="CASES", help=f"of {', '.join(CASES)}")
    parser.add_argument("--no-peers", action="store_true", help="only ulak and the yardsticks")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where the files lie, on a real disk")
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
    args.folder = args.folder or disk.real_folder(environment.ROOT)
    if not args.folder.is_dir():
        parser.error(f"--folder: {args.folder} is no folder")
    args.divisor = QUICK_DIVISOR if args.quick else 1
    return args


def measure_case(name, args):
    """All sides of a case, interleaved; side -> figure -> Spread."""
    jobs = CASES[name].sides
    rounds = 1 if name in ONCE else args.rounds

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        return run_apart(python, "bench.tasking.measure", side, name, jobs[side] // args.divisor, args.folder)

    def tell(side, number):
        print(f"{name} round {number + 1} of {rounds}: {side}", file=sys.stderr, flush=True)

    return interleaved(measure, [side for side in jobs if shown(side, args)], rounds, tell)


def shown(side, args):
    return side not in PEERS or not args.no_peers


def print_case(name, sides, args):
    case = CASES[name]
    print(f"\n{name}  {case.title}")
    for side, figures in with_median_peer(sides).items():
        for figure, unit in case.figures.items():
            if figure in figures:
                # Counts of what must not be are compared with nothing.
                compared = "ulak" if name in ONCE else side
                report.print_figure(side, compared, figures[figure], unit, sides["ulak"][figure])
    jobs = ", ".join(f"{side} {case.sides[side] // args.divisor:,}" for side in sides)
    print(f"  jobs: {jobs}", flush=True)


def describe_run(args):
    """What is needed to read the figures."""
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "folder": str(args.folder),
        "file_system": disk.file_system(args.folder),
        "rounds": args.rounds,
        "quick": args.quick,
        "settings": SETTINGS,
        "peers": {} if args.no_peers else environment.versions(environment.PEERS_PYTHON, DISTRIBUTIONS),
    }


def print_run(run):
    print(f"CPython {run['python']}, {run['machine']}, load {run['load']:.2f} at the start")
    print(f"files in {run['folder']}, on {run['file_system']}")
    if run["load"] > os.cpu_count() / 2:
        print("BUSY: other programs run here, and take from every figure what they take of the processors")
    print(f"{run['rounds']} rounds, sides in alternating order, a process for each figure; median (range)")
    print(f"an argument of {ARGUMENT_CHARS} characters, made anew for each job; all of one priority")
    print(f"peers: {', '.join(' '.join(peer) for peer in run['peers'].items()) or 'left out'}")
    for side, setting in run["settings"].items():
        print(f"  {side:{NAME_WIDTH}} {setting}")
    if run["quick"]:
        print("QUICK: small backlogs and few rounds; only a full run says whether a target is reached")


def main(arguments=None):
    args = read_arguments(arguments)
    if not args.no_peers:
        environment.prepare_peers()
    run = describe_run(args)
    print_run(run)
    start = time.monotonic()
    results = {}
    for name in args.cases:
        results[name] = measure_case(name, args)
        print_case(name, results[name], args)
    targets, yardsticks = judge_all(results), judge_yardsticks(results)
    run["took_s"] = time.monotonic() - start
    return report.conclude(run, results, targets, yardsticks, args.json)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
