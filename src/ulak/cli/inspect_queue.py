"""`ulak pause`, `ulak resume`, `ulak queue set`: the commands that change a queue, and say how it is now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ulak.cli.inspect_choice import Choice, chosen
from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_show import backoff_text
from ulak.cli.inspect_table import age, many, print_json
from ulak.cli.output import say
from ulak.core.backoff import Backoff
from ulak.core.job import State
from ulak.core.store import (
    DURABLE_RETENTION,
    MEMORY_RETENTION,
    UNSET,
    Change,
    Filter,
    Keep,
    Retention,
    Settings,
)
from ulak.errors import ConfigError
from ulak.storage.drive import Edge

DONE, NOT_DONE = 0, 1

NOTHING_YET = "nothing was done yet: give --yes to do it"

_NAME_COLUMNS = 11

KEPT = (State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED)
"""The states that a retention is of."""


def run_pause(args: argparse.Namespace, *, paused: bool) -> int:
    """Pause a queue, or resume it, if --yes is given; 0, also if it was so already, else 1."""
    return finding(lambda _: _pause(args, paused=paused), args)


def _pause(args: argparse.Namespace, *, paused: bool) -> int:
    queue: str = args.queue
    with opened(args) as edge:
        was = settings_of(edge.store, queue).paused
        if args.yes:
            edge.store.configure(queue, Change(paused=paused))
        counts = edge.store.counts([queue])[queue]
    is_done = args.yes or was == paused
    if args.json:
        answer = {"queue": queue, "paused": paused if is_done else was, "changed": args.yes and was != paused}
        answer |= {"would_change": not is_done, "pending": counts.pending, "leased": counts.leased}
        print_json(answer, to=sys.stdout)
        return DONE if is_done else NOT_DONE
    so = f"{'is' if is_done else 'would be'} {'paused' if paused else 'active'}"
    already = " already" if was == paused else ""
    waiting = f"{many(counts.pending, 'job')} {'waits' if counts.pending == 1 else 'wait'}"
    running = f"{many(counts.leased, 'job')} {'runs' if counts.leased == 1 else 'run'}"
    say(f"queue {queue} {so}{already}: {waiting}, {running}", to=sys.stdout)
    if not is_done:
        say(NOTHING_YET, to=sys.stderr)
    elif paused:
        say(f"enqueuing goes on; ulak resume {queue} --yes delivers again", to=sys.stderr)
    return DONE if is_done else NOT_DONE


def run_set(args: argparse.Namespace) -> int:
    """Change what is stored with a queue if --yes is given; 0, also if it was so already, else 1."""
    return finding(_set, args)


def _set(args: argparse.Namespace) -> int:
    if args.capacity is None and args.backoff is None and args.retention is None:
        raise ConfigError(
            "say what to set: --capacity, --backoff or --retention\n  see ulak queue set --help"
        )
    with opened(args) as edge:
        new = changed_of(
            edge, args.queue, capacity=args.capacity, backoff=args.backoff, retention=args.retention
        )
        if args.yes:
            edge.store.configure(args.queue, new.change)
    return tell_new(new, is_done=args.yes or not new.differs, as_json=args.json)


class New(NamedTuple):
    """What is to be stored with a queue, and what is now.

    default: the retention that is in force where none is stored. forgets: how many jobs of which states the
    new retention has no place for, and `prune` removes.
    """

    queue: str
    change: Change
    was: Settings
    now: Settings
    default: Retention
    open: int
    forgets: Mapping[State, int]

    @property
    def differs(self) -> bool:
        """Whether anything would be another than it is."""
        return self.was != self.now


def changed_of(
    edge: Edge,
    queue: str,
    *,
    capacity: int | str | None = None,
    backoff: Sequence[float] | str | None = None,
    retention: Sequence[tuple[str, int, float] | str] | None = None,
) -> New:
    """What the options of `queue set` make of a queue; changes nothing.

    capacity: a number, or `none`. backoff: base, cap and floor, as far as given, in seconds, or `none`.
    retention: states with a count and an age in seconds, or `default` alone. None: as it is.
    Raises Missing, ConfigError, ArgumentError.
    """
    was = settings_of(edge.store, queue)
    default = DURABLE_RETENTION if edge.store.capabilities.durable else MEMORY_RETENTION
    change = Change(
        capacity=UNSET if capacity is None else None if isinstance(capacity, str) else capacity,
        backoff=UNSET if backoff is None else None if isinstance(backoff, str) else Backoff(*backoff),
        retention=UNSET if retention is None else _retention_of(was.retention or default, retention),
    )
    now = change.apply(was)
    forgets = {}
    if now.retention != was.retention:
        forgets = _forgotten(edge, queue, was.retention or default, now.retention or default)
    return New(queue, change, was, now, default, edge.store.counts([queue])[queue].open, forgets)


def _retention_of(base: Retention, given: Sequence[tuple[str, int, float] | str]) -> Retention | None:
    named = {one[0]: Keep(one[1], one[2]) for one in given if not isinstance(one, str)}
    if not named:
        return None
    if len(named) < len(given):
        raise ConfigError(
            "give --retention default alone, or a state of it once\n  see ulak queue set --help"
        )
    return msgspec.structs.replace(base, **named)


def _forgotten(edge: Edge, queue: str, was: Retention, now: Retention) -> dict[State, int]:
    """How many jobs go that the retention has kept so far: those that ended first."""
    counts = edge.store.counts([queue])[queue]
    forgets = {}
    now_at = edge.clock.calendar()
    for state in KEPT:
        keep = now.of(state)
        if keep == was.of(state):
            continue
        jobs = chosen(edge.store, Choice(Filter(queue=queue, states=state)), now_at)
        too_old = sum(job.ended_at is not None and job.ended_at <= now_at - keep.age_s for job in jobs)
        stored = counts.acked if state is State.SUCCEEDED else getattr(counts, state.value)
        if beyond := max(stored - keep.count, too_old):
            forgets[state] = beyond
    return forgets


def tell_new(new: New, *, is_done: bool, as_json: bool) -> int:
    """Say what would be other than it is, or what is now; the exit status."""
    if as_json:
        answer = {"queue": new.queue, "done": is_done, "open": new.open}
        answer |= {"was": _json(new.was), "settings": _json(new.now)}
        answer["forgets"] = {state.value: jobs for state, jobs in new.forgets.items()}
        print_json(answer, to=sys.stdout)
        return DONE if is_done else NOT_DONE
    say(f"queue {new.queue}: {many(new.open, 'job')} open", to=sys.stdout)
    before = _texts(new.was, new.default)
    for name, text in _texts(new.now, new.default).items():
        instead = f"{', was' if is_done else ' instead of'} {before[name]}" if text != before[name] else ""
        say(f"  {name:<{_NAME_COLUMNS}}{text}{instead}", to=sys.stdout)
    for state, jobs in new.forgets.items():
        so = "will be" if is_done else "would be"
        say(f"  {many(jobs, f'{state.value} job')} {so} removed for good", to=sys.stdout)
    if not is_done:
        say(NOTHING_YET, to=sys.stderr)
    return DONE if is_done else NOT_DONE


def _texts(settings: Settings, default: Retention) -> dict[str, str]:
    """The settings in words, each by its name; those of the retention by that of the state."""
    retention = settings.retention or default
    kept = {state: retention.of(state) for state in KEPT}
    return {
        "capacity": "none" if settings.capacity is None else str(settings.capacity),
        "backoff": "none" if settings.backoff is None else backoff_text(settings.backoff),
        **{state.value: f"at most {keep.count}, for {age(keep.age_s)}" for state, keep in kept.items()},
    }


def _json(settings: Settings) -> dict[str, object]:
    """The settings for a program. retention: null where that of every queue holds."""
    return {
        "capacity": settings.capacity,
        "backoff": None if settings.backoff is None else msgspec.to_builtins(settings.backoff),
        "retention": None if settings.retention is None else msgspec.to_builtins(settings.retention),
    }
