"""`ulak work module:app`: one process that runs an App's jobs, until it is stopped or nothing is left."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from ulak.checks import WEIGHT_MAX
from ulak.cli import logs
from ulak.cli.options import add_verbose, duration, whole
from ulak.cli.output import say, visible
from ulak.cli.stops import Stopped, Stops, next_note
from ulak.durations import format_duration
from ulak.errors import ConfigError

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.worker.pool import Pool
    from ulak.worker.runtime import Report

CONCURRENCY = 8
GRACE_S = 30.0
_TASKS_SHOWN = 5

_DESCRIPTION = """
Imports the module, and runs the jobs of its App's queues. APP is hello:app, shop.jobs:app or hello.py:app;
hello alone takes its only App.
"""
_EPILOG = """
The first Ctrl-C or SIGTERM takes no more jobs, lets the running ones finish within --grace, hands the others
back unspent, and exits with 0; a second one ends at once.
"""

Note: TypeAlias = "int | Report | BaseException"
"""What wakes the command: a signal's number, or how a drain ended."""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = commands.add_parser(
        "work", help="run the jobs of an App", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("app", metavar="APP", help="the App, as in hello:app")
    parser.add_argument("--url", help="its store, in place of the App's own")
    count = f"jobs that run at the same time ({CONCURRENCY})"
    parser.add_argument("--concurrency", metavar="N", type=whole(1, 10_000), default=CONCURRENCY, help=count)
    parser.add_argument(
        "--queues",
        metavar="NAMES",
        type=queues,
        help="mail,default: jobs of mail before any of default; mail=3,default=1: three turns of mail to one "
        "of default (all queues of the App, as it declares them)",
    )
    parser.add_argument("--drain", action="store_true", help="end once nothing is left that could run")
    grace = f"how long running jobs may take to finish, once stopped ({GRACE_S:g}s)"
    parser.add_argument("--grace", metavar="TIME", type=duration, default=GRACE_S, help=grace)
    forms = "form of the log, on stderr: console, json or logfmt"
    parser.add_argument("--log-format", choices=logs.FORMATS, default="console", help=forms)
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run)


def queues(text: str) -> dict[str, int | None]:
    """Reads names of queues, each with its weight, if it has one.

    >>> queues("mail,default=3")
    {'mail': None, 'default': 3}
    """
    found: dict[str, int | None] = {}
    for part in text.split(","):
        name, has_weight, weight = part.strip().partition("=")
        if not name or name in found:
            what = "a queue without a name" if not name else f"queue {name[:64]!r} twice"
            raise argparse.ArgumentTypeError(f"{what}; write mail,default or mail=3,default=1")
        found[name] = whole(1, WEIGHT_MAX)(weight) if has_weight else None
    return found


def run(args: argparse.Namespace) -> int:
    """Work until a signal comes or, with --drain, until nothing is left; 0 then."""
    inbox: SimpleQueue[Note] = SimpleQueue()
    # Before the imports that take time, so that a signal from here on ends in order.
    with Stops(inbox) as stops:
        try:
            with stops.breaking_off():
                app = _app(args)
        except Stopped:
            return 0
        with logs.shown(args.log_format, logs.level_of(args.verbose)), app:
            _serve(args, app, inbox)
        return 0


def _app(args: argparse.Namespace) -> App:
    from ulak.cli.target import load_app

    app = load_app(args.app)
    if args.url is not None:
        app.url = args.url
    if app.url.startswith("memory:"):
        raise ConfigError(
            f"{args.app} is on {app.url}, and what is in memory only its own process sees: "
            'give --url sqlite:///jobs.db, or let that process work: "with app.workers():"'
        )
    if not app.tasks:
        raise ConfigError(
            f"{args.app} has no tasks, so every job would have to be held\n"
            "  name a module that imports those which define them"
        )
    return app


def _serve(args: argparse.Namespace, app: App, inbox: SimpleQueue[Note]) -> None:
    pool = app.workers(args.concurrency, queues=args.queues, grace=args.grace)
    say(_started(args, app), to=sys.stderr)
    pool.start()
    try:
        report, number = _watched(args, pool, inbox)
    except BaseException:
        pool.shutdown(0)
        raise
    say(_finished(report) if number is None else _stopped(report, number), to=sys.stderr)


def _watched(args: argparse.Namespace, pool: Pool, inbox: SimpleQueue[Note]) -> tuple[Report, int | None]:
    """How the pool ended, and on which signal, if it was one."""
    stopped_by: int | None = None
    endings = _begin(pool.drain, inbox) if args.drain else 0
    while True:
        note = next_note(inbox)
        if isinstance(note, BaseException):
            raise note
        if isinstance(note, int):
            stopped_by = note
            endings += _begin(pool.shutdown, inbox)
            say(_stopping(args, note), to=sys.stderr)
            continue
        endings -= 1
        # A drain that is stopped ends twice, and tells the log so before the last line.
        if endings == 0:
            return note, stopped_by


def _begin(ending: Callable[[], Report], inbox: SimpleQueue[Note]) -> int:
    """End the pool from another thread, since this one must stay awake for a second signal; 1."""

    def end() -> None:
        try:
            inbox.put(ending())
        except BaseException as error:  # noqa: BLE001 - it is raised where the command waits
            inbox.put(error)

    threading.Thread(target=end, name="ulak-end", daemon=True).start()
    return 1


def _stopping(args: argparse.Namespace, number: int) -> str:
    return (
        f"ulak stops on {signal.Signals(number).name}: running jobs have {format_duration(args.grace)} to "
        "finish; a second one ends it at once"
    )


def _started(args: argparse.Namespace, app: App) -> str:
    from ulak.local import masked

    names = list(app.tasks)
    more = f", and {len(names) - _TASKS_SHOWN} more" if len(names) > _TASKS_SHOWN else ""
    served = args.queues or dict.fromkeys(app.queues)
    shown = ", ".join(name if weight is None else f"{name}={weight}" for name, weight in served.items())
    return visible(
        f"ulak works on {masked(app.url)}: tasks {', '.join(names[:_TASKS_SHOWN])}{more}; queues {shown}; "
        f"concurrency {args.concurrency}"
    )


def _stopped(report: Report, number: int) -> str:
    return (
        f"ulak stopped on {signal.Signals(number).name}: {_jobs(report.released)} handed back, "
        f"{_jobs(report.open)} open"
    )


def _finished(report: Report) -> str:
    text = f"ulak drained: {_jobs(report.open)} open"
    if report.held:
        text += f"; {_jobs(report.held)} held: no worker knows its task, or its arguments do not fit"
    if report.paused:
        text += "; a queue is paused"
    return text


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"
