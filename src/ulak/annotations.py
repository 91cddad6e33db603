"""What a function's annotations say, and whether what they name can travel to another process."""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import msgspec.inspect

from ulak.context import Context
from ulak.exact import is_pydantic, type_name

ANY: Any = Any

_ITERABLES = (collections.abc.Iterable, collections.abc.Collection)
_AWAITED = (collections.abc.Coroutine, collections.abc.Awaitable)

# By the name of the class or of one of its bases, so that nothing is imported only to be refused. First what
# a thing is, then what to do.
_BY_ID = "pass its id, and load it in the task"
_STRANGERS: Mapping[str, tuple[str, str]] = {
    "django.db.models.base.Model": ("a Django model", _BY_ID),
    "django.db.models.query.QuerySet": ("a Django query", "pass the ids it finds"),
    "sqlalchemy.orm.decl_api.DeclarativeBase": ("a SQLAlchemy model", _BY_ID),
    "sqlalchemy.orm.session.Session": ("a database session", "open one in the task"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": ("a database session", "open one in the task"),
    "sqlalchemy.engine.base.Connection": ("a database connection", "open one in the task"),
    "sqlite3.Connection": ("a database connection", "open one in the task"),
    "psycopg.Connection": ("a database connection", "open one in the task"),
    "peewee.Model": ("a peewee model", _BY_ID),
    "tortoise.models.Model": ("a Tortoise model", _BY_ID),
    "mongoengine.base.document.BaseDocument": ("a MongoEngine document", _BY_ID),
    "ulak.job.Job": ("a job", "pass its id"),
    "ulak.context.Context": ("a job's context", "leave it out: the worker fills it in"),
    "ulak.task.Task": ("a task", "pass its name"),
    "ulak.app.App": ("an App", "import it in the task"),
    "_io._IOBase": ("an open file", "pass its path, or its content as bytes"),
    "pathlib.PurePath": ("a path", "annotate str, and pass str(path)"),
    "builtins.function": ("a function", "pass a name that the task looks up"),
    "builtins.builtin_function_or_method": ("a function", "pass a name that the task looks up"),
    "builtins.method": ("a method", "pass what it is called on, as data"),
    "functools.partial": ("a function", "pass a name that the task looks up"),
    "builtins.generator": ("a generator", "pass a list"),
    "builtins.coroutine": ("a coroutine", "await it first, and pass its result"),
    "builtins.module": ("a module", "import it in the task"),
    "builtins.type": ("a class", "pass its name"),
    "collections.abc.Callable": ("a function", "pass a name that the task looks up"),
    "collections.abc.Iterator": ("an iterator", "annotate list"),
    "collections.abc.Generator": ("a generator", "annotate list"),
}


def stranger(kind: type) -> tuple[str, str] | None:
    """What a class that cannot travel is, and what to pass in its place; None if nothing is known of it."""
    # A mapped class need not have SQLAlchemy's own base.
    if "__mapper__" in dir(kind):
        return _STRANGERS["sqlalchemy.orm.decl_api.DeclarativeBase"]
    for base in kind.__mro__:
        if (known := _STRANGERS.get(f"{base.__module__}.{base.__qualname__}")) is not None:
            return known
    return None


def function_behind(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call runs in the end: below partials, and behind an object's `__call__`."""
    while isinstance(call, functools.partial):
        call = call.func
    return call if inspect.isroutine(call) or inspect.isclass(call) else type(call).__call__


def is_async(call: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine, which has to be awaited."""
    return inspect.iscoroutinefunction(function_behind(call))


def is_generator(call: Callable[..., Any]) -> bool:
    """Whether a call runs nothing before somebody iterates over what it gives."""
    behind = function_behind(call)
    return inspect.isgeneratorfunction(behind) or inspect.isasyncgenfunction(behind)


class Missing(Exception):
    """An annotation names what is not there, or not yet: in its module, or in one that this imports."""


@contextlib.contextmanager
def _missing() -> Iterator[None]:
    """Raise Missing for what an unresolved name raises."""
    try:
        yield
    except (NameError, AttributeError) as error:
        raise Missing(error.name or str(error)) from None


class Annotations:
    """The annotations of one function, as they can be resolved when they are asked for.

    nearby: names that are in scope where the function is defined but not in its module.
    """

    def __init__(self, function: Callable[..., Any], nearby: Mapping[str, Any] | None) -> None:
        inner: Any = inspect.unwrap(function)
        while isinstance(inner, functools.partial):
            inner = inspect.unwrap(inner.func)
        self._globals: dict[str, Any] = getattr(inner, "__globals__", {})
        self._own = {
            **_enclosed(inner),
            **{kind.__name__: kind for kind in getattr(inner, "__type_params__", ())},
        }
        self._nearby = {**(nearby or {}), **self._own}

    def forget_nearby(self) -> None:
        """Let go of the names around the definition: they are whatever lived there."""
        self._nearby = self._own

    def resolve(self, annotation: object) -> Any:  # noqa: ANN401 - a type, in any of its forms
        """The type that is meant. Raises Missing, and whatever else an annotation in quotes may raise."""
        if annotation is inspect.Parameter.empty:
            return ANY

        def bare() -> None: ...

        bare.__annotations__ = {"it": annotation}
        with _missing():
            return typing.get_type_hints(bare, self._globals, self._nearby, include_extras=True)["it"]


def _enclosed(function: object) -> dict[str, Any]:
    """The variables of the functions around it that it uses."""
    found: dict[str, Any] = {}
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    return found


def means_context(annotation: object) -> bool:
    """Whether an annotation means `Context`: itself, its name, or a union such as `Context | None`."""
    if isinstance(annotation, str):
        named = {part.strip().rpartition(".")[2] for part in annotation.split("|")}
        return "Context" in named and named <= {"Context", "None"}
    if get_origin(annotation) is Annotated:
        return means_context(get_args(annotation)[0])
    return annotation is Context or Context in get_args(annotation)


def of_parameter(hint: object) -> Any:  # noqa: ANN401 - a type, in any of its forms
    """What is stored for an annotation: a list for what can only be iterated over, nothing for `object`."""
    if hint is object or isinstance(hint, TypeVar):
        return ANY
    if hint in _ITERABLES or get_origin(hint) in _ITERABLES:
        return list[(get_args(hint) or (ANY,))[0]]  # type: ignore[misc]
    return hint


def of_return(hint: object) -> Any:  # noqa: ANN401 - a type, in any of its forms
    """What is stored for an annotated result; a coroutine's is what it returns in the end."""
    if get_origin(hint) in _AWAITED:
        hint = get_args(hint)[-1]
    if hint in (typing.NoReturn, typing.Never, None):
        return type(None)
    return of_parameter(hint)


def why_not(hint: object) -> str | None:
    """Why values of an annotated type cannot travel; None if they can. Raises as `resolve` does."""
    if hint is ANY:
        return None
    try:
        with _missing():
            info = msgspec.inspect.type_info(hint)
        for kind in _unknown(info):
            if (known := stranger(kind)) is not None:
                return f"{known[0]} cannot travel; {known[1]}"
            if not is_pydantic(kind):
                return f"{type_name(kind)} cannot travel; pass what it is made of, or an id"
        msgspec.json.Decoder(hint)
    except TypeError as error:
        # What msgspec says of types; it knows no values here.
        said = str(error).partition(" - type ")[0].partition(" (`")[0]
        return f"{said[:1].lower()}{said[1:]}"
    return None


def _unknown(info: object, seen: set[int] | None = None) -> Iterator[type]:
    """Every class in a type that msgspec has no form for."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        if info.cls is not object:  # whatever JSON holds, as Any
            yield info.cls
    elif isinstance(info, tuple):
        for part in info:
            yield from _unknown(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in info.__struct_fields__:
            yield from _unknown(getattr(info, name), seen)


def as_text(hint: object) -> str:
    """A type as an error names it."""
    if isinstance(hint, type) and not get_args(hint):
        return type_name(hint)
    text = str(hint).replace("typing.", "").replace("__main__.", "")
    return text if len(text) <= 60 else f"{text[:59]}…"
