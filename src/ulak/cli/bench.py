"""`ulak bench`: latency and throughput under a load that is made to measure, and the comparison of two runs.

What it does is in the modules beside this one, which load when they run: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ulak.cli.options import Parser, add_verbose, any_int, duration, per_second, share, size, whole

COUNT_MAX = 1_000_000_000
JOBS_MAX = 5_000_000
EXECUTORS = ("thread", "async")
ARRIVALS = ("poisson", "fixed")

_DESCRIPTION = """
Enqueue jobs that do nothing, and measure what becomes of them: how long the enqueue call takes and how much
of that it waits for room, how long until a job starts, until its first attempt is settled, and until its last
is. Each is counted from the start of the enqueue call, from its return, and, at a rate, from when the call
was due: the schedule goes on whatever the queue does, so that one which stands still cannot hide it.
"""
_EPILOG = """
With --fail-rate each run is made without failures too, and both are shown. Exit status: 0 the runs count, 1
they do not (the schedule was not kept, the machine was busy, the runs lie apart), 2 wrong usage, 130 stopped.
"""

_VALUES: tuple[tuple[str, str, Callable[[str], float], float | None, str], ...] = (
    ("--rate", "R", per_second, 0.0, "jobs per second, in an open loop (0: saturated, as fast as it goes)"),
    ("--jobs", "N", whole(1, JOBS_MAX), None, "jobs of a run that count (20000)"),
    ("--duration", "TIME", duration, None, "in place of --jobs: how long a run takes, such as 10s"),
    (
        "--warm-up",
        "N",
        whole(0, JOBS_MAX),
        None,
        "jobs before those that count (a tenth of them, at most 10000)",
    ),
    ("--repeat", "N", whole(1, 1_000), 3, "runs, whose medians are shown (3)"),
    ("--capacity", "N", whole(1, COUNT_MAX), 1000, "most open jobs (1000)"),
    ("--fail-rate", "P", share, 0.0, "share of attempts that fail (0)"),
    ("--max-attempts", "N", whole(1, 1_000_000), 5, "runs a job gets (5)"),
    ("--base", "TIME", duration, 0.01, "widest backoff after a first failure (10ms)"),
    ("--cap", "TIME", duration, 1.0, "widest backoff ever (1s)"),
    ("--workers", "N", whole(1, 10_000), 4, "workers, in each process (4)"),
    ("--processes", "N", whole(1, 1_000), None, "worker processes, beside this one (none: workers are here)"),
    ("--producers", "N", whole(1, 1_000), 1, "threads that enqueue (1)"),
    ("--priorities", "N", whole(1, COUNT_MAX), 1, "how many priorities jobs have (1)"),
    ("--seed", "N", any_int, 1, "draws arrivals and failures (1)"),
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser: Parser = commands.add_parser(
        "bench",
        help="measure latency and throughput under load",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    for name, metavar, read, default, text in _VALUES:
        parser.add_argument(name, metavar=metavar, type=read, default=default, help=text)
    text = "a payload's size, such as 100 or 64K (100)"
    parser.add_argument("--payload", metavar="BYTES", type=_payload, default=100, help=text)
    text = "thread or async: def handlers, or async def ones on one loop (thread)"
    parser.add_argument("--executor", choices=EXECUTORS, default=EXECUTORS[0], metavar="KIND", help=text)
    text = "poisson, as from many callers, or fixed, at equal gaps (poisson)"
    parser.add_argument("--arrivals", choices=ARRIVALS, default=ARRIVALS[0], metavar="KIND", help=text)
    url = "the store (memory://); ULAK_URL does not count here"
    parser.add_argument("-u", "--url", default="memory://", help=url)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the curves of the percentiles and of time, as SVG"
    )
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=_run, has_stops=True)
    below = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser, required=False)
    _add_compare(below)


def _add_compare(below: Any) -> None:  # noqa: ANN401
    parser: Parser = below.add_parser(
        "compare",
        help="the figures of two files side by side",
        description="Show two results of ulak bench --json side by side, and which of them differ.",
    )
    parser.add_argument("before", metavar="A.json", help="what it is compared with")
    parser.add_argument("after", metavar="B.json", help="what is compared")
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=_compare, has_stops=False)


def _payload(text: str) -> int:
    return whole(1, 2**30)(text) if text.isdecimal() else size(text)


def _run(args: argparse.Namespace) -> int:
    from ulak.cli import bench_command

    return bench_command.run(args)


def _compare(args: argparse.Namespace) -> int:
    from ulak.cli import bench_compare

    return bench_compare.run(args)
