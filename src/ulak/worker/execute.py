"""Calls a handler for one delivery, and says what became of it. Nothing a handler raises gets past here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, get_type_hints

import msgspec

from ulak.annotations import function_behind, is_async, is_generator, means_context
from ulak.capture import capture
from ulak.context import Cancel, Context, Reject, Retry, Snooze, set_current
from ulak.core import rules
from ulak.core.job import Cancelled, Cause, Dead, Done, Failure, Lease, Verdict
from ulak.core.store import Tasks
from ulak.durations import seconds
from ulak.errors import ArgumentError, PayloadError
from ulak.worker.pulse import Pulse


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A failed attempt; the failure step decides what follows. delay_s: what the handler asked for.

    cause LOST: what ran it has died with it.
    """

    cause: Cause
    error: Failure
    delay_s: float | None = None

    def verdict(self, lease: Lease, draw: float) -> Verdict:
        """What the failure step makes of it."""
        return rules.failure(lease, self.cause, draw=draw, delay_s=self.delay_s, error=self.error)


Ending: TypeAlias = Verdict | Failed

DONE = Done()
"""How a plain success ends."""

NO_TASK: Tasks = frozenset({None})
"""What a plain pool knows: jobs without a task."""


class Runs(Protocol):
    """What a pool runs for each delivery of its queues."""

    @property
    def is_async(self) -> bool:
        """Whether `arun` is awaited on an event loop; else `run` is called in a worker's thread."""

    @property
    def tasks(self) -> Tasks:
        """What it knows by now; jobs of any other task are held."""

    @property
    def pulse(self) -> Pulse | None:
        """That of an event loop of its own, if it has one."""

    @property
    def stop(self) -> Callable[[], None] | None:
        """Ends what still runs, so that it is handed back; None where that cannot be done from outside."""

    def run(self, lease: Lease, context: Context) -> Ending:
        """Do the work of one delivery; how it ended. Never raises."""

    async def arun(self, lease: Lease, context: Context) -> Ending:
        """The same, on an event loop."""

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """The pool starts. loop: the caller's, for coroutines that threads have to wait for."""

    def close(self) -> None:
        """The pool has stopped."""


class Handler:
    """A user's callable, looked at once: whether it is `async def` and asks for the job's `Context`.

    Raises ArgumentError if it cannot be called with a payload.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        if not callable(call):
            raise ArgumentError(f"a handler must be callable, got {type(call).__name__}")
        if is_generator(call):
            raise ArgumentError("a handler that yields never runs; make it an ordinary def or async def")
        self._call = call
        self.tasks = NO_TASK
        self.pulse: Pulse | None = None
        self.stop = None
        self.is_async = is_async(call)
        self._context_name = _context_parameter(call)
        _check_signature(call, self._context_name)

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def _invoke(self, payload: object, context: Context) -> Any:  # noqa: ANN401 - what the user's callable returns
        named = {} if self._context_name is None else {self._context_name: context}
        return self._call(payload, **named)

    def run(self, lease: Lease, context: Context) -> Ending:
        """Call a `def` handler in this thread."""
        work = lease.work
        try:
            # What decoding does to bytes, without the two calls.
            payload = work.body if work.spec.codec == "bytes" else lease.payload
        except PayloadError as error:
            return Dead(cause=Cause.UNDECODABLE, error=capture(error))
        set_current(context)
        try:
            result = self._call(payload) if self._context_name is None else self._invoke(payload, context)
            return DONE if result is None or not inspect.isawaitable(result) else _not_awaited(result)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; only the pool stops workers
            return ending_of(error)
        finally:
            context.ended = True
            set_current(None)

    async def arun(self, lease: Lease, context: Context) -> Ending:
        """Await an `async def` handler in this task."""
        try:
            payload = lease.payload
        except PayloadError as error:
            return Dead(cause=Cause.UNDECODABLE, error=capture(error))
        set_current(context)
        try:
            await self._invoke(payload, context)
        except BaseException as error:  # noqa: BLE001 - as above
            return ending_of(error)
        finally:
            context.ended = True
            set_current(None)
        return DONE


def ending_of(error: BaseException) -> Ending:
    """What a raised exception means for the job. Never raises, whatever class the exception has."""
    try:
        return _ending_of(error)
    except BaseException:  # noqa: BLE001 - even reading an exception's attributes may raise
        return Failed(Cause.ERROR, Failure(type="", text="the exception raised when it was looked at"))


def _ending_of(error: BaseException) -> Ending:
    kind = type(error)
    if issubclass(kind, Retry):
        return Failed(Cause.NACK, capture(error), _delay_of(error.after_s, None))  # type: ignore[attr-defined]
    if issubclass(kind, Snooze):
        delay_s = _delay_of(error.delay_s, Snooze.delay_s)  # type: ignore[attr-defined]
        delay_s = Snooze.delay_s if delay_s is None else delay_s
        reason = capture(error)
        return rules.give_back(Cause.SNOOZE, delay_s=delay_s, error=reason if reason.text else None)
    if issubclass(kind, Reject):
        return Dead(cause=Cause.REJECT, error=capture(error))
    if issubclass(kind, Cancel):
        return Cancelled(error=capture(error))
    return Failed(Cause.ERROR, capture(error))


def _delay_of(asked: object, otherwise: float | None) -> float | None:
    """The delay a handler asked for, if it is one."""
    try:
        return seconds(asked, name="delay")  # type: ignore[arg-type]
    except ArgumentError:
        return otherwise


def _not_awaited(result: object) -> Failed:
    if inspect.iscoroutine(result):
        result.close()
    text = f"the handler returned {type(result).__name__}, which nobody awaits; make the handler async def"
    return Failed(Cause.ERROR, Failure(type="TypeError", text=text))


def _context_parameter(call: Callable[..., Any]) -> str | None:
    """The name of the parameter annotated `Context`, if there is one."""
    plain = function_behind(call)
    try:
        hints = get_type_hints(plain)
    except Exception:  # noqa: BLE001 - hints may name what exists for type checkers only
        hints = getattr(plain, "__annotations__", {})
    for name, hint in hints.items():
        if name != "return" and means_context(hint):
            return name
    return None


def _check_signature(call: Callable[..., Any], context_name: str | None) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # a builtin without a signature: only the call can tell
    named = {} if context_name is None else {context_name: None}
    if context_name is not None and next(iter(signature.parameters)) == context_name:
        raise ArgumentError(f"the payload comes first, then the Context; this handler has {signature}")
    try:
        signature.bind(None, **named)
    except TypeError as error:
        raise ArgumentError(
            f"a handler is called as handler(payload), with its Context after that if it has one; "
            f"this one has {signature}\n  {error}"
        ) from None
