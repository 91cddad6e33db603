"""The graph of an exploration: whether every state can still come to an end, and whether any comes back."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

HELPS, LEADS_ON = 1, 2
"""What an edge does: it belongs to a run in which jobs end; it must never lead back."""


class Graph:
    """States by number, each with its edges; states are added in the order of their numbers."""

    def __init__(self) -> None:
        self.finals: list[int] = []
        self._starts = array("Q", [0])
        self._targets = array("I")
        self._flags = array("B")

    def add(self, edges: Mapping[int, int]) -> None:
        """The edges of the next state: what each does, by target."""
        self._targets.extend(edges)
        self._flags.extend(edges.values())
        self._starts.append(len(self._targets))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def deadlocked(self) -> int | None:
        """A state that nothing leads out of, though it is not final; None: there is none."""
        finals = set(self.finals)
        starts = self._starts
        ends = (state for state in range(len(self)) if starts[state] == starts[state + 1])
        return next((state for state in ends if state not in finals), None)

    def stuck(self) -> int | None:
        """The first state from which no edges that help lead to a final one; None: there is none."""
        starts, targets, flags = self._starts, self._targets, self._flags
        can_finish = bytearray(len(self))
        for state in self.finals:
            can_finish[state] = 1
        # States are numbered by their distance from the start, so most edges lead to a higher number, and
        # few sweeps from the end reach every state that is going to be reached.
        is_growing = True
        while is_growing:
            is_growing = False
            for state in range(len(self) - 1, -1, -1):
                if can_finish[state]:
                    continue
                for edge in range(starts[state], starts[state + 1]):
                    if can_finish[targets[edge]] and flags[edge] & HELPS:
                        can_finish[state] = is_growing = True
                        break
        first = can_finish.find(0)
        return None if first < 0 else first

    def recurring(self) -> int | None:
        """A state on a cycle of edges that should lead on; None: there is none."""
        starts, targets, flags = self._starts, self._targets, self._flags
        incoming = array("I", bytes(4 * len(self)))
        for edge, target in enumerate(targets):
            incoming[target] += flags[edge] >= LEADS_ON
        sources = [state for state in range(len(self)) if not incoming[state]]
        left = len(self)
        while sources:
            state = sources.pop()
            left -= 1
            for edge in range(starts[state], starts[state + 1]):
                if flags[edge] >= LEADS_ON:
                    incoming[targets[edge]] -= 1
                    if not incoming[targets[edge]]:
                        sources.append(targets[edge])
        # What is left lies on a cycle or behind one; the lowest number is the nearest to the start.
        return next((state for state in range(len(self)) if incoming[state]), None) if left else None
