"""One judge of histories for all stores: from what callers were told it says what went wrong, job by job.

Every check holds for calls that overlap: a call took effect at some moment between its question and its
answer, one with an unknown answer at any moment after its question, or never. So only what cannot be
explained is a problem. Where calls do not overlap and every answer is known, the checks are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.history import queues
from tests.support.history.lines import End, Line
from tests.support.history.story import ENDED, Call, Job, Problem, Story

SHOWN_MAX = 20
_AGAIN = {
    "lost": "after expiry",
    "nack": "after failure",
    "error": "after failure",
    "timeout": "after failure",
    "release": "after release",
    "shutdown": "after release",
    "snooze": "after release",
    "unknown task": "after release",
    # As a hold: then whoever takes anything, or an operator, may bring it back.
    "undecodable": "after release",
}
_HOW = {"succeeded": "done", "dead": "dead"}
_DEAD_EARLY = frozenset({"reject", "undecodable"})


@dataclass
class Verdict:
    """What a history shows.

    again: deliveries of a job beyond its first, by what explains each. seen: what callers were told, to see
    that a run was no idle one.
    """

    jobs: int = 0
    recovered: int = 0
    deliveries: int = 0
    acked: int = 0
    calls: int = 0
    unknown: int = 0
    again: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The kinds of problems found."""
        return sorted({problem.kind for problem in self.problems})

    def __str__(self) -> str:
        again = ", ".join(f"{n} {why}" for why, n in sorted(self.again.items())) or "none"
        head = (
            f"{self.calls} calls ({self.unknown} with an unknown answer), {self.jobs} jobs "
            f"({self.recovered} of unknown calls), {self.deliveries} deliveries (again: {again}), "
            f"{self.acked} acked: {len(self.problems)} problems"
        )
        shown = [f"  {kind}: job {job}: {text}" for kind, job, text in self.problems[:SHOWN_MAX]]
        return "\n".join([head, *shown])


def judge(
    lines: Iterable[Line],
    *,
    at_rest: bool = True,
    capacity: Mapping[str, int | None] | None = None,
    slack_s: float = 1e-6,
) -> Verdict:
    """What the history shows.

    at_rest: faults have stopped and everything has run, so each job must have ended; the lines hold what is
    stored. capacity: the most that each queue's was, where it had one. slack_s: how far the clocks of
    writers and store may be apart.
    """
    story = Story(lines, slack_s=slack_s)
    verdict = Verdict(calls=len(story.calls), unknown=sum(call.is_unknown for call in story.calls))
    verdict.seen = _seen(story)
    problems = verdict.problems
    for job in story.jobs.values():
        marks = job.marks()
        if not marks and job.put is None:
            # Somebody asked about an id that may never have been one.
            continue
        verdict.jobs += 1
        verdict.recovered += job.put is None
        verdict.deliveries += sum(map(len, job.handed.values()))
        verdict.acked += any(e.took_effect and e.end.how == "done" for e in job.endings())
        problems += _wrong_origin(job, marks, story)
        problems += _wrong_deliveries(job, story, verdict.again)
        problems += _wrong_fences(job)
        problems += _wrong_attempts(job)
        problems += _wrong_times(job, story)
        problems += _wrong_states(job, story)
        if at_rest:
            problems += _wrong_rest(job, story)
    problems += [*queues.wrong_keys(story), *queues.wrong_room(story, capacity or {})]
    problems += queues.wrong_reads(story)
    if at_rest:
        problems += [*queues.wrong_ids(story), *queues.wrong_totals(story)]
    return verdict


def _seen(story: Story) -> Counter[str]:
    seen = Counter({"duplicate": len(story.duplicates)})
    for call in story.calls:
        if call.told is not None:
            seen["full"] += call.told.answer == "full"
            seen["stale"] += call.told.settled.count("stale") + call.told.extended.count("stale")
    for job in story.jobs.values():
        seen.update(f"ended by {e.end.cause}" for e in job.endings() if e.took_effect)
        if job.stored is not None:
            seen[f"stored as {job.stored.state}"] += 1
    return seen


def _wrong_origin(job: Job, marks: set[str], story: Story) -> Iterator[Problem]:
    """Delivered or stored, and never enqueued; or with another payload than it was enqueued with."""
    if job.put is not None:
        for mark in sorted(marks - story.edits.get(job.id, set()) - {job.put[1].mark}):
            yield Problem("payload", job.id, f"enqueued as {job.put[1].mark}, came as {mark}")
    elif job.id not in story.edits and not any(mark in story.maybe for mark in marks):
        yield Problem("unexpected", job.id, f"came as {sorted(marks)}, which nobody enqueued")


def _wrong_deliveries(job: Job, story: Story, again: Counter[str]) -> Iterator[Problem]:
    """Two current deliveries at once, and deliveries beyond the first that nothing explains."""
    for delivery in sorted(job.handed):
        told = job.handed[delivery]
        if len(told) > 1:
            whos = ", ".join(call.asked.who for call, _ in told)
            yield Problem("overlap", job.id, f"delivery {delivery} was handed out {len(told)} times: {whos}")
        call = told[0][0]
        before = delivery - 1
        if before == 0:
            continue
        is_lost = before not in job.handed
        if is_lost and story.blind_since(call.asked.queue) > call.t1:
            yield Problem("skipped", job.id, f"delivery {before} went to nobody")
        why, problem = _explained(job, before, call)
        if is_lost and why == "unexplained":
            # What a claim has leased whose answer was lost its store hands back by itself.
            why, problem = "after lost claim", ""
        again[why] += 1
        if problem:
            yield Problem(problem, job.id, f"delivery {delivery}, to {call.asked.who}: {why}")


def _explained(job: Job, before: int, call: Call) -> tuple[str, str]:
    """(why the job could be handed out after this delivery, the kind of problem if it could not)."""
    ending = job.ended(before)
    if ending is None:
        if any(e.state is None and e.call.t0 <= call.t1 for e in job.ends.get(before, ())):
            return "after lost reply", ""
        return "unexplained", "unexplained"
    if ending.call.t0 > call.t1:
        return f"while delivery {before} was current", "overlap"
    if ending.state in ENDED:
        if job.was_redriven(ending.call.t0, call.t1):
            return "after redrive", ""
        return f"after its end as {ending.state}", "after end"
    if ending.end.crashed:
        return "after crash", ""
    why = _AGAIN.get(ending.end.cause, "")
    return (why, "") if why else (f"after {ending.end.cause}", "unexplained")


def _wrong_fences(job: Job) -> Iterator[Problem]:
    """OK to a delivery that was not current, STALE to one that was, and OK twice."""
    later = math.inf
    deletes = min((call.t0 for call in job.acts_of("Delete")), default=math.inf)
    for delivery in sorted({*job.handed, *job.ends, *job.extends}, reverse=True):
        ends, extends = job.ends.get(delivery, []), job.extends.get(delivery, [])
        good = [ending for ending in ends if ending.took_effect]
        for ending in good:
            if ending.call.t0 > later:
                text = f"delivery {delivery} was settled ({ending.end.cause}) after the next was handed out"
                yield Problem("stale accepted", job.id, text)
        if len(good) > 1:
            whos = ", ".join(f"{e.call.asked.who} ({e.end.cause})" for e in good)
            yield Problem("settled twice", job.id, f"delivery {delivery} by {whos}")
        ended = min((ending.call.t1 for ending in good), default=math.inf)
        for call, answer in extends:
            if answer == "ok" and call.t0 > min(later, ended):
                yield Problem("stale accepted", job.id, f"delivery {delivery} was extended after its end")
        if delivery in job.handed:
            could_end = min([e.call.t0 for e in ends if e.state != "stale"] + [deletes])
            refused = [e.call for e in ends if e.state == "stale" and e.end.cause != "lost"]
            refused += [call for call, answer in extends if answer == "stale"]
            for call in refused:
                if call.t1 < could_end:
                    text = f"delivery {delivery} of {call.asked.who} was refused though it was current"
                    yield Problem("false stale", job.id, text)
            later = min(later, *(call.t1 for call, _ in job.handed[delivery]))


def _wrong_attempts(job: Job) -> Iterator[Problem]:
    """Attempts that were counted wrongly, or beyond the most there may be."""
    for delivery, told in job.handed.items():
        call, handed = told[0]
        if handed.attempt > handed.max_attempts:
            text = f"delivery {delivery} is attempt {handed.attempt} of {handed.max_attempts}"
            yield Problem("over attempts", job.id, text)
        if delivery == 1:
            expected = {1}
        else:
            ending, before = job.ended(delivery - 1), job.handed.get(delivery - 1)
            if ending is None or before is None:
                continue
            refund = ending.end.refund or ending.end.how == "hold"
            expected = {before[0][1].attempt + (not refund)}
            if job.was_redriven(ending.call.t0, call.t1):
                expected = {1} if ending.state in ENDED else {*expected, 1}
        if handed.attempt not in expected:
            text = f"delivery {delivery} is attempt {handed.attempt}, not {min(expected)}"
            yield Problem("attempts", job.id, text)
    for delivery, ends in job.ends.items():
        for ending in ends:
            if ending.took_effect:
                yield from _wrong_verdict(job, delivery, ending.end)


def _wrong_verdict(job: Job, delivery: int, end: End) -> Iterator[Problem]:
    if end.how == "retry" and not end.refund and _AGAIN.get(end.cause) == "after release":
        yield Problem("attempts", job.id, f"delivery {delivery}: {end.cause} must not spend an attempt")
    if delivery in job.handed:
        handed = job.handed[delivery][0][1]
        is_last = handed.attempt >= handed.max_attempts
        if end.how == "dead" and not is_last and end.cause not in _DEAD_EARLY:
            text = f"attempt {handed.attempt} of {handed.max_attempts} ended dead ({end.cause})"
            yield Problem("attempts", job.id, text)


def _wrong_times(job: Job, story: Story) -> Iterator[Problem]:
    """Delivered before it was due, or reclaimed before its lease had ended."""
    for delivery, told in job.handed.items():
        call, handed = told[0]
        due_at = _due_at(job, delivery, call)
        if due_at is not None and call.store_at is not None:
            since, at = due_at
            early_s = at - call.store_at
            if early_s > story.slack_s and not story.clock_was_turned_back(since, call.t1):
                yield Problem("early", job.id, f"delivery {delivery} came {early_s:.3f} s before it was due")
        ending = job.ended(delivery)
        if ending is not None and ending.end.cause == "lost" and not ending.end.crashed:
            ends = [call.t0 + handed.lease_s]
            ends += [
                extend.t0 + extend.asked.lease_s
                for extend, answer in job.extends.get(delivery, ())
                if answer == "ok" and extend.t1 <= ending.call.t0
            ]
            left_s = max(ends) - ending.call.t1
            if left_s > story.slack_s:
                text = f"delivery {delivery} was reclaimed {left_s:.3f} s before its lease ended"
                yield Problem("early reclaim", job.id, text)
    yield from _wrong_record(job, story)


def _due_at(job: Job, delivery: int, claim: Call) -> tuple[float, float] | None:
    """(when this was said, the calendar time before which the delivery may not come)."""
    if delivery == 1:
        if job.put is None or job.was_redriven(job.put[0].t0, claim.t1):
            return None
        call, put = job.put
        if put.run_at is not None:
            return call.t0, put.run_at
        return None if call.store_at is None else (call.t0, call.store_at + put.delay_s)
    ending = job.ended(delivery - 1)
    if ending is None or ending.state in ENDED or ending.call.store_at is None:
        return None
    if job.was_redriven(ending.call.t0, claim.t1):
        return None
    return ending.call.t0, ending.call.store_at + ending.end.delay_s


def _wrong_record(job: Job, story: Story) -> Iterator[Problem]:
    """The same, by the store's own clock as the job's record remembers it."""
    if job.stored is None or story.clock_was_turned_back(-math.inf, math.inf):
        return
    ran = {entry.delivery: entry for entry in job.stored.ran}
    for delivery, entry in ran.items():
        ending = job.ended(delivery - 1)
        if any(job.acts_of("Redrive")):
            continue
        if delivery == 1 and job.put is not None and job.put[1].run_at is None:
            due_at = job.stored.created_at + job.put[1].delay_s
        elif ending is not None and ending.state not in ENDED and delivery - 1 in ran:
            due_at = ran[delivery - 1].ended_at + ending.end.delay_s
        else:
            continue
        if entry.started_at < due_at - story.slack_s:
            text = f"by its record delivery {delivery} came {due_at - entry.started_at:.3f} s too early"
            yield Problem("early", job.id, text)


def _wrong_states(job: Job, story: Story) -> Iterator[Problem]:
    """A second ack; anything but the same state after an end, without a redrive."""
    acks = [ending for ending in job.endings() if ending.took_effect and ending.end.how == "done"]
    if len(acks) > 1:
        yield Problem("acked twice", job.id, f"by {', '.join(e.call.asked.who for e in acks)}")
    facts: list[tuple[float, float, str | None]] = [
        (ending.call.t1, ending.call.t0, ending.state) for ending in job.endings() if ending.took_effect
    ]
    facts += [(t1, t0, seen) for t0, t1, seen in job.seen]
    facts += [(call.t1, call.t0, "leased") for told in job.handed.values() for call, _ in told]
    queue = _queue_of(job)
    if job.stored is not None:
        facts.append((math.inf, math.inf, job.stored.state))
    final: tuple[float, float, str] | None = None
    for t1, t0, state in sorted(facts, key=lambda fact: fact[:2]):
        if final is not None and t0 > final[0] and state != final[2]:
            if job.was_redriven(final[1], t1):
                final = None
            elif state is not None:
                kind = "after end" if state == "leased" else "terminal changed"
                yield Problem(kind, job.id, f"was {final[2]}, and {state} later")
                final = None
            elif not any(job.acts_of("Delete")) and not story.forgets(queue):
                yield Problem("lost", job.id, f"was {final[2]}, and unknown later")
                final = None
        if final is None and state in ENDED:
            final = t1, t0, state


def _wrong_rest(job: Job, story: Story) -> Iterator[Problem]:
    """Not stored, not ended, or ended otherwise than anybody said; a delivery that nobody ended."""
    may_be_gone = any(job.acts_of("Delete"))
    if job.stored is None:
        if not may_be_gone and not story.forgets(_queue_of(job)):
            yield Problem("lost", job.id, "enqueued, and not stored in the end")
        return
    if job.stored.state not in ENDED:
        yield Problem("unfinished", job.id, f"{job.stored.state} in the end")
    said = {e.end.how for e in job.endings() if e.state != "stale"}
    if job.stored.state in ("succeeded", "dead") and _HOW[job.stored.state] not in said:
        yield Problem("unsaid end", job.id, f"{job.stored.state}, and nobody said so")
    for delivery in range(1, job.stored.delivery + 1):
        if delivery not in job.handed and job.stored.queue not in story.blind_claims:
            yield Problem("skipped", job.id, f"delivery {delivery} went to nobody")
        if delivery not in job.handed:
            continue
        if all(ending.state == "stale" for ending in job.ends.get(delivery, ())) and not may_be_gone:
            yield Problem("unended", job.id, f"delivery {delivery} was ended by nobody")


def _queue_of(job: Job) -> str:
    if job.stored is not None:
        return job.stored.queue
    return "" if job.put is None else job.put[0].asked.queue
