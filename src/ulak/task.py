"""A task: a function whose calls are enqueued as jobs, checked and typed where they are made."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from ulak import foreign
from ulak.annotations import is_generator
from ulak.calls import Calls, Core, TaskOptions
from ulak.checks import check_attempts, check_names
from ulak.context import Context, current_job
from ulak.core.backoff import Backoff
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError
from ulak.home import Home, Host
from ulak.names import TASK_NAME, check_queue_name, check_task_name
from ulak.worker.advice import Policy
from ulak.worker.tasks import ErrorTypes, Runnable

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
    `workers(executor="process")`, where it is 1 s after a timeout if it is not given. Both, and expires,
    are seconds, a timedelta or text such as "5m"; expires may be an aware datetime.
    """

    name: str | None
    aliases: Iterable[str]
    queue: str | None
    priority: int
    max_attempts: int | None
    backoff: Backoff | Policy | None
    give_up_on: ErrorTypes
    retry_on: ErrorTypes | None
    timeout: Duration | None
    kill_after: Duration | None
    expires: Duration | datetime | None


_SETTINGS = frozenset(TaskSettings.__annotations__)
_OPTIONS = frozenset(TaskOptions.__annotations__)


class Task(Calls[P, R]):
    """A function whose calls can be enqueued as jobs; it can still be called. Made by `App.task`.

    function: itself. backoff: what is stored with its jobs, also where a function is asked first. timeout_s:
    how long an attempt may take. kill_after_s: how long its process lives after it was asked to end.
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
        for option in settings.keys() & _OPTIONS - _SETTINGS:
            raise ArgumentError(f"app.task has no option {option!r}: it is a job's, task.using({option}=...)")
        check_names(settings, _SETTINGS, "app.task", foreign=foreign.SETTING)
        name = settings.get("name")
        name = name_of(function) if name is None else check_task_name(name)
        core = Core(home, check_function(function, name), name, nearby)
        _read(settings, core, queue=queue, max_attempts=max_attempts, backoff=backoff)
        self.name, self.aliases = name, _aliases_of(name, settings.get("aliases", ()))
        core.names = name, *self.aliases
        self.max_attempts, self.backoff = core.max_attempts, core.backoff
        self.give_up_on, self.retry_on = core.give_up_on, core.retry_on
        self.timeout_s, self.kill_after_s = core.timeout_s, core.kill_after_s
        self.is_async = core.is_async
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

    def forget_ways(self) -> None:
        """Have all that enqueues calls of it find anew how they get into the store."""
        for calls in list(self._core.found):
            calls.forget_way()

    @property
    def app(self) -> Host:
        """The App it belongs to."""
        return self._core.home.app

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - see the two kinds of task
        """Call the function, here and now. Its Context is that of the job that is running, if one is."""
        if self._core.parameters.context_name is not None:
            return self._core.function(*self._with_context(args, kwargs), **kwargs)
        return self._core.function(*args, **kwargs)

    def _with_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        name, context = self._core.parameters.context_name, current_job()
        assert name is not None
        if context is not None and context.ended:
            context = None
        if not self._core.parameters.context_is_first:
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
        return f"<Task {self._core.parameters.text}>"


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


def runnable_of(task: Task[..., Any]) -> Runnable:
    """A task, as whoever runs it needs it."""
    return task._core  # noqa: SLF001 - the same module


def _read(settings: TaskSettings, core: Core, *, queue: str, max_attempts: int, backoff: Backoff) -> None:
    """Check the settings of a task, and take them over; the others are where it has none of its own."""
    own, attempts, own_queue = settings.get("backoff"), settings.get("max_attempts"), settings.get("queue")
    core.policy = None if own is None or isinstance(own, Backoff) else _check_policy(own, core.name)
    core.backoff = own if isinstance(own, Backoff) else backoff
    core.max_attempts = check_attempts(max_attempts if attempts is None else attempts)
    core.queue = check_queue_name(queue if own_queue is None else own_queue)
    core.give_up_on = _check_errors(settings.get("give_up_on", ()), core.name, "give_up_on")
    only = settings.get("retry_on")
    core.retry_on = None if only is None else _check_errors(only, core.name, "retry_on")
    limit, grace = settings.get("timeout"), settings.get("kill_after")
    core.timeout_s = None if limit is None else seconds(limit, name="timeout", allow_zero=False)
    core.kill_after_s = None if grace is None else seconds(grace, name="kill_after")


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
