"""The in-memory benchmark: ulak beside other libraries and beside raw yardsticks, in one run.

Exit status: 0 all targets reached, 1 some not, 2 a measurement failed, 3 void: a yardstick is slower than it
should be, so nothing can be said.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from bench.inmemory import rust
from bench.inmemory.plan import CASES, PEERS, QUICK_DIVISOR, SETTINGS
from bench.inmemory.targets import TARGETS, YARDSTICK_SHARE, YARDSTICKS, judge, judge_yardstick
from bench.kit import environment
from bench.kit.rounds import interleaved, run_apart

ROUNDS = 5
QUICK_ROUNDS = 3
SHORT, VOID = 1, 3
NAME_WIDTH = 18


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
            spread = figures[figure]
            median, low, high = map(rounded, (spread.median, spread.low, spread.high))
            line = f"  {side:{NAME_WIDTH}} {median:>12} {unit:7} ({low} to {high})"
            print(f"{line:66} {compared(sides['ulak'][figure].median, spread.median, side)}".rstrip())
    for program, difference, figures in rust.ROWS.get(name, ()):
        for figure, value in figures.items():
            note = f"measured elsewhere{'; ' if difference else ''}{difference}"
            print(f"  {program:{NAME_WIDTH}} {value:>12,} {case.figures[figure]:7} {note}")
    jobs = ", ".join(f"{side} {jobs_of(name, side, args):,}" for side in sides)
    print(f"  jobs: {jobs}")


def rounded(value):
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def compared(ours, theirs, side):
    return "" if side == "ulak" else f"ulak {ours / theirs:.2f} x"


def print_judgements(title, judgements, cases, bad):
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


def describe_run(args):
    """What is needed to read the figures."""
    described = {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {cpu_name()}",
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


def cpu_name():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


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


def as_json(run, results, targets, yardsticks, status):
    def judged(found):
        return [{field: getattr(item, field) for field in item.__slots__} for item in found]

    cases = {
        case: {
            side: {
                figure: {"median": spread.median, "low": spread.low, "high": spread.high, "runs": spread.runs}
                for figure, spread in figures.items()
            }
            for side, figures in sides.items()
        }
        for case, sides in results.items()
    }
    rows = {case: [list(row) for row in found] for case, found in rust.ROWS.items()}
    return {
        "run": run,
        "cases": cases,
        "rust": {"machines": rust.MACHINES, "rows": rows},
        "targets": judged(targets),
        "yardsticks": judged(yardsticks),
        "status": status,
    }


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
    lead = f"Yardsticks: their lead over a peer, as a share of what it was (below {YARDSTICK_SHARE:g}: void)"
    print_judgements(lead, yardsticks, results, "VOID")
    print_judgements("Targets: reached (range over the rounds)", targets, results, "SHORT")
    status = verdict(targets, yardsticks)
    run["took_s"] = time.monotonic() - start
    print(f"\n{summary(targets, status)} in {run['took_s']:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(as_json(run, results, targets, yardsticks, status), indent=1) + "\n")
    return status


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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
