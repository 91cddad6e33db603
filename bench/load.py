"""Latency under load: `ulak bench` on each store in an open loop, at a rate that it sustains.

A store whose rate is not given is tried at higher and higher ones. Exit status: 0 all targets reached, 1 some
not, 2 a measurement failed, 3 void: the runs do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.kit import environment, report
from bench.kit.places import Places, chosen
from bench.kit.targets import Judgement
from bench.loading.plan import (
    FAIL_RATE,
    LOAD_S,
    OPTIONS,
    PROBE_S,
    QUICK_ROUNDS,
    QUICK_S,
    RATES,
    ROUNDS,
    STORES,
)
from bench.onefile import disk
from ulak.cli.bench_result import BEHIND_MAX_S, BEHIND_MAX_SHARE, LAG_MAX_S

CLEAN = "no failures"
P50_MAX_S, P99_MAX_S, FAILING_MAX = 100e-6, 2e-3, 2.0
HAS_RESULT = (0, 1)
"""The statuses of `ulak bench` with a result: it counts, or it does not."""


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench load", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs at low rates, to see that it works")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"runs of each load (default {ROUNDS})")
    parser.add_argument("--stores", metavar="NAMES", help=f"of {', '.join(STORES)} (those that are here)")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where the files lie, on a real disk")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="where to put a picture for each store")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write everything")
    args = parser.parse_args(arguments)
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    if args.rounds < 1:
        parser.error("--rounds is at least 1")
    args.stores = chosen(args.stores, STORES, parser)
    args.folder = args.folder or disk.real_folder(environment.ROOT)
    for folder in (args.folder, args.plot or args.folder):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
    return args


def measure_store(store, args, places):
    """The rate, what was tried to find it, and what `ulak bench` found there."""
    load = STORES[store]
    with places.fresh(store) as url:
        options = ["--url", url, "--producers", str(load.producers), *OPTIONS]
        tried = {}
        if load.rate is None or args.quick:
            tried = climb(options, args)
        rate = load.rate if load.rate and not args.quick else highest(tried)
        plot = [] if args.plot is None else ["--plot", str(args.plot / f"load-{store}.svg")]
        duration = ["--duration", f"{QUICK_S if args.quick else LOAD_S}s", "--rate", str(rate)]
        tell(f"{store} at {rate:,} jobs/s, {args.rounds} runs without failures and with them")
        result = ulak_bench(*options, *duration, *FAIL_RATE, "--repeat", str(args.rounds), *plot)
    return {"rate": rate, "tried": tried, "result": without_curves(result)}


def climb(options, args):
    """rate -> whether it was sustained, up to the first that was not."""
    tried = {}
    for rate in RATES[: 2 if args.quick else None]:
        tell(f"trying {rate:,} jobs/s")
        duration = f"{QUICK_S if args.quick else PROBE_S}s"
        tried[rate] = sustained(ulak_bench(*options, "--rate", rate, "--duration", duration, "--repeat", 1))
        if not tried[rate]:
            break
    return tried


def highest(tried):
    """The highest rate that was sustained; the least if none was."""
    return max((rate for rate, is_kept in tried.items() if is_kept), default=min(tried))


def sustained(result):
    (run,) = result["series"][CLEAN]["runs"]
    is_behind = run["behind_s"] > max(BEHIND_MAX_S, BEHIND_MAX_SHARE * run["due_span_s"])
    return not is_behind and run["lag_p99_s"] <= LAG_MAX_S


def ulak_bench(*options):
    """What `ulak bench --json` prints."""
    command = [sys.executable, "-m", "ulak", "bench", "--json", *map(str, options)]
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in HAS_RESULT or not done.stdout:
        print(f"bench: no figure from {' '.join(command)}\n{done.stderr}", file=sys.stderr)
        sys.exit(environment.FAILED)
    return json.loads(done.stdout)


def without_curves(result):
    """The result without each run's curve and time line, which are in the picture."""
    for series in result["series"].values():
        for run in series["runs"]:
            del run["slices"]
            for latency in run["latency"].values():
                del latency["curve"]
    return result


def tell(text):
    print(text, file=sys.stderr, flush=True)


def judge_all(found):
    """What is asked of memory, where every rate is possible; of the others only that they were measured."""
    if "memory" not in found:
        return []
    clean, failing = found["memory"]["result"]["series"].values()
    p50, p99 = (median(clean, "first_call", p) for p in ("p50", "p99"))
    times = {p: median(failing, "first_call", p) / median(clean, "first_call", p) for p in ("p50", "p99")}
    rows = [
        ("p50 from call to settled, µs", p50 * 1e6, P50_MAX_S * 1e6),
        ("p99 from call to settled, µs", p99 * 1e6, P99_MAX_S * 1e6),
        ("p50 of first attempts, with failures over without", times["p50"], FAILING_MAX),
        ("p99 of first attempts, with failures over without", times["p99"], FAILING_MAX),
    ]
    return [
        Judgement(f"{text} at most {limit:g}", "memory", reached <= limit, reached)
        for text, reached, limit in rows
    ]


def median(series, measure, percentile):
    return series["latency_s"][measure][percentile]["median"]


def print_store(store, found):
    print(f"\n{store}: {STORES[store].settings}; {found['rate']:,} jobs/s")
    for name, series in found["result"]["series"].items():
        for measure in ("start_call", "first_call", "first_due", "settled_call"):
            cells = (f"{p} {median(series, measure, p) * 1e6:,.0f} µs" for p in ("p50", "p99", "p99.9"))
            print(f"  {name:24} {measure:14} {'   '.join(cells)}")
    for problem in found["result"]["problems"]:
        print(f"  NOT VALID: {problem}")


def main(arguments=None):
    args = read_arguments(arguments)
    start = time.monotonic()
    run = {
        "load": os.getloadavg()[0],
        "rounds": args.rounds,
        "quick": args.quick,
        "options": " ".join(OPTIONS),
    }
    found = {}
    with Places(args.folder) as places:
        for store in args.stores:
            found[store] = measure_store(store, args, places)
            print_store(store, found[store])
    targets = judge_all(found)
    report.print_judgements("Targets: reached", targets, found, "SHORT")
    problems = [problem for each in found.values() for problem in each["result"]["problems"]]
    status = report.VOID if problems else report.verdict(targets, [])
    run |= {"took_s": time.monotonic() - start, "settings": {s: STORES[s].settings for s in args.stores}}
    if args.json:
        written = {"run": run, "stores": found, "targets": report.judged(targets), "status": status}
        args.json.write_text(json.dumps(written, indent=1) + "\n")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
