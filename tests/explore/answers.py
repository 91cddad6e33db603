"""What every answer must obey: laws that judge what was told by what was stored.

A law answers None, or what is wrong in one line.
"""

from __future__ import annotations

from tests.explore.oracle import must_answer, refusal_of
from tests.explore.step import Step, is_current
from tests.explore.words import changes_of, states_of, stored, told_of
from tests.explore.world import is_overdue
from ulak.core.job import ENDED, Full, Job, Lease, Outcome, State
from ulak.core.store import Refusal

# Leases


def fence(step: Step) -> str | None:
    """A settlement or extension counts if and only if it comes from the current delivery."""
    settled: set[int] = set()
    for end in step.ends:
        job = stored(step, end.lease.id)
        must = is_current(job, end) and end.lease.id not in settled
        if must:
            settled.add(end.lease.id)
        if end.answer is not None and (end.answer is not Outcome.STALE) is not must:
            return (
                f"{end.how} by delivery {end.lease.delivery} answered {end.answer.name}, but {told_of(job)}"
            )
    if step.extended is not None:
        lease, _, answer = step.extended
        job = stored(step, lease.id)
        must = job is not None and job.state is State.LEASED and job.delivery == lease.delivery
        if (answer is not Outcome.STALE) is not must:
            return f"extend by delivery {lease.delivery} answered {answer.name}, but {told_of(job)}"
    return None


def refused_changes_nothing(step: Step) -> str | None:
    """What is refused changes no field of any job, and no total."""
    is_refused = (
        (bool(step.ends) and not step.wanted and step.claimed is None)
        or (step.extended is not None and not step.extended.answer)
        or (step.acted is not None and step.acted.refusal is not None)
    )
    if not is_refused or (not step.changed and step.after.counts == step.before.counts):
        return None
    return f"refused, yet {changes_of(step)}"


def ack_is_traceable(step: Step) -> str | None:
    """Who never heard the answer to an ack can tell from the record whether it was OK."""
    if step.knows_won is None:
        return None
    lease = step.ends[0].lease
    job = step.after.jobs[lease.id - 1]
    if job is None:
        return None
    is_mine = job.state is State.SUCCEEDED and job.delivery == lease.delivery
    if is_mine is step.knows_won:
        return None
    first = "OK" if step.knows_won else "STALE"
    return f"the first ack of delivery {lease.delivery} was {first}, but {told_of(job)}"


def answer_is_state(step: Step) -> str | None:
    """A settlement that counts answers the state that the job is in then."""
    for end in step.ends:
        job = step.wanted.get(end.lease.id)
        if isinstance(end.answer, State) and job is not None and step.claimed is None:
            now = step.after.jobs[job.id - 1]
            if now is None or now.state is not end.answer:
                return f"the answer was {end.answer.value}, but {told_of(now)}"
    return None


def counted_apart(step: Step) -> str | None:
    """A process counts its own stale and rejected calls, each once, beside the queue's totals."""
    answers = [end.answer for end in (*step.ends, step.extended) if end is not None]
    stale = 0 if step.is_direct else answers.count(Outcome.STALE)
    rejected = int(step.put is not None and isinstance(step.put.answer, Full))
    if step.counted == (stale, rejected):
        return None
    return f"stale and rejected calls grew by {step.counted}, not by {(stale, rejected)}"


def one_holder(step: Step) -> str | None:
    """No job is handed out while a delivery of it is current, nor twice at once, nor after its end."""
    if step.claimed is None:
        return None
    ids = [lease.id for lease in step.claimed.leases]
    if len(set(ids)) != len(ids):
        return f"one claim took {ids}"
    for lease in step.claimed.leases:
        job = step.wanted.get(lease.id) or stored(step, lease.id)
        if job is None:
            return f"job {lease.id} was delivered but never stored"
        was = stored(step, lease.id)
        if was is not None and was.state is State.LEASED and not step.ends:
            return f"delivery {lease.delivery} began while {told_of(was)}"
        if was is not None and was.state in ENDED:
            return f"delivery {lease.delivery} began after the end: {told_of(was)}"
    return None


def leases_tell_the_truth(step: Step) -> str | None:
    """A lease says what is stored of its job."""
    leases = step.claimed.leases if step.claimed is not None else step.leased or step.ended or ()
    for lease in leases:
        job = step.after.jobs[lease.id - 1]
        if job is None or _told(lease) != _told(job) or lease.body != job.payload:
            return f"{lease!r} to {lease.lease_end:g}, but {told_of(job)}"
    return None


def _told(one: Lease | Job) -> tuple[object, ...]:
    ends = (one.worker, one.lease_end, one.lease_s)
    return (one.id, one.delivery, one.attempt, one.max_attempts, one.crashes, one.priority, one.task, *ends)


# Claims


def not_early(step: Step) -> str | None:
    """No delivery begins before its time, or after its expiry."""
    for lease in step.claimed.leases if step.claimed is not None else ():
        job = stored(step, lease.id)
        if job is None:
            continue
        if job.state is State.SCHEDULED and job.run_at > step.now_at:
            return f"{told_of(job)} was delivered {job.run_at - step.now_at:g} s early"
        if is_overdue(job, step.now_at):
            return f"{told_of(job)} was delivered after its expiry"
    return None


def order(step: Step) -> str | None:
    """A claim takes the highest priority first, then the lowest id, of all that it may take."""
    if step.claimed is None:
        return None
    took = [lease.id for lease in step.claimed.leases]
    return None if took == step.choice else f"the claim took {took}, not {step.choice}"


# Reapers


def reapers_see_all(step: Step) -> str | None:
    """`leased` names every lease, `ended` every one past its end, and neither any other."""
    leased = [job.id for job in step.before.jobs if job is not None and job.state is State.LEASED]
    if step.leased is not None and [lease.id for lease in step.leased] != leased:
        return f"leased() named {[lease.id for lease in step.leased]}, not {leased}"
    if step.ended is not None:
        jobs = step.before.jobs
        over = [i for i in leased if (job := jobs[i - 1]) is not None and job.lease_end <= step.now]
        if sorted(lease.id for lease in step.ended) != over:
            return f"ended() named {[lease.id for lease in step.ended]}, not {over}"
    return None


def sweeps_count(step: Step) -> str | None:
    """A sweep says how many leases it settled."""
    if step.reclaimed is None or step.reclaimed == len(step.wanted):
        return None
    return f"it settled {step.reclaimed} leases, not {len(step.wanted)}"


# Producers


def bound(step: Step) -> str | None:
    """Open jobs never exceed capacity, and FULL is answered only where new jobs really find no room.

    A duplicate takes no room and never waits for it.
    """
    capacity, put = step.scope.capacity, step.put
    if capacity is not None and step.after.counts.open > capacity:
        return f"{step.after.counts.open} open jobs at a capacity of {capacity}"
    if put is None or put.answer == "closed":
        return None
    must = must_answer(step)
    is_so = put.answer == must and (
        isinstance(must, Full) or list(map(type, put.answer)) == list(map(type, must))
    )
    return None if is_so else f"the enqueue answered {put.answer!r}, not {must!r}"


def close(step: Step) -> str | None:
    """After the last producer only handlers enqueue, and workers leave when nothing is open."""
    put = step.put
    if put is not None and (put.answer == "closed") is not (step.is_closed and not put.in_handler):
        return f"enqueue answered {put.answer!r}, closed is {step.is_closed}"
    if step.leaver is None:
        return None
    counts = step.before.counts
    waiting = 0 if step.rest.is_paused else counts.ready + counts.scheduled
    must = step.is_closed and not waiting and not counts.leased
    if step.may_leave is not must:
        return f"leaving is {'' if step.may_leave else 'not '}allowed, with {states_of(step.before.jobs)}"
    return None


# Operators and time


def operators(step: Step) -> str | None:
    """An operator's act is refused exactly where it is not possible, with the reason."""
    if step.acted is None:
        return None
    must = refusal_of(step, stored(step, step.acted.job_id))
    told = step.acted.refusal
    return None if told == (must and Refusal(must)) else f"refused: {told}, must be: {must}"


def promotion(step: Step) -> str | None:
    """Promoting makes every due job ready, unless the queue is paused."""
    due = [
        job.id
        for job in step.before.jobs
        if job is not None and job.state is State.SCHEDULED and job.run_at <= step.now_at
    ]
    must = [] if step.rest.is_paused else due
    ready = [number for number, _, job in step.changed if job is not None and job.state is State.READY]
    return None if ready == must and step.promoted == len(must) else f"made ready were {ready}, not {must}"


def expiry(step: Step) -> str | None:
    """A prune ends every waiting job past its time."""
    over = [job.id for job in step.after.jobs if job is not None and is_overdue(job, step.now_at)]
    return f"jobs {over} are still open" if over else None


def horizon(step: Step) -> str | None:
    """The store knows when time alone makes a job claimable; on the calendar it looks at most 1 s ahead."""
    waits_s = []
    for job in step.before.jobs:
        if job is not None and job.state is State.LEASED:
            waits_s.append(job.lease_end - step.was)
        if job is not None and job.state is State.SCHEDULED and not step.rest.is_paused:
            waits_s.append(min(job.run_at - step.was_at, 1.0))
    must = max(0.0, min(waits_s)) if waits_s else None
    return None if step.horizon_s == must else f"the horizon was {step.horizon_s} s, must be {must} s"
