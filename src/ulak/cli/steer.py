"""The commands that change what is in a store: their options.

What they do is in the modules beside this one, which load when they run: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ulak.cli.inspect import ID_MAX, STATES, add_choice, command
from ulak.cli.options import Parser, whole

if TYPE_CHECKING:
    from ulak.cli.inspect_change import Deed

_REDRIVABLE = ("dead", "cancelled", "expired", "held")
_OPEN = ("ready", "scheduled", "leased", "held")
_PRIORITY_MIN, _PRIORITY_MAX = -(2**63), 2**63 - 1

_DRY = "Without --yes it only says how many that would be, and exits with 1."


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands to the command line."""
    _add_retry(commands)
    _add_cancel(commands)
    _add_rm(commands)
    _add_reprioritise(commands)
    for name, help_text in (("pause", "deliver nothing from a queue"), ("resume", "deliver again")):
        _add_pause(commands, name, help_text)


def _add_retry(commands: Any) -> None:  # noqa: ANN401
    def deed(_: argparse.Namespace) -> Deed:
        from ulak.cli import inspect_change

        return inspect_change.RETRY

    text = f"""Have dead, cancelled or expired jobs run again: same id, place in the queue and history, their
    attempts counted from 0; held jobs as they are. {_DRY}"""
    parser = _command(commands, "retry", "run jobs again that ended, or are held", text, deed)
    _add_jobs(parser, _REDRIVABLE, "all jobs in this state: dead, cancelled, expired or held")


def _add_cancel(commands: Any) -> None:  # noqa: ANN401
    def deed(_: argparse.Namespace) -> Deed:
        from ulak.cli import inspect_change

        return inspect_change.CANCEL

    text = f"""End waiting jobs as cancelled, and ask running ones to stop: if they succeed all the same, that
    counts. Cancelled jobs can be run again. {_DRY}"""
    parser = _command(commands, "cancel", "end jobs that wait, and ask running ones to stop", text, deed)
    _add_jobs(parser, _OPEN, "all jobs in this state: ready, scheduled, leased or held")


def _add_rm(commands: Any) -> None:  # noqa: ANN401
    def deed(_: argparse.Namespace) -> Deed:
        from ulak.cli import inspect_change

        return inspect_change.RM

    text = f"""Remove jobs for good, with their payload and history; those that run are left alone. {_DRY}"""
    parser = _command(commands, "rm", "remove jobs for good", text, deed)
    states = [state for state in STATES if state != "leased"]
    _add_jobs(parser, states, "all jobs in this state, but for leased; may be given several times")


def _add_reprioritise(commands: Any) -> None:  # noqa: ANN401
    def deed(args: argparse.Namespace) -> Deed:
        from ulak.cli import inspect_change

        return inspect_change.reprioritise(args.priority)

    text = f"Give waiting jobs another priority; those that run are left alone. {_DRY}"
    parser = _command(commands, "reprioritise", "give jobs another priority", text, deed)
    _add_jobs(parser, ("ready", "scheduled", "held"), "all jobs in this state: ready, scheduled or held")
    read = whole(_PRIORITY_MIN, _PRIORITY_MAX)
    help_text = "the priority: higher runs first"
    parser.add_argument("--priority", metavar="N", type=read, required=True, help=help_text)


def _command(
    commands: Any,  # noqa: ANN401
    name: str,
    help_text: str,
    description: str,
    deed: Callable[[argparse.Namespace], Deed],
) -> Parser:
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_change

        return inspect_change.run(args, deed(args))

    return command(commands, name, help_text, description, run)


def _add_jobs(parser: Parser, states: Sequence[str], help_text: str) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=whole(1, ID_MAX), help="the jobs, by id; or:")
    add_choice(parser, states, help_text)
    add_yes(parser)


def add_yes(parser: Parser) -> None:
    """The option that makes it so."""
    parser.add_argument("--yes", action="store_true", help="do it, and not only say what it would do")


def _add_pause(commands: Any, name: str, help_text: str) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_queue

        return inspect_queue.run_pause(args, paused=name == "pause")

    text = """Deliver nothing more from this queue, in any process, until it is resumed. What runs, runs on,
    and jobs can still be enqueued."""
    if name == "resume":
        text = "Deliver from this queue again."
    parser = command(commands, name, help_text, text, run)
    parser.add_argument("queue", metavar="QUEUE", help="the queue")
