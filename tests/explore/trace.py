"""A step in one line, for the reader of a trace."""

from __future__ import annotations

from tests.explore.actions import Action
from tests.explore.step import Step
from tests.explore.world import Seen
from ulak.core.job import Full, Job, State


def line_of(action: Action, step: Step, after: Seen) -> str:
    """What was done, what was answered, and what is stored then."""
    jobs = " | ".join(_job(job) for job in after.jobs if job is not None)
    return f"{action.name}{_answer(step)}".ljust(64) + "  " + jobs


def _answer(step: Step) -> str:
    answers = []
    for end in step.ends:
        which = f"job {end.lease.id}, delivery {end.lease.delivery}"
        answer = end.answer.name if end.answer is not None else "swept"
        answers.append(f"{which}: {answer}")
    if step.claimed is not None:
        taken = [f"job {lease.id}, delivery {lease.delivery}" for lease in step.claimed.leases]
        answers.append(", ".join(taken) or "nothing")
    if step.put is not None:
        answers.append(_put(step.put.answer))
    if step.extended is not None:
        lease = step.extended.lease
        answers.append(f"job {lease.id}, delivery {lease.delivery}: {step.extended.answer.name}")
    if step.acted is not None and step.acted.refusal is not None:
        answers.append(f"refused, {step.acted.refusal}")
    if step.leaver is not None:
        answers.append("it leaves" if step.may_leave else "it stays")
    return " -> " + "; ".join(answers) if answers else ""


def _put(answer: object) -> str:
    if isinstance(answer, Full):
        return "FULL"
    ids = answer if isinstance(answer, list) else [answer]
    return ", ".join(f"job {one}" if type(one) is int else repr(one) for one in ids)


def _job(job: Job) -> str:
    lease = f" to {job.lease_end:g}" if job.state is State.LEASED else ""
    asked = " cancel!" if job.cancel_requested else ""
    return f"{job.id} {job.state.value}{lease} d{job.delivery} a{job.attempt}/{job.max_attempts}{asked}"
