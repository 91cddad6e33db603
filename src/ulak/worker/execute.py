"""Calls a handler for one delivery, and says what became of it. Nothing a handler raises gets past here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_type_hints

import msgspec

from ulak.capture import capture
from ulak.context import Cancel, Context, Reject, Retry, Snooze, running
from ulak.core import rules
from ulak.core.job import Cancelled, Cause, Dead, Done, Failure, Lease, Verdict
from ulak.errors import ArgumentError, PayloadError


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A failed attempt; the failure step decides what follows. delay_s: what the handler asked for."""

    cause: Cause
    error: Failure
    delay_s: float | None = None

    def verdict(self, lease: Lease, draw: float) -> Verdict:
        """What the failure step makes of it."""
        return rules.failure(lease, self.cause, draw=draw, delay_s=self.delay_s, error=self.error)


Ending: TypeAlias = Verdict | Failed


class Handler:
    """A user's callable, looked at once: whether it is `async def` and asks for the job's `Context`.

    Raises ArgumentError if it cannot be called with a payload.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        if not callable(call):
            raise ArgumentError(f"a handler must be callable, got {type(call).__name__}")
        self._call = call
        self.is_async = _is_async(call)
        self._context_name = _context_parameter(call)
        _check_signature(call, self._context_name)

    def _invoke(self, lease: Lease, context: Context) -> Any:  # noqa: ANN401 - whatever the user's callable returns
        named = {} if self._context_name is None else {self._context_name: context}
        return self._call(lease.payload, **named)

    def run(self, lease: Lease, context: Context) -> Ending:
        """Call a `def` handler in this thread."""
        with running(context):
            try:
                result = self._invoke(lease, context)
                if inspect.isawaitable(result):
                    return _not_awaited(result)
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything; only the pool stops workers
                return ending_of(error)
        return Done()

    async def arun(self, lease: Lease, context: Context) -> Ending:
        """Await an `async def` handler in this task."""
        with running(context):
            try:
                await self._invoke(lease, context)
            except BaseException as error:  # noqa: BLE001 - as above; a cancelled task is asked to stop by its pool
                return ending_of(error)
        return Done()


def ending_of(error: BaseException) -> Ending:
    """What a raised exception means for the job."""
    match error:
        case Retry():
            return Failed(Cause.NACK, capture(error), error.after_s)
        case Snooze():
            return rules.give_back(Cause.SNOOZE, delay_s=error.delay_s)
        case Reject():
            return Dead(cause=Cause.REJECT, error=capture(error))
        case Cancel():
            return Cancelled(error=capture(error))
        case PayloadError() if _is_ours(error):
            return Dead(cause=Cause.UNDECODABLE, error=capture(error))
        case _:
            return Failed(Cause.ERROR, capture(error))


def _is_ours(error: PayloadError) -> bool:
    """Whether the job's own payload could not be decoded; a handler may raise the same error by itself."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is Lease.payload.fget.__code__:  # type: ignore[attr-defined]
            return True
        frame = frame.tb_next
    return False


def _not_awaited(result: object) -> Failed:
    if inspect.iscoroutine(result):
        result.close()
    text = f"the handler returned {type(result).__name__}, which nobody awaits; make the handler async def"
    return Failed(Cause.ERROR, Failure(type="TypeError", text=text))


def _is_async(call: Callable[..., Any]) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


def _context_parameter(call: Callable[..., Any]) -> str | None:
    """The name of the parameter annotated `Context`, if there is one."""
    plain = call
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not inspect.isroutine(plain):
        plain = type(plain).__call__
    try:
        hints = get_type_hints(plain)
    except Exception:  # noqa: BLE001 - hints may name what exists for type checkers only
        hints = getattr(plain, "__annotations__", {})
    for name, hint in hints.items():
        if name != "return" and (hint is Context or hint in ("Context", "ulak.Context")):
            return name
    return None


def _check_signature(call: Callable[..., Any], context_name: str | None) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # a builtin without a signature: only the call can tell
    named = {} if context_name is None else {context_name: None}
    try:
        signature.bind(None, **named)
    except TypeError as error:
        raise ArgumentError(
            f"a handler is called as handler(payload), but this one has {signature}\n  {error}"
        ) from None
