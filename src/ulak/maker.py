"""The decorators that make functions tasks, typed so that callers are checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from ulak.context import Context
from ulak.errors import ArgumentError
from ulak.task import CoroutineTask, FunctionTask, Task, TaskSettings

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class _Nobody:
    """What no function expects, so that only one that takes anything can be called with it."""


class TaskMaker:
    """`@app.task`: makes a function a task, or, called with settings, a maker with these."""

    def __init__(self, make: _Make, settings: TaskSettings) -> None:
        self._make = make
        self._settings = settings

    # For type checkers: a Context that comes first is the worker's to give, and a coroutine's result is what
    # it returns in the end. A first parameter of any type could be a Context too, and is not checked.
    @overload
    def __call__(self, task: AnyTask, /) -> AnyTask: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Nobody, ...], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Nobody, ...], R], /) -> FunctionTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(self, **settings: Unpack[TaskSettings]) -> TaskMaker: ...

    # mypy compares an unpacked TypedDict with nothing but itself.
    def __call__(self, function: Any = None, /, **settings: Any) -> Any:  # type: ignore[misc]
        """Make a task of a function. settings: as in `TaskSettings`."""
        merged = cast("TaskSettings", {**self._settings, **settings})
        if function is None:
            return TaskMaker(self._make, merged)
        if not callable(function) and not isinstance(function, staticmethod):
            raise ArgumentError(
                f"app.task takes a function, got {type(function).__name__}; settings go by name: "
                f"@app.task(name='mail.welcome')"
            )
        return self._make(function, merged, _names_around(sys._getframe(1)))  # noqa: SLF001


class _Make(Protocol):
    def __call__(
        self,
        function: Any,  # noqa: ANN401 - it is looked at there
        settings: TaskSettings,
        nearby: Mapping[str, Any] | None,
        /,
    ) -> Task[..., Any]: ...


def _names_around(frame: FrameType) -> Mapping[str, Any] | None:
    """The names in scope where a decorator stands, if that is inside a function or class."""
    return None if frame.f_locals is frame.f_globals else frame.f_locals
