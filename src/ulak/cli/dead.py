"""`ulak dead`: the commands on jobs that failed for good, and their options.

What they do is in the modules beside this one, which load when they run: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from typing import Any

from ulak.cli.inspect import ID_MAX, add_filters, add_page, command
from ulak.cli.options import Parser, per_second, whole
from ulak.cli.steer import add_yes

_TARGET = "a fingerprint that dead ls shows, or the id of a dead job"
_DRY = "Without --yes it only says how many that would be, and exits with 1."


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands to the command line."""
    dead: Parser = commands.add_parser(
        "dead", help="dead letters: jobs that failed for good", description="Dead letters."
    )

    def run_none(_: argparse.Namespace) -> int:
        dead.error("dead needs a command; there is ls, show, retry, drop, edit, export, import")

    dead.set_defaults(run=run_none, more_verbose=0)
    below = dead.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _add_ls(below)
    _add_show(below)
    _add_retry(below)
    _add_drop(below)
    _add_edit(below)
    _add_export(below)
    _add_import(below)


def _add_ls(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_groups

        return dead_groups.run_ls(args)

    text = """Group the jobs that failed for good by what they died of: the type of their last error, and
    where it was raised. The largest group comes first."""
    parser = command(below, "ls", "what jobs died of, and how many", text, run)
    add_filters(parser)


def _add_show(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_groups

        return dead_groups.run_show(args)

    text = "List the jobs of a group by id."
    parser = command(below, "show", "the jobs that died of one thing", text, run)
    parser.add_argument("fingerprint", metavar="FINGERPRINT", help="as dead ls shows it")
    add_filters(parser)
    add_page(parser)


def _add_retry(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_change

        return dead_change.run_retry(args)

    text = f"""Have dead jobs run again, a few first, or no more than so many per second: same id, place in
    the queue and history, their attempts counted from 0. {_DRY}"""
    parser = command(below, "retry", "run dead jobs again", text, run)
    _add_targets(parser)
    help_text = "only so many of them, those with the lowest ids"
    parser.add_argument("--first", metavar="N", type=whole(1, ID_MAX), help=help_text)
    help_text = "at most so many per second (all at once)"
    parser.add_argument("--rate", metavar="R", type=_rate, help=help_text)


def _add_drop(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_change

        return dead_change.run_drop(args)

    text = f"Remove dead jobs for good, with their payload and history. {_DRY}"
    parser = command(below, "drop", "remove dead jobs for good", text, run)
    _add_targets(parser)


def _add_edit(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_move

        return dead_move.run_edit(args)

    text = f"""Enqueue a job in the place of a dead one, with another payload and else alike. The dead one
    stays; it is done once, however often it is asked for, for a day at least. {_DRY}"""
    parser = command(below, "edit", "enqueue a dead job with another payload", text, run)
    parser.add_argument("id", metavar="ID", type=whole(1, ID_MAX), help="the dead job")
    help_text = "the payload, as JSON; - reads it from the standard input"
    parser.add_argument("--payload", metavar="JSON", required=True, help=help_text)
    add_yes(parser)


def _add_export(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_move

        return dead_move.run_export(args)

    text = """Print dead jobs as JSON, a line each: all that is stored of them, with payload and headers,
    which may hold secrets. They stay stored. Mended by hand, they can be enqueued by dead import."""
    parser = command(below, "export", "dead jobs as JSON lines, with their payload", text, run)
    help_text = f"only these: {_TARGET}"
    parser.add_argument("targets", metavar="FINGERPRINT|ID", nargs="*", help=help_text)
    help_text = "a new file, in place of the standard output"
    parser.add_argument("-o", "--output", metavar="FILE", help=help_text)
    add_filters(parser)


def _add_import(below: Any) -> None:  # noqa: ANN401
    def run(args: argparse.Namespace) -> int:
        from ulak.cli import dead_move

        return dead_move.run_import(args)

    text = f"""Enqueue the jobs of a file that dead export wrote, as new ones. Those that were enqueued so
    before are left out, for a day at least. Either every line can be read, or nothing is enqueued. {_DRY}"""
    parser = command(below, "import", "enqueue what was exported", text, run)
    parser.add_argument("file", metavar="FILE", help="the file; - for the standard input")
    add_yes(parser)


def _add_targets(parser: Parser) -> None:
    parser.add_argument("targets", metavar="FINGERPRINT|ID", nargs="+", help=_TARGET)
    add_yes(parser)


def _rate(text: str) -> float:
    """Reads a rate above 0, such as 10/s or 0.5."""
    value = per_second(text.removesuffix("/s"))
    if value <= 0:
        raise argparse.ArgumentTypeError("a rate is more than 0 per second, such as 10/s")
    return value
