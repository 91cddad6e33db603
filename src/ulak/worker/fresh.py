"""Each job in a context of its own, so that what it sets in context variables is gone when it ends."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Coroutine, Generator
from decimal import Context as Decimals
from typing import Any, TypeVar

R = TypeVar("R")


def of_threads() -> contextvars.Context:
    """The caller's context, as far as other threads should share it."""
    base = contextvars.Context()
    for variable, value in contextvars.copy_context().items():
        # It is not the value that is set for one context, but changed in place, for all who share it.
        if type(value) is not Decimals:
            base.run(variable.set, value)
    return base


@types.coroutine
def awaited_in(context: contextvars.Context, coroutine: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """Await a coroutine in this context, which costs less than a task of its own for it."""
    step, value = coroutine.send, None
    try:
        while True:
            wanted = context.run(step, value)
            try:
                step, value = coroutine.send, (yield wanted)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the coroutine is to see it
                step, value = coroutine.throw, error
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
