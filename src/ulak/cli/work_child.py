"""One of several processes of `ulak work`: it tells its parent how it goes, and ends with that."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from ulak import events
from ulak.cli import read, work_limits
from ulak.cli.explain import explained, status_of
from ulak.cli.options import current_folder
from ulak.cli.stops import Hurry, Stopped, Stops
from ulak.cli.work_limits import Sources
from ulak.cli.work_process import Note, Worker
from ulak.cli.work_say import tell
from ulak.clock import SYSTEM
from ulak.errors import ConfigError, StorageGone, UlakError
from ulak.events import Event
from ulak.worker.supervisor import Tie, Word

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.worker.pool import Pool
    from ulak.worker.report import Report

_log = logging.getLogger("ulak")


def main(*argv: str) -> int:
    """Do what a lone `ulak ARGV` would; its exit status."""
    began_on = SYSTEM.calendar()
    sys.argv[:] = ["ulak", *argv]
    try:
        args = read(argv)
    except ConfigError as error:  # its parent could read them; the directory has changed since
        tell(explained(error, verbose=False))
        return status_of(error)
    assert args is not None, "the parent has read these arguments"
    args.is_process = True
    inbox: SimpleQueue[Note] = SimpleQueue()
    front = _Child(args)
    worker = Worker(args, inbox, front)
    with Stops(inbox, worker.deadline().inbox, has_parent=True, stays=True) as stops:
        hurried = worker.hurried()

        def hurry() -> None:
            for each in (inbox, hurried.inbox):
                each.put(Hurry(signal.SIGTERM))

        front.tie = tie = Tie(on_hurry=hurry)
        try:
            return _run(worker, stops)
        except Exception as error:  # noqa: BLE001 - whatever it is, its parent is told
            text = explained(error, verbose=args.verbose > 0)
            if not (args.reload and front.is_fresh) or worker.is_beyond_edits:
                is_gone = isinstance(error, StorageGone) and not error.is_lost_here_only
                tie.report(Word.GONE if is_gone else Word.FAILED, text)
                return status_of(error)
        tell(f"{text}\nulak starts again once a Python file below this directory changes")
        return _await_change(stops, tie, since=began_on)


def _run(worker: Worker, stops: Stops) -> int:
    try:
        return worker.run(stops)
    except KeyboardInterrupt:  # from the App's module, since signals raise none here
        raise ConfigError("importing the App raised KeyboardInterrupt") from None


def _await_change(stops: Stops, tie: Tie, *, since: float) -> int:
    """Wait until the user has mended what kept the App from being loaded, or a signal comes."""
    folder = current_folder()
    sources = Sources(folder, lambda: work_limits.all_in(folder), since=since, sees_new=True)
    try:
        with stops.breaking_off():
            while (why := sources.look()) is None:
                SYSTEM.wait(threading.Event(), work_limits.LOOK_S)
    except Stopped:
        return 0
    tell(f"ulak starts again: {why}")
    tie.report(Word.LEAVES)
    return 0


class _Child:
    """Tells the parent. is_fresh: it has not worked yet."""

    tie: Tie
    is_one_of_several = True

    def __init__(self, args: argparse.Namespace) -> None:
        self.is_fresh = True
        self._is_developing: bool = args.reload
        self._has_health: bool = args.health is not None
        self._queues: Iterable[str] | None = args.queues
        self._app: App | None = None
        self._text = ""

    def opened(self, app: App) -> None:
        """Listen for the first job that is settled."""
        self._app = app
        app.on(self._hear)
        if (own_file := getattr(app._store(), "own_file", None)) is not None:  # noqa: SLF001 - for this process
            self.tie.report(Word.FILE, own_file)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, events.Enqueued | events.Started | events.Returned):
            self.tie.report_settled()
            assert self._app is not None
            self._app.off(self._hear)

    def shows_health(self, app: App, pool: Pool) -> AbstractContextManager[str]:
        """The parent answers; it is told again and again that this process lives, and where its store is."""
        if not self._has_health:
            return contextlib.nullcontext("")
        from ulak.cli.work_health import saying

        return saying(pool, lambda: self.tie.report(Word.LIVES, app.url))

    def begins(self, text: str) -> None:
        """It may still fail."""
        self._text = text

    def works(self) -> None:
        """Say so; the parent shows the first one's text."""
        self.is_fresh = False
        self.tie.report(Word.WORKS, self._text)

    def stops(self, _number: int) -> None:
        """The parent knows: it has passed the signal on, or will hear of the end."""

    def leaves(self, why: str, level: int) -> None:
        """Ask for a successor."""
        if self._is_developing:
            tell(f"ulak starts again: {why}")
        else:
            _log.log(level, "this process takes no more jobs: %s", why)
        self.tie.report(Word.LEAVES)

    def breaks_off(self, number: int) -> None:
        """The parent sees it end."""

    def ended(self, report: Report, *, number: int | None, why: str | None) -> None:
        """Say what is left, and when it was so: the last one to look has seen what all have done."""
        assert self._app is not None
        told = {**msgspec.structs.asdict(report), "at": SYSTEM.interval()}
        queues = self._queues or self._app.queues
        with contextlib.suppress(UlakError):  # the store may be away; then it is as the pool has seen it
            told["open"] = sum(self._app.queue(name).counts().open for name in queues)
        self.tie.report(Word.DRAINED if number is None and why is None else Word.ENDED, told)

    def failed(self, text: str) -> None:
        """The parent logs it, and has another take its place."""
        self.tie.report(Word.FAILED, text)
