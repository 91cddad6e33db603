"""The store as the whole simulation reaches it: it writes down what was really done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.support.history import Pen, Recorded

if TYPE_CHECKING:
    from tests.sim.world import World


class Front(Recorded):
    """Stands before the store, behind all faults: no call overlaps another, and every answer is known."""

    def __init__(self, store: Any, world: World) -> None:
        self.pen = Pen(world.done, world.clock.interval)
        super().__init__(store, self.pen, world.who)
        self._world = world

    def known_of(self, name: str, args: Sequence[Any], answer: Any) -> dict[str, Any]:
        """The store's own clock and, after an enqueue, its room."""
        self._world.on_call(name, args, answer)
        known: dict[str, Any] = {"store_at": self._world.clock.calendar()}
        if name == "add":
            queue = args[0]
            known["room"] = self._store.counts([queue])[queue].open, self._store.queues()[queue].capacity
        return known
