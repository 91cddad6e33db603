"""What a test is shown of its jobs."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ulak.app import App, all_apps
from ulak.arguments import Misfit
from ulak.capture import said_of
from ulak.core.job import Attempt, Cause
from ulak.core.job import Job as Record
from ulak.core.store import Filter, Store
from ulak.errors import ArgumentError, PayloadError
from ulak.home import Host
from ulak.info import JobInfo
from ulak.local import PRIVATE_URL
from ulak.task import Task, runnable_of

_PAGE = 1_000
_FAILURES = (Cause.ERROR, Cause.NACK, Cause.TIMEOUT, Cause.LOST, Cause.REJECT, Cause.UNDECODABLE)


class EnqueuedJob(JobInfo, frozen=True, kw_only=True):
    """A job of the test, as it was when it was looked at.

    arguments: those of the call, by name, as the task gets them, with its defaults. Empty where the payload
    is not one of a known task.
    """

    arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        return (
            f"EnqueuedJob(id={self.id}, task={self.task!r}, state={self.state.value!r}, next={self.next!r})"
        )


def records(store: Store) -> Iterator[Record]:
    """All records of a store, in order."""
    after = 0
    while page := store.scan(Filter(), after=after, limit=_PAGE):
        yield from page
        after = page[-1].id


def key_of(app: Host) -> str:
    """What Apps on the same store have in common."""
    return f"{PRIVATE_URL}{id(app)}" if app.url == PRIVATE_URL else app.url


def task_called(name: str) -> Task[..., Any]:
    """The task of this name, of any App. Raises ArgumentError, with the nearest name."""
    tasks = {name: task for app in all_apps() for name, task in app.tasks.items()}
    if name not in tasks:
        near = difflib.get_close_matches(name, tasks, 1)
        raise ArgumentError(f"no App has a task {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    return tasks[name]


def arguments_of(record: Record, apps: Iterable[App]) -> Mapping[str, Any]:
    """What the call of a record gives to its task, if one of these Apps knows it."""
    for app in apps:
        with contextlib.suppress(ArgumentError, Misfit, PayloadError):
            task = app.find(record.task or "")
            args, kwargs = runnable_of(task).parameters.decode(record.payload, record.codec)
            bound = signature(task).bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments
    return {}


def signature(task: Task[..., Any]) -> inspect.Signature:
    """What callers of the task give."""
    whole = inspect.signature(task.function)
    filled_in = runnable_of(task).parameters.context_name
    given = [one for one in whole.parameters.values() if one.name != filled_in]
    return whole.replace(parameters=given)


def failed(job: JobInfo) -> list[Attempt]:
    """Its attempts that failed with an error."""
    return [attempt for attempt in job.history if attempt.error is not None and attempt.cause in _FAILURES]


def named(job: JobInfo) -> str:
    """How a line begins that is about it."""
    return f"job {job.id}" if job.task is None else f"job {job.id} ({job.task})"


def told(attempt: Attempt) -> str:
    """How an attempt failed, in a line."""
    assert attempt.error is not None
    return f"attempt {attempt.attempt}: {said_of(attempt.error)}"
