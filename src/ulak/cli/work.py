"""`ulak work module:app`: runs an App's jobs, until it is stopped or nothing is left."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ulak.cli import logs, work_say
from ulak.cli.options import add_verbose, address, duration, size, whole
from ulak.cli.stops import Stops

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.worker.pool import Pool
    from ulak.worker.report import Report

CONCURRENCY = 8
GRACE_S = 30.0
PROCESSES_MAX = 1_000
EXECUTORS = ("thread", "process", "async")  # of ulak.executors, which takes time to import

_DESCRIPTION = """
Imports the module, and runs the jobs of its App's queues. APP is hello:app, shop.jobs:app or hello.py:app;
hello alone takes its only App.
"""
_EPILOG = """
The first Ctrl-C or SIGTERM takes no more jobs, lets the running ones finish within --grace, hands the others
back unspent, and exits with 0, at most 2 s after the grace; a second one hands them back and ends within a
second, with 130 or 143. A process that dies is replaced, with --processes, and its jobs start again elsewhere
within a second.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = commands.add_parser(
        "work", help="run the jobs of an App", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("app", metavar="APP", help="the App, as in hello:app")
    url = "its store, in place of the App's own; ULAK_URL does not count here"
    parser.add_argument("-u", "--url", help=url)
    count = f"jobs that run at the same time ({CONCURRENCY})"
    parser.add_argument("--concurrency", metavar="N", type=whole(1, 10_000), default=CONCURRENCY, help=count)
    parser.add_argument(
        "--queues",
        metavar="NAMES",
        type=queues,
        help="mail,default: jobs of mail before any of default; mail=3,default=1: three turns of mail to one "
        "of default (all queues of the App, as it declares them)",
    )
    processes = "processes of so many jobs each; a dead one is replaced (none: this process works itself)"
    parser.add_argument("--processes", metavar="N", type=whole(1, PROCESSES_MAX), help=processes)
    executors = (
        "what runs a job: a thread; async, one event loop, for tasks that are all async def; or a process, "
        "which can be killed (async where it can be, else thread)"
    )
    parser.add_argument("--executor", choices=EXECUTORS, help=executors)
    parser.add_argument("--drain", action="store_true", help="end once nothing is left that could run")
    grace = f"how long running jobs may take to finish, once stopped ({GRACE_S:g}s)"
    parser.add_argument("--grace", metavar="TIME", type=duration, default=GRACE_S, help=grace)
    last = "end after so many jobs, and those that still run then; with --processes, be replaced"
    parser.add_argument("--max-jobs", metavar="N", type=whole(1, 10**9), help=last)
    most = "likewise, once a process takes more memory than this, such as 512M"
    parser.add_argument("--max-rss", metavar="SIZE", type=size, help=most)
    reload = "for development: start again when a Python file below this directory changes that was imported"
    parser.add_argument("--reload", action="store_true", help=reload)
    probes = "answer /livez, /readyz, /startupz and /metrics here: :9100 (this machine alone) or HOST:PORT"
    parser.add_argument("--health", metavar="ADDRESS", type=address, help=probes)
    forms = "form of the log, on stderr: console, json or logfmt"
    parser.add_argument("--log-format", choices=logs.FORMATS, default="console", help=forms)
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run, has_stops=True)


def queues(text: str) -> dict[str, int | None]:
    """Reads names of queues, each with its weight, if it has one.

    >>> queues("mail,default=3")
    {'mail': None, 'default': 3}
    """
    from ulak.checks import WEIGHT_MAX
    from ulak.errors import ArgumentError
    from ulak.names import check_queue_name

    found: dict[str, int | None] = {}
    for part in text.split(","):
        name, has_weight, weight = part.strip().partition("=")
        if not name or name in found:
            what = "a queue without a name" if not name else f"queue {name[:64]!r} twice"
            raise argparse.ArgumentTypeError(f"{what}; write mail,default or mail=3,default=1")
        try:
            check_queue_name(name)
        except ArgumentError as error:
            raise argparse.ArgumentTypeError(str(error.args[0])) from None
        found[name] = whole(1, WEIGHT_MAX)(weight) if has_weight else None
    return found


def run(args: argparse.Namespace) -> int:
    """Work until a signal comes or, with --drain, until nothing is left; 0 then."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    if args.processes is not None or args.reload:
        from ulak.cli.work_fleet import Fleet

        with Stops(inbox, in_a_hurry=[inbox], stays=args.is_process):
            return Fleet(args, inbox).run()
    from ulak.cli.work_process import Worker

    worker = Worker(args, inbox, _Alone(args))
    ends = [worker.deadline().inbox] if args.is_process else []
    in_a_hurry = [inbox, worker.hurried().inbox] if args.is_process else [inbox]
    with Stops(inbox, *ends, in_a_hurry=in_a_hurry, stays=args.is_process) as stops:
        return worker.run(stops)


class _Alone:
    """Tells whoever has started this process, on stderr."""

    is_one_of_several = False

    def __init__(self, args: argparse.Namespace) -> None:
        self._grace_s = args.grace
        self._health = args.health

    def opened(self, app: App) -> None:
        """Nothing to tell yet."""

    def shows_health(self, app: App, pool: Pool) -> AbstractContextManager[str]:
        """Answer from here."""
        if self._health is None:
            return nullcontext("")
        from ulak.cli.work_health import of_process

        return of_process(self._health, app, pool)

    def begins(self, text: str) -> None:
        """Say on what it works, before the first job says anything."""
        work_say.tell(text)

    def works(self) -> None:
        """All is said."""

    def stops(self, number: int) -> None:
        """Say how long that may take."""
        work_say.tell(work_say.stopping(number, self._grace_s))

    def leaves(self, why: str, _level: int) -> None:
        """Say why."""
        work_say.tell(f"ulak takes no more jobs: {why}")

    def breaks_off(self, number: int) -> None:
        """Say what becomes of them."""
        work_say.tell(work_say.broken_off(number))

    def ended(self, report: Report, *, number: int | None, why: str | None) -> None:
        """Say what is left."""
        import msgspec

        told = msgspec.structs.asdict(report)
        if number is not None:
            text = work_say.stopped(number, told)
        else:
            text = work_say.drained(told) if why is None else work_say.left(why, told)
        work_say.tell(text)

    def failed(self, text: str) -> None:
        """Say it."""
        work_say.tell(text)
