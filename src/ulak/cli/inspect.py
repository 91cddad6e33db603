"""The commands that look into a store: their options.

What they do is in the modules beside this one, which load when they run: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ulak.cli.options import Parser, add_verbose, duration, valid_text, whole

ID_MAX = 2**63 - 1
LIMIT = 50
LIMIT_MAX = 10_000

STATES = ("ready", "scheduled", "leased", "held", "succeeded", "dead", "cancelled", "expired")

_EPILOG = """
Exit status: 0 done, 1 not done or not wholly, 2 wrong usage, 3 not found, 69 the store cannot be used, 75 it
is busy: try again.
"""

_URL_HELP = "the store, such as sqlite:///jobs.db; before ULAK_URL, which is taken if this is not given"

Run = Callable[[argparse.Namespace], int]


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands to the command line."""
    _add_counts(commands)
    _add_ls(commands)
    _add_show(commands)
    _add_workers(commands)


def command(commands: Any, name: str, help_text: str, description: str, run: Run) -> Parser:  # noqa: ANN401
    """A command that works on a store, with the options that all of them have."""
    parser: Parser = commands.add_parser(name, help=help_text, description=description, epilog=_EPILOG)
    parser.add_argument("-u", "--url", help=_URL_HELP)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run)
    return parser


def _add_counts(commands: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_counts

        return inspect_counts.run(args)

    text = """How many jobs of each queue are in each state: ready to run, scheduled for later, leased (a
    worker has them), held (their task is unknown here, or their arguments do not fit it), and ended as
    succeeded, dead, cancelled or expired. "open" is the sum of the first four, which "capacity" bounds
    ("-": nothing does). "oldest ready" is since it was enqueued, "oldest leased" since its worker took it.
    "leases over" are jobs whose worker has not been heard of in time, and that no other has taken over."""
    parser = command(commands, "counts", "how many jobs are in each state", text, run)
    _add_queue(parser)
    help_text = (
        "instead: what each queue has done for so long, such as 1h, in 30 steps, and how long jobs took"
    )
    parser.add_argument("--since", metavar="TIME", type=duration, help=help_text)


def _add_ls(commands: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_jobs

        return inspect_jobs.run_ls(args)

    text = "List jobs by id. A page that is not the last one is followed by the option for the next one."
    parser = command(commands, "ls", "list jobs", text, run)
    help_text = "only jobs in this state; may be given several times"
    add_choice(parser, STATES, help_text)
    add_page(parser)


def _add_show(commands: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_show

        return inspect_show.run(args)

    text = "All that is known of a job: its life so far, every attempt, who has it, what happens to it next."
    parser = command(commands, "show", "all about one job", text, run)
    parser.add_argument("id", metavar="ID", type=whole(1, ID_MAX), help="the job's id")
    parser.add_argument(
        "--payload", action="store_true", help="print its payload too, which may hold secrets"
    )


def _add_workers(commands: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_workers

        return inspect_workers.run(args)

    text = """The workers that take jobs from the store, and the jobs they have. "up" is since a worker began,
    "seen" since it last said that it is there: one that has not for ten seconds is stale. "size" is how many
    jobs it takes at the same time; it takes calls of tasks, or other payloads. "for" is since the job was
    taken, "lease" what is left of the time in which its worker has to be heard of. Unlisted is who takes
    single jobs, and never says that it is there."""
    command(commands, "workers", "who takes jobs, and which are running", text, run)


def add_choice(parser: Parser, states: Sequence[str], help_text: str) -> None:
    """The options that say which jobs."""
    parser.add_argument("--state", action="append", choices=states, metavar="STATE", help=help_text)
    add_filters(parser)


def add_filters(parser: Parser) -> None:
    """The options that say which jobs, but for their state."""
    _add_queue(parser)
    parser.add_argument("--task", type=valid_text, help="only jobs of this task")
    help_text = "only those enqueued at least so long ago, such as 10m"
    parser.add_argument("--older", metavar="TIME", type=duration, help=help_text)
    help_text = "only those whose last error has this text in it"
    parser.add_argument("--error", metavar="TEXT", help=help_text)


def _add_queue(parser: Parser) -> None:
    parser.add_argument("-q", "--queue", help="only this queue (all)")


def add_page(parser: Parser) -> None:
    """The options that page through a list."""
    help_text = f"at most so many ({LIMIT})"
    parser.add_argument("--limit", metavar="N", type=whole(1, LIMIT_MAX), default=LIMIT, help=help_text)
    help_text = "only jobs with a higher id: the next page"
    parser.add_argument("--after", metavar="ID", type=whole(0, ID_MAX), default=0, help=help_text)
