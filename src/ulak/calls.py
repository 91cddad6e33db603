"""Calls of a task with one set of options, and how they get into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack
from weakref import WeakSet

import msgspec

from ulak import foreign
from ulak.arguments import Parameters
from ulak.checks import check_names, check_priority, draft_of, several, wait_s
from ulak.core import flows
from ulak.core.backoff import Backoff
from ulak.core.flows import Flow
from ulak.core.job import Draft, Duplicate, Spec
from ulak.durations import Duration
from ulak.errors import ArgumentError, Closed
from ulak.foreign import no_attribute
from ulak.home import Home, Sent
from ulak.job import Job
from ulak.newjob import JobOptions, NewJob
from ulak.taskqueue import TaskQueue
from ulak.ways import task_way
from ulak.worker.advice import Policy

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(JobOptions, total=False):
    """What may be said of a task's job when it is enqueued: as for any job, and these.

    priority: higher first. queue: another of the App's. connection: with a transaction of the store's own
    database open, which the job then is part of. wait: the longest wait for room (None: 30 s).
    """

    priority: int
    queue: str | None
    connection: object | None
    wait: Duration | None


_OPTIONS = frozenset(TaskOptions.__annotations__)
_OF_TASK = "it is a setting of the task, @app.task({}=...)"
# What is said of a task, and not of one of its jobs.
_SETTINGS = {
    **{name: _OF_TASK.format(name) for name in ("name", "aliases", "give_up_on", "retry_on", "kill_after")},
    "timeout": "how long an attempt may take is a setting of the task, @app.task(timeout=...); how long an "
    "enqueue waits for room is using(wait=...)",
}
_OF_JOB = frozenset(JobOptions.__annotations__) | {"priority"}


class Plan(msgspec.Struct, frozen=True):
    """How calls are enqueued.

    draft: their job, without its payload. spec: what plain jobs share; None if they are not plain.
    """

    queue: str
    draft: Draft
    spec: Spec | None
    timeout_s: float | None = None
    connection: object | None = None

    def or_else(self, other: Plan) -> Plan:
        """This one, with the other's connection and timeout where it has none."""
        timeout_s = other.timeout_s if self.timeout_s is None else self.timeout_s
        connection = other.connection if self.connection is None else self.connection
        return Plan(self.queue, self.draft, self.spec, timeout_s, connection)

    def put(self, handle: TaskQueue, drafts: list[Draft]) -> Flow[list[int]]:
        """Store jobs so."""
        return handle.put(drafts, timeout_s=self.timeout_s, connection=self.connection)


class Call(msgspec.Struct, Generic[R], frozen=True):
    """One call of a task, checked and encoded, for `enqueue_many`."""

    _task: str
    _plan: Plan
    _body: bytes

    def __repr__(self) -> str:
        return f"Call(task={self._task!r}, queue={self._plan.queue!r}, arguments=<{len(self._body)} bytes>)"


class Calls(Generic[P, R]):
    """Enqueues calls of one task with one set of options. Made by `Task.using`; a task is one itself."""

    def __init__(self, task: Core, options: Mapping[str, Any]) -> None:
        self._core = task
        self._options = options
        self._plan = plan = _plan_of(task, options)
        self._priority = plan.draft.priority
        self._encode = task.parameters.encode
        # Found at the first call, which opens the store.
        self._way: Callable[..., Any] = self._find_way
        self._away: Callable[..., Any] = self._afind_way

    @property
    def queue(self) -> str:
        """The queue of the jobs."""
        return self._plan.queue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a call of the task as a job; waits for room, at most 30 s unless `using(wait=)` says so.

        Raises ArgumentError if the function does not take these arguments, or one of them cannot travel;
        QueueFull, Closed, WouldDeadlock: nothing was stored then. StorageUnavailable: whether it was is not
        known, and an idempotency_key makes it safe to call again.
        """
        return self._made(self._way(self._encode(args, kwargs), self._priority))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`."""
        answer = self._away(self._encode(args, kwargs), self._priority)
        return self._made(await answer if iscoroutine(answer) else answer)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call to be enqueued later, by `enqueue_many`. Raises ArgumentError as `enqueue` does."""
        return Call(self._core.name, self._plan, self._encode(args, kwargs))

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Store up to 100,000 calls of this task, all or none, in one step; waits for room for all of them.

        calls: made by `call`, with options of their own where they come from `using(...).call`; all into one
        queue, with one connection and one timeout, if any. Raises as `enqueue`.
        """
        batch = self._batch(calls)
        return self._many(batch, self._run(batch)) if batch.drafts else []

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """As `enqueue_many`."""
        batch = self._batch(calls)
        return self._many(batch, await self._arun(batch)) if batch.drafts else []

    def using(self, **options: Unpack[TaskOptions]) -> Calls[P, R]:
        """The task with these options for its jobs, as in `TaskOptions`; what is not named stays.

        delay or run_at, expires, priority, queue, unique_key, idempotency_key, max_attempts, backoff,
        headers, connection, wait. Raises ArgumentError for one that there is not, or that cannot be.
        """
        for name in options:
            if name in _SETTINGS:
                raise ArgumentError(f"{self._core.name}.using has no option {name!r}: {_SETTINGS[name]}")
        check_names(options, _OPTIONS, f"{self._core.name}.using", foreign=foreign.OPTION)
        if (queue := options.get("queue")) is not None:
            self._core.home.queue_of(queue)
        return Calls(self._core, {**self._options, **options})

    if not TYPE_CHECKING:  # it would have any name

        def __getattr__(self, name: str) -> NoReturn:
            core = self.__dict__.get("_core")
            own = core.name.rpartition(".")[2] if core is not None else ""
            raise no_attribute(self, name, foreign.TASK, own)

    def job(self, job_id: int) -> Job[R]:
        """The job of this id, as one of this task and queue, whether there is one or not."""
        existed = True
        return Job(job_id, self._core.name, self.queue, existed, self._core)

    # How a call gets into the store

    def _draft(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        """A job with these arguments that is not stored yet. Raises ArgumentError."""
        return msgspec.structs.replace(self._plan.draft, payload=self._encode(tuple(args), kwargs))

    def _made(self, job_id: int, plan: Plan | None = None) -> Job[R]:
        core, plan, existed = self._core, plan or self._plan, type(job_id) is Duplicate
        # What is part of a caller's transaction is not stored yet.
        if plan.connection is None:
            core.home.enqueued(plan.queue, core.name, job_id, existed=existed)
        return Job(int(job_id) if existed else job_id, core.name, plan.queue, existed, core)

    def _many(self, batch: Batch, ids: list[int]) -> list[Job[R]]:
        return [self._made(job_id, batch.plan) for job_id in ids]

    def _run(self, batch: Batch) -> list[int]:
        with self._sending(batch) as sent:
            sent.ids = self._core.home.run(batch.queue, Batch(batch.plan, sent.drafts).put)
        return sent.ids

    async def _arun(self, batch: Batch) -> list[int]:
        with self._sending(batch) as sent:
            sent.ids = await self._core.home.arun(batch.queue, Batch(batch.plan, sent.drafts).put)
        return sent.ids

    def _sending(self, batch: Batch) -> AbstractContextManager[Sent]:
        home = self._core.home
        if batch.plan.connection is not None:
            home.queue_of(batch.queue).check_joinable()
        if home.sending is None:
            return nullcontext(Sent(batch.drafts))
        return home.sending(self._core.name, batch.queue, batch.drafts)

    def _find_way(self, body: bytes, priority: int) -> Any:  # noqa: ANN401 - as `Queue.enqueue`
        self._way = self._way_now(self._sent, self._core.home.run, may_block=True)
        return self._way(body, priority)

    def _afind_way(self, body: bytes, priority: int) -> Any:  # noqa: ANN401 - an id, or a coroutine of one
        self._away = self._way_now(self._asent, self._core.home.arun, may_block=False)
        return self._away(body, priority)

    def _way_now(self, sent: Callable[..., Any], go: Callable[..., Any], *, may_block: bool) -> Any:  # noqa: ANN401 - as above
        self._core.found.add(self)
        if self._core.home.sending is not None:
            return sent
        return self._way_on(self._queue_now(), go, may_block=may_block)

    def forget_way(self) -> None:
        """Find it anew: what goes on around an enqueue is another now."""
        self._way, self._away = self._find_way, self._afind_way

    def _sent(self, body: bytes, _: int) -> int:
        return self._run(self._alone(body))[0]

    async def _asent(self, body: bytes, _: int) -> int:
        return (await self._arun(self._alone(body)))[0]

    def _alone(self, body: bytes) -> Batch:
        return Batch(self._plan, [msgspec.structs.replace(self._plan.draft, payload=body)])

    def _queue_now(self) -> TaskQueue:
        if self._plan.connection is None:
            return self._core.home.opened(self._plan.queue)
        queue = self._core.home.queue_of(self._plan.queue)
        queue.check_joinable()
        return queue

    def _way_on(
        self, queue: TaskQueue, go: Callable[[str, Callable[[TaskQueue], Flow[Any]]], Any], *, may_block: bool
    ) -> Callable[..., Any]:
        plan = self._plan

        def general(body: bytes, priority: int, **_: None) -> Any:  # noqa: ANN401 - as `go`
            if queue.is_closed:
                # The App was closed, and is used again: it has other queues now.
                return self._find_way(body, priority) if may_block else self._afind_way(body, priority)
            draft = msgspec.structs.replace(plan.draft, payload=body)
            return go(plan.queue, lambda handle: flows.first(plan.put(handle, [draft])))

        if plan.spec is None:
            return general
        try:
            store, view = queue.edge.store, queue.view
        except Closed:
            # By another thread, since it was opened.
            return general
        return task_way(store, view, plan.spec, general, may_block=may_block)

    def _batch(self, calls: Iterable[Call[R]]) -> Batch:
        name = f"{self._core.name}.enqueue_many"
        given = list(several(calls, f"{name} takes a list of {self._core.name}.call(...)"))
        for number, call in enumerate(given):
            if type(call) is not Call or call._task != self._core.name:  # noqa: SLF001 - the same module
                kind = f"of {call._task}" if type(call) is Call else type(call).__name__  # noqa: SLF001
                raise ArgumentError(f"{name}: calls[{number}] is {kind}, not {self._core.name}.call(...)")
        # What a call does not say is as this says it.
        plans = [call._plan.or_else(self._plan) for call in given] or [self._plan]  # noqa: SLF001
        if len(queues := {plan.queue for plan in plans}) > 1:
            raise ArgumentError(f"{name} stores all or none, in one queue; these are for {sorted(queues)}")
        connections, timeouts = {id(plan.connection) for plan in plans}, {plan.timeout_s for plan in plans}
        for option, given_ones in (("connection", connections), ("wait", timeouts)):
            if len(given_ones) > 1:
                raise ArgumentError(f"{name} stores all or none, so with one {option}=; these differ in it")
        drafts = [msgspec.structs.replace(call._plan.draft, payload=call._body) for call in given]  # noqa: SLF001
        return Batch(plans[0], drafts)


class Batch(msgspec.Struct, frozen=True):
    """Several calls that are stored together. plan: how; what may differ is in the drafts."""

    plan: Plan
    drafts: list[Draft]

    @property
    def queue(self) -> str:
        """The queue of all of them."""
        return self.plan.queue

    def put(self, handle: TaskQueue) -> Flow[list[int]]:
        """Store them."""
        return self.plan.put(handle, self.drafts)


class Core:
    """What there is to know of a task, beside the options of its calls: for these, and for whoever runs it.

    policy: how long to wait before another attempt, where that is a function; backoff is what is stored.
    """

    def __init__(
        self, home: Home, function: Callable[..., Any], name: str, nearby: Mapping[str, Any] | None
    ) -> None:
        self.home = home
        # What has found its way into the store, which is another while enqueues are traced.
        self.found: WeakSet[Calls[..., Any]] = WeakSet()
        self.function = function
        self.name = name
        self.names: tuple[str, ...] = (name,)
        self.parameters = Parameters(function, name, nearby=nearby, options=_OPTIONS)
        self.is_async = self.parameters.is_async
        self.decode = self.parameters.decode_result
        self.queue = ""
        self.max_attempts = 1
        self.backoff = Backoff()
        self.policy: Policy | None = None
        self.give_up_on: tuple[type[BaseException], ...] = ()
        self.retry_on: tuple[type[BaseException], ...] | None = None
        self.timeout_s: float | None = None
        self.kill_after_s: float | None = None


def _plan_of(task: Core, options: Mapping[str, Any]) -> Plan:
    """The options of a job, checked."""
    queue = task.queue if options.get("queue") is None else options["queue"]
    of_job = {name: value for name, value in options.items() if name in _OF_JOB}
    new = NewJob(None, check_priority(of_job.pop("priority", 0)), **of_job)
    draft = draft_of(new, b"", "json", max_attempts=task.max_attempts, task=task.name, backoff=task.backoff)
    connection, timeout_s = options.get("connection"), wait_s(options.get("wait"), name="wait")
    is_plain = connection is None and new.headers is None and draft.run_at is None and not draft.delay_s
    is_plain &= draft.expires_s is None and draft.expires_at is None
    is_plain &= draft.unique_key is None and draft.idempotency_key is None
    spec = Spec(queue, "json", draft.max_attempts, task.name, backoff=draft.backoff) if is_plain else None
    return Plan(queue, draft, spec, timeout_s, connection)
