"""The commands that change what is in a store: their options.

What they do is in the modules beside this one, which load when they run: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ulak.cli.inspect import ID_MAX, STATES, add_choice, command
from ulak.cli.options import Parser, duration, whole

if TYPE_CHECKING:
    from ulak.cli.inspect_change import Deed

_REDRIVABLE = ("dead", "cancelled", "expired", "held")
_OPEN = ("ready", "scheduled", "leased", "held")
_PRIORITY_MIN, _PRIORITY_MAX = -(2**63), 2**63 - 1

_ENDED = STATES[4:]

_DRY = "Without --yes it only says how many that would be, and exits with 1."
_DRY_QUEUE = "Without --yes it only says what would change, and exits with 1."


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands to the command line."""
    _add_retry(commands)
    _add_cancel(commands)
    _add_rm(commands)
    _add_reprioritise(commands)
    for name, help_text in (("pause", "deliver nothing from a queue"), ("resume", "deliver again")):
        _add_pause(commands, name, help_text)
    _add_queue(commands)


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
    parser = command(commands, name, help_text, f"{text} {_DRY_QUEUE}", run)
    parser.add_argument("queue", metavar="QUEUE", help="the queue")
    add_yes(parser)


def _add_queue(commands: Any) -> None:  # noqa: ANN401
    queue: Parser = commands.add_parser(
        "queue", help="what is stored with a queue", description="What is stored with a queue."
    )

    def run_none(_: argparse.Namespace) -> int:
        queue.error("queue needs a command; there is set")

    queue.set_defaults(run=run_none, more_verbose=0)
    below = queue.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_queue

        return inspect_queue.run_set(args)

    text = f"""Change what is stored with a queue, for every process. A lower capacity removes nothing: the
    queue is full until enough has finished. What a retention has no place for is removed for good.
    {_DRY_QUEUE}"""
    parser = command(below, "set", "change what is stored with a queue", text, run)
    parser.add_argument("queue", metavar="QUEUE", help="the queue")
    help_text = "the most open jobs; none: no bound"
    parser.add_argument("--capacity", metavar="N", type=_capacity, help=help_text)
    help_text = "how long failed jobs wait that have none of their own, such as 1s,5m; none: not at all"
    parser.add_argument("--backoff", metavar="BASE,CAP[,FLOOR]", type=_backoff, help=help_text)
    help_text = "how many ended jobs are kept, and for how long, such as dead=1000,30d; may be given several "
    help_text += "times; default: as every queue has it"
    parser.add_argument(
        "--retention", metavar="STATE=N,TIME", type=_retention, action="append", help=help_text
    )
    add_yes(parser)


def _capacity(text: str) -> int | str:
    """Reads a capacity; `none` stays what it is, since argparse knows None as not given."""
    return text if text == "none" else whole(1, ID_MAX)(text)


def _backoff(text: str) -> list[float] | str:
    """Reads a backoff: base, cap and floor, in seconds; or `none`."""
    parts = text.split(",")
    if len(parts) not in (2, 3) and text != "none":
        raise argparse.ArgumentTypeError("a backoff is a base and a cap, such as 1s,5m, and maybe a floor")
    return text if text == "none" else [duration(part) for part in parts]


def _retention(text: str) -> tuple[str, int, float] | str:
    """Reads what is kept of a state: how many, and for how many seconds; or `default`."""
    state, equals, keep = text.partition("=")
    count, comma, time = keep.partition(",")
    if text == "default":
        return text
    if not (equals and comma) or state not in _ENDED:
        raise argparse.ArgumentTypeError(
            "a retention is a state (succeeded, dead, cancelled or expired), a number and a time, such as "
            "dead=1000,30d"
        )
    return state, whole(0, ID_MAX)(count), duration(time)
