"""In which order a worker looks at its queues."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


class Turns:
    """The queues as they are listed, or by turns. Any thread may ask.

    weights: how often each queue comes first, of as many looks as they add up to; the others follow it as
    they are listed, so that no worker is idle while one of them has a job.
    """

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self.listed = tuple(queues)
        self._orders = itertools.cycle([self.listed])
        if weights:
            firsts = _spread({queue: weights.get(queue, 1) for queue in self.listed})
            rest = {first: tuple(queue for queue in self.listed if queue != first) for first in self.listed}
            self._orders = itertools.cycle([(first, *rest[first]) for first in firsts])

    def next(self) -> tuple[str, ...]:
        """The order for this look."""
        return next(self._orders)


def _spread(weights: Mapping[str, int]) -> list[str]:
    """Each name as often as its weight, as evenly spread as can be (smooth weighted round robin)."""
    total, credit, chosen = sum(weights.values()), dict.fromkeys(weights, 0), []
    for _ in range(total):
        for name, weight in weights.items():
            credit[name] += weight
        first = max(credit, key=lambda name: credit[name])
        credit[first] -= total
        chosen.append(first)
    return chosen
