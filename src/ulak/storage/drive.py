"""Runs flows: one loop for threads, one for asyncio. The only code that differs between the two worlds."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import msgspec

from ulak.clock import Clock
from ulak.core.flows import Ask, Call, Do, Draw, Flow, NewSignal, Now, Sleep
from ulak.core.store import Store

R = TypeVar("R")

SLEEP_MAX_S = 3600.0
"""Sleeps are cut to this and taken again, since the operating system refuses very long ones."""


class Edge(msgspec.Struct, frozen=True):
    """What flows may reach of the world: a store, a clock, a source of draws from [0, 1)."""

    store: Store
    clock: Clock
    draw: Callable[[], float] = random.random

    def answer(self, ask: Call | Now | Draw) -> Any:  # noqa: ANN401 - the typed helpers of core.flows know
        """Answer an ask that needs no waiting. Raises what the operation raises."""
        match ask:
            case Call(name, args, kwargs):
                return getattr(self.store, name)(*args, **kwargs)
            case Now():
                return self.clock.interval()
            case Draw():
                return self.draw()
            case _:
                assert_never(ask)


class LoopSignal:
    """A signal for one task of a running event loop; may be set from any thread."""

    __slots__ = ("_event", "_loop", "_set")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._set = False

    def set(self) -> None:
        """Wake the task. The loop may be gone already, and then so is the waiter."""
        if self._set:
            return
        self._set = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            assert self._loop.is_closed()

    def clear(self) -> None:
        """Forget an earlier wake-up."""
        self._set = False
        self._event.clear()

    def is_set(self) -> bool:
        """Whether a wake-up was not cleared yet."""
        return self._set

    async def wait(self, timeout_s: float | None) -> None:
        """Sleep until set, or for `timeout_s`."""
        if self._set:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass


def run(edge: Edge, flow: Flow[R]) -> R:
    """Run a flow to its end in this thread."""
    step: Callable[[Any], Ask] = flow.send
    reply: Any = None
    while True:
        try:
            ask = step(reply)
        except StopIteration as stop:
            result: R = stop.value
            return result
        step = flow.send
        try:
            match ask:
                case NewSignal():
                    reply = threading.Event()
                case Sleep(signal, timeout_s):
                    assert isinstance(signal, threading.Event)
                    edge.clock.wait(signal, cut(timeout_s))
                    reply = None
                case Do(call):
                    reply = call()
                case _:
                    reply = edge.answer(ask)
        except BaseException as error:  # noqa: BLE001 - it belongs to the flow, which cleans up and lets it out
            step, reply = flow.throw, error


async def arun(edge: Edge, flow: Flow[R]) -> R:
    """Run a flow to its end on this event loop.

    A cancellation reaches the flow at its sleep, so that it leaves nothing behind; a storage operation
    always runs to its end.
    """
    step: Callable[[Any], Ask] = flow.send
    reply: Any = None
    while True:
        try:
            ask = step(reply)
        except StopIteration as stop:
            result: R = stop.value
            return result
        step = flow.send
        try:
            match ask:
                case NewSignal():
                    reply = LoopSignal()
                case Sleep(signal, timeout_s):
                    assert isinstance(signal, LoopSignal)
                    await signal.wait(cut(timeout_s))
                    reply = None
                case Do(call):
                    reply = await call()
                case _:
                    reply = edge.answer(ask)
        except BaseException as error:  # noqa: BLE001 - as above
            step, reply = flow.throw, error


def cut(timeout_s: float | None) -> float | None:
    """A sleep no longer than the operating system allows; None stays without limit."""
    return None if timeout_s is None else min(timeout_s, SLEEP_MAX_S)
