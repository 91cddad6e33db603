"""How a violation speaks of jobs."""

from __future__ import annotations

from collections.abc import Iterable

from tests.explore.step import Step
from ulak.core.job import Job


def stored(step: Step, job_id: int) -> Job | None:
    """The record of a job as it was before the step."""
    return step.before.jobs[job_id - 1] if 0 < job_id <= len(step.before.jobs) else None


def told_of(job: Job | None) -> str:
    """A job in a few words."""
    if job is None:
        return "the job is not stored"
    asked = ", cancel requested" if job.cancel_requested else ""
    return (
        f"job {job.id} ({job.state.value}, delivery {job.delivery}, "
        f"attempt {job.attempt} of {job.max_attempts}, crashes {job.crashes}{asked})"
    )


def changes_of(step: Step) -> str:
    """What a step changed."""
    texts = [f"{told_of(before)} became {told_of(after)}" for _, before, after in step.changed]
    return "; ".join(texts) or f"totals changed to {step.after.counts.totals}"


def states_of(jobs: Iterable[Job | None]) -> str:
    """Each job's state."""
    return ", ".join(f"{job.id} {job.state.value}" for job in jobs if job is not None)
