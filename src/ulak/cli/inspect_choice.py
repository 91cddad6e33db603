"""Which jobs a command is for, as its options say it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import msgspec

from ulak.core.job import Attempt, Failure, Job, State
from ulak.core.store import Filter, Store

# Small, since each job comes with its payload, which may have 256 KiB.
_PAGE = 100


class Choice(msgspec.Struct, frozen=True):
    """Jobs that a filter finds, and of them only some: a look at each tells which.

    older_s: enqueued at least so long ago. error: a part of what their last error said, in any case.
    """

    which: Filter
    older_s: float | None = None
    error: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the filter alone says it."""
        return self.older_s is None and self.error is None

    def admits(self, job: Job, now_at: float) -> bool:
        """Whether a job that the filter has found is meant."""
        if self.older_s is not None and job.created_at > now_at - self.older_s:
            return False
        if self.error is None:
            return True
        last = last_failed(job.history)
        text = "" if last is None or last.error is None else error_text(last.error)
        return self.error.casefold() in text.casefold()


def choice_of(args: argparse.Namespace, states: Sequence[str] | None) -> Choice:
    """The jobs that the options name, of these states."""
    return Choice(Filter(queue=args.queue, states=states, task=args.task), args.older, args.error)


def chosen(store: Store, choice: Choice, now_at: float, *, after: int = 0) -> Iterator[Job]:
    """These jobs with id > `after`, by id; few at a time in memory."""
    while True:
        jobs = store.scan(choice.which, after=after, limit=_PAGE)
        for job in jobs:
            if choice.admits(job, now_at):
                yield job
        if len(jobs) < _PAGE:
            return
        after = jobs[-1].id


def stored(store: Store, ids: Sequence[int]) -> Iterator[tuple[int, Job | None]]:
    """Each id with its job, if that is stored; few at a time in memory."""
    for start in range(0, len(ids), _PAGE):
        part = ids[start : start + _PAGE]
        yield from zip(part, store.get(part), strict=True)


def last_failed(history: Sequence[Attempt]) -> Attempt | None:
    """The last attempt that has an error, if any."""
    return next((attempt for attempt in reversed(history) if attempt.error is not None), None)


def error_text(error: Failure) -> str:
    """An error on one line: its type and what it said, as far as it has either."""
    return ": ".join(part for part in (error.type, error.text) if part)


def is_given(args: argparse.Namespace) -> bool:
    """Whether the options name jobs by what they are."""
    return any(value is not None for value in (args.state, args.task, args.older, args.error))


OPEN = (State.READY, State.SCHEDULED, State.LEASED, State.HELD)
