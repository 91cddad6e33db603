"""A process that runs an App's jobs: all of `ulak work`, or one of its children."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec

from ulak.cli import logs, work_limits, work_say
from ulak.cli.explain import FAILED, explained
from ulak.cli.options import current_folder, spelled_size
from ulak.cli.output import visible
from ulak.cli.stops import Deadline, Hurry, Stopped, Stops, end_in, next_note
from ulak.cli.work_limits import LOOK_S, Look, Sources
from ulak.clock import SYSTEM, pause
from ulak.durations import SECONDS_MAX
from ulak.errors import ConfigError, UlakError
from ulak.worker import spare

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.worker.pool import Pool
    from ulak.worker.report import Report

LEAVE_S = 1.4
"""How long after its grace a process may still take to end in order."""

HURRY_S = 1.0
"""How long after a second signal it may still take to hand back what runs."""

SAY_S = 0.2

STOP_TAKING_S = 1.0
"""How long what is said of it waits until a pool takes no more jobs."""

LINGER_S = 10.0
"""How long what else runs in it may keep a process that has ended by itself."""

_TAKE_LESS = """
  run fewer jobs at a time (--concurrency), or have processes replaced in time (--processes with --max-rss)"""
_STDERR, _LAST_WORDS = 2, f"{explained(MemoryError(), verbose=False)}{_TAKE_LESS}\n".encode()
_TASKS_SHOWN = 5
# Not by --url: the program that enqueues would still do so in memory.
_PUT_ON_A_FILE = (
    'write App("sqlite:///jobs.db"), so that the program that enqueues is on it too; or let that one work: '
    '"with app.workers():"'
)


class Leave(NamedTuple):
    """Nobody has asked for it, but the process is to end: why, and how long its running jobs may take."""

    why: str
    grace_s: float
    level: int = logging.INFO


class OnlyLate(NamedTuple):
    """The process leaves, and nothing else runs in it but jobs that go on though their timeout is over."""


Note: TypeAlias = "int | Hurry | Leave | OnlyLate | Report | BaseException"
"""What wakes the process: a signal's number, a second one, a reason to leave, that it need not wait any
longer, or how the pool ended."""


class Front(Protocol):
    """Who is told how it goes."""

    is_one_of_several: bool

    def opened(self, app: App) -> None:
        """The App is there, and its store open."""

    def shows_health(self, app: App, pool: Pool) -> AbstractContextManager[str]:
        """Answer how it is, while inside, if that is wanted; gives what to say of it."""

    def begins(self, text: str) -> None:
        """It is about to take jobs."""

    def works(self) -> None:
        """It takes jobs."""

    def stops(self, number: int) -> None:
        """A signal has come; running jobs have the grace to finish."""

    def leaves(self, why: str, level: int) -> None:
        """It takes no more jobs, for a reason of its own; at this level where that is logged."""

    def breaks_off(self, number: int) -> None:
        """It ends on a second signal with jobs that it could not hand back."""

    def ended(self, report: Report, *, number: int | None, why: str | None) -> None:
        """It has ended: on a signal, for a reason of its own, or since nothing was left."""

    def failed(self, text: str) -> None:
        """It has ended for a reason that is an error: which, and what to do."""


class Worker:
    """Runs the jobs of the App that the arguments name. inbox: where `Stops` puts the first signal."""

    def __init__(self, args: argparse.Namespace, inbox: SimpleQueue[Note], front: Front) -> None:
        self._args = args
        self._inbox = inbox
        self._front = front
        self._began_on = SYSTEM.calendar()
        self._holds_jobs = False
        # Whether what keeps it from working is the command line, and not the App.
        self.is_beyond_edits = False
        self._stops: Stops | None = None
        self._deadline: Deadline | None = None
        self._why_left: str | None = None
        self._health = ExitStack()

    def deadline(self) -> Deadline:
        """What ends the process after its grace, even if it hangs; jobs that it still holds are told by 1."""
        self._deadline = Deadline(self._args.grace + LEAVE_S, self._cut_off)
        return self._deadline

    def _cut_off(self) -> int:
        if not spare.is_short():
            return int(self._holds_jobs)
        # Whoever reads it may have stopped reading.
        if self._holds_jobs and select.select([], [_STDERR], [], 0)[1]:
            os.write(_STDERR, _LAST_WORDS)
        return FAILED

    def hurried(self) -> Deadline:
        """What ends the process soon after a second signal, even if it hangs."""
        return Deadline(HURRY_S, self._broken_off)

    def _broken_off(self) -> int:
        hurry = self._stops.hurry if self._stops is not None else None
        number = signal.SIGINT if hurry is None else hurry.number
        if self._holds_jobs:
            # Whoever reads it may have stopped reading.
            saying = threading.Thread(target=self._front.breaks_off, args=(number,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads
                saying.start()
                saying.join(SAY_S)
        return 128 + number

    def run(self, stops: Stops) -> int:
        """Work until a signal comes, nothing is left, or a limit is reached; 0 then, unless it was hurried.

        Raises what keeps it from working.
        """
        args = self._args
        self._stops = stops
        if args.is_process and isinstance(sys.stdout, io.TextIOWrapper):
            # What handlers print is seen at once, and lines of several processes stay whole.
            sys.stdout.reconfigure(line_buffering=True)
            spare.set_aside()
        with work_say.shown(args) as named:
            try:
                with stops.breaking_off():
                    app, found_at = self._load()
                    looks = self._looks()
            except Stopped:
                return 0
            self._front.opened(app)
            with app, self._health:
                pool = self._serve(app, found_at, looks, named)
            status = 0 if stops.hurry is None else 128 + stops.hurry.number
            if self._why_left == work_limits.NO_MEMORY and stops.hurry is None:
                status = FAILED
                self._front.failed(_LAST_WORDS.decode().rstrip())
        if args.is_process:
            _see_off(pool, status, in_a_hurry=stops.number is not None)
        return status

    def _load(self) -> tuple[App, str]:
        from ulak.cli.target import locate

        args = self._args
        app, found_at = locate(args.app)
        with self._beyond_edits(args.url is not None):
            self._place(app)
        if not app.tasks:
            raise ConfigError(
                f"{args.app} has no tasks, so every job would have to be held\n"
                "  name a module that imports those which define them"
            )
        with _set_by(_who_set(args, "queues", "--queues on the command line")):
            for name in args.queues or ():
                app.queue(name)
        made = f"App(...), where {args.app} is made"
        by = _set_by(made if args.url is None else "--url on the command line")
        with self._beyond_edits(args.url is not None), by:
            app.open()
        return app, found_at

    def _place(self, app: App) -> None:
        """Put the App on the store that is to be used."""
        args = self._args
        if args.url is not None:
            with _set_by("--url on the command line"):
                app.url = args.url
        if app.url.startswith("memory:"):
            raise ConfigError(
                f"{args.app} is on {app.url}, and what is in memory only its own process sees\n  "
                + (_PUT_ON_A_FILE if args.url is None else "name a file: --url sqlite:///jobs.db")
            )

    @contextlib.contextmanager
    def _beyond_edits(self, is_so: bool) -> Iterator[None]:  # noqa: FBT001 - it reads as an if
        """While inside, and if so, what is refused is not mended by editing the App."""
        try:
            yield
        except UlakError:
            self.is_beyond_edits = is_so
            raise

    def _looks(self) -> list[tuple[Look, float]]:
        """What to look at while it works, and the grace of running jobs once that tells something."""
        args = self._args
        looks: list[tuple[Look, float]] = []
        if args.max_rss is not None:
            if (taken := work_limits.rss_bytes()) > args.max_rss:
                self.is_beyond_edits = True
                raise ConfigError(
                    f"--max-rss {spelled_size(args.max_rss)} is less than the {spelled_size(taken)} that "
                    f"{args.app} takes before its first job"
                )
            looks.append((work_limits.too_large(args.max_rss), SECONDS_MAX))
        if args.reload:
            folder = current_folder()
            sources = Sources(folder, lambda: work_limits.imported(folder), since=self._began_on)
            looks.append((sources.look, args.grace))
        return looks

    def _serve(self, app: App, found_at: str, looks: list[tuple[Look, float]], named: logs.Naming) -> Pool:
        args = self._args
        with _set_by(_who_set(args, "executor", "--executor on the command line, or the lack of it")):
            pool = app.workers(
                args.concurrency,
                queues=args.queues,
                # Whoever ends it says how long that may take; after the last of --max-jobs, for ever.
                grace=SECONDS_MAX,
                max_jobs=args.max_jobs,
                executor=args.executor,
                target=found_at if args.executor == "process" else None,
            )
        # Nobody asks whose line it is where there is one process; a program that reads it may.
        if self._front.is_one_of_several or args.log_format != "console":
            named(pool.worker)
        shown = self._health.enter_context(self._front.shows_health(app, pool))
        self._front.begins(_started(args, app) + shown)
        # Before the first job, which may leave no memory to begin anything.
        for look, grace_s in looks:
            self._leave_once(look, grace_s)
        self._leave_once(self._lost_threads(pool), args.grace, logging.WARNING)
        with self._end_is_heard(pool):
            self._holds_jobs = True
            pool.start()
        self._front.works()
        try:
            report, number, why = self._watched(pool)
        except BaseException:
            pool.shutdown(0)
            raise
        self._holds_jobs = False
        self._why_left = why
        self._front.ended(report, number=number, why=why)
        return pool

    def _lost_threads(self, pool: Pool) -> Look:
        count = self._args.concurrency
        looks = [work_limits.no_memory, work_limits.dead_threads(pool, count)]
        if self._args.executor != "process":  # there such jobs are killed
            is_replaced = self._front.is_one_of_several
            looks.append(work_limits.too_many_late(pool, count, is_replaced=is_replaced))
        return lambda: next(filter(None, (look() for look in looks)), None)

    def _leave_once(self, look: Look, grace_s: float, level: int = logging.INFO) -> None:
        def leave(why: str) -> None:
            within_s = grace_s
            if why == work_limits.NO_MEMORY:
                spare.spend()
                within_s = self._args.grace
                if self._deadline is not None:
                    self._deadline.inbox.put(why)
            self._inbox.put(Leave(why, within_s, level))

        work_limits.watch(look, leave)

    def _watched(self, pool: Pool) -> tuple[Report, int | None, str | None]:
        """How the pool ended, on which signal, if it was one, or why else."""
        args, number, why = self._args, None, None
        endings, released = self._begin(pool.drain) if args.drain else 0, 0
        while True:
            note = self._next_note()
            if isinstance(note, BaseException):
                raise note
            if isinstance(note, int):
                number = note
                endings += self._begin(partial(pool.shutdown, args.grace))
                self._front.stops(number)
            elif isinstance(note, Hurry):
                number = note.number
                endings += self._begin(partial(pool.shutdown, 0))
            elif isinstance(note, Leave):
                if number is None and why is None:
                    endings += self._begin(partial(pool.shutdown, note.grace_s))
                    why = self._leave(note, pool)
                    self._watch_late(pool)
            elif isinstance(note, OnlyLate):
                # Their attempts have failed, whatever comes.
                endings += self._begin(partial(pool.shutdown, 0))
            else:
                endings, released = endings - 1, released + note.released
                # A drain that is stopped ends twice, and tells the log so before the last line.
                if endings == 0:
                    if pool.is_spent and number is None and why is None and not note.drained:
                        why = self._leave(self._last(), pool)
                    return msgspec.structs.replace(note, released=released), number, why

    def _watch_late(self, pool: Pool) -> None:
        if not spare.is_short():
            with contextlib.suppress(RuntimeError):  # no more threads: then they have the whole grace
                work_limits.watch(work_limits.only_late(pool), lambda _: self._inbox.put(OnlyLate()))

    def _next_note(self) -> Note:
        while True:
            try:
                return next_note(self._inbox)
            except MemoryError:
                spare.spend()  # a look at that tells of it

    def _leave(self, leave: Leave, pool: Pool) -> str:
        until = SYSTEM.interval() + STOP_TAKING_S
        while pool.takes_jobs and SYSTEM.interval() < until:  # whoever ends it has just begun to
            pause(0.001)
        self._front.leaves(leave.why, leave.level)
        return leave.why

    @contextlib.contextmanager
    def _end_is_heard(self, pool: Pool) -> Iterator[None]:
        """Start the pool inside: from then on a thread waits for the end that it comes to by itself.

        That thread is there before, as the others that look: else the first job may leave none to start.
        """
        has_begun: SimpleQueue[bool] = SimpleQueue()

        def hear() -> None:
            if has_begun.get():
                self._await_end(pool)

        threading.Thread(target=hear, name="ulak-hear-end", daemon=True).start()
        try:
            yield
        except BaseException:
            has_begun.put(False)  # noqa: FBT003 - what it asks
            raise
        has_begun.put(True)  # noqa: FBT003

    def _await_end(self, pool: Pool) -> None:
        has_left = False
        while not has_left and pool.store_gone is None:
            try:
                has_left = pool.join(LOOK_S)
            except MemoryError:
                spare.spend()
        if pool.store_gone is not None:
            pool.join(self._args.grace)
            self._inbox.put(pool.store_gone)
        elif pool.is_spent:
            self._inbox.put(self._last())

    def _last(self) -> Leave:
        jobs = self._args.max_jobs
        return Leave(f"it has run {jobs:,} job{'' if jobs == 1 else 's'}", SECONDS_MAX)

    def _begin(self, ending: Callable[[], Report]) -> int:
        """End the pool from another thread, since this one must stay awake for signals; 1."""

        def end() -> None:
            try:
                try:
                    ended = ending()
                except MemoryError:
                    spare.spend()
                    ended = ending()
                self._inbox.put(ended)
            except BaseException as error:  # noqa: BLE001 - it is raised where the command waits
                self._inbox.put(error)

        _in_a_thread(end)
        return 1


def _who_set(args: argparse.Namespace, name: str, otherwise: str) -> str:
    """Who has set an option that was not given, or what is said where it was."""
    is_given = any(word.partition("=")[0] == f"--{name}" for word in args.argv)
    source: str = getattr(args, "sources", {}).get(name, otherwise)
    return otherwise if is_given else source


@contextlib.contextmanager
def _set_by(where: str) -> Iterator[None]:
    """While inside, what is refused is told with where it was set."""
    try:
        yield
    except UlakError as error:
        raise type(error)(f"{error.args[0]}\n  set by {where}") from error


def _in_a_thread(act: Callable[[], None]) -> None:
    try:
        # A thread that finds no memory in its first steps leaves who starts it waiting for ever.
        if not spare.is_short():
            threading.Thread(target=act, name="ulak-end", daemon=True).start()
            return
    except RuntimeError:
        pass  # the system gives no more of them
    # Signals are heard here too, and a second one has its own thread.
    act()


def _see_off(pool: Pool, status: int, *, in_a_hurry: bool) -> None:
    """Have the process end soon, whatever else runs in it: a thread of the App's own, an exit function."""
    if not in_a_hurry and not spare.is_short():  # else its deadline is near
        lingering = threading.Thread(target=end_in, args=(LINGER_S, lambda: 0), daemon=True)
        with contextlib.suppress(RuntimeError):
            lingering.start()
    if pool.size:
        # Handlers that were left behind still run: what they do to streams while the interpreter is taken
        # down would end the process by a fatal error.
        atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter does as its first step
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _started(args: argparse.Namespace, app: App) -> str:
    from ulak.local import place_of

    names, store = list(app.tasks), place_of(app.url) + _other_store(args, app)
    more = f", and {len(names) - _TASKS_SHOWN} more" if len(names) > _TASKS_SHOWN else ""
    served = args.queues or dict.fromkeys(app.queues)
    shown = ", ".join(name if weight is None else f"{name}={weight}" for name, weight in served.items())
    executor = f"; executor {args.executor}" if args.executor is not None else ""
    return visible(
        f"ulak works on {store}: tasks {', '.join(names[:_TASKS_SHOWN])}{more}; queues {shown}; "
        f"concurrency {args.concurrency}{executor}"
    )


def _other_store(args: argparse.Namespace, app: App) -> str:
    """What is said where the environment names another store, which the other commands look into."""
    given = os.environ.get("ULAK_URL")
    if not given or args.url is not None:
        return ""
    from ulak.local import check_url, masked, place_of

    with contextlib.suppress(ConfigError):  # a store that cannot be: the other commands will say why
        if place_of(check_url(given)) == place_of(app.url):
            return ""
    return f", its App's own store (and not on ULAK_URL's, {masked(given)}; --url is for that)"
