"""`ulak prune`: removes now what retention does not keep, as workers do little by little."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from ulak.cli.inspect_choice import OPEN, Choice, chosen
from ulak.cli.inspect_open import finding, opened
from ulak.cli.inspect_queue import DONE, KEPT, NOT_DONE, NOTHING_YET
from ulak.cli.inspect_table import many, print_json
from ulak.cli.output import say
from ulak.core.job import State
from ulak.core.store import DURABLE_RETENTION, MEMORY_RETENTION, Filter, Retention, Store
from ulak.storage.drive import Edge

_AT_ONCE = 1_000

Numbers: TypeAlias = Mapping[State, int]


def run(args: argparse.Namespace) -> int:
    """Prune if --yes is given, else say what that would do; 0, or 1 if that is not all that was asked for."""
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        queues = {} if args.yes else foretell(edge)
        numbers = prune(edge.store) if args.yes else sum(map(Counter, queues.values()), Counter[State]())
    is_done = args.yes or args.dry_run or not numbers
    if args.json:
        answer = {"done": args.yes, "jobs": _json(numbers)}
        answer |= {} if args.yes else {"queues": {name: _json(found) for name, found in queues.items()}}
        print_json(answer, to=sys.stdout)
        return DONE if is_done else NOT_DONE
    jobs = sum(numbers.values())
    verb = ("is" if jobs == 1 else "are") if args.yes else "would be"
    say(f"{many(jobs, 'job')} {verb} pruned{_listed(numbers)}", to=sys.stdout)
    for name, found in queues.items():
        say(f"  queue {name}{_listed(found)}", to=sys.stdout)
    if not is_done:
        say(NOTHING_YET, to=sys.stderr)
    return DONE if is_done else NOT_DONE


def _listed(numbers: Numbers) -> str:
    """As in `: 2 succeeded, 1 dead`."""
    told = ", ".join(f"{number} {name}" for name, number in _json(numbers).items())
    return f": {told}" if told else ""


def _json(numbers: Numbers) -> dict[str, int]:
    return {state.value: numbers[state] for state in KEPT if state in numbers}


def prune(store: Store) -> Numbers:
    """Prune until nothing is left to; how many jobs of each state, those too that expired only now."""
    pruned = Counter[State]()
    while part := store.prune(limit=_AT_ONCE):
        pruned.update(part)
    return pruned


def foretell(edge: Edge) -> dict[str, Numbers]:
    """How many jobs of each queue `prune` would remove now, or end as expired; changes nothing."""
    store, now_at = edge.store, edge.clock.calendar()
    default = DURABLE_RETENTION if store.capabilities.durable else MEMORY_RETENTION
    found = {
        name: _of_queue(store, name, settings.retention or default, now_at)
        for name, settings in sorted(store.queues().items())
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def _of_queue(store: Store, queue: str, retention: Retention, now_at: float) -> Numbers:
    counts = store.counts([queue])[queue]
    found: dict[State, int] = {}
    over = _overdue(store, queue, now_at) if counts.pending or counts.held else 0
    for state in KEPT:
        keep = retention.of(state)
        stored = counts.acked if state is State.SUCCEEDED else getattr(counts, state.value)
        ends = over if state is State.EXPIRED else 0
        old = _older(store, Filter(queue=queue, states=state), now_at - keep.age_s) if stored else 0
        if number := ends + max(stored + ends - keep.count, old, 0):
            found[state] = number
    return found


def _overdue(store: Store, queue: str, now_at: float) -> int:
    """How many jobs wait past their time."""
    waiting = Filter(queue=queue, states=frozenset(OPEN) - {State.LEASED})
    jobs = chosen(store, Choice(waiting), now_at)
    return sum(job.expires_at is not None and job.expires_at <= now_at for job in jobs)


def _older(store: Store, which: Filter, at: float) -> int:
    """How many of these jobs had ended by then."""
    found = 0
    for job in chosen(store, Choice(which), at):
        if job.created_at > at:
            # Nor had those that came after it.
            break
        found += job.ended_at is not None and job.ended_at <= at
    return found
