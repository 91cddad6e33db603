"""`ulak tail`: its options.

What it does is in the module beside this one, which loads when it runs: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from typing import Any

from ulak.cli.inspect import command
from ulak.cli.options import duration, valid_text, whole

LAST = 10
LAST_MAX = 10_000
_EVERY = "1s"

_DESCRIPTION = """
Follow jobs as they change: a line when one is enqueued, taken, tried and ended. It begins with the last lines
of the newest jobs, and goes on until it is stopped. It looks at the store now and then, at no more than a few
thousand jobs at a time, and says so where more has happened.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""

    def run(args: argparse.Namespace) -> int:
        from ulak.cli import tail_follow

        return tail_follow.run(args)

    parser = command(commands, "tail", "follow jobs as they change", _DESCRIPTION, run)
    parser.add_argument("-q", "--queue", help="only this queue (all)")
    parser.add_argument("--task", type=valid_text, help="only jobs of this task")
    help_text = f"begin with so many lines of the newest jobs ({LAST})"
    parser.add_argument("-n", "--last", metavar="N", type=whole(0, LAST_MAX), default=LAST, help=help_text)
    help_text = f"how long to wait between two looks ({_EVERY})"
    parser.add_argument("--every", metavar="TIME", type=duration, default=duration(_EVERY), help=help_text)
    parser.add_argument(
        "--for", metavar="TIME", dest="for_s", type=duration, help="end after so long (never)"
    )
    parser.set_defaults(has_stops=True)
