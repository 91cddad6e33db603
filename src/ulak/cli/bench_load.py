"""What a benchmark puts in: when each job is due, what it carries, and which of its attempts fail.

All of it follows from the plan, so the same seed gives the same load.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator
from struct import Struct

from ulak.cli.bench_plan import Plan
from ulak.failures import fails

HEAD = Struct(">Q")
"""The head of a payload, the job's ordinal. No payload is shorter."""


def arrivals(plan: Plan) -> Iterator[float]:
    """When each job is due, in seconds since the start, in order. Only for a plan with a rate.

    Whatever becomes of the jobs, these do not change: who waits for an answer before the next question
    measures the system only where it is not slow.
    """
    draw = random.Random(plan.seed).random
    at_s = 0.0
    for number in range(plan.jobs_all):
        yield at_s
        # Not from one to the next at equal gaps: a sum of a million roundings is no schedule.
        at_s = at_s - math.log(1.0 - draw()) / plan.rate if plan.is_poisson else (number + 1) / plan.rate


def failures(plan: Plan) -> array[int]:
    """How many attempts of each job fail before one succeeds, at most `max_attempts`: then it is dead.

    Drawn beforehand, so that the draw is in nobody's latency.
    """
    if not plan.fail_rate:
        return array("I", bytes(4 * plan.jobs_all))
    return array("I", (_failures_of(ordinal, plan) for ordinal in range(plan.jobs_all)))


def _failures_of(ordinal: int, plan: Plan) -> int:
    attempt = 1
    while attempt <= plan.max_attempts and fails(plan.seed, ordinal + 1, attempt, plan.fail_rate):
        attempt += 1
    return attempt - 1


def payloads(size_bytes: int) -> Callable[[int], bytes]:
    """What makes a job's payload: its ordinal, from 0, and what fills it up."""
    head, rest = HEAD.pack, b"." * (size_bytes - HEAD.size)
    return lambda ordinal: head(ordinal) + rest


def ordinal_of(payload: bytes) -> int:
    """Whose payload it is."""
    ordinal: int = HEAD.unpack_from(payload)[0]
    return ordinal
