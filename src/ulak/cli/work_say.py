"""What `ulak work` says, and how: what it says of its end is here too."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ulak.cli import logs
from ulak.cli.output import say
from ulak.cli.spout import TELL_S, Spout
from ulak.durations import format_duration

_spouts: list[Spout] = []


@contextlib.contextmanager
def shown(args: argparse.Namespace) -> Iterator[logs.Naming]:
    """While inside, show the log as the arguments say, and tell all by a thread of its own."""
    with Spout() as spout, logs.shown(args.log_format, logs.level_of(args.verbose), spout=spout) as named:
        _spouts.append(spout)
        try:
            yield named
        finally:
            _spouts.remove(spout)


def tell(text: str) -> None:
    """Say something on stderr. Whoever reads it may be gone, or stand still; its disk may be full."""
    if _spouts:
        _spouts[-1].say(text, wait_s=TELL_S)
        return
    with contextlib.suppress(OSError, ValueError):
        say(text, to=sys.stderr)


def stopping(number: int, grace_s: float) -> str:
    """A signal has come."""
    return (
        f"ulak stops on {signal.Signals(number).name}: running jobs have {format_duration(grace_s)} to "
        "finish; a second one hands them back now"
    )


def stopped(number: int, report: Mapping[str, Any]) -> str:
    """All has ended after a signal. report: `released` and `open`, as far as they are known."""
    text = f"ulak stopped on {signal.Signals(number).name}"
    if report:
        text += f": {jobs(report['released'])} handed back, {jobs(report['open'])} open"
    return text


def broken_off(number: int) -> str:
    """It ends after a second signal, and could not hand back what runs."""
    name = signal.Signals(number).name
    return f"ulak ended on {name}: jobs that still ran start again elsewhere, an attempt the fewer"


def drained(report: Mapping[str, Any]) -> str:
    """Nothing is left that could run. report: `open`, `held` and `paused`."""
    text = f"ulak drained: {jobs(report['open'])} open"
    if report["held"]:
        text += f"; {jobs(report['held'])} held: no worker knows its task, or its arguments do not fit"
    if report["paused"]:
        text += "; a queue is paused"
    return text


def left(why: str, report: Mapping[str, Any]) -> str:
    """It has ended for a reason of its own. report: `open`."""
    return f"ulak ended, since {why}; {jobs(report['open'])} open"


def jobs(count: int) -> str:
    """So many jobs.

    >>> jobs(1), jobs(2000)
    ('1 job', '2,000 jobs')
    """
    return f"{count:,} job{'' if count == 1 else 's'}"
