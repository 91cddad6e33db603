"""How an operation on a server is written: a generator that asks for steps, and for calls that may block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from ulak.storage.group import Merge
from ulak.storage.postgres.asks import Scene, Step
from ulak.storage.postgres.lanes import Run, Undo

P = ParamSpec("P")
R = TypeVar("R")


class Block(msgspec.Struct, frozen=True, gc=False):
    """Ask for a call that may block its thread."""

    call: Callable[[], Any]


Plan: TypeAlias = Generator[Run | Block, Any, R]


def step(
    make: Callable[[Scene], Step[R]],
    *,
    merge: Merge | None = None,
    undo: Undo | None = None,
    repeats: bool = False,
) -> Plan[R]:
    """What this step returns; see `Run`."""
    answer: R = yield Run(make, merge, undo, repeats)
    return answer


def look(make: Callable[[Scene], Step[R]]) -> Plan[R]:
    """The same of a step that may be run twice, since it changes nothing, or nothing again."""
    return step(make, repeats=True)


class Driven(Protocol):
    """Runs plans."""

    def drive(self, plan: Plan[R]) -> R:
        """Run a plan to its end in this thread."""


D = TypeVar("D", bound=Driven)


def planned(operation: Callable[Concatenate[D, P], Plan[R]]) -> Callable[Concatenate[D, P], R]:
    """An operation that is written as a plan."""

    def run(self: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.drive(operation(self, *args, **kwargs))

    functools.update_wrapper(run, operation)
    run.plan = operation  # type: ignore[attr-defined]
    return run
