"""The examination of queues and workers, by the operations of a store: so it holds on every storage."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ulak.cli.inspect_counts import QueueFacts, facts_of
from ulak.cli.inspect_parts import Finding, Part
from ulak.cli.inspect_table import age, many
from ulak.core.job import Job, State
from ulak.core.store import Filter, Store, WorkerInfo
from ulak.storage.drive import Edge
from ulak.taskqueue import LIVE_S
from ulak.worker.report import AHEAD, ahead_s

UNSERVED = 0.2
"""After so much of the time that a job may be due it is a problem that nobody is there to take it."""

RUNS_LONG_S = 3600.0
STEP_MIN_S = 2.0

_PAGE = 100
_HELD_MAX = 1_000
_NAMED = 5


class Waiting(msgspec.Struct, frozen=True):
    """Of a queue's first jobs by id, that one which has been due for longest, and how many are due."""

    job: Job
    due_s: float
    number: int


def queue_parts(edge: Edge, *, late_s: float) -> list[Part]:
    """What can be said of what waits, of held jobs, and of workers. late_s: how long a job may be due."""
    now_at = edge.clock.calendar()
    live = [one for one in edge.store.workers() if one.seen_at >= now_at - LIVE_S]
    facts = facts_of(edge)
    return [
        _waiting_part(edge, facts, live, late_s),
        _held_part(edge.store, facts),
        _workers_part(edge, live),
    ]


# What waits, and what runs


def _waiting_part(edge: Edge, facts: Sequence[QueueFacts], live: Sequence[WorkerInfo], late_s: float) -> Part:
    now_at = edge.clock.calendar()
    findings: list[Finding] = []
    number, oldest_s = 0, 0.0
    for fact in facts:
        waiting = _waiting(edge.store, fact, now_at)
        if waiting is not None:
            number += waiting.number
            oldest_s = max(oldest_s, waiting.due_s)
            findings += _of_waiting(fact, waiting, live, late_s)
        findings += _of_queue(fact)
    text = f"{many(number, 'job')} due" + (f", the oldest for {age(oldest_s)}" if number else "")
    values = {"due": number, "oldest_due_s": oldest_s if number else None, "late_s": late_s}
    return Part("waiting", text, values, tuple(findings))


def _waiting(store: Store, fact: QueueFacts, now_at: float) -> Waiting | None:
    ready = store.scan(Filter(queue=fact.queue, states=State.READY), limit=_PAGE) if fact.counts.ready else []
    # Where no worker is, nobody makes them ready.
    scheduled = Filter(queue=fact.queue, states=State.SCHEDULED)
    over = store.scan(scheduled, limit=_PAGE) if fact.counts.scheduled else []
    over = [job for job in over if job.run_at <= now_at]
    longest = min(ready + over, key=_due_at, default=None)
    if longest is None:
        return None
    return Waiting(longest, max(0.0, now_at - _due_at(longest)), fact.counts.ready + len(over))


def _due_at(job: Job) -> float:
    """Since when it could have been taken: not since its enqueue, if it had a delay, or was with a worker."""
    return max(job.created_at, job.run_at)


def _of_waiting(
    fact: QueueFacts, waiting: Waiting, live: Sequence[WorkerInfo], late_s: float
) -> Iterator[Finding]:
    name, job, due_s = fact.queue, waiting.job, waiting.due_s
    due = f"{many(waiting.number, 'job')} due, job {job.id} for {age(due_s)}"
    if fact.settings.paused:
        fix = f"ulak resume {name} --yes, when it may go on"
        yield Finding(f"queue {name} is paused, with {due}", fix, is_problem=due_s > late_s)
    elif not _is_served(fact, job, live):
        what = f"queue {name} has {due}, and no worker that lives takes them"
        fix = "start one: ulak work module:app; if one runs, see that it serves this queue (--queues)"
        yield Finding(what, fix, is_problem=due_s > UNSERVED * late_s)
    elif due_s > late_s:
        what = f"queue {name} has {due}, which is longer than {age(late_s)}"
        fix = (
            "have more jobs run at a time (--concurrency, --processes, more workers), or see what holds up "
            f"those that run: ulak ls -q {name} --state leased"
        )
        yield Finding(what, fix)


def _is_served(fact: QueueFacts, job: Job, live: Sequence[WorkerInfo]) -> bool:
    """Whether a worker that lives takes such jobs, or somebody who is no pool has some of the queue."""
    other = "app" if job.task is None else "plain"
    pools = any(
        fact.queue in worker.info.get("queues", "").split(",") and worker.info.get("tasks") != other
        for worker in live
    )
    return pools or fact.counts.leased > fact.leases_over


def _of_queue(fact: QueueFacts) -> Iterator[Finding]:
    name, capacity = fact.queue, fact.settings.capacity
    if capacity is not None and fact.counts.open >= capacity:
        what = f"queue {name} is full: {fact.counts.open:,} open jobs, and room for {capacity:,}"
        fix = (
            f"let workers catch up, or make room: ulak queue set {name} --capacity {2 * capacity or 1} --yes"
        )
        yield Finding(what, fix, is_problem=False)
    if fact.oldest_leased_s is not None and fact.oldest_leased_s > RUNS_LONG_S:
        what = f"a job of queue {name} has been with its worker for {age(fact.oldest_leased_s)}"
        fix = f"ulak ls -q {name} --state leased finds it; ulak cancel ID --yes asks it to stop"
        yield Finding(what, fix, is_problem=False)


# What no worker can run


def _held_part(store: Store, facts: Sequence[QueueFacts]) -> Part:
    unknown, refused = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for fact in facts:
        if fact.counts.held:
            all_held = _tasks(store, Filter(queue=fact.queue, states=State.HELD))
            misfits = _tasks(store, Filter(queue=fact.queue, refused=True))
            refused += misfits
            unknown += all_held - misfits
    held = sum(fact.counts.held for fact in facts)
    findings = tuple(_of_held(unknown, refused))
    return Part("held", f"{many(held, 'job')} held" if held else "no job is held", {"held": held}, findings)


def _tasks(store: Store, which: Filter) -> Counter[tuple[str, str]]:
    """Of the first of these jobs how many are of each task and queue."""
    found = Counter[tuple[str, str]]()
    after = 0
    while found.total() < _HELD_MAX:
        jobs = store.scan(which, after=after, limit=_PAGE)
        found.update((job.task or "no task", job.queue) for job in jobs)
        if len(jobs) < _PAGE:
            break
        after = jobs[-1].id
    return found


def _of_held(unknown: Counter[tuple[str, str]], refused: Counter[tuple[str, str]]) -> Iterator[Finding]:
    if unknown:
        yield Finding(
            f"jobs are held, since no worker that met them knows their task: {_named(unknown)}",
            "start a worker that knows the task (ulak work module:app), name it in aliases= of the one that "
            "has taken its place, or end them: ulak cancel --state held --task NAME --yes",
        )
    if refused:
        yield Finding(
            f"jobs are held, since their payload does not fit their task: {_named(refused)}",
            "ulak show ID tells the difference; edit and redrive them, or deploy a task that they fit and "
            "ulak retry --state held --yes",
        )


def _named(held: Counter[tuple[str, str]]) -> str:
    told = (
        f"{task} ({number:,}{' or more' if number >= _HELD_MAX else ''} in {queue})"
        for (task, queue), number in held.most_common(_NAMED)
    )
    return ", ".join(told) + (", ..." if len(held) > _NAMED else "")


# Who works


def _workers_part(edge: Edge, live: Sequence[WorkerInfo]) -> Part:
    steps = [step_s for worker in live if (step_s := _step_s(edge, worker)) is not None]
    step_s = max(steps, key=abs, default=0.0)
    findings: tuple[Finding, ...] = ()
    if abs(step_s) >= STEP_MIN_S:
        way = "forward" if step_s > 0 else "back"
        findings = (
            Finding(
                f"the machine's clock was set {way} by {age(abs(step_s))} since a worker was started",
                "see that the time is right (timedatectl, chronyc tracking); leases are not affected, but "
                "delays, schedules and ages of jobs from before are off by as much",
                is_problem=False,
            ),
        )
    text = f"{many(len(live), 'worker')} of pools heard of in the last {LIVE_S:g} s"
    values = {"live": [worker.worker for worker in live], "clock_step_s": step_s}
    return Part("workers", text, values, findings)


def _step_s(edge: Edge, worker: WorkerInfo) -> float | None:
    """By how much the calendar was set since this worker's start; None where that cannot be told."""
    # Elsewhere the interval clock has begun at another moment.
    if worker.info.get("host") != socket.gethostname():
        return None
    try:
        return ahead_s(edge.clock) - float(worker.info.get(AHEAD, ""))
    except ValueError:
        return None
