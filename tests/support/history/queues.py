"""The judge's checks that are about a queue as a whole: its keys, its room, its numbers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.support.history.lines import Put
from tests.support.history.story import ENDED, Call, Ending, Job, Problem, Story

Numbers = Mapping[str, int]

TOTALS = (
    "enqueued",
    "redriven",
    "processed",
    "succeeded",
    "failed",
    "retries",
    "dead_lettered",
    "cut",
    "reclaimed",
    "deleted",
    "pruned",
)

TOLD = ("enqueued", "succeeded", "failed", "reclaimed")
"""Totals that follow from what callers were told."""


def wrong_keys(story: Story) -> Iterator[Problem]:
    """Two open jobs of one unique key, two jobs of one idempotency key, duplicates of the wrong job."""
    named: dict[tuple[str, str], set[int]] = defaultdict(set)
    for job in story.jobs.values():
        for queue, put in _puts_of(job, story):
            if put.idempotency_key is not None:
                named[queue, put.idempotency_key].add(job.id)
    for call, put, job_id in story.duplicates:
        if put.idempotency_key is not None:
            named[call.asked.queue, put.idempotency_key].add(job_id)
    for (_, key), ids in named.items():
        if len(ids) > 1:
            yield Problem("idempotency", min(ids), f"key {key!r} stands for {sorted(ids)}")
    yield from _shared_keys(story)
    # What a name once stood for it stands for on, whatever became of that job.
    stands: set[tuple[str, str | None]] = {
        (call.asked.queue, put.idempotency_key) for maybe in story.maybe.values() for call, put in maybe
    }
    for call, put, job_id in story.duplicates:
        name = call.asked.queue, put.idempotency_key
        if put.idempotency_key is None or name not in stands:
            yield from _wrong_duplicate(call, put, story.jobs.get(job_id), job_id, story)
            stands.add(name)


def _shared_keys(story: Story) -> Iterator[Problem]:
    holders: dict[tuple[str, str], list[tuple[Call, Job]]] = defaultdict(list)
    for job in story.jobs.values():
        if job.put is not None and job.put[1].unique_key is not None:
            call, put = job.put
            holders[call.asked.queue, put.unique_key].append((call, job))
    for (_, key), held in holders.items():
        open_from, open_until, open_job = math.inf, -math.inf, 0
        for call, job in sorted(held, key=lambda entry: entry[0].t0):
            # Only what was open before the call began was in its way for sure: it may have waited for room.
            if open_from <= call.t0 and call.t1 < open_until:
                yield Problem("unique", job.id, f"key {key!r} was taken by open job {open_job}")
            if call.t1 < math.inf and job.soonest_end() > open_until:
                open_from, open_until, open_job = call.t1, job.soonest_end(), job.id


def _puts_of(job: Job, story: Story) -> list[tuple[str, Put]]:
    if job.put is not None:
        return [(job.put[0].asked.queue, job.put[1])]
    marks = job.marks()
    return [(call.asked.queue, put) for mark in marks for call, put in story.maybe.get(mark, ())[:1]]


def _wrong_duplicate(call: Call, put: Put, job: Job | None, job_id: int, story: Story) -> Iterator[Problem]:
    known = [] if job is None else [known for _, known in _puts_of(job, story)]
    if job is None or not known:
        # It may be the job of a call whose answer is unknown, which was never delivered or looked at.
        if not story.maybe:
            yield Problem("duplicate", job_id, f"{put.mark} was called its duplicate, and it was never there")
        return
    if put.idempotency_key is not None and put.idempotency_key in {p.idempotency_key for p in known}:
        return
    if put.unique_key is None or put.unique_key not in {p.unique_key for p in known}:
        yield Problem("duplicate", job_id, f"{put.mark} was called its duplicate, and has no key of it")
        return
    ended = min((e.call.t1 for e in job.endings() if e.took_effect and e.state in ENDED), default=math.inf)
    if ended < call.t0 and not job.was_redriven(ended, call.t1):
        yield Problem("duplicate", job_id, f"{put.mark} was called its duplicate, and it had ended")


def wrong_ids(story: Story) -> Iterator[Problem]:
    """More jobs of one payload than calls asked for."""
    recovered = Counter(mark for job in story.jobs.values() if job.put is None for mark in job.marks())
    for mark, jobs in recovered.items():
        if jobs > len(story.maybe.get(mark, ())) > 0:
            yield Problem("unexpected", 0, f"{mark} was stored {jobs} times")


def wrong_room(story: Story, capacity: Mapping[str, int | None]) -> Iterator[Problem]:
    """More open jobs than the capacity after an enqueue, or FULL while there was room."""
    for call in story.calls:
        told = call.told
        if told is None or told.room is None:
            continue
        open_jobs, most = told.room
        is_new = any(not is_duplicate for _, is_duplicate in told.ids)
        if most is not None and is_new and open_jobs > most:
            yield Problem("over capacity", 0, f"{open_jobs} open after an enqueue, capacity {most}")
        puts = len(call.asked.puts)
        if call.asked.op == "add" and told.answer == "full" and (most is None or open_jobs + puts <= most):
            yield Problem("false full", 0, f"{puts} jobs refused with {open_jobs} open, capacity {most}")
    yield from _overfull(story, capacity)


def _overfull(story: Story, capacity: Mapping[str, int | None]) -> Iterator[Problem]:
    """More jobs open for certain than there may be."""
    moves: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for job in story.jobs.values():
        if job.put is not None:
            queue, since, until = job.put[0].asked.queue, job.put[0].t1, job.soonest_end()
            if since < until:
                moves[queue] += [(since, 1), (until, -1)]
    for queue, steps in moves.items():
        most = capacity.get(queue)
        open_jobs = 0
        # At one moment those that end come first.
        for t, step in sorted(steps):
            open_jobs += step
            if most is not None and open_jobs > most:
                yield Problem("over capacity", 0, f"queue {queue}: {open_jobs} open at {t:.4f}, not {most}")
                break


def wrong_reads(story: Story) -> Iterator[Problem]:
    """Numbers that do not agree with each other, or totals that went down."""
    newest: dict[str, tuple[float, Numbers]] = {}
    for call in story.calls:
        if call.told is None or call.told.counts is None:
            continue
        for queue, numbers in call.told.counts.items():
            yield from _wrong_sums(queue, numbers)
            before_t1, before = newest.get(queue, (math.inf, numbers))
            if call.t0 > before_t1:
                for name in TOTALS:
                    if numbers[name] < before[name]:
                        text = f"queue {queue}: {name} went from {before[name]} to {numbers[name]}"
                        yield Problem("totals", 0, text)
            newest[queue] = call.t1, numbers


def _open(n: Numbers) -> int:
    return n["ready"] + n["scheduled"] + n["leased"] + n["held"]


def _wrong_sums(queue: str, n: Numbers) -> Iterator[Problem]:
    sums = {
        "processed": n["succeeded"] + n["failed"],
        "failed": n["retries"] + n["dead_lettered"] + n["cut"],
        "enqueued": _open(n)
        + n["acked"]
        + n["dead"]
        + n["cancelled"]
        + n["expired"]
        + n["pruned"]
        + n["deleted"],
    }
    for name, expected in sums.items():
        if n[name] != expected:
            yield Problem("totals", 0, f"queue {queue}: {name} is {n[name]}, its parts are {expected}")
    left = n["enqueued"] + n["redriven"]
    ways = ("succeeded", "dead_lettered", "cancelled_ever", "expired_ever", "deleted")
    gone = sum(n[name] for name in ways)
    if left != gone + _open(n):
        yield Problem("totals", 0, f"queue {queue}: {left} came, {gone} ended, {_open(n)} are open")


def wrong_totals(story: Story) -> Iterator[Problem]:
    """Numbers at rest that are not a recount of what is stored, or not what callers were told."""
    stored = defaultdict(Counter)
    for job in story.jobs.values():
        if job.stored is not None:
            stored[job.stored.queue][job.stored.state] += 1
    told = _told_totals(story)
    for queue, numbers in story.counted.items():
        yield from _wrong_sums(queue, numbers)
        for state in ("ready", "scheduled", "leased", "held", "dead", "cancelled", "expired", "acked"):
            recount = stored[queue]["succeeded" if state == "acked" else state]
            if numbers[state] != recount:
                yield Problem("totals", 0, f"queue {queue}: {numbers[state]} {state}, recounted {recount}")
        for name in TOLD:
            least, most = told.get((queue, name), (0, 0))
            if not least <= numbers[name] <= most:
                text = f"queue {queue}: total {name} is {numbers[name]}, callers were told {least} to {most}"
                yield Problem("totals", 0, text)


def _told_totals(story: Story) -> dict[tuple[str, str], tuple[int, int]]:
    """For each queue and total the least and the most that its callers were told."""
    sure: Counter[tuple[str, str]] = Counter()
    maybe: Counter[tuple[str, str]] = Counter()
    for job in story.jobs.values():
        if job.put is not None:
            sure[job.put[0].asked.queue, "enqueued"] += 1
        queue = _queue_of(job)
        for ending in job.endings():
            if ending.state != "stale":
                counter = sure if ending.took_effect and queue is not None else maybe
                # A job that nobody has seen may be of any queue.
                for of_queue in story.counted if queue is None else [queue]:
                    counter.update((of_queue, name) for name in _totals_of(ending))
    for calls in story.maybe.values():
        maybe.update((call.asked.queue, "enqueued") for call, _ in calls)
    return {key: (sure[key], sure[key] + maybe[key]) for key in sure | maybe}


def _totals_of(ending: Ending) -> list[str]:
    end = ending.end
    names = ["reclaimed"] if end.cause == "lost" else []
    if end.how == "done":
        names.append("succeeded")
    elif end.how in ("dead", "cancelled") or (end.how == "retry" and not end.refund):
        names.append("failed")
    return names


def _queue_of(job: Job) -> str | None:
    if job.stored is not None:
        return job.stored.queue
    if job.put is not None:
        return job.put[0].asked.queue
    named = next((told[0][0].asked.queue for told in job.handed.values()), None)
    # Who claims from several queues does not say of which a job is.
    return None if named is None or "," in named else named
