"""The benchmark of the PostgreSQL store: ulak beside other libraries and raw yardsticks, on one server.

Exit status: 0 all targets reached, 1 some not, 2 a measurement failed, 3 void: a yardstick is slower than it
should be, so nothing can be said.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
from pathlib import Path

from bench.kit import environment, report
from bench.kit.cases import QUICK_DIVISOR
from bench.kit.report import NAME_WIDTH
from bench.kit.rounds import interleaved, run_apart
from bench.onserver import peers
from bench.onserver.plan import CASES, PEERS, SETTINGS
from bench.onserver.targets import judge_all, judge_yardsticks
from tests.support import postgres

ROUNDS = 5
QUICK_ROUNDS = 3
SHOWN = ("server_version", "synchronous_commit", "fsync", "full_page_writes", "shared_buffers", "wal_level")

_numbers = itertools.count(1)


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench postgres", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs, to see that it works")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each measurement (default {ROUNDS})")
    parser.add_argument("--only", metavar="CASES", help=f"of {', '.join(CASES)}")
    parser.add_argument("--no-peers", action="store_true", help="only ulak and the yardsticks")
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
    return args


def measure_case(name, args, missing, server):
    """All sides of a case, interleaved, a process and a database each; side -> figure -> Spread."""
    sides = [side for side in CASES[name].sides if side not in missing]

    def measure(side):
        python = environment.PEERS_PYTHON if side in PEERS else sys.executable
        database = f"bench_{next(_numbers)}"
        postgres.execute(server.url, f"CREATE DATABASE {database} TEMPLATE template0")
        try:
            # What the round before has left in the server's buffers and log is not this one's.
            postgres.execute(server.url, "CHECKPOINT")
            jobs = jobs_of(name, side, args)
            url = postgres.database(server.url, database)
            return run_apart(python, "bench.onserver.measure", side, name, jobs, url)
        finally:
            postgres.execute(server.url, f"DROP DATABASE {database} WITH (FORCE)")

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
            if figure not in figures:
                continue
            shown = figure if len(sides) == 1 else side
            report.print_figure(shown, side, figures[figure], unit, sides["ulak"][figure])
    print(f"  jobs: {', '.join(f'{side} {jobs_of(name, side, args):,}' for side in sides)}", flush=True)


def describe_run(args, missing, server):
    """What is needed to read the figures."""
    described = {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {report.cpu_name()}",
        "load": os.getloadavg()[0],
        "server": {name: postgres.execute(server.url, f"SHOW {name}")[0][0] for name in SHOWN},
        "rounds": args.rounds,
        "quick": args.quick,
        "settings": SETTINGS,
        "missing": missing,
        "peers": {},
    }
    if not args.no_peers:
        names = [side for side in PEERS if side not in missing]
        described["peers"] = environment.versions(environment.PEERS_PYTHON, names)
    return described


def print_run(run):
    print(f"CPython {run['python']}, {run['machine']}, load {run['load']:.2f}")
    print(f"PostgreSQL, by a Unix socket: {', '.join(f'{k} {v}' for k, v in run['server'].items())}")
    if run["load"] > os.cpu_count() / 2:
        print("BUSY: other programs run here; server and callers then wait for a processor too")
    print(f"{run['rounds']} rounds, alternating, a process and a database each; median (range)")
    print("payload of 100 bytes, made anew for each job; both sides at concurrency 100 unless said")
    print(f"peers: {', '.join(' '.join(peer) for peer in run['peers'].items()) or 'left out'}")
    for side, why in (run["missing"] | peers.LEFT_OUT).items():
        if why:
            print(f"  not measured here: {side}: {why}")
    print("sides:")
    for side, setting in SETTINGS.items():
        if side not in run["missing"]:
            print(f"  {side:{NAME_WIDTH}} {setting}")
    if run["quick"]:
        print("QUICK: small backlogs and few rounds; only a full run says whether a target is reached")


def main(arguments=None):
    args = read_arguments(arguments)
    missing = dict.fromkeys(PEERS, "") if args.no_peers else peers.prepare()
    with postgres.own_server(durable=True) as server:
        run = describe_run(args, missing, server)
        print_run(run)
        start = time.monotonic()
        results = {}
        for name in args.cases:
            results[name] = measure_case(name, args, missing, server)
            print_case(name, results[name], args)
    targets, yardsticks = judge_all(results), judge_yardsticks(results)
    run["took_s"] = time.monotonic() - start
    return report.conclude(run, results, targets, yardsticks, args.json)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
