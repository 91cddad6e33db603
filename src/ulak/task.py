"""A task: a function whose calls are enqueued as jobs, checked and typed where they are made."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import iscoroutine
from pathlib import PurePath
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast

import msgspec

from ulak.annotations import is_generator
from ulak.arguments import Parameters
from ulak.checks import check_attempts, check_names, check_priority, draft_of, several, wait_s
from ulak.context import Context, current_job
from ulak.core import flows
from ulak.core.backoff import Backoff
from ulak.core.flows import Flow
from ulak.core.job import Draft, Duplicate, Spec
from ulak.durations import seconds
from ulak.errors import ArgumentError
from ulak.job import Home, Job, TaskQueue
from ulak.names import TASK_NAME, check_queue_name, check_task_name
from ulak.newjob import JobOptions, NewJob
from ulak.storage.drive import Edge, arun, run
from ulak.ways import task_way
from ulak.worker.advice import Policy
from ulak.worker.tasks import ErrorTypes

_log = logging.getLogger("ulak")

P = ParamSpec("P")
R = TypeVar("R")


class TaskSettings(TypedDict, total=False):
    """What may be said of a task.

    name: else its file's stem and its own name. aliases: earlier names, whose jobs it runs too.
    queue: else the App's first. priority, max_attempts, expires: of its jobs, unless they say otherwise.
    backoff: a Backoff, or a function of (attempt, error) that answers with seconds, called where it failed.
    give_up_on: exceptions after which no attempt could succeed. retry_on: the only ones to try again after.
    timeout: how long an attempt may take; a `def` task has to look at its Context for it. kill_after: how
    long after it was asked to end (by its timeout, a cancel, a lost lease) its process is killed; for
    `workers(executor="process")`, where it is 1 s after a timeout if it is not given.
    """

    name: str | None
    aliases: Iterable[str]
    queue: str | None
    priority: int
    max_attempts: int | None
    backoff: Backoff | Policy | None
    give_up_on: ErrorTypes
    retry_on: ErrorTypes | None
    timeout: float | timedelta | None
    kill_after: float | timedelta | None
    expires: float | timedelta | datetime | None


class TaskOptions(JobOptions, total=False):
    """What may be said of a task's job when it is enqueued: as for any job, and these.

    priority: higher first. queue: another of the App's. connection: with a transaction of the store's own
    database open, which the job then is part of. timeout: the longest wait for room (None: 30 s).
    """

    priority: int
    queue: str | None
    connection: object | None
    timeout: float | timedelta | None


_SETTINGS = frozenset(TaskSettings.__annotations__)
_OPTIONS = frozenset(TaskOptions.__annotations__)
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
        """Store a call of the task as a job; waits for room, at most 30 s unless `using(timeout=)` says so.

        Raises ArgumentError if the function does not take these arguments, or one of them cannot travel;
        QueueFull, Closed, WouldDeadlock. Nothing was stored then.
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
        queue. Raises as `enqueue`.
        """
        queue, drafts = self._batch(calls)
        return self._many(queue, run(queue.edge, self._put(queue, drafts))) if drafts else []

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """As `enqueue_many`."""
        queue, drafts = self._batch(calls)
        return self._many(queue, await arun(queue.edge, self._put(queue, drafts))) if drafts else []

    def using(self, **options: Unpack[TaskOptions]) -> Calls[P, R]:
        """The task with these options for its jobs, as in `TaskOptions`; what is not named stays.

        delay or run_at, expires, priority, queue, unique_key, idempotency_key, max_attempts, backoff,
        headers, connection, timeout. Raises ArgumentError for one that there is not, or that cannot be.
        """
        check_names(options, _OPTIONS, f"{self._core.name}.using")
        if (queue := options.get("queue")) is not None:
            self._core.home.queue_of(queue)
        return Calls(self._core, {**self._options, **options})

    def draft(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        """A job with these arguments that is not stored yet. Raises ArgumentError."""
        return msgspec.structs.replace(self._plan.draft, payload=self._encode(tuple(args), kwargs))

    def job(self, job_id: int) -> Job[R]:
        """The job of this id, as one of this task and queue, whether there is one or not."""
        core, existed = self._core, True
        return Job(job_id, core.name, self.queue, existed, core.home, core.decode)

    # How a call gets into the store

    def _made(self, job_id: int, queue: str | None = None) -> Job[R]:
        core, queue, existed = self._core, queue or self._plan.queue, type(job_id) is Duplicate
        # What is part of a caller's transaction is not stored yet.
        if self._plan.connection is None:
            core.home.enqueued(queue, core.name, job_id, existed=existed)
        return Job(int(job_id) if existed else job_id, core.name, queue, existed, core.home, core.decode)

    def _many(self, queue: TaskQueue, ids: list[int]) -> list[Job[R]]:
        return [self._made(job_id, queue.name) for job_id in ids]

    def _find_way(self, body: bytes, priority: int) -> Any:  # noqa: ANN401 - as `Queue.enqueue`
        queue = self._queue_now()
        self._way = self._way_on(queue, run, may_block=True)
        return self._way(body, priority)

    def _afind_way(self, body: bytes, priority: int) -> Any:  # noqa: ANN401 - an id, or a coroutine of one
        queue = self._queue_now()
        self._away = self._way_on(queue, arun, may_block=False)
        return self._away(body, priority)

    def _queue_now(self) -> TaskQueue:
        queue = self._core.home.queue_of(self._plan.queue)
        if self._plan.connection is not None:
            queue.check_joinable()
        return queue

    def _way_on(
        self, queue: TaskQueue, go: Callable[[Edge, Flow[Any]], Any], *, may_block: bool
    ) -> Callable[..., Any]:
        plan = self._plan

        def general(body: bytes, priority: int, **_: None) -> Any:  # noqa: ANN401 - as `go`
            if queue.is_closed:
                # The App was closed, and is used again: it has other queues now.
                return self._find_way(body, priority) if may_block else self._afind_way(body, priority)
            draft = msgspec.structs.replace(plan.draft, payload=body)
            return go(queue.edge, flows.first(self._put(queue, [draft])))

        if plan.spec is None:
            return general
        return task_way(queue.opened().edge.store, queue.view, plan.spec, general, may_block=may_block)

    def _put(self, queue: TaskQueue, drafts: list[Draft]) -> Flow[list[int]]:
        plan = self._plan
        return queue.put(drafts, timeout_s=plan.timeout_s, connection=plan.connection)

    def _batch(self, calls: Iterable[Call[R]]) -> tuple[TaskQueue, list[Draft]]:
        name = f"{self._core.name}.enqueue_many"
        given = list(several(calls, f"{name} takes a list of {self._core.name}.call(...)"))
        for number, call in enumerate(given):
            if type(call) is not Call or call._task != self._core.name:  # noqa: SLF001 - the same module
                kind = f"of {call._task}" if type(call) is Call else type(call).__name__  # noqa: SLF001
                raise ArgumentError(f"{name}: calls[{number}] is {kind}, not {self._core.name}.call(...)")
        queues = {call._plan.queue for call in given} or {self.queue}  # noqa: SLF001
        if len(queues) > 1:
            raise ArgumentError(f"{name} stores all or none, in one queue; these are for {sorted(queues)}")
        drafts = [msgspec.structs.replace(call._plan.draft, payload=call._body) for call in given]  # noqa: SLF001
        queue = self._core.home.queue_of(queues.pop())
        if self._plan.connection is not None:
            queue.check_joinable()
        return queue, drafts


class Core:
    """What there is to know of a task, beside its options for one call."""

    def __init__(
        self, home: Home, function: Callable[..., Any], name: str, nearby: Mapping[str, Any] | None
    ) -> None:
        self.home = home
        self.function = function
        self.name = name
        self.parameters = Parameters(function, name, nearby=nearby)
        self.decode = self.parameters.decode_result
        self.queue = ""
        self.max_attempts = 1
        self.backoff = Backoff()


class Task(Calls[P, R]):
    """A function whose calls can be enqueued as jobs; it can still be called. Made by `App.task`.

    function: itself. policy: how long to wait before another attempt, where that is a function; backoff is
    what is stored. timeout_s: how long an attempt may take. kill_after_s: how long its process lives after
    it was asked to end.
    """

    __name__: str

    def __init__(
        self,
        home: Home,
        function: Callable[..., Any],
        settings: TaskSettings,
        *,
        queue: str,
        max_attempts: int,
        backoff: Backoff,
        nearby: Mapping[str, Any] | None = None,
    ) -> None:
        check_names(settings, _SETTINGS, "app.task")
        name = settings.get("name")
        self.name = name_of(function) if name is None else check_task_name(name)
        self.aliases = _aliases_of(self.name, settings.get("aliases", ()))
        core = Core(home, check_function(function, self.name), self.name, nearby)
        own = settings.get("backoff")
        self.policy = None if own is None or isinstance(own, Backoff) else _check_policy(own, self.name)
        core.backoff = own if isinstance(own, Backoff) else backoff
        own_attempts, own_queue = settings.get("max_attempts"), settings.get("queue")
        core.max_attempts = check_attempts(max_attempts if own_attempts is None else own_attempts)
        core.queue = check_queue_name(queue if own_queue is None else own_queue)
        self.give_up_on = _check_errors(settings.get("give_up_on", ()), self.name, "give_up_on")
        only = settings.get("retry_on")
        self.retry_on = None if only is None else _check_errors(only, self.name, "retry_on")
        limit = settings.get("timeout")
        self.timeout_s = None if limit is None else seconds(limit, name="timeout", allow_zero=False)
        grace = settings.get("kill_after")
        self.kill_after_s = None if grace is None else seconds(grace, name="kill_after")
        self.parameters = core.parameters
        self.is_async = core.parameters.is_async
        self.max_attempts, self.backoff = core.max_attempts, core.backoff
        options = {"priority": settings.get("priority", 0), "expires": settings.get("expires")}
        super().__init__(core, options)
        # Not its attributes, which could be called as the task's are.
        functools.update_wrapper(self, core.function, updated=())
        if self.timeout_s is not None and not self.is_async and self.kill_after_s is None:
            _log.info(
                "task %s: a thread cannot be stopped, so its timeout of %g s counts when it returns; it can "
                "look at Context.cancelled meanwhile, be async def, or run in a process: "
                "workers(executor='process')",
                self.name,
                self.timeout_s,
            )

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._core.function

    @property
    def app(self) -> Home:
        """The App it belongs to."""
        return self._core.home

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - see the two kinds of task
        """Call the function, here and now. Its Context is that of the job that is running, if one is."""
        if self.parameters.context_name is not None:
            return self._core.function(*self._with_context(args, kwargs), **kwargs)
        return self._core.function(*args, **kwargs)

    def _with_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        name, context = self.parameters.context_name, current_job()
        assert name is not None
        if context is not None and context.ended:
            context = None
        if not self.parameters.context_is_first:
            if context is not None:
                kwargs.setdefault(name, context)
            return args
        if args and isinstance(args[0], Context):
            return args
        if context is None:
            raise ArgumentError(
                f"{self.name} needs the job's Context, and no job is running here\n"
                f"  enqueue it, or call {self.__name__}.function({name}, ...) with a Context of yours"
            )
        return (context, *args)

    def __reduce__(self) -> str:
        # As a function is: by its name in its module.
        return self._core.function.__qualname__

    def __repr__(self) -> str:
        return f"<Task {self.parameters.text}>"


class FunctionTask(Task[P, R]):
    """A task whose function is a `def`; its jobs run in threads."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now. Its Context is that of the job that is running, if one is."""
        result: R = super().__call__(*args, **kwargs)
        return result


class CoroutineTask(Task[P, R]):
    """A task whose function is an `async def`; its jobs run on an event loop."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function: a coroutine, to be awaited here. Its Context as for a `def`."""
        coroutine: Coroutine[Any, Any, R] = super().__call__(*args, **kwargs)
        return coroutine


def _plan_of(task: Core, options: Mapping[str, Any]) -> Plan:
    """The options of a job, checked."""
    queue = task.queue if options.get("queue") is None else options["queue"]
    of_job = {name: value for name, value in options.items() if name in _OF_JOB}
    new = NewJob(None, check_priority(of_job.pop("priority", 0)), **of_job)
    draft = draft_of(new, b"", "json", max_attempts=task.max_attempts, task=task.name, backoff=task.backoff)
    connection, timeout_s = options.get("connection"), wait_s(options.get("timeout"))
    is_plain = connection is None and new.headers is None and draft.run_at is None and not draft.delay_s
    is_plain &= draft.expires_s is None and draft.expires_at is None
    is_plain &= draft.unique_key is None and draft.idempotency_key is None
    spec = Spec(queue, "json", draft.max_attempts, task.name, backoff=draft.backoff) if is_plain else None
    return Plan(queue, draft, spec, timeout_s, connection)


def name_of(function: Callable[..., Any]) -> str:
    """A task's name where none is given: its file's stem and its own, `hello.welcome`.

    The same whether the file is imported or run as a program. Raises ArgumentError if that is no name.
    """
    own = getattr(function, "__qualname__", type(function).__name__).replace("<locals>.", "")
    name = f"{_stem_of(getattr(function, '__module__', None))}.{own}"
    if not TASK_NAME.fullmatch(name):
        raise ArgumentError(
            f"the function's own name, {name[:80]!r}, does not match {TASK_NAME.pattern}, as a task's must\n"
            f"  give it one that stays: @app.task(name='mail.welcome')"
        )
    return name


def _stem_of(module: str | None) -> str:
    if module not in {"__main__", None}:
        return str(module).rpartition(".")[2]
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != "__main__":
        # `python -m hello`, `python -m package`
        parts = spec.name.split(".")
    else:
        # `python hello.py`, `python folder`; anything else has no name.
        parts = list(PurePath(file or "main").with_suffix("").parts)
    named = [part for part in parts if part != "__main__"]
    return named[-1] if named else "main"


def check_function(function: object, name: str) -> Callable[..., Any]:
    """The function that a task is to run; else ArgumentError."""
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, Task):
        raise ArgumentError(f"{name} is a task already; decorate the function once")
    if not callable(function) or isinstance(function, type):
        raise ArgumentError(f"a task is a def or async def, got {type(function).__name__}")
    if is_generator(function):
        raise ArgumentError(f"task {name} yields, so its calls would never run; make it an ordinary def")
    inner = inspect.unwrap(function)
    is_inside_class = "." in getattr(inner, "__qualname__", "").rpartition("<locals>.")[2]
    first = next(iter(getattr(getattr(inner, "__code__", None), "co_varnames", ())), None)
    if is_inside_class and first in ("self", "cls") and not inspect.ismethod(inner):
        raise ArgumentError(
            f"task {name} is a method, and its {first!r} cannot travel\n"
            f"  make it a function that gets what it needs as arguments"
        )
    return function


def _aliases_of(name: str, aliases: object) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise ArgumentError(f"task {name}: aliases is a list of names, got {type(aliases).__name__}")
    return tuple(check_task_name(alias) for alias in cast("Iterable[object]", aliases))


def _check_policy(policy: object, name: str) -> Policy:
    if not callable(policy) or isinstance(policy, type):
        raise ArgumentError(
            f"task {name}: backoff is a Backoff, or a function of (attempt, error) that answers with "
            f"seconds; got {type(policy).__name__}"
        )
    return policy


def _check_errors(errors: object, name: str, option: str) -> tuple[type[BaseException], ...]:
    given = errors if isinstance(errors, tuple) else (errors,)
    for kind in cast("tuple[object, ...]", given):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            shown = kind.__name__ if isinstance(kind, type) else type(kind).__name__
            raise ArgumentError(f"task {name}: {option} is a tuple of exception classes, and has {shown}")
    return cast("tuple[type[BaseException], ...]", given)
