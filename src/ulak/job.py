"""A job as whoever enqueued it holds it: how it is, what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ulak.core.flows import Flow
from ulak.core.job import Job as Record
from ulak.core.job import State
from ulak.durations import Duration
from ulak.errors import PayloadError
from ulak.home import Home
from ulak.info import JobInfo
from ulak.taskqueue import TaskQueue

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Kind(Protocol):
    """What the jobs of one task have in common."""

    @property
    def home(self) -> Home:
        """Where they are stored."""

    @property
    def names(self) -> Sequence[str]:
        """What their task is called, and was."""

    @property
    def decode(self) -> Callable[[bytes | None], Any]:
        """Makes a result of what was stored. Raises PayloadError."""


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """One call of a task that was enqueued. `await job` and `job.result()` give what the function returned.

    existed: a job stood for its key already, and nothing new was stored: this is that job.
    """

    id: int
    task: str
    queue: str
    existed: bool
    _kind: Kind

    @property
    def _of(self) -> Sequence[str] | None:
        """What its task may be called, if it may be another's: an id or a key could stand for any job."""
        return self._kind.names if self.existed else None

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for its end, and return what the function returned.

        timeout: the longest wait, seconds, a timedelta or text such as "5m" (None: for ever).
        Raises JobFailed, JobCancelled or JobExpired if it ended so, ResultTimeout if it has not ended in
        time, JobForgotten if it is not stored any more, PayloadError if what is stored is not what the
        function returns now, StorageUnavailable, Closed if the App is closed meanwhile. In a handler without
        a timeout, WouldDeadlock.
        """
        return self._decoded(
            self._run(lambda q: q.outcome(self.id, self._of, timeout, hint=_if_a_loop_waits))
        )

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """As `result`."""
        return self._decoded(await self._arun(lambda q: q.outcome(self.id, self._of, timeout)))

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.aresult().__await__()

    def wait(self, timeout: Duration | None = None) -> State:
        """Wait for its end; its state then, or when time is over.

        timeout: as of `result`. Raises JobForgotten, StorageUnavailable, Closed and WouldDeadlock as that.
        """
        return self._run(lambda q: q.end(self.id, self._of, timeout)).state

    async def await_end(self, timeout: Duration | None = None) -> State:
        """As `wait`."""
        return (await self._arun(lambda q: q.end(self.id, self._of, timeout))).state

    def status(self) -> State:
        """Its state now. Raises JobForgotten."""
        return self._run(lambda q: q.known(self.id, self._of)).state

    async def astatus(self) -> State:
        """As `status`."""
        return (await self._arun(lambda q: q.known(self.id, self._of))).state

    def info(self) -> JobInfo:
        """All that is stored of it now: payload, history, what happens next. Raises JobForgotten."""
        return self._run(lambda q: q.info(self.id, self._of))

    def refresh(self) -> JobInfo:
        """As `info`: the job itself holds nothing that could be out of date."""
        return self.info()

    async def ainfo(self) -> JobInfo:
        """As `info`."""
        return await self._arun(lambda q: q.info(self.id, self._of))

    def cancel(self) -> bool:
        """End it as cancelled, or ask its handler to stop. False if it has ended already, or is unknown."""
        return self._run(lambda q: q.cancel(self.id, self._of))

    async def acancel(self) -> bool:
        """As `cancel`."""
        return await self._arun(lambda q: q.cancel(self.id, self._of))

    def _run(self, what: Callable[[TaskQueue], Flow[T]]) -> T:
        return self._kind.home.run(self.queue, what)

    async def _arun(self, what: Callable[[TaskQueue], Flow[T]]) -> T:
        return await self._kind.home.arun(self.queue, what)

    def _decoded(self, job: Record) -> R_co:
        decode: Callable[[bytes | None], R_co] = self._kind.decode
        try:
            return decode(job.result)
        except PayloadError as error:
            text = f"job {self.id} ({self.task}): {error.args[0]}\n  see job.info().result for what is stored"
        raise PayloadError(text)

    def __repr__(self) -> str:
        return f"Job(id={self.id}, task={self.task!r}, queue={self.queue!r})"


def _if_a_loop_waits() -> str:
    """What to say to whoever waits in the thread of an event loop that is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return "\n  meanwhile nothing ran on the event loop of this thread, perhaps this job too: write await job"
