"""Rules of the worker's end and of its duties, each broken on purpose; the table of defects names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from tests.sim.pool import SimHands
from ulak import schedules
from ulak.core import flows
from ulak.core.schedule import NOTHING
from ulak.worker import runtime
from ulak.worker.refused import Refused


@contextmanager
def no_wait_for_claims() -> Iterator[None]:
    """A shutdown that does not wait for claims that are under way, and so loses what they bring."""
    with mock.patch.object(runtime, "CLAIM_S", 0.0):
        yield


@contextmanager
def no_wait_for_halted() -> Iterator[None]:
    """A shutdown that hands jobs back before what runs them was ended."""
    with mock.patch.object(runtime, "HALT_S", 0.0):
        yield


@contextmanager
def no_halt() -> Iterator[None]:
    """A shutdown that leaves tasks running whose jobs it has handed back."""
    with mock.patch.object(SimHands, "abandon", return_value=None):
        yield


@contextmanager
def lost_ticks() -> Iterator[None]:
    """A schedule's duty that overlooks a tick of three, and fires only the last of several."""
    plan = schedules.plan

    def last_only(*args: Any, **options: Any) -> Any:
        todo = plan(*args, **options)
        is_overlooked = len(todo.fire) == 1 and round(todo.fire[0] * 10) % 3 == 0
        return NOTHING if is_overlooked else msgspec.structs.replace(todo, fire=todo.fire[-1:])

    with mock.patch.object(schedules, "plan", last_only):
        yield


@contextmanager
def misfits_forgotten() -> Iterator[None]:
    """A pool that looks at no job which did not fit before."""

    def nothing(refused: Refused) -> flows.Flow[float | None]:
        yield from ()
        refused.has_looked = True
        return None

    with mock.patch.object(Refused, "duty", nothing):
        yield
