"""`ulak ls`: jobs, a line each, page by page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TextIO

from ulak.cli.inspect_choice import Choice, choice_of, chosen, error_text, last_failed
from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_table import Column, age, iso_time, print_json, print_table
from ulak.cli.output import say
from ulak.core.job import Job, State
from ulak.core.store import Store


class JobLine(NamedTuple):
    """What a list shows of a job. age_s: since it was enqueued; died_s: since it ended."""

    id: int
    queue: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    age_s: float
    task: str | None
    error: str | None
    cause: str | None
    ended_s: float | None
    created_at: float
    run_at: float
    ended_at: float | None
    worker: str


class Page(NamedTuple):
    """Jobs by id. more: whether there are others after them."""

    lines: list[JobLine]
    more: bool


def run_ls(args: argparse.Namespace) -> int:
    """Print jobs; 0."""
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        if args.queue is not None:
            settings_of(edge.store, args.queue)
        choice, now_at = choice_of(args, args.state), edge.clock.calendar()
        page = page_of(edge.store, choice, after=args.after, limit=args.limit, now_at=now_at)
    if args.json:
        print_json(as_json(page), to=sys.stdout)
        return 0
    print_jobs(page, LS, to=sys.stdout)
    if page.more:
        say(f"there are more: --after {page.lines[-1].id}", to=sys.stderr)
    elif not page.lines:
        say("there is no such job" + (f" after {args.after}" if args.after else ""), to=sys.stderr)
    return 0


def page_of(store: Store, choice: Choice, *, after: int, limit: int, now_at: float) -> Page:
    """The first `limit` of these jobs with id > `after`, by id."""
    return page_of_jobs(chosen(store, choice, now_at, after=after), limit=limit, now_at=now_at)


def page_of_jobs(jobs: Iterable[Job], *, limit: int, now_at: float) -> Page:
    """The first `limit` of these jobs; of the others only whether there are any."""
    lines: list[JobLine] = []
    for job in jobs:
        if len(lines) == limit:
            return Page(lines, more=True)
        lines.append(_line(job, now_at))
    return Page(lines, more=False)


def _line(job: Job, now_at: float) -> JobLine:
    last = last_failed(job.history)
    return JobLine(
        id=job.id,
        queue=job.queue,
        state=job.state,
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        age_s=now_at - job.created_at,
        task=job.task,
        error=None if last is None or last.error is None else error_text(last.error),
        cause=job.history[-1].cause.value if job.history else None,
        ended_s=None if job.ended_at is None else now_at - job.ended_at,
        created_at=job.created_at,
        run_at=job.run_at,
        ended_at=job.ended_at,
        worker=job.worker,
    )


class Shown(NamedTuple):
    """A column of a list, and what stands in it."""

    column: Column
    cell: Callable[[JobLine], str]


_ID = Shown(Column("id", right=True), lambda line: str(line.id))
_QUEUE = Shown(Column("queue"), lambda line: line.queue)
_TASK = Shown(Column("task"), lambda line: line.task or "")
_ATTEMPT = Shown(Column("attempt", right=True), lambda line: f"{line.attempt}/{line.max_attempts}")
_ERROR = Shown(Column("error", cut=True), lambda line: line.error or "")

LS = (
    _ID,
    _QUEUE,
    Shown(Column("state"), lambda line: line.state.value),
    Shown(Column("priority", right=True), lambda line: str(line.priority)),
    _ATTEMPT,
    Shown(Column("age", right=True), lambda line: age(line.age_s)),
    _TASK,
    _ERROR,
)
DEAD = (
    _ID,
    _QUEUE,
    _ATTEMPT,
    Shown(Column("died", right=True), lambda line: age(line.ended_s)),
    Shown(Column("by"), lambda line: line.cause or ""),
    _TASK,
    _ERROR,
)


def print_jobs(page: Page, shown: tuple[Shown, ...], *, to: TextIO | None) -> None:
    """Print a line per job."""
    rows = [[one.cell(line) for one in shown] for line in page.lines]
    print_table([one.column for one in shown], rows, to=to)


def as_json(page: Page) -> dict[str, object]:
    """A page for a program. next_after: what --after the next page takes; null if this was the last one."""
    return {
        "jobs": [_job_json(line) for line in page.lines],
        "next_after": page.lines[-1].id if page.more else None,
    }


def _job_json(line: JobLine) -> dict[str, object]:
    return {
        "id": line.id,
        "queue": line.queue,
        "state": line.state.value,
        "priority": line.priority,
        "attempt": line.attempt,
        "max_attempts": line.max_attempts,
        "task": line.task,
        "worker": line.worker or None,
        "age_s": line.age_s,
        "created_at": iso_time(line.created_at),
        "run_at": iso_time(line.run_at),
        "ended_at": iso_time(line.ended_at),
        "last_cause": line.cause,
        "error": line.error,
    }
