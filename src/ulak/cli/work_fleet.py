"""`ulak work` in several processes: this one keeps them running, and passes on when to end."""

from __future__ import annotations

import argparse
import contextlib
import logging
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any

from ulak.cli import work_say
from ulak.cli.child_command import child_command
from ulak.cli.explain import FAILED, TRY_AGAIN, UNAVAILABLE
from ulak.cli.stops import Hurry
from ulak.cli.work_process import HURRY_S
from ulak.cli.work_say import tell
from ulak.clock import SYSTEM
from ulak.core.backoff import Backoff
from ulak.worker.supervisor import GivenUp, Supervisor, Word

RESTART = Backoff(base=0.1, cap=10.0)
FAILURES_MAX = 10
LOOK_S = 0.05
KILL_S = 1.7
"""How long after the grace a process that has not ended is killed."""

_log = logging.getLogger("ulak")


class Fleet:
    """The processes of one `ulak work`. inbox: where `Stops` puts the first signal."""

    def __init__(self, args: argparse.Namespace, inbox: SimpleQueue[Any]) -> None:
        self._args = args
        self._inbox = inbox
        self._count = args.processes or 1
        self._has_begun = False
        self._ended: list[dict[str, Any]] = []
        self._url: str | None = None
        self._shown = ""
        self._supervisor = Supervisor(
            child_command("work_child", *args.argv),
            self._count,
            backoff=RESTART,
            failures_max=FAILURES_MAX,
            # A store that is away, or busy, comes back.
            passing=(UNAVAILABLE, TRY_AGAIN),
            hear=self._hear,
        )

    def run(self) -> int:
        """Keep them running until a signal comes or, with --drain, all have ended by themselves; 0 then."""
        args, supervisor = self._args, self._supervisor
        with work_say.shown(args), supervisor, self._showing_health() as self._shown:
            if args.drain:
                supervisor.finish(tell=False)
            try:
                number = self._tended()
            except GivenUp as error:
                tell(error.reason or f"error: {error}")
                supervisor.stop(args.grace + KILL_S)
                return error.status if error.reason is not None else FAILED
            if number is None:
                if self._ended:
                    tell(work_say.drained(_summed(self._ended)))
                return 0
            return self._stopped(number)

    def _stopped(self, number: int) -> int:
        """End all on a signal; 0 if all have handed back what they held, after a second one its own."""
        grace_s, supervisor = self._args.grace, self._supervisor
        # Whoever says now that it works has been told to end.
        self._has_begun = True
        self._ended.clear()
        cut = supervisor.cut
        # First of all, since whoever reads what is said may have stopped reading.
        supervisor.terminate()
        tell(work_say.stopping(number, grace_s))
        hurry = self._awaited(grace_s + KILL_S)
        supervisor.stop(0.0)
        is_cut = supervisor.cut > cut
        last = number if hurry is None else hurry.number
        tell(work_say.broken_off(last) if is_cut else work_say.stopped(last, _summed(self._ended)))
        return int(is_cut) if hurry is None else 128 + last

    def _showing_health(self) -> AbstractContextManager[str]:
        if self._args.health is None:
            return contextlib.nullcontext("")
        from ulak.cli.work_health import of_fleet

        return of_fleet(self._args.health, self._supervisor, lambda: self._url)

    def _tended(self) -> int | None:
        """The signal that has come; None once all have ended by themselves."""
        while not self._supervisor.is_over:
            self._supervisor.tend(LOOK_S)
            with contextlib.suppress(Empty):
                number: int = self._inbox.get_nowait()
                return number
        return None

    def _awaited(self, within_s: float) -> Hurry | None:
        """Wait until all have ended, at most so long; after a second signal, which it gives, not for long."""
        supervisor, hurry = self._supervisor, None
        until = SYSTEM.interval() + within_s
        while supervisor.size and (left_s := until - SYSTEM.interval()) > 0:
            supervisor.tend(min(left_s, LOOK_S))
            with contextlib.suppress(Empty):
                hurry = self._inbox.get_nowait()
                supervisor.hurry()
                until = min(until, SYSTEM.interval() + HURRY_S)
        return hurry

    def _hear(self, word: Word, value: Any) -> None:  # noqa: ANN401 - what a child says
        if word in (Word.ENDED, Word.DRAINED):
            self._ended.append(value)
        elif word is Word.LIVES:
            self._url = value
        elif self._has_begun:
            _log.info("one more process works")
        else:
            self._has_begun = True
            tell(f"{value}; processes {self._count}{self._shown}")


def _summed(ended: list[dict[str, Any]]) -> dict[str, Any]:
    """What all have handed back together; who looked last knows what is open."""
    if not ended:
        return {}
    last = max(ended, key=lambda each: each["at"])
    return {**last, "released": sum(each["released"] for each in ended)}
