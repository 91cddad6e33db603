"""What the store made of the death of a process: how soon its jobs started again, and no other's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tests.support.history.lines import Happened, Line
from tests.support.history.story import Ending, Job, Story


def ends_of(lines: Iterable[Line]) -> dict[str, float]:
    """When each process that has ended was killed or had ended by itself."""
    return {
        line.who: line.t for line in lines if isinstance(line, Happened) and line.what in ("killed", "left")
    }


def restarts(story: Story, ends: dict[str, float]) -> list[float]:
    """Seconds from a process's end to the next delivery of each job that it held, sorted.

    Only of jobs that were to come again at once: later crashes of one job wait longer and longer.
    """
    found = []
    for job, delivery, ended_at, ending in _crashes(story, ends):
        later = job.handed.get(delivery + 1)
        if ended_at is not None and later is not None and ending.end.delay_s == 0.0:
            found.append(later[0][0].t1 - ended_at)
    return sorted(found)


def condemned(story: Story, ends: dict[str, float]) -> Iterator[str]:
    """Deliveries that were ended as if their process was gone, while it lived."""
    for job, delivery, ended_at, ending in _crashes(story, ends):
        if ended_at is None or ending.call.t1 < ended_at:
            who = job.handed[delivery][0][0].asked.who
            yield f"condemned: job {job.id}, delivery {delivery}: {who} was taken for gone, and lived"


def _crashes(story: Story, ends: dict[str, float]) -> Iterator[tuple[Job, int, float | None, Ending]]:
    """Each delivery that was ended as a crash, and when the process that held it had ended."""
    for job in story.jobs.values():
        for delivery, told in job.handed.items():
            ending = job.ended(delivery)
            if ending is not None and ending.end.crashed:
                yield job, delivery, ends.get(told[0][0].asked.who.partition("/")[0]), ending


def part(times_s: list[float], share: float) -> float:
    """The time below which this share of them is."""
    return times_s[min(len(times_s) - 1, math.floor(share * len(times_s)))] if times_s else math.nan
