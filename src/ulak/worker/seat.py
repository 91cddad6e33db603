"""A worker's place in a pool, and what carries workers, as far as the pool's flows see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ulak.context import Context
from ulak.core.job import Lease
from ulak.core.store import Line
from ulak.worker.execute import Ending

Left: TypeAlias = tuple[Lease, Ending]
"""A delivery that ended, and is to be settled."""


class Seat:
    """One worker's place in a pool, and what it runs there now."""

    def __init__(self, number: int) -> None:
        self.number = number
        # One value, since the keeper reads it while the worker goes from one job to the next.
        self.running: tuple[Lease, Context] | None = None
        self.left = False
        # Its worker claims, or hands back what a claim has brought too late.
        self.is_claiming = False
        self.asked_to_end = False
        # Where its worker stands in line, while it is idle.
        self.standing: list[Line] = []
        # The last burst did not end for want of a job.
        self.has_more = False
        # It is woken seldom, so it looks by the general way, which does more than look for a job.
        self.looks_closer = False
        # How long its last handler ran by the general way.
        self.run_s = 0.0


class Hands(Protocol):
    """What carries workers: threads, or the tasks of an event loop."""

    def start(self, seat: Seat) -> None:
        """Run the flow of a worker in this seat; tell the crew when it is over."""

    def handle(self, seat: Seat, lease: Lease, context: Context) -> Any:  # noqa: ANN401 - an Ending, or a coroutine of one
        """Run the handler for one delivery, and note in the seat how long it ran."""

    def burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> Any:  # noqa: ANN401 - the new `left`, or a coroutine of it
        """Settle what is left and run jobs, as long as the store's short way goes; what is left then.

        begin: called before the first job runs.
        """

    def abandon(self) -> None:
        """Time is over: stop what can be stopped, leave the rest behind."""
