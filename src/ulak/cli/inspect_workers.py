"""`ulak workers`: who takes jobs from a store, since when, and what runs there."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from ulak.cli.inspect_choice import stored
from ulak.cli.inspect_counts import leases_of
from ulak.cli.inspect_open import finding, opened
from ulak.cli.inspect_table import Column, age, iso_time, many, print_json, print_table
from ulak.cli.output import say, visible
from ulak.core.job import Job, State
from ulak.storage.drive import Edge
from ulak.taskqueue import LIVE_S
from ulak.worker.report import SINCE

_KINDS = {"app": "tasks", "plain": "payloads"}

LIVE, STALE, UNLISTED = "live", "stale", "unlisted"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker has. for_s: since it was delivered. left_s: of its lease; below 0 if it is over."""

    job: Job
    for_s: float
    left_s: float


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes jobs, and what it has.

    state: live; stale, if it has not said for ten seconds that it is there; unlisted, if it never says so, as
    whoever takes single jobs. since_at, up_s: when it began, and how long ago; None where it does not say.
    seen_s: since it last said so.
    """

    name: str
    state: str
    since_at: float | None
    up_s: float | None
    seen_at: float | None
    seen_s: float | None
    host: str | None
    size: int | None
    takes: str | None
    queues: tuple[str, ...]
    runs: tuple[Run, ...]


def run(args: argparse.Namespace) -> int:
    """Print the workers; 0."""
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        workers = workers_of(edge)
    if args.json:
        print_json({"workers": [_json(worker) for worker in workers]}, to=sys.stdout)
        return 0
    print_workers(workers, to=sys.stdout)
    for remark in remarks_on(workers):
        say(visible(remark), to=sys.stderr)
    return 0


def remarks_on(workers: Sequence[Worker]) -> Iterator[str]:
    """What somebody should look at, with the command for it."""
    if not workers:
        yield "no worker has said that it is there: ulak work module:app starts one"
    for worker in workers:
        if worker.state is STALE:
            jobs = f", and has {many(len(worker.runs), 'job')}" if worker.runs else ""
            yield f"{worker.name}: not heard of for {age(worker.seen_s)}{jobs}; ulak doctor tells more"


def workers_of(edge: Edge) -> list[Worker]:
    """The workers by name: those that say that they are there, and whoever else has a job."""
    store = edge.store
    held = [lease.id for queue in store.queues() for lease in leases_of(store, queue)]
    # As jobs, whose lease's end is on the clock of this process; those of leases may be on a server's.
    jobs = [job for _, job in stored(store, held) if job is not None and job.state is State.LEASED]
    listed = store.workers()
    now, now_at = edge.clock.interval(), edge.clock.calendar()
    runs: dict[str, list[Run]] = {about.worker: [] for about in listed}
    for job in jobs:
        ran = Run(job=job, for_s=max(0.0, now_at - job.started_at), left_s=job.lease_end - now)
        runs.setdefault(job.worker, []).append(ran)
    found = {about.worker: (about.info, about.seen_at) for about in listed}
    workers = []
    for name, ran_by in sorted(runs.items()):
        info, seen_at = found.get(name, ({}, None))
        since_at, size = _number(info.get(SINCE)), _number(info.get("size"))
        workers.append(
            Worker(
                name=name,
                state=UNLISTED if seen_at is None else LIVE if seen_at >= now_at - LIVE_S else STALE,
                since_at=since_at,
                up_s=None if since_at is None else max(0.0, now_at - since_at),
                seen_at=seen_at,
                seen_s=None if seen_at is None else max(0.0, now_at - seen_at),
                host=info.get("host"),
                size=None if size is None else int(size),
                takes=_KINDS.get(info.get("tasks", "")),
                queues=tuple(filter(None, info.get("queues", "").split(","))),
                runs=tuple(sorted(ran_by, key=lambda run: -run.for_s)),
            )
        )
    return workers


def _number(text: str | None) -> float | None:
    """A number that a worker has told; None for anything else, since anybody can write it."""
    with contextlib.suppress(ValueError, TypeError):
        number = float(text or "")
        return number if 0 <= number < 1e12 else None
    return None


_WHO = (
    Column("worker"),
    Column("state"),
    *(Column(name, right=True) for name in ("up", "seen", "runs", "size")),
    Column("takes"),
    Column("queues", cut=True),
)
_WHAT = (
    Column("job", right=True),
    Column("queue"),
    Column("attempt", right=True),
    *(Column(name, right=True) for name in ("for", "lease")),
    Column("task"),
)


def print_workers(workers: Sequence[Worker], *, to: TextIO | None) -> None:
    """Print a line per worker, then one per job that runs; in a pipe one per job, or per idle worker."""
    if to is not None and to.isatty():
        print_table(_WHO, [_who(worker) for worker in workers], to=to)
        jobs = [[worker.name, *_what(run)] for worker in workers for run in worker.runs]
        if jobs:
            to.write("\n")
            print_table((Column("worker"), *_WHAT), jobs, to=to)
        return
    rows = []
    for worker in workers:
        nothing = [[""] * len(_WHAT)]
        rows += [[*_who(worker), *what] for what in [_what(run) for run in worker.runs] or nothing]
    print_table((*_WHO, *_WHAT), rows, to=to)


def _who(worker: Worker) -> list[str]:
    return [
        worker.name,
        worker.state,
        age(worker.up_s),
        age(worker.seen_s),
        str(len(worker.runs)),
        "" if worker.size is None else str(worker.size),
        worker.takes or "",
        ",".join(worker.queues),
    ]


def _what(run: Run) -> list[str]:
    job = run.job
    attempt = f"{job.attempt}/{job.max_attempts}"
    left = age(run.left_s) if run.left_s > 0 else "over"
    return [str(job.id), job.queue, attempt, age(run.for_s), left, job.task or ""]


def _json(worker: Worker) -> dict[str, object]:
    return {
        "worker": worker.name,
        "state": worker.state,
        "host": worker.host,
        "since": iso_time(worker.since_at),
        "seen_at": iso_time(worker.seen_at),
        "seen_s": worker.seen_s,
        "size": worker.size,
        "takes": worker.takes,
        "queues": list(worker.queues),
        "jobs": [_job_json(run) for run in worker.runs],
    }


def _job_json(run: Run) -> dict[str, object]:
    job = run.job
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "started_at": iso_time(job.started_at),
        "for_s": run.for_s,
        "lease_left_s": run.left_s,
    }
