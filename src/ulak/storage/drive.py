"""Runs flows: one loop for threads, one for asyncio. The only code that differs between the two worlds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, TypeVar, assert_never, cast

import msgspec

from ulak.clock import Clock
from ulak.core.flows import Ask, Call, Do, Draw, Flow, NewSignal, Now, Sleep
from ulak.core.store import Store
from ulak.storage.line import LoopSignal, ThreadSignal

R = TypeVar("R")

SLEEP_MAX_S = 3600.0
"""Sleeps are cut to this and taken again, since the operating system refuses very long ones."""


class Edge(msgspec.Struct, frozen=True):
    """What flows may reach of the world: a store, a clock, a source of draws from [0, 1)."""

    store: Store
    clock: Clock
    draw: Callable[[], float] = random.random

    @property
    def is_immediate(self) -> bool:
        """Whether an event loop may call the store directly; else it has `acall`."""
        return self.store.capabilities.immediate

    def cut(self, timeout_s: float | None) -> float | None:
        """A sleep as long as it may be: where wake-ups may be missed, every sleeper looks by itself.

        None stays without limit.
        """
        limits = [limit for limit in (timeout_s, self.store.capabilities.poll_s) if limit is not None]
        return min(*limits, SLEEP_MAX_S) if limits else None

    async def asleep(self, signal: LoopSignal, timeout_s: float | None) -> None:
        """Sleep on an event loop, in real time, until the signal is set or `timeout_s` have passed."""
        await signal.wait(self.cut(timeout_s))

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
                    reply = ThreadSignal()
                case Sleep(signal, timeout_s):
                    assert isinstance(signal, ThreadSignal)
                    edge.clock.wait(signal, edge.cut(timeout_s))
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
                    await edge.asleep(signal, timeout_s)
                    reply = None
                case Do(call):
                    reply = await call()
                case Call(name, args, kwargs) if not edge.is_immediate:
                    reply = await cast("Any", edge.store).acall(name, args, kwargs)
                case _:
                    reply = edge.answer(ask)
        except GeneratorExit:
            # The loop is gone, and nothing can be awaited any more.
            with contextlib.suppress(RuntimeError):
                flow.close()
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            step, reply = flow.throw, error
