"""What callers were told, and whether a store found later agrees: the durable prefix.

After any crash the store must equal all synced operations that had returned, and any subset of those that
had not, in an order that real time allows. A claim on its own is not synced: it may be lost, but only from
the end.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from ulak import JobInfo
from ulak.core.job import State


class Shown(NamedTuple):
    """What is compared of a job."""

    state: State
    attempt: int
    delivery: int


class Turn(Enum):
    """When, within one delivery of a job, a step comes: a thread may tell of an earlier one later."""

    TAKEN = 0
    SETTLED = 1
    ACTED_ON = 2


class Step(NamedTuple):
    """One change of one job by an operation that began and returned at these moments of the tape."""

    order: tuple[int, int]
    operation: int
    begun: int
    returned: int
    is_synced: bool
    after: Shown


class Found(NamedTuple):
    """A job as it was found."""

    id: int
    shown: Shown


class Chronicle:
    """All steps of all jobs. A job is known by its payload, which is there before its id is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations = 0
        self._steps: dict[str, list[Step]] = defaultdict(list)
        self._ids: dict[str, int] = {}

    def tell(
        self, begun: int, returned: int, turn: Turn, changes: Mapping[str, Shown], *, is_synced: bool = True
    ) -> None:
        """One operation returned, having done this to these jobs."""
        with self._lock:
            self._operations += 1
            for label, after in changes.items():
                order = (after.delivery, turn.value)
                step = Step(order, self._operations, begun, returned, is_synced, after)
                self._steps[label].append(step)
                self._steps[label].sort()

    def name(self, label: str, job_id: int) -> None:
        """The job got this id."""
        with self._lock:
            assert job_id not in self._ids.values(), f"id {job_id} was given twice"
            self._ids[label] = job_id

    def id_of(self, label: str) -> int:
        return self._ids[label]

    def now(self, label: str) -> Shown:
        """What the job is by what was told."""
        return self._steps[label][-1].after

    def labels(self, state: State) -> list[str]:
        """Jobs that are in this state by what was told."""
        return [label for label, steps in self._steps.items() if steps[-1].after.state is state]

    def judge(self, moment: int, found: Mapping[str, Found]) -> list[str]:
        """What is wrong with a store that lost power at this moment of the tape; nothing if all is well."""
        problems = [f"{label}: nobody enqueued it" for label in found if label not in self._steps]
        present: list[Step] = []
        absent: list[Step] = []
        for label, steps in self._steps.items():
            problem, kept = self._place(label, steps, moment, found.get(label))
            if problem:
                problems.append(problem)
            else:
                present += steps[:kept]
                absent += steps[kept:]
        return problems or list(_out_of_order(present, absent))

    def _place(self, label: str, steps: list[Step], moment: int, found: Found | None) -> tuple[str, int]:
        """Which of the job's steps the store has: the first so many. Or what is wrong."""
        least = max((n for n, s in enumerate(steps, 1) if s.is_synced and s.returned <= moment), default=0)
        most = max((n for n, s in enumerate(steps, 1) if s.begun <= moment), default=0)
        if found is None:
            return (f"{label}: lost; it was {steps[least - 1].after}", 0) if least else ("", 0)
        if least and found.id != self._ids[label]:
            return f"{label}: has id {found.id}, its caller was told {self._ids[label]}", 0
        for kept in range(most, max(least, 1) - 1, -1):
            if steps[kept - 1].after == found.shown:
                return "", kept
        may = [tuple(step.after) for step in steps[max(least, 1) - 1 : most]]
        return f"{label}: is {tuple(found.shown)}, may be {may}", 0


def _out_of_order(present: list[Step], absent: list[Step]) -> Iterator[str]:
    """Steps that survived though one that had returned before did not, and operations cut in two."""
    latest = max(present, key=lambda step: step.begun, default=None)
    earliest = min(absent, key=lambda step: step.returned, default=None)
    if latest and earliest and earliest.returned < latest.begun:
        yield f"{latest} survived, but {earliest}, which had returned before, did not"
    halves = {step.operation for step in present} & {step.operation for step in absent}
    if halves:
        yield f"operations {sorted(halves)} survived in part"


def find(jobs: list[JobInfo]) -> dict[str, Found]:
    """Jobs as they were found, by their payloads."""
    return {str(job.payload): Found(job.id, Shown(job.state, job.attempt, job.delivery)) for job in jobs}
