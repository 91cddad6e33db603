"""`ulak pause`, `ulak resume`: the commands that change a queue, and say how it is now."""

from __future__ import annotations

import argparse
import sys

from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_table import many, print_json
from ulak.cli.output import say
from ulak.core.store import Change

DONE = 0


def run_pause(args: argparse.Namespace, *, paused: bool) -> int:
    """Pause a queue, or resume it; 0, also if it was so already."""
    return finding(lambda _: _pause(args, paused=paused), args)


def _pause(args: argparse.Namespace, *, paused: bool) -> int:
    queue: str = args.queue
    with opened(args) as edge:
        was = settings_of(edge.store, queue).paused
        edge.store.configure(queue, Change(paused=paused))
        counts = edge.store.counts([queue])[queue]
    if args.json:
        answer = {"queue": queue, "paused": paused, "changed": was != paused}
        print_json(answer | {"pending": counts.pending, "leased": counts.leased}, to=sys.stdout)
        return DONE
    so = "paused" if paused else "active"
    already = " already" if was == paused else ""
    waiting = f"{many(counts.pending, 'job')} {'waits' if counts.pending == 1 else 'wait'}"
    running = f"{many(counts.leased, 'job')} {'runs' if counts.leased == 1 else 'run'}"
    say(f"queue {queue} is {so}{already}: {waiting}, {running}", to=sys.stdout)
    if paused:
        say(f"enqueuing goes on; ulak resume {queue} delivers again", to=sys.stderr)
    return DONE
