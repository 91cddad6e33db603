"""The benchmark of tasks: ulak's beside its own bare pool and another library's, in one run.

Exit status: 0 all targets reached, 1 some not, 2 a measurement failed.
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
from bench.kit.targets import judge
from bench.tasking.loop import ARGUMENT_CHARS
from bench.tasking.plan import CASES, PEERS, SETTINGS, TARGETS

ROUNDS = 5
QUICK_ROUNDS = 3


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench tasks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs, to see that it works")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each measurement (default {ROUNDS})")
    parser.add_argument("--no-peers", action="store_true", help="only ulak")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    if args.rounds is None:
        args.rounds = QUICK_ROUNDS if args.quick else ROUNDS
    elif args.rounds < 1:
        parser.error("--rounds is at least 1")
    args.divisor = QUICK_DIVISOR if args.quick else 1
    return args


def measure_case(name, args):
    """All sides of a case, interleaved; side -> figure -> Spread."""
    jobs = CASES[name].sides

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        return run_apart(python, "bench.tasking.measure", side, name, jobs[side] // args.divisor)

    def tell(side, number):
        print(f"{name} round {number + 1} of {args.rounds}: {side}", file=sys.stderr, flush=True)

    return interleaved(measure, [side for side in jobs if shown(side, args)], args.rounds, tell)


def shown(side, args):
    return side not in PEERS or not args.no_peers


def print_case(name, sides, args):
    case = CASES[name]
    print(f"\n{name}  {case.title}")
    for side, figures in sides.items():
        for figure, unit in case.figures.items():
            report.print_figure(side, side, figures[figure], unit, sides["ulak"][figure])
    print(f"  jobs: {', '.join(f'{side} {case.sides[side] // args.divisor:,}' for side in sides)}")


def describe_run(args):
    """What is needed to read the figures."""
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "rounds": args.rounds,
        "quick": args.quick,
        "settings": {side: setting for side, setting in SETTINGS.items() if shown(side, args)},
        "peers": {} if args.no_peers else environment.versions(environment.PEERS_PYTHON, PEERS),
    }


def print_run(run):
    print(f"CPython {run['python']}, {run['machine']}, load {run['load']:.2f} at the start")
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
    for name in CASES:
        results[name] = measure_case(name, args)
        print_case(name, results[name], args)
    run["took_s"] = time.monotonic() - start
    return report.conclude(run, results, [judge(target, results) for target in TARGETS], [], args.json)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
