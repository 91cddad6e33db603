"""What must be stored after a step, worked out from what was stored before and from the words of the design.

It borrows no rule of `ulak.core` and knows nothing of how a store keeps its jobs. A store is free in a few
things; there the oracle follows it after checking that it was allowed (see `allowed`).
"""

from __future__ import annotations

import copy

from tests.explore.step import End, Step, is_current
from tests.explore.world import is_overdue, is_refused, new_priority
from ulak.core.job import ENDED, FULL, Draft, Duplicate, Full, Job, State

BASE_S, CAP_S = 1.0, 2.0


def foresee(step: Step) -> None:
    """Set what the step must bring.

    wanted: the changed jobs, by id. gains: the totals that grow. choice: what a claim must take, in order.
    """
    wanted: dict[int, Job] = {}
    gains: list[str] = []
    step.choice = []
    jobs = step.before.jobs
    for end in step.ends:
        job = wanted.get(end.lease.id) or _job(jobs, end.lease.id)
        if job is not None and is_current(job, end):
            wanted[job.id] = after_end(copy.copy(job), end, step, gains)
    if step.claimed is not None:
        choice = claimable(step, wanted)[: step.claimed.limit]
        step.choice = [job.id for job in choice]
        for job in choice:
            taken = wanted.setdefault(job.id, copy.copy(job))
            taken.state, taken.lease_end = State.LEASED, step.now + 10.0
            taken.attempt += 1
            taken.delivery += 1
    elif step.extended is not None:
        lease, lease_s, _ = step.extended
        job = _job(jobs, lease.id)
        if job is not None and is_current(job, End(lease, "ack")):
            wanted[job.id] = longer = copy.copy(job)
            longer.lease_end = max(longer.lease_end, step.now + lease_s)
    elif step.acted is not None:
        _act(step, wanted, gains)
    elif step.put is not None and isinstance(step.put.answer, list):
        gains += ["enqueued"] * len(new_ids(step.put.answer))
    step.wanted, step.gains = wanted, gains


def _job(jobs: tuple[Job | None, ...], job_id: int) -> Job | None:
    return jobs[job_id - 1] if 0 < job_id <= len(jobs) else None


# Settlements


def after_end(job: Job, end: End, step: Step, gains: list[str]) -> Job:
    """Where the end of its current delivery leaves a job."""
    how, delay_s = end.how, end.delay_s or 0.0
    is_failure = how in {"fail", "lost", "crash", "reject", "give up"}
    if how in {"back", "hold", "refuse"}:
        job.attempt -= 1
    if how in {"fail", "lost", "crash"} and end.delay_s is None:
        delay_s = backoff_s(job, how, step.u)
    job.crashes += how == "crash"
    due_at = step.now_at + delay_s
    if how == "ack":
        job.state = State.SUCCEEDED
    elif job.cancel_requested or how == "give up":
        job.state = State.CANCELLED
    elif how == "reject" or (is_failure and job.attempt == job.max_attempts):
        job.state = State.DEAD
    elif job.expires_at is not None and due_at >= job.expires_at:
        job.state = State.EXPIRED
    elif how in {"hold", "refuse"}:
        job.state = State.HELD
    else:
        job.state = State.SCHEDULED if delay_s else State.READY
        job.run_at = due_at
    gains += _gains(job, how, is_failure=is_failure)
    return job


def backoff_s(job: Job, how: str, u: float) -> float:
    """The wait of a failed job by its policy: doubled with each failure, or with each crash but one."""
    failures = job.attempt if how != "crash" else job.crashes
    if job.backoff is None or failures == 0:
        return 0.0
    widest_s = BASE_S
    for _ in range(failures - 1):
        widest_s = min(CAP_S, 2 * widest_s)
    return u * widest_s


def _gains(job: Job, how: str, *, is_failure: bool) -> list[str]:
    gains = {
        State.SUCCEEDED: ["processed", "succeeded"],
        State.DEAD: ["dead_lettered"],
        State.CANCELLED: ["cancelled"] + ["cut"] * is_failure,
        State.EXPIRED: ["expired"] + ["cut"] * is_failure,
    }.get(job.state, ["retries"] * is_failure)
    return gains + ["processed", "failed"] * is_failure + ["reclaimed"] * (how in {"lost", "crash"})


# Claims


def claimable(step: Step, overlaid: dict[int, Job]) -> list[Job]:
    """The jobs that this claim may take, best first."""
    assert step.claimed is not None
    if step.rest.is_paused:
        return []
    able = []
    for stored in step.before.jobs:
        job = stored if stored is None else overlaid.get(stored.id, stored)
        if job is None or is_overdue(job, step.now_at):
            continue
        tasks = step.claimed.tasks
        is_wanted = tasks is None or (job.task in tasks and not is_refused(job))
        is_held = job.state is State.HELD and is_wanted
        is_due = job.state is State.SCHEDULED and job.run_at <= step.now_at
        if job.state is State.READY or is_due or is_held:
            able.append(job)
    return sorted(able, key=lambda job: (-job.priority, job.id))


# Operators


def _act(step: Step, wanted: dict[int, Job], gains: list[str]) -> None:
    assert step.acted is not None
    job = _job(step.before.jobs, step.acted.job_id)
    if job is None or refusal_of(step, job) is not None:
        return
    changed = copy.copy(job)
    match step.acted.what:
        case "cancel" if job.state is State.LEASED:
            changed.cancel_requested = True
        case "cancel":
            changed.state = State.CANCELLED
            gains.append("cancelled")
        case "redrive":
            changed.state = State.READY
            if job.expires_at is not None and job.expires_at <= step.now_at:
                changed.expires_at = None
            if job.state in ENDED:
                changed.attempt = changed.crashes = 0
                changed.cancel_requested = False
                gains.append("redriven")
        case "reprioritise":
            changed.priority = new_priority(job.id)
        case "delete":
            gains.append("deleted" if job.state not in ENDED else "pruned")
            return
        case other:
            raise AssertionError(other)
    wanted[job.id] = changed


def refusal_of(step: Step, job: Job | None) -> str | None:
    """Why an operator's act must be refused."""
    assert step.acted is not None
    if job is None:
        return "not found"
    match step.acted.what:
        case "cancel" if job.state in ENDED:
            return "not possible in its state"
        case "redrive" if job.state is State.HELD:
            return None
        case "redrive" if job.state is State.SUCCEEDED or job.state not in ENDED:
            return "not possible in its state"
        case "redrive":
            if step.scope.capacity is not None and step.before.counts.open >= step.scope.capacity:
                return "queue is full"
            holders = [other for other in step.before.jobs if other is not None and other.state not in ENDED]
            is_taken = job.unique_key is not None and job.unique_key in {one.unique_key for one in holders}
            return "unique key is taken" if is_taken else None
        case "reprioritise" if job.state in ENDED:
            return "not possible in its state"
        case "reprioritise" | "delete" if job.state is State.LEASED:
            return "leased by a worker"
    return None


# What the store may do beside


def allowed(step: Step, before: Job, after: Job | None) -> list[str] | None:
    """The totals that grow if this change of a job that nobody asked for is allowed; None: it is not.

    add, claim and prune may end the waiting jobs past `expires_at` that they meet; a claim may make due jobs
    ready; ended jobs beyond retention may be forgotten at any time.
    """
    if after is None:
        return ["pruned"] if step.scope.retention is not None and before.state in ENDED else None
    is_meeting = step.claimed is not None or step.put is not None or step.pruned
    if after.state is State.EXPIRED and is_meeting and is_overdue(before, step.now_at):
        return ["expired"]
    is_due = before.state is State.SCHEDULED and before.run_at <= step.now_at
    is_promoting = step.claimed is not None or step.promoted is not None
    return [] if is_promoting and is_due and after.state is State.READY else None


# Enqueue


def new_ids(answers: list[int]) -> list[int]:
    """The ids of the jobs that an enqueue brought; the others were there."""
    return [answer for answer in answers if not isinstance(answer, Duplicate)]


def must_answer(step: Step) -> list[int] | Full:
    """What an enqueue must answer, if the queue is not closed."""
    assert step.put is not None
    answers: list[int] = []
    stored = step.before.counts.total
    for number, draft in enumerate(step.put.drafts, step.put.number):
        known = _known(step, number, draft, answers)
        answers.append(stored + 1 if known is None else Duplicate(known))
        stored += known is None
    new = len(new_ids(answers))
    overdue = sum(job is not None and is_overdue(job, step.now_at) for job in step.before.jobs)
    capacity = step.scope.capacity
    is_full = capacity is not None and step.before.counts.open - overdue + new > capacity
    return FULL if new and is_full else answers


def _known(step: Step, number: int, draft: Draft, answers: list[int]) -> int | None:
    """The id of the job that already stands for a key of the draft; None: it is new."""
    assert step.put is not None
    if draft.idempotency_key is not None and step.keys[number]:
        return step.keys[number]
    if draft.unique_key is None:
        return None
    for job in step.before.jobs:
        if job is None or job.state in ENDED or is_overdue(job, step.now_at):
            continue
        if draft.unique_key == job.unique_key:
            return job.id
    for earlier, answer in zip(step.put.drafts, answers, strict=False):
        if draft.unique_key == earlier.unique_key:
            return int(answer)
    return None
