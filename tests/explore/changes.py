"""What every change of what is stored must obey: laws that judge the jobs before and after a step.

A law answers None, or what is wrong in one line. They judge pairs of states, because a state alone cannot
tell an ack of the current delivery from one of a late worker.
"""

from __future__ import annotations

from tests.explore.oracle import allowed, new_ids
from tests.explore.step import Step, is_current
from tests.explore.words import states_of, told_of
from ulak.core.job import ENDED, Job, State, Totals

HISTORY_MAX = 20


def acked_once(step: Step) -> str | None:
    """A job succeeds by one OK ack of its current delivery, and never again."""
    for number, fact in enumerate(step.facts, 1):
        if fact.acks > 1:
            return f"job {number} was acked {fact.acks} times"
    for number, before, after in step.changed:
        if after is None or after.state is not State.SUCCEEDED:
            continue
        by = [end for end in step.ends if end.how == "ack" and end.lease.id == number]
        if before is None or not any(is_current(before, end) for end in by):
            return f"job {number} succeeded, by no ack of its delivery"
    return None


def terminal_is_final(step: Step) -> str | None:
    """An ended job never changes, but by an operator's redrive or delete, or when it is forgotten."""
    for number, before, after in step.changed:
        if before is None or before.state not in ENDED:
            continue
        if number in step.wanted or after is None:
            continue
        return f"{told_of(before)} became {told_of(after)}"
    return None


def no_loss(step: Step) -> str | None:
    """A job that was accepted stays stored until an operator deletes it or retention forgets its end."""
    for number, before, after in step.changed:
        if after is not None or before is None or _is_deleted(step, number):
            continue
        if allowed(step, step.wanted.get(number, before), None) is None:
            return f"{told_of(before)} is gone"
    return None


def no_phantom(step: Step) -> str | None:
    """A job is stored if and only if its enqueue answered an id, and as it was enqueued."""
    new = [job for _, before, job in step.changed if before is None and job is not None]
    put = step.put
    if put is None or not isinstance(put.answer, list):
        return f"job {new[0].id} appeared" if new else None
    told = new_ids(put.answer)
    if [job.id for job in new] != told:
        return f"the enqueue answered {told}, stored were {[job.id for job in new]}"
    drafts = [draft for draft, answer in zip(put.drafts, put.answer, strict=True) if answer in told]
    for job, draft in zip(new, drafts, strict=True):
        state = State.SCHEDULED if draft.delay_s else State.READY
        asked = (draft.payload, draft.priority, draft.max_attempts, draft.task, draft.unique_key)
        is_same = (job.payload, job.priority, job.max_attempts, job.task, job.unique_key) == asked
        is_fresh = (job.state, job.attempt, job.delivery, job.crashes) == (state, 0, 0, 0)
        if not is_same or not is_fresh:
            return f"{told_of(job)} is not what was enqueued"
    return None


def attempts(step: Step) -> str | None:
    """Attempts are deliveries that were not given back; never more than allowed; dead only at the last."""
    for number, _, job in step.changed:
        if job is None:
            continue
        fact = step.facts[number - 1]
        if not 0 <= job.attempt <= job.max_attempts:
            return f"job {number} is at attempt {job.attempt} of {job.max_attempts}"
        if job.attempt != fact.attempts or job.delivery != fact.handed:
            told = f"{fact.attempts} attempts, {fact.handed} deliveries"
            return f"job {number} has {job.attempt} attempts, {job.delivery} deliveries; told were {told}"
        is_rejected = any(end.how == "reject" for end in step.ends)
        if job.state is State.DEAD and job.attempt != job.max_attempts and not is_rejected:
            return f"{told_of(job)} is dead early"
    return None


def landing(step: Step) -> str | None:
    """What a step is about ends as the design says, and nothing else changes."""
    for number, before, after in step.changed:
        if number in step.wanted or before is None or (after is None and _is_deleted(step, number)):
            continue
        gains = allowed(step, before, after)
        if gains is None:
            return f"{told_of(before)} became {told_of(after)}, unasked"
        if after is not None and _kept(before) != _kept(after):
            return f"{told_of(before)} changed more than its state: {told_of(after)}"
        step.gains += gains
    for wanted in step.wanted.values():
        now = step.after.jobs[wanted.id - 1]
        gains = allowed(step, wanted, None) if now is None else []
        if gains is None or (now is not None and _life(now) != _life(wanted)):
            return f"must be {told_of(wanted)}, is {told_of(now)}"
        step.gains += gains
    return None


def _is_deleted(step: Step, job_id: int) -> bool:
    acted = step.acted
    return acted is not None and (acted.job_id, acted.what, acted.refusal) == (job_id, "delete", None)


def _life(job: Job) -> tuple[object, ...]:
    due_at = job.run_at if job.state is State.SCHEDULED else None
    end = job.lease_end if job.state is State.LEASED else None
    return (job.state, job.attempt, job.delivery, job.crashes, job.cancel_requested, due_at, end, *_born(job))


def _kept(job: Job) -> tuple[object, ...]:
    return (job.attempt, job.delivery, job.crashes, job.cancel_requested, job.history, *_born(job))


def _born(job: Job) -> tuple[object, ...]:
    names = (job.id, job.queue, job.task, job.unique_key, job.idempotency_key)
    return (*names, job.payload, job.priority, job.max_attempts, job.created_at, job.expires_at)


def monotone(step: Step) -> str | None:
    """Delivery numbers, crashes and totals never go down; a job's history holds each ended delivery once."""
    for _, before, after in step.changed:
        if after is None:
            continue
        if before is not None and after.delivery < before.delivery:
            return f"delivery {before.delivery} went down to {after.delivery}"
        if before is not None and after.crashes < before.crashes and step.acted is None:
            return f"crashes {before.crashes} went down to {after.crashes}"
        ended = after.delivery - (after.state is State.LEASED)
        told = [entry.delivery for entry in after.history]
        if ended <= HISTORY_MAX and told != list(range(1, ended + 1)):
            return f"the history of {told_of(after)} tells of deliveries {told}"
    before_totals, after_totals = step.before.counts.totals, step.after.counts.totals
    for name in Totals.__struct_fields__ if before_totals != after_totals else ():
        if getattr(after_totals, name) < getattr(before_totals, name):
            return f"{name} went down"
    return None


# Counting


def conservation(step: Step) -> str | None:
    """Every accepted job is in exactly one state, and each state's count is a recount of what is stored."""
    counts = step.after.counts
    if not step.changed and counts == step.before.counts:
        return None
    states = [job.state for job in step.after.jobs if job is not None]
    waiting = (counts.ready, counts.scheduled, counts.leased, counts.held)
    told = (*waiting, counts.acked, counts.dead, counts.cancelled, counts.expired)
    if told != tuple(map(states.count, State)):
        return f"counts say {told}, stored are {states_of(step.after.jobs)}"
    gone = counts.totals.pruned + counts.totals.deleted
    if counts.total != len(step.facts) or counts.total != len(states) + gone:
        return f"{counts.total} ever enqueued, {len(states)} stored, {gone} gone; {len(step.facts)} accepted"
    return None


def totals(step: Step) -> str | None:
    """The lifetime totals grow by what happened, no more and no less, and agree with each other."""
    t, was, open_jobs = step.after.counts.totals, step.before.counts.totals, step.after.counts.open
    if t == was and not step.gains:
        return None
    for name in Totals.__struct_fields__:
        grown, must = getattr(t, name) - getattr(was, name), step.gains.count(name)
        if grown != must:
            return f"{name} grew by {grown}, not by {must}"
    if t.processed != t.succeeded + t.failed or t.failed != t.retries + t.dead_lettered + t.cut:
        return f"processed, failed and their parts disagree: {t}"
    gone = t.succeeded + t.dead_lettered + t.cancelled + t.expired + t.deleted
    if t.enqueued + t.redriven != gone + open_jobs:
        return f"enqueued and the ends disagree at {open_jobs} open: {t}"
    return None


def retention(step: Step) -> str | None:
    """Ended jobs are forgotten only beyond what is kept."""
    keep = step.scope.retention
    for _, before, after in step.changed if keep is not None else ():
        if before is None or after is not None or before.state not in ENDED:
            continue
        left = [job for job in step.after.jobs if job is not None and job.state is before.state]
        if step.acted is None and len(left) < (keep or 0):
            return f"{told_of(before)} was forgotten, {len(left)} are left"
    return None
