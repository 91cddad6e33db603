"""`ulak demo`: a bounded queue under injected failures, which checks its own books at the end."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ulak.cli import logs
from ulak.cli.options import add_verbose, any_int, duration, per_second, share, spelled, whole
from ulak.cli.output import say
from ulak.cli.stops import Stops
from ulak.errors import ConfigError

if TYPE_CHECKING:
    from ulak.cli.demo_plan import Plan

COUNT_MAX = 1_000_000_000
PROCESSES = 4
SEED_BELOW = 1_000_000

_DESCRIPTION = """
One producer fills a bounded queue, workers empty it, a share of all attempts fails and is retried after a
backoff with full jitter; what fails too often ends as a dead letter. The same seed fails the same attempts of
the same jobs, so a run can be told beforehand, and its counts are compared with that.

With --processes the workers are threads of so many child processes on one file, and with --crash-rate a share
of all attempts kills its process, with all that runs there. The jobs come back in another one, the process is
replaced, and the books have to balance all the same. A file that an earlier run has left is finished first.
"""
_EPILOG = """
Latencies run from the start of the enqueue call (with --rate: from when it was due) or from its return, until
the settle that ended the job had returned, or until its handler was first called.
Ctrl-C and SIGTERM stop the producer, let the running jobs finish, and print the summary; a second one ends at
once. Exit status: 0 all checks hold, 1 one does not, 130 or 143 stopped.
"""

_VALUES: tuple[tuple[str, str, Callable[[str], float], float | None, str], ...] = (
    ("--jobs", "N", whole(0, COUNT_MAX), 2000, "jobs to enqueue (2000)"),
    ("--workers", "N", whole(1, 10_000), 8, "workers, each a thread (8)"),
    ("--capacity", "N", whole(1, COUNT_MAX), 256, "most open jobs (256)"),
    ("--max-attempts", "N", whole(1, 1_000_000), 5, "runs a job gets (5)"),
    ("--base", "TIME", duration, 0.05, "widest backoff after a first failure (50ms)"),
    ("--cap", "TIME", duration, 2.0, "widest backoff ever (2s)"),
    ("--fail-rate", "P", share, 0.2, "share of attempts that fail (0.2, or 20%%)"),
    ("--rate", "R", per_second, 0.0, "jobs per second, in an open loop (0: as fast as there is room)"),
    ("--seed", "N", any_int, None, "draws the failures (a random one, which is printed)"),
    ("--priorities", "N", whole(1, COUNT_MAX), 10, "how many priorities jobs have (10)"),
    ("--keep-dead", "N", whole(0, COUNT_MAX), None, "dead letters that are kept (all)"),
    ("--processes", "N", whole(1, 1_000), None, "processes of --workers threads each (none: in this one)"),
    ("--crash-rate", "P", share, 0.0, "share of attempts that kill their process (0; implies --processes 4)"),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="watch a bounded queue do its work under injected failures",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    for name, metavar, read, default, text in _VALUES:
        parser.add_argument(name, metavar=metavar, type=read, default=default, help=text)
    url = "the store (memory://); ULAK_URL does not count here"
    parser.add_argument("-u", "--url", default="memory://", help=url)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    forms = "form of the log, on stderr: console, json or logfmt"
    parser.add_argument("--log-format", choices=logs.FORMATS, default="console", help=forms)
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run, has_stops=True)


def run(args: argparse.Namespace) -> int:
    """Run the demo and print what came of it; 0 if all its checks hold."""
    inbox: SimpleQueue[int | None] = SimpleQueue()
    # Before the imports that take time, so that a signal from here on never costs the summary.
    with Stops(inbox) as stops:
        from ulak.cli import demo_progress, demo_report
        from ulak.cli.demo_fleet import FleetRun
        from ulak.cli.demo_run import Run

        plan = _plan(args)
        log_level = logs.level_of(args.verbose)
        with logs.shown(args.log_format, log_level):
            demo: Run | FleetRun
            if plan.processes is None:
                demo = Run(plan, inbox, log_level=log_level)
            else:
                demo = FleetRun(plan, inbox, log_format=args.log_format, log_level=log_level)
            if not args.json:
                say("\n".join(demo_report.header(plan)), to=sys.stdout)
            with demo_progress.shown(plan, sys.stderr if args.json else sys.stdout) as watch:
                result = demo.go(watch)
        report = (
            demo_report.as_json(result) if args.json else "\n".join(demo_report.as_text(result, _given(args)))
        )
        say(report, to=sys.stdout)
        if not result.passes:
            return 1
        return stops.status or 0


def _plan(args: argparse.Namespace) -> Plan:
    from ulak.cli.demo_plan import Plan
    from ulak.local import check_url

    check_url(args.url)
    if not 0 < args.base <= args.cap:
        raise ConfigError(
            f"--base must be more than 0 and at most --cap: --base is {spelled(args.base)} "
            f"and --cap is {spelled(args.cap)}\n  see ulak demo --help"
        )
    processes = PROCESSES if args.processes is None and args.crash_rate else args.processes
    if processes is not None and args.url.startswith("memory:"):
        raise ConfigError(
            "--processes and --crash-rate need a store that processes share: "
            "memory:// is one process's own; add --url sqlite:///jobs.db"
        )
    return Plan(
        jobs=args.jobs,
        workers=args.workers,
        capacity=args.capacity,
        max_attempts=args.max_attempts,
        base_s=args.base,
        cap_s=args.cap,
        fail_rate=args.fail_rate,
        rate=args.rate,
        seed=random.randrange(SEED_BELOW) if args.seed is None else args.seed,
        priorities=args.priorities,
        keep_dead=args.keep_dead,
        url=args.url,
        processes=processes,
        crash_rate=args.crash_rate,
    )


def _given(args: argparse.Namespace) -> dict[str, str]:
    """The options of this run that are not as by default, spelled so that they can be given again."""
    given: dict[str, str] = {}
    for name, _, read, default, _ in _VALUES:
        value = getattr(args, name.removeprefix("--").replace("-", "_"))
        if value != default and name != "--seed":
            given[name] = spelled(value) if read is duration else f"{value:.15g}"
    if args.url != "memory://":
        given["--url"] = args.url
    return given
