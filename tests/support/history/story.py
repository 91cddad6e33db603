"""A history sorted by job: what the judge looks at."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.history.lines import Asked, Counted, End, Handed, Happened, Line, Put, Stored, Told

ENDED = frozenset({"succeeded", "dead", "cancelled", "expired"})


class Problem(NamedTuple):
    """Something that no correct store can do. job: 0 where it is about a whole queue."""

    kind: str
    job: int
    text: str


class Call:
    """A call: it took effect between t0 and t1, if at all."""

    __slots__ = ("asked", "is_unknown", "t0", "t1", "told")

    def __init__(self, asked: Asked, told: Told | None) -> None:
        self.asked = asked
        self.told = told
        self.is_unknown = told is None or told.answer == "unknown"
        self.t0 = asked.t
        self.t1 = math.inf if told is None or self.is_unknown else told.t

    @property
    def store_at(self) -> float | None:
        """The store's calendar clock at its effect, where that is known."""
        return None if self.told is None else self.told.store_at


class Ending(NamedTuple):
    """A verdict somebody gave. state: what was told, None if unknown."""

    call: Call
    end: End
    state: str | None

    @property
    def took_effect(self) -> bool:
        """Whether it was told to have ended its delivery."""
        return self.state not in (None, "stale")


class Job:
    """All that is known of one job, each kind by delivery where it has one."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id
        self.put: tuple[Call, Put] | None = None
        self.handed: dict[int, list[tuple[Call, Handed]]] = defaultdict(list)
        self.ends: dict[int, list[Ending]] = defaultdict(list)
        self.extends: dict[int, list[tuple[Call, str | None]]] = defaultdict(list)
        self.acts: list[tuple[Call, str]] = []
        self.seen: list[tuple[float, float, str | None]] = []
        self.stored: Stored | None = None

    def acts_of(self, act: str) -> Iterator[Call]:
        """The operator's acts of this name that changed it, or may have."""
        return (call for call, name in self.acts if name == act)

    def was_redriven(self, t0: float, t1: float) -> bool:
        """Whether it may have been redriven between these moments."""
        return any(call.t1 >= t0 and call.t0 <= t1 for call in self.acts_of("Redrive"))

    def ended(self, delivery: int) -> Ending | None:
        """The verdict that ended this delivery, where one was told to have."""
        return next((ending for ending in self.ends.get(delivery, ()) if ending.took_effect), None)

    def endings(self) -> Iterator[Ending]:
        """All verdicts on it."""
        return (ending for ends in self.ends.values() for ending in ends)

    def marks(self) -> set[str]:
        """The payloads it came with."""
        marks = {handed.mark for told in self.handed.values() for _, handed in told}
        return marks if self.stored is None else marks | {self.stored.mark}

    def soonest_end(self) -> float:
        """Before this moment the job was open for certain, once it was enqueued."""
        if self.put is not None and self.put[1].may_expire:
            return self.put[0].t0
        moments = [e.call.t0 for e in self.endings() if e.state is None or e.state in ENDED]
        moments += [call.t0 for call, act in self.acts if act in ("Cancel", "Delete")]
        return min(moments, default=math.inf)


class Story:
    """The lines of a history, as jobs.

    maybe: jobs of calls whose answer is unknown, by mark. blind_claims: when the first claim of a queue was
    asked whose answer is unknown. forgotten: whether the store may forget ended jobs of a queue.
    """

    def __init__(self, lines: Iterable[Line], *, slack_s: float) -> None:
        self.slack_s = slack_s
        self.jobs: dict[int, Job] = {}
        self.maybe: dict[str, list[tuple[Call, Put]]] = defaultdict(list)
        self.duplicates: list[tuple[Call, Put, int]] = []
        self.edits: dict[int, set[str]] = defaultdict(set)
        self.counted: dict[str, dict[str, int]] = {}
        self.blind_claims: dict[str, float] = {}
        self._turned_back: list[float] = []
        self.calls = self._read(lines)
        for call in self.calls:
            self._sort(call)

    def job(self, job_id: int) -> Job:
        """The job of this id, from now on known."""
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = Job(job_id)
        return job

    def blind_since(self, queues: str) -> float:
        """When the first claim of one of these queues was asked whose answer is unknown."""
        return min(self.blind_claims.get(queue, math.inf) for queue in queues.split(","))

    def forgets(self, queue: str) -> bool:
        """Whether ended jobs of this queue were removed by retention or by an operator."""
        return self.counted.get(queue, {}).get("pruned", 0) > 0

    def clock_was_turned_back(self, t0: float, t1: float) -> bool:
        """Whether the calendar clock was set back between these moments."""
        return bisect_right(self._turned_back, t1) > bisect_left(self._turned_back, t0)

    def _read(self, lines: Iterable[Line]) -> list[Call]:
        asked: list[Asked] = []
        told: dict[tuple[str, int], Told] = {}
        for line in lines:
            match line:
                case Asked():
                    asked.append(line)
                case Told():
                    told[line.who, line.n] = line
                case Happened():
                    if line.what == "calendar back":
                        self._turned_back.append(line.t)
                case Stored():
                    self.job(line.id).stored = line
                case Counted():
                    self.counted[line.queue] = line.numbers
        self._turned_back.sort()
        return sorted((Call(line, told.get((line.who, line.n))) for line in asked), key=lambda call: call.t0)

    def _sort(self, call: Call) -> None:
        """Note with each job what the call was about."""
        asked, told = call.asked, call.told
        if told is not None and told.answer == "refused":
            return
        known = None if call.is_unknown else told
        if asked.puts:
            self._sort_puts(call, known)
        states = known.settled if known is not None else [None] * len(asked.ends)
        for end, state in zip(asked.ends, states, strict=True):
            self.job(end.id).ends[end.delivery].append(Ending(call, end, state))
        answers = known.extended if known is not None else [None] * len(asked.leases)
        for (job_id, delivery), answer in zip(asked.leases, answers, strict=True):
            self.job(job_id).extends[delivery].append((call, answer))
        if asked.act:
            self._sort_act(call, known)
        if known is not None:
            for handed in known.handed:
                self.job(handed.id).handed[handed.delivery].append((call, handed))
            for job_id, seen in known.seen:
                self.job(job_id).seen.append((call.t0, call.t1, seen))
        elif asked.op in ("claim", "turn"):
            self._sort_blind(call)

    def _sort_blind(self, call: Call) -> None:
        for queue in call.asked.queue.split(","):
            self.blind_claims.setdefault(queue, call.t0)

    def _sort_puts(self, call: Call, known: Told | None) -> None:
        if known is None:
            for put in call.asked.puts:
                self.maybe[put.mark].append((call, put))
        elif known.answer == "ok":
            for put, (job_id, is_duplicate) in zip(call.asked.puts, known.ids, strict=True):
                if is_duplicate:
                    self.duplicates.append((call, put, job_id))
                else:
                    self.job(job_id).put = call, put

    def _sort_act(self, call: Call, known: Told | None) -> None:
        # An act whose answer is unknown, on all that a filter chose, may have changed any job.
        changed = known.done if known is not None else call.asked.ids
        for job_id in list(self.jobs) if changed is None else changed:
            self.job(job_id).acts.append((call, call.asked.act))
            if call.asked.act == "Edit":
                self.edits[job_id].add(call.asked.mark)
