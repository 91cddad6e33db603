"""The `ulak` command: reads its arguments, runs one command, turns what went wrong into an exit status.

Output that somebody asked for goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from ulak import __version__
from ulak.cli.explain import USAGE, explained, status_of
from ulak.cli.options import Parser, add_verbose
from ulak.cli.output import Unwritten, say, written
from ulak.cli.stops import let_come

INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
UNREAD = 141  # 128 + SIGPIPE

# Each command, and the module of `ulak.cli` that adds it: only that of the one that is called is loaded.
MODULES = {
    "demo": "demo",
    "bench": "bench",
    "work": "work",
    "schedules": "schedules",
    "enqueue": "enqueue",
    **dict.fromkeys(("counts", "ls", "show", "workers"), "inspect"),
    "tail": "tail",
    "dead": "dead",
    **dict.fromkeys(("retry", "cancel", "rm", "reprioritise", "pause", "resume", "queue"), "steer"),
    "prune": "prune",
    "migrate": "migrate",
    "doctor": "doctor",
    "health": "health",
    "config": "settings",
}

CONFIGURED = ("work", "doctor")
"""Commands that take options from the environment and from pyproject.toml; `config` lists which."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status; never raises for what a user can cause.

    argv: the arguments without the program's name; None takes the process's own.
    Statuses: 0 done, 1 a check failed, 2 the arguments cannot be used, 3 not found, 69 the store cannot be
    used, 74 its output could not be written, 75 it is busy, 128 + n stopped by signal n.
    """
    verbose = changes = False
    try:
        args = read(sys.argv[1:] if argv is None else argv)
        status = 0
        if args is not None:
            verbose, changes = args.verbose > 0, getattr(args, "yes", False)
            args.is_process = argv is None
            if not args.has_stops:
                let_come()
            status = args.run(args)
        _flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = UNREAD
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends here: in a few lines, not in a traceback
        status = status_of(error)
        with contextlib.suppress(OSError):  # nobody reads stderr either
            say(explained(error, verbose=verbose), to=sys.stderr)
            if changes and isinstance(error, Unwritten):
                say("  the change itself was made: look before you repeat the command", to=sys.stderr)
    _give_up_what_nobody_takes()
    return status


def read(argv: Sequence[str]) -> argparse.Namespace | None:
    """The arguments of a command line; None after --help and --version. Raises ConfigError."""
    command = next((word for word in argv if not word.startswith("-")), None)
    parser = parser_of(command)
    if command in CONFIGURED and not {"-h", "--help"} & set(argv):
        from ulak.cli.settings import fill

        fill(parser.below(command), command)
    return parser.read(argv)


def parser_of(command: str | None = None) -> Parser:
    """The parser of the command line, with those of all commands unless it is for one of them."""
    parser = Parser(
        prog="ulak",
        description="A reliable job queue: bounded, prioritised, leased, retried, dead-lettered, observable.",
        epilog="Exit status: 0 done, 1 a check failed, 2 wrong usage, 3 not found, 69 the store cannot be "
        "used, 74 its output could not be written, 75 it is busy, 130 or 143 stopped by a signal.",
    )
    parser.add_argument("--version", action="version", version=f"ulak {__version__}")
    add_verbose(parser)
    # has_stops: the command handles signals by itself.
    parser.set_defaults(run=lambda _: _no_command(parser), more_verbose=0, has_stops=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    modules = [MODULES[command]] if command in MODULES else dict.fromkeys(MODULES.values())
    for name in modules:
        importlib.import_module(f"ulak.cli.{name}").add(commands)
    return parser


def _no_command(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return USAGE


def _flush() -> None:
    if sys.stdout is not None:
        with written(sys.stdout):
            sys.stdout.flush()


def _give_up_what_nobody_takes() -> None:
    """Drop what stdout could not get rid of, or the interpreter would try again, and complain, as it ends."""
    try:
        _flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
