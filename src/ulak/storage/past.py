"""What a store in memory keeps of the past of its queues, as `ulak.core.history` has it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from ulak.core import history
from ulak.core.history import Grain, Moment, Took
from ulak.core.job import Counts


class Past:
    """The rows of all queues; not thread-safe."""

    def __init__(self) -> None:
        # By when they began, and the queue; in the order in which they were made.
        self._rows: dict[Grain, dict[tuple[int, str], bytes]] = {grain: {} for grain in history.GRAINS}

    def record(self, counts: Mapping[str, Counts], took: Mapping[str, Took], now_at: float) -> None:
        """Note how counts stand now, and how long jobs took; forget what is old."""
        for grain, rows in self._rows.items():
            began_at = history.began_at(now_at, grain)
            for queue, of_queue in counts.items():
                stored = rows.get((began_at, queue))
                rows[began_at, queue] = history.noted(stored, of_queue, took[queue], now_at)
            for key in list(islice(rows, history.PRUNE_MAX)):
                if key[0] < now_at - history.KEPT_S[grain]:
                    del rows[key]

    def since(self, queue: str, since_at: float, grain: Grain) -> list[Moment]:
        """The rows of a queue, from the last that began by then on."""
        found: list[Moment] = []
        for (at, name), stored in sorted(self._rows[grain].items()):
            if name == queue and (moment := history.moment_of(at, stored)) is not None:
                if at <= since_at:
                    found.clear()
                found.append(moment)
        return found
