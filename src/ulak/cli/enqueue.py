"""`ulak enqueue`: a job from the shell, and its options.

What it does is in the module beside this one, which loads when it runs: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from ulak.cli.options import Parser, add_verbose, any_int, duration

_DESCRIPTION = """
Enqueue a call of a task of an App, as a program would: `ulak enqueue shop:app send to=ada@example.org`. Its
arguments are checked against the signature. Each is read as its parameter is annotated: a str as it stands,
other types as JSON or as text, so that 5, true, 2026-01-31 and '{"a": [1]}' are what they look like; what is
not annotated is read as JSON if it is that. Without an App: `ulak enqueue --payload JSON -q QUEUE`.
"""
_EPILOG = """
Prints the job's id. Exit status: 0 enqueued, 1 a job stands for its key already (that one's id is printed), 2
wrong usage, 3 not found, 69 the store cannot be used, 75 there is no room, or the store is busy: try again.
With --wait, 0 is that it has succeeded, 1 that it ended otherwise, and 75 that it has not ended in time.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    help_text = "enqueue a call of a task, or a payload"
    parser: Parser = commands.add_parser("enqueue", help=help_text, description=_DESCRIPTION, epilog=_EPILOG)
    help_text = (
        "the App, as in hello:app; its task, as in hello.send, or send if no other ends so; the arguments: "
    )
    help_text += "values by place, then name=value; after -- they may begin with a dash"
    parser.add_argument("words", metavar="APP TASK [ARG...]", nargs="*", help=help_text)
    help_text = "in place of an App and a task: this, as JSON; - reads it from the standard input"
    parser.add_argument("--payload", metavar="JSON", help=help_text)
    help_text = "the store, in place of the App's own; with --payload before ULAK_URL"
    parser.add_argument("-u", "--url", help=help_text)
    parser.add_argument("-q", "--queue", help="the queue (the task's); --payload needs one")
    parser.add_argument("--priority", metavar="N", type=any_int, help="higher runs first (the task's, or 0)")
    help_text = "not before so long from now, such as 5m"
    parser.add_argument("--in", metavar="TIME", dest="delay", type=duration, help=help_text)
    help_text = "not before then, such as 2026-01-31T09:00+01:00"
    parser.add_argument("--at", metavar="INSTANT", type=_instant, help=help_text)
    help_text = "nothing new while another job with this key is open"
    parser.add_argument("--unique", metavar="KEY", help=help_text)
    help_text = "nothing new if this key was given before, within a day at least"
    parser.add_argument("--idempotency", metavar="KEY", help=help_text)
    help_text = "wait until it has ended, at most so long, and print its result as JSON; not for --payload"
    parser.add_argument("--wait", metavar="TIME", type=duration, help=help_text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=_run, yes=True)  # it changes something without being told --yes


def _run(args: argparse.Namespace) -> int:
    from ulak.cli import enqueue_run

    return enqueue_run.run(args)


def _instant(text: str) -> datetime:
    """Reads an instant of ISO 8601, with its time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise argparse.ArgumentTypeError(
            "an instant is a date, a time and a zone, such as 2026-01-31T09:00+01:00 or 2026-01-31T08:00Z"
        )
    return at
