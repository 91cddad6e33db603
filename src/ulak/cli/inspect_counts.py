"""`ulak counts`: how many jobs of each queue are in each state, and how long the oldest have been there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TextIO

import msgspec

from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_table import Column, age, many, print_json, print_table
from ulak.cli.output import say, visible
from ulak.core.job import Counts, Lease, State
from ulak.core.store import Filter, Settings, Store
from ulak.storage.drive import Edge

STATES = ("ready", "scheduled", "leased", "held", "succeeded", "dead", "cancelled", "expired")

_PAGE = 1_000
_LEASES_MAX = 100_000


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted of one queue. Ages are in seconds; None where there is nothing of that kind.

    oldest_ready_s: since the ready job with the lowest id was enqueued. oldest_leased_s: since the job that
    has been with its worker for longest was delivered. leases_over: leases that anybody may reclaim.
    """

    queue: str
    counts: Counts
    settings: Settings
    oldest_ready_s: float | None
    oldest_leased_s: float | None
    leases_over: int


def run(args: argparse.Namespace) -> int:
    """Print the counts; 0."""
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    if args.since is not None:
        from ulak.cli import inspect_trend

        return inspect_trend.run(args)
    with opened(args) as edge:
        facts = facts_of(edge, args.queue)
    if args.json:
        print_json(as_json(facts), to=sys.stdout)
    else:
        print_counts(facts, to=sys.stdout)
        for remark in remarks_on(facts):
            say(visible(remark), to=sys.stderr)
    return 0


def remarks_on(facts: list[QueueFacts]) -> Iterator[str]:
    """What somebody should look at, with the command for it."""
    for fact in facts:
        name, counts = fact.queue, fact.counts
        if counts.dead:
            yield f"{name}: {many(counts.dead, 'job')} dead; ulak dead ls -q {name} tells of what"
        if counts.held:
            yield f"{name}: {many(counts.held, 'job')} held; ulak doctor tells why"
        if fact.leases_over:
            over = many(fact.leases_over, "job")
            yield f"{name}: {over} whose worker has not been heard of in time; ulak doctor tells more"
        if fact.settings.paused and counts.pending:
            waiting = many(counts.pending, "job")
            yield f"{name}: paused with {waiting} waiting; ulak resume {name} --yes delivers again"


def facts_of(edge: Edge, queue: str | None = None) -> list[QueueFacts]:
    """The facts of one queue, or of all, by name. Raises Missing if there is no such queue."""
    store = edge.store
    queues = dict(sorted(store.queues().items())) if queue is None else {queue: settings_of(store, queue)}
    counts = store.counts(list(queues))
    now_at = edge.clock.calendar()
    return [
        QueueFacts(
            queue=name,
            counts=counts[name],
            settings=settings,
            oldest_ready_s=_oldest_ready_s(store, name, now_at) if counts[name].ready else None,
            oldest_leased_s=_oldest_leased_s(store, name, now_at),
            leases_over=len(store.ended([name], _LEASES_MAX)),
        )
        for name, settings in queues.items()
    ]


def _oldest_ready_s(store: Store, queue: str, now_at: float) -> float | None:
    first = store.scan(Filter(queue=queue, states=State.READY), limit=1)
    return now_at - first[0].created_at if first else None


def _oldest_leased_s(store: Store, queue: str, now_at: float) -> float | None:
    leases = leases_of(store, queue)
    return now_at - min(lease.claimed_at for lease in leases) if leases else None


def leases_of(store: Store, queue: str) -> list[Lease]:
    """The current leases of a queue, by id; at most 100,000."""
    leases: list[Lease] = []
    while len(leases) < _LEASES_MAX:
        page = store.leased(queue, after=leases[-1].id if leases else 0, limit=_PAGE)
        leases.extend(page)
        if len(page) < _PAGE:
            break
    return leases


_JOBS = (Column("queue"), *(Column(state, right=True) for state in STATES))
_QUEUE = (
    *(Column(name, right=True) for name in ("open", "capacity")),
    Column("paused"),
    *(Column(name, right=True) for name in ("oldest ready", "oldest leased", "leases over")),
)


def print_counts(facts: list[QueueFacts], *, to: TextIO | None) -> None:
    """Print a line per queue; on a terminal two, in two tables, since 80 columns have no room for one."""
    jobs = [[fact.queue, *map(str, _by_state(fact).values())] for fact in facts]
    rest = [_cells(fact) for fact in facts]
    if to is not None and to.isatty():
        print_table(_JOBS, jobs, to=to)
        to.write("\n")
        named = [[fact.queue, *cells] for fact, cells in zip(facts, rest, strict=True)]
        print_table((Column("queue"), *_QUEUE), named, to=to)
    else:
        both = [[*left, *right] for left, right in zip(jobs, rest, strict=True)]
        print_table((*_JOBS, *_QUEUE), both, to=to)


def _by_state(fact: QueueFacts) -> dict[str, int]:
    """How many jobs are in each state, which is called here as `ulak ls --state` takes it."""
    return {state: getattr(fact.counts, "acked" if state == "succeeded" else state) for state in STATES}


def _cells(fact: QueueFacts) -> list[str]:
    capacity = fact.settings.capacity
    return [
        str(fact.counts.open),
        "" if capacity is None else str(capacity),
        "yes" if fact.settings.paused else "no",
        age(fact.oldest_ready_s),
        age(fact.oldest_leased_s),
        str(fact.leases_over),
    ]


def as_json(facts: list[QueueFacts]) -> dict[str, object]:
    """The same for a program, with the lifetime totals: an object per queue. Durations are in seconds."""
    return {"queues": {fact.queue: _queue_json(fact) for fact in facts}}


def _queue_json(fact: QueueFacts) -> dict[str, object]:
    return {
        **_by_state(fact),
        "open": fact.counts.open,
        "capacity": fact.settings.capacity,
        "paused": fact.settings.paused,
        "oldest_ready_s": fact.oldest_ready_s,
        "oldest_leased_s": fact.oldest_leased_s,
        "leases_over": fact.leases_over,
        "totals": msgspec.structs.asdict(fact.counts.totals),
    }
