"""What an App does with one queue for its tasks: the flows behind `Task` and `Job`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ulak.capture import said_of
from ulak.checks import Timeout, wait_s
from ulak.core import flows
from ulak.core.flows import Flow, Handling, ask
from ulak.core.job import ENDED, Cause, Draft, State
from ulak.core.job import Job as Record
from ulak.core.store import Cancel, Filter, Store
from ulak.errors import (
    JobCancelled,
    JobEnded,
    JobExpired,
    JobFailed,
    JobForgotten,
    ResultTimeout,
    WouldDeadlock,
)
from ulak.handle import Handle
from ulak.info import JobInfo, info_of
from ulak.local import LocalStore, View, masked, place_of
from ulak.storage.drive import Edge

ENQUEUE_WAIT_S = 30.0
"""How long an enqueue of a task waits for room, unless it says otherwise."""

LIVE_S = 10.0
"""How long ago a worker may have said that it is there, to be counted as alive."""

Names: TypeAlias = Sequence[str] | None

PAGE, PAGES_MAX = 100, 20
"""How many ready jobs are looked at, to count those before one."""

_FAILURES = (Cause.ERROR, Cause.NACK, Cause.TIMEOUT, Cause.LOST)


class TaskQueue(Handle):
    """What an App does with one queue for its tasks: the flows behind `Task` and `Job`."""

    def opened(self) -> LocalStore:
        """The store; opened by the first call."""
        return self._open()

    @property
    def edge(self) -> Edge:
        """What flows run on."""
        return self._edge

    @property
    def view(self) -> View:
        """The queue as this process sees it."""
        return self._local

    def check_joinable(self) -> None:
        """Raises ArgumentError where opening the store would wait for the caller's own transaction."""
        self._check_joinable()

    def put(
        self, drafts: list[Draft], *, timeout_s: float | None = None, connection: object | None = None
    ) -> Flow[list[int]]:
        """Store jobs, all or none. timeout_s: the longest wait for room (None: 30 s; in a handler none)."""
        if timeout_s is None and self._handling() is Handling.NOTHING:
            timeout_s = ENQUEUE_WAIT_S
        try:
            return (yield from self._enqueue(drafts, timeout_s, connection))
        except WouldDeadlock as error:
            why = str(error.args[0]).partition("\n")[0]
        raise WouldDeadlock(f"{why}\n  say for how long: task.using(wait=...), or raise the capacity")

    # Of one job. of: the names of the task that it must be of; None where it was made as one of it just now.

    def known(self, job_id: int, of: Names) -> Flow[Record]:
        """The record as it is. Raises JobForgotten."""
        job = yield from self._job(job_id)
        if job is None:
            raise self._forgotten(job_id)
        _check_task(job, of)
        return job

    def info(self, job_id: int, of: Names) -> Flow[JobInfo]:
        """All that is stored of it. Raises JobForgotten."""
        return (yield from self._infos([(yield from self.known(job_id, of))]))[0]

    def cancel(self, job_id: int, of: Names) -> Flow[bool]:
        """End it as cancelled, or ask its handler to stop; whether that did anything. Raises JobForgotten."""
        if of is not None and (job := (yield from self._job(job_id))) is not None:
            _check_task(job, of)
        return bool((yield from self._amend(job_id, Cancel())))

    def end(self, job_id: int, of: Names, timeout: Timeout) -> Flow[Record]:
        """The record once the job has ended, or as it is when time is over. Raises JobForgotten.

        Raises WouldDeadlock where a handler would wait without a limit.
        """
        if of is not None:
            yield from self.known(job_id, of)
        timeout_s = wait_s(timeout)
        never_waits = timeout_s is None and self._handling() is not Handling.NOTHING
        limit_s = 0.0 if never_waits else timeout_s
        job = yield from flows.wait_end(job_id, timeout_s=limit_s, local=self._local)
        if job is None or job.queue != self.name:
            raise self._forgotten(job_id)
        if never_waits and job.state not in ENDED:
            raise WouldDeadlock(
                f"a handler would wait without a limit for job {job_id} of queue {self.name!r}, which may "
                f"need its worker\n  give a timeout=, or enqueue what comes after it from that job"
            )
        return job

    def outcome(
        self, job_id: int, of: Names, timeout: Timeout, *, hint: Callable[[], str] = str
    ) -> Flow[Record]:
        """The record of a job that has succeeded. Raises a JobEnded, ResultTimeout, and as `end` does.

        hint: what else a time-out may be due to.
        """
        job = yield from self.end(job_id, of, timeout)
        match job.state:
            case State.SUCCEEDED:
                return job
            case State.DEAD:
                raise self._ended(JobFailed, job, "is dead")
            case State.CANCELLED:
                raise self._ended(JobCancelled, job, "was cancelled")
            case State.EXPIRED:
                raise self._ended(JobExpired, job, "expired")
            case _:
                waited = "" if not timeout else f" within {wait_s(timeout):g} s"
                why = f"{_failed_before(job)}{(yield from self.why_open(job))}{hint()}"
                raise ResultTimeout(f"job {job_id} has not ended{waited}: {why}")

    def why_open(self, job: Record) -> Flow[str]:
        """What an open job waits for, in plain words."""
        settings = yield from self._stored_settings()
        now, now_at = self._edge.clock.interval(), self._edge.clock.calendar()
        if job.state is State.LEASED or settings.paused:
            return info_of(job, now=now, now_at=now_at, paused=settings.paused).next
        said = info_of(job, now=now, now_at=now_at, paused=False).next
        if not (yield from self.is_served()):
            return f"{said}, but no live worker serves queue {self.name!r}{self._how_to_serve()}"
        if job.state is not State.READY:
            return said
        return said + (yield from self._after_which(job))

    def _after_which(self, job: Record) -> Flow[str]:
        """How many ready jobs come before a ready one, as far as that can be told."""
        which = Filter(queue=self.name, states=State.READY)
        before = after = 0
        for _ in range(PAGES_MAX):
            others = yield from ask(Store.scan, which, after=after, limit=PAGE)
            before += sum((-one.priority, one.id) < (-job.priority, job.id) for one in others)
            if len(others) < PAGE:
                return (
                    f", after {before:,} other jobs of queue {self.name!r}" if before else ", the next of all"
                )
            after = others[-1].id
        return f", after at least {before:,} other jobs of queue {self.name!r}"

    def is_served(self) -> Flow[bool]:
        """Whether a worker that lives runs tasks of this queue."""
        alive_at = self._edge.clock.calendar() - LIVE_S
        for worker in (yield from ask(Store.workers)):
            if worker.seen_at >= alive_at and worker.serves(self.name):
                return True
        return False

    def _how_to_look(self, job_id: int) -> str:
        if not self._edge.store.capabilities.durable:
            return "job.info()"
        # A URL with a password is not repeated.
        url = f" -u {shlex.quote(self.url)}" if masked(self.url) == self.url else ""
        return f"ulak show {job_id} -v{url}"

    def _how_to_serve(self) -> str:
        if self._edge.store.capabilities.durable:
            return f" of {place_of(self.url)}\n  start one: ulak work module:app"
        return (
            f" of {masked(self.url)}, which only this process sees\n"
            '  work here, "with app.workers():", or put the App on a file: App("sqlite:///jobs.db")'
        )

    def is_left(self, job_id: int) -> Flow[bool]:
        """Whether a ready job was never taken, and no worker that lives serves its queue."""
        job = yield from self._job(job_id)
        if job is None or job.state is not State.READY or job.delivery:
            return False
        paused = (yield from self._stored_settings()).paused
        return not paused and not (yield from self.is_served())

    def _ended(self, kind: type[JobEnded], job: Record, how: str) -> JobEnded:
        failure = next((attempt.error for attempt in reversed(job.history) if attempt.error), None)
        named = "" if job.task is None else f" ({job.task})"
        text = f"job {job.id}{named} {how} after {job.attempt} of {job.max_attempts} attempts"
        if failure is not None:
            text += f": {said_of(failure)}\n  all of it: {self._how_to_look(job.id)}"
        return kind(text, job.id, failure)

    def _forgotten(self, job_id: int) -> JobForgotten:
        text = (
            f"job {job_id} is not stored in queue {self.name!r}: never enqueued there, deleted, or ended so "
            f"long ago that retention removed it"
        )
        if not self._edge.store.capabilities.durable:
            text += (
                "\n  what is in memory is gone once its App is closed; in a file it stays, sqlite:///jobs.db"
            )
        return JobForgotten(text)


def _check_task(job: Record, of: Names) -> None:
    if of is not None and job.task not in of:
        named = "has no task" if job.task is None else f"is one of task {job.task}"
        raise JobForgotten(
            f"job {job.id} of queue {job.queue!r} {named}, not of {of[0]}\n"
            f"  ask for it by its own task; tasks of a queue share its keys, so put the task's name into each"
        )


def _failed_before(job: Record) -> str:
    """What became of the attempt before, if it has failed and counts."""
    last = job.history[-1] if job.history else None
    is_last = last is not None and last.attempt == job.attempt - (job.state is State.LEASED)
    if last is None or last.cause not in _FAILURES or not is_last:
        return ""
    why = f" ({last.cause.value})" if last.error is None else f": {said_of(last.error)}"
    return f"attempt {last.attempt} of {job.max_attempts} failed{why}; "
