"""The in-memory benchmark: ulak beside other libraries and beside raw yardsticks, in one run.

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

from bench.inmemory import rust
from bench.inmemory.plan import CASES, PEERS, SETTINGS
from bench.inmemory.targets import TARGETS, YARDSTICKS
from bench.kit import environment, report
from bench.kit.cases import QUICK_DIVISOR
from bench.kit.report import NAME_WIDTH
from bench.kit.rounds import interleaved, run_apart
from bench.kit.targets import judge, judge_yardstick

ROUNDS = 5
QUICK_ROUNDS = 3


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench memory", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs, to see that it works")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"how often each is measured (default {ROUNDS})"
    )
    parser.add_argument("--only", metavar="CASES", help=f"of {', '.join(CASES)}; W5 stands for both W5")
    parser.add_argument("--no-peers", action="store_true", help="only ulak and the yardsticks")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    if args.rounds is None:
        args.rounds = QUICK_ROUNDS if args.quick else ROUNDS
    elif args.rounds < 1:
        parser.error("--rounds is at least 1")
    args.cases = choose_cases(args.only, parser)
    return args


def choose_cases(only, parser):
    if only is None:
        return list(CASES)
    chosen = []
    for name in only.split(","):
        found = [case for case in CASES if name in {case, case.partition("-")[0]}]
        if not found:
            parser.error(f"no case is called {name!r}; there are {', '.join(CASES)}")
        chosen += [case for case in found if case not in chosen]
    return chosen


def measure_case(name, args):
    """All sides of a case, interleaved; side -> figure -> Spread."""
    case = CASES[name]
    sides = [side for side in case.sides if side not in PEERS or not args.no_peers]

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        return run_apart(python, "bench.inmemory.measure", side, name, jobs_of(name, side, args))

    def tell(side, number):
        print(f"{name} round {number + 1} of {args.rounds}: {side}", file=sys.stderr, flush=True)

    return interleaved(measure, sides, args.rounds, tell)


def jobs_of(case, side, args):
    return CASES[case].sides[side] // (QUICK_DIVISOR if args.quick else 1)


def print_case(name, sides, args):
    case = CASES[name]
    print(f"\n{name}  {case.title}")
    for side, figures in sides.items():
        for figure, unit in case.figures.items():
            report.print_figure(side, side, figures[figure], unit, sides["ulak"][figure])
    for program, difference, figures in rust.ROWS.get(name, ()):
        for figure, value in figures.items():
            note = f"measured elsewhere{'; ' if difference else ''}{difference}"
            print(f"  {program:{NAME_WIDTH}} {value:>12,} {case.figures[figure]:7} {note}")
    jobs = ", ".join(f"{side} {jobs_of(name, side, args):,}" for side in sides)
    print(f"  jobs: {jobs}")


def describe_run(args):
    """What is needed to read the figures."""
    described = {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "rounds": args.rounds,
        "quick": args.quick,
        "settings": SETTINGS,
        "peers": {},
    }
    if not args.no_peers:
        names = [peer.partition(" ")[0] for peer in environment.PEERS]
        described["peers"] = environment.versions(environment.PEERS_PYTHON, names)
    return described


def print_run(run):
    print(f"CPython {run['python']}, {run['machine']}, load {run['load']:.2f} at the start")
    print(f"{run['rounds']} rounds, sides in alternating order, a process for each figure; median (range)")
    print("payload of 100 bytes, made anew for each job; priorities 0 to 9 unless a side has none")
    print(f"peers: {', '.join(' '.join(peer) for peer in run['peers'].items()) or 'left out'}")
    print("sides:")
    for side, setting in (SETTINGS | rust.MACHINES).items():
        if side not in PEERS or run["peers"]:
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
    yardsticks = [judge_yardstick(check, results) for check in YARDSTICKS]
    targets = [judge(target, results) for target in TARGETS]
    rows = {case: [list(row) for row in found] for case, found in rust.ROWS.items()}
    machines = {"machines": rust.MACHINES, "rows": rows}
    run["took_s"] = time.monotonic() - start
    return report.conclude(run, results, targets, yardsticks, args.json, rust=machines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
