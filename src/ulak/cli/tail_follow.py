"""Follows jobs as they change, by looks at the store of which each costs no more than so much."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TextIO

import msgspec

from ulak.cli.inspect_choice import error_text, stored
from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_table import NOTHING, age, clock_time, iso_time, print_json
from ulak.cli.output import say, visible
from ulak.cli.stops import Stops
from ulak.core.job import Cause, Counts, Job, State
from ulak.core.store import Filter
from ulak.storage.drive import Edge

EVERY_MIN_S = 0.05

NEW_MAX = 1_000
NEXT_MAX = 300
LEASED_MAX = 1_000
WATCHED_MAX = 3_000

_ENQUEUED = "enqueued"

# How an attempt may end that is none of the processed ones.
_NOT_PROCESSED = {Cause.RELEASE, Cause.SHUTDOWN, Cause.SNOOZE, Cause.UNKNOWN_TASK, Cause.UNDECODABLE}


class Event(msgspec.Struct, frozen=True):
    """Something that has happened to a job. took_s: None where it took no time, or is not over."""

    at: float
    id: int
    queue: str
    task: str | None
    what: str
    took_s: float | None = None
    attempt: int | None = None
    worker: str | None = None
    error: str | None = None
    is_processed: bool = False


def events_of(job: Job) -> Iterator[Event]:
    """What is stored of what has happened to a job, in order."""

    def event(at: float, what: str, took_s: float | None = None, **more: object) -> Event:
        return Event(at, job.id, job.queue, job.task, what, took_s, **more)  # type: ignore[arg-type]

    yield event(job.created_at, _ENQUEUED)
    for attempt in job.history:
        yield event(
            attempt.ended_at,
            f"attempt {attempt.attempt}: {attempt.cause.value}",
            attempt.ended_at - attempt.started_at,
            attempt=attempt.attempt,
            worker=attempt.worker or None,
            error=None if attempt.error is None else error_text(attempt.error),
            is_processed=attempt.cause not in _NOT_PROCESSED,
        )
    if job.state is State.LEASED:
        what = f"attempt {job.attempt} runs"
        yield event(job.started_at, what, attempt=job.attempt, worker=job.worker or None)
    elif job.ended_at is not None:
        yield event(job.ended_at, job.state.value)


class Watched(msgspec.Struct):
    """A job that is followed: as it was at the last look, and what has been told of it."""

    now: tuple[object, ...]
    told: set[Event]


class Follower:
    """Follows the jobs of these queues; a look tells what has happened since the last one.

    remarks: what somebody should know who takes what is told for all there is.
    """

    def __init__(self, edge: Edge, *, queue: str | None = None, task: str | None = None) -> None:
        self._edge = edge
        self._store = edge.store
        self._queue = queue
        self._task = task
        self._since_at = edge.clock.calendar()
        self._last_id = self._newest_id()
        self._counts = self._read_counts()
        self._processed = _processed(self._counts)
        self._watched: dict[int, Watched] = {}
        self._over: dict[int, Watched] = {}
        self._shown = self._owned_up = 0
        self.remarks: list[str] = []
        # What runs already, and what is next.
        self._meet(self._at_work())

    def last(self, number: int) -> list[Event]:
        """The last events of the newest jobs."""
        after = max(0, self._last_id - number)
        which = Filter(queue=self._queue, task=self._task)
        events = [
            one
            for job in self._store.scan(which, after=after, limit=max(1, number))
            for one in events_of(job)
        ]
        return sorted(events, key=lambda one: one.at)[-number:] if number else []

    def look(self) -> list[Event]:
        """What has happened since the last look, in order of time."""
        counts = self._read_counts()
        if counts == self._counts:
            return []
        self._counts = counts
        events = [
            *self._meet(self._new_jobs(), are_new=True),
            *self._meet(self._at_work()),
            *self._of_watched(),
        ]
        self._own_up(sum(one.is_processed for one in events))
        return sorted(events, key=lambda one: one.at)

    # What is looked at

    def _read_counts(self) -> dict[str, Counts]:
        queues = list(self._store.queues()) if self._queue is None else [self._queue]
        return self._store.counts(queues)

    def _newest_id(self) -> int:
        """The id of the last job that was stored, of any queue; found by halving."""
        below, step = 0, 1
        while self._is_any_after(below + step):
            below, step = below + step, step * 2
        if not self._is_any_after(below):
            return below
        above = below + step
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if self._is_any_after(middle) else (below, middle)
        return above

    def _is_any_after(self, job_id: int) -> bool:
        return bool(self._store.scan(Filter(), after=job_id, limit=1))

    def _new_jobs(self) -> list[Job]:
        which = Filter(queue=self._queue, task=self._task)
        jobs = self._store.scan(which, after=self._last_id, limit=NEW_MAX)
        if len(jobs) == NEW_MAX:
            newest = self._newest_id()
            if newest > jobs[-1].id:
                self.remarks.append(
                    f"more new jobs than can be shown: those after {jobs[-1].id}, up to {newest}"
                )
            self._last_id = newest
        elif jobs:
            self._last_id = jobs[-1].id
        return jobs

    def _at_work(self) -> Iterator[Job]:
        """Jobs that workers have, and some of those that are next."""
        for queue, counts in self._counts.items():
            ids = [lease.id for lease in self._store.leased(queue, limit=LEASED_MAX)] if counts.leased else []
            yield from self._chosen(job for _, job in stored(self._store, self._unknown(ids)))
            if counts.ready and len(self._watched) < WATCHED_MAX:
                which = Filter(queue=queue, states=State.READY, task=self._task)
                yield from self._store.scan(which, limit=NEXT_MAX)

    def _unknown(self, ids: Iterable[int]) -> list[int]:
        return [job_id for job_id in ids if job_id not in self._watched]

    def _chosen(self, jobs: Iterable[Job | None]) -> Iterator[Job]:
        return (job for job in jobs if job is not None and self._task in (None, job.task))

    # What is told

    def _meet(self, jobs: Iterable[Job], *, are_new: bool = False) -> list[Event]:
        """Follow these jobs from now on; what of their life was since this one began."""
        events: list[Event] = []
        for job in jobs:
            if job.id not in self._watched:
                watched = self._over.pop(job.id, None) or Watched((), self._told_of(job, is_new=are_new))
                events += self._tell(job, watched)
        return events

    def _told_of(self, job: Job, *, is_new: bool) -> set[Event]:
        """What is not told of a job that is met: what was before, and an enqueue that is no news any more."""
        return {
            event
            for event in events_of(job)
            if event.at < self._since_at or (event.what == _ENQUEUED and not is_new)
        }

    def _of_watched(self) -> list[Event]:
        events: list[Event] = []
        for job_id, job in list(stored(self._store, list(self._watched))):
            if job is None:
                # Removed, by somebody or by retention.
                del self._watched[job_id]
            elif _now(job) != self._watched[job_id].now:
                events += self._tell(job, self._watched[job_id])
        return events

    def _tell(self, job: Job, watched: Watched) -> list[Event]:
        events = [one for one in events_of(job) if one not in watched.told]
        if not events and watched.now and watched.now[0] is not job.state:
            events = [Event(self._edge.clock.calendar(), job.id, job.queue, job.task, job.state.value)]
        watched.told.update(events)
        watched.now = _now(job)
        self._watched.pop(job.id, None)
        into = self._over if job.ended_at is not None else self._watched
        into[job.id] = watched
        while len(into) > WATCHED_MAX:
            del into[next(iter(into))]
        return events

    def _own_up(self, shown: int) -> None:
        """Say so where more attempts had ended, when they were counted, than were seen to since."""
        self._shown += shown
        missing = _processed(self._counts) - self._processed - self._shown
        if missing > self._owned_up and self._task is None:
            self.remarks.append(f"{missing - self._owned_up} more attempts ended than could be shown")
            self._owned_up = missing


def _processed(counts: dict[str, Counts]) -> int:
    return sum(one.totals.processed for one in counts.values())


def _now(job: Job) -> tuple[object, ...]:
    return job.state, job.delivery, job.attempt, job.ended_at, len(job.history)


# The command


def run(args: argparse.Namespace) -> int:
    """Follow until a signal comes, or time is over; the signal's status, or 0."""
    inbox: SimpleQueue[int] = SimpleQueue()
    with Stops(inbox) as stops:
        status = finding(lambda args: _follow(args, inbox), args)
        return stops.status or status


def _follow(args: argparse.Namespace, inbox: SimpleQueue[int]) -> int:
    printer = Printer(sys.stdout, as_json=args.json)
    every_s = max(EVERY_MIN_S, args.every)
    with opened(args) as edge:
        if args.queue is not None:
            settings_of(edge.store, args.queue)
        end = None if args.for_s is None else edge.clock.interval() + args.for_s
        follower = Follower(edge, queue=args.queue, task=args.task)
        printer.print(follower.last(args.last))
        while True:
            left_s = every_s if end is None else min(every_s, end - edge.clock.interval())
            if left_s <= 0 or _is_stopped(inbox, left_s):
                return 0
            printer.print(follower.look())
            for remark in follower.remarks:
                say(remark, to=sys.stderr)
            follower.remarks.clear()


def _is_stopped(inbox: SimpleQueue[int], within_s: float) -> bool:
    try:
        inbox.get(timeout=within_s)
    except Empty:
        return False
    return True


class Printer:
    """Prints events, a line each: columns that grow, or JSON."""

    def __init__(self, to: TextIO | None, *, as_json: bool) -> None:
        self._to = to
        self._as_json = as_json
        self._widths: list[int] = []

    def print(self, events: Sequence[Event]) -> None:
        """Print these; a terminal's line is cut to its width."""
        if self._as_json:
            for event in events:
                print_json(_json(event), to=self._to)
        elif events:
            lines = [self._line(event) for event in events]
            if self._to is not None and self._to.isatty():
                width = shutil.get_terminal_size().columns
                lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
            say("\n".join(lines), to=self._to)

    def _line(self, event: Event) -> str:
        detail = event.error if event.error is not None else event.worker
        cells = [
            clock_time(event.at),
            str(event.id),
            *(visible(text or "") or NOTHING for text in (event.queue, event.task, event.what)),
            age(event.took_s) or NOTHING,
        ]
        self._widths = [
            max(pair) for pair in zip(self._widths or [0] * len(cells), map(len, cells), strict=True)
        ]
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        return "  ".join((*padded, visible(detail or "") or NOTHING))


def _json(event: Event) -> dict[str, object]:
    told = msgspec.structs.asdict(event)
    del told["is_processed"]
    return {**told, "at": iso_time(event.at)}
