"""All benchmarks in one go, and docs/comparison.md written from what they found.

Results stay in .bench/, where the next run's are compared with them: rows that disagree are called noisy.
Exit status: 0 all targets reached, 1 some not, 2 a benchmark failed, 3 void: what one of them found does not
count.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path

from bench.comparing.headline import headline, put_into
from bench.comparing.page import page
from bench.inmemory.plan import PEERS as IN_MEMORY_PEERS
from bench.kit import environment
from bench.kit.places import STORES, missing
from bench.onefile.plan import PEERS as ON_FILE_PEERS
from bench.onserver.plan import PEERS as ON_SERVER_PEERS
from bench.tasking.plan import PEERS as TASK_PEERS

PAGE, PICTURES = "docs/comparison.md", "docs/comparison"
RESULTS = environment.ROOT / ".bench"
FAILED, VOID = 2, 3
PEERS = {"memory": IN_MEMORY_PEERS, "sqlite": ON_FILE_PEERS, "tasks": TASK_PEERS, "postgres": ON_SERVER_PEERS}
KILLED_QUICK_WAIT_S = "10"

# Part -> what it is given in a quick run, and whether it draws a picture of each store. Each is a program of
# this folder.
PARTS = {
    "load": (("--quick",), True),
    "memory": (("--quick",), False),
    "sqlite": (("--quick",), False),
    "tasks": (("--quick",), False),
    "postgres": (("--quick",), False),
    "killed": (("--wait", KILLED_QUICK_WAIT_S), False),
    "growth": (("--quick",), True),
}
WITHOUT_PEERS = {"memory", "sqlite", "tasks", "postgres", "killed"}


def read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="bench all", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small backlogs, to see that it works")
    parser.add_argument(
        "--only", metavar="PARTS", help=f"of {', '.join(PARTS)}; others keep their last results"
    )
    parser.add_argument("--no-peers", action="store_true", help="only ulak and the yardsticks")
    help_text = f"of {', '.join(STORES)}, for load and growth (those that are here)"
    parser.add_argument("--stores", metavar="NAMES", help=help_text)
    parser.add_argument("--page", action="store_true", help="only write the page, from the last results")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", default=RESULTS, help="where results are kept"
    )
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", default=environment.ROOT, help="whose docs are written"
    )
    args = parser.parse_args(arguments)
    args.parts = [part for part in PARTS if not missing(part)] if args.only is None else args.only.split(",")
    for name in args.parts:
        if name not in PARTS:
            parser.error(f"no part is called {name!r}; there are {', '.join(PARTS)}")
    return args


def measure(name, args):
    """Run a part, and put what it found in the place of what it found before, which is kept."""
    quick, of_stores = PARTS[name]
    new = args.results / f"{name}.new.json"
    command = [sys.executable, "-m", f"bench.{name}", "--json", new]
    command += quick if args.quick else ()
    command += ["--no-peers"] if args.no_peers and name in WITHOUT_PEERS else []
    if of_stores:
        command += ["--plot", args.to / PICTURES]
        command += ["--stores", args.stores] if args.stores else []
    new.unlink(missing_ok=True)
    print(f"\n=== {name}", flush=True)
    status = subprocess.run(list(map(str, command)), cwd=environment.ROOT, check=False).returncode
    if status in (0, 1, VOID) and new.exists():
        last = args.results / f"{name}.json"
        if last.exists():
            last.replace(args.results / f"{name}.before.json")
        new.replace(last)
        return status
    print(f"bench all: {name} failed with status {status}", file=sys.stderr, flush=True)
    return FAILED


def read(folder, suffix):
    """Part -> its results, of those that have some."""
    paths = {name: folder / f"{name}{suffix}" for name in PARTS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def write_page(args):
    results, before = read(args.results, ".json"), read(args.results, ".before.json")
    if not results:
        print(f"bench all: there are no results in {args.results}", file=sys.stderr)
        return FAILED
    date = dt.datetime.now(tz=dt.UTC).strftime("%-d %B %Y")
    path = args.to / PAGE
    path.write_text(page(results, before, date=date))
    print(f"\nwritten: {path}")
    first = args.to / "README.md"
    changed = (
        put_into(first.read_text(), headline(results, date=date, peers=PEERS)) if first.exists() else None
    )
    if changed is None:
        print("README.md has no marks for figures, and is left as it is")
    else:
        first.write_text(changed)
        print(f"written: the figures of {first}")
    return 0


def main(arguments=None):
    args = read_arguments(arguments)
    args.results.mkdir(exist_ok=True)
    (args.to / PICTURES).mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    statuses = [] if args.page else [measure(name, args) for name in args.parts]
    written = write_page(args)
    print(f"took {(time.monotonic() - start) / 60:.1f} min")
    return worst([*statuses, written])


def worst(statuses):
    """A failure says more than a run that does not count, and that more than a target that was missed."""
    return next((status for status in (FAILED, VOID, 1) if status in statuses), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
