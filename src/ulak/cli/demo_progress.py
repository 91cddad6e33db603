"""How far a demo is, while it runs: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ulak.cli.demo_plan import Plan, Snapshot
from ulak.cli.output import say

PLAIN_EVERY_S = 2.0


@contextmanager
def shown(plan: Plan, stream: TextIO | None) -> Iterator[Callable[[Snapshot], None]]:
    """While inside, the function given shows each snapshot it is called with on `stream`."""
    if stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb":
        with _live(plan, stream) as show:
            yield show
    else:
        yield _Plain(plan, stream)


def line_of(plan: Plan, at: Snapshot) -> str:
    """How far a run is, in a line; at most 75 columns as long as no number has more than seven digits."""
    rate = at.ended / at.elapsed_s if at.elapsed_s else 0.0
    blocked = 100 * at.blocked_s / at.producing_s if at.producing_s else 0.0
    return (
        f"{at.ended}/{plan.jobs}  {_short(rate)}/s  open {at.open}/{plan.capacity}"
        f"  retrying {at.retrying}  producer blocked {blocked:.0f}%"
    )


class _Plain:
    def __init__(self, plan: Plan, stream: TextIO | None) -> None:
        self._plan = plan
        self._stream = stream
        self._next_at_s = PLAIN_EVERY_S

    def __call__(self, at: Snapshot) -> None:
        if at.elapsed_s < self._next_at_s:
            return
        self._next_at_s = at.elapsed_s + PLAIN_EVERY_S
        try:
            say(f"  {line_of(self._plan, at)}", to=self._stream)
        except OSError:
            # A summary cannot reach a stdout that nobody reads, so the run may as well end. But stderr holds
            # only this, and the result goes elsewhere.
            if self._stream is sys.stdout:
                raise
            self._stream = None


@contextmanager
def _live(plan: Plan, stream: TextIO) -> Iterator[Callable[[Snapshot], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=None), TextColumn("{task.description}", markup=False))
    progress = Progress(
        *columns,
        console=Console(file=stream, highlight=False),
        auto_refresh=False,
        expand=True,
        redirect_stdout=False,
        # Log lines appear above the live line, where they go to the same terminal.
        redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
    )
    with progress:
        bar = progress.add_task(line_of(plan, Snapshot()), total=plan.jobs)

        def show(at: Snapshot) -> None:
            progress.update(bar, completed=at.ended, description=line_of(plan, at), refresh=True)

        yield show


def _short(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
