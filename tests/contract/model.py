"""What the contract expects of a storage, in plain dicts and lists, written from the words of the design.

It borrows no rule of `ulak.core`: a suite cannot check the rule that it borrows. Every operation answers in
plain values (ids, strings, dicts) what the store must answer; `follow` then compares all that is stored.

The contract leaves a storage free in three things. There the model follows what the store did, after checking
that it was allowed, and demands what must have happened:

- Expiry. add, claim and prune end the waiting jobs past `expires_at` that they meet. They may end more. But
  such a job is never leased, never keeps a new one out, and a prune that had work left to give ends them all.
- Promotion. A claim may make more due jobs ready than it leases; `promote` makes all of them ready.
- Retention. Ended jobs beyond it may be forgotten at any time, oldest first; a prune forgets them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ulak.core.job import Draft, Job, Lease, State, Verdict
from ulak.core.store import Act, Filter
from ulak.testing import ManualClock

Record = dict[str, Any]

WAITING = ("ready", "scheduled", "held")
OPEN = (*WAITING, "leased")
ENDED = ("succeeded", "dead", "cancelled", "expired")
TOTALS = (
    *("enqueued", "redriven", "processed", "succeeded", "failed", "retries", "dead_lettered"),
    *("cut", "cancelled", "expired", "deleted", "reclaimed", "pruned"),
)
DAY_S = 86_400.0
# (count, age_s) of what is kept where a queue does not say otherwise.
DEAD_KEPT = (100_000, 90 * DAY_S)
MEMORY_KEPT = (10_000, DAY_S)
DURABLE_KEPT = (100_000, 7 * DAY_S)

# Only a leased job has a lease, and only a job that waits for its time has one to wait for.
_LEASE_ONLY = ("lease_s", "lease_end")
_WAITING_ONLY = ("run_at",)


class Model:
    """A store of these queues, all declared with default settings."""

    def __init__(self, clock: ManualClock, queues: Iterable[str], *, durable: bool) -> None:
        self._clock = clock
        self._kept = DURABLE_KEPT if durable else MEMORY_KEPT
        self.jobs: dict[int, Record] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.totals: dict[str, dict[str, int]] = {}
        self.names: dict[str, dict[str, tuple[int, float]]] = {}
        for queue in queues:
            self.settings[queue] = {"capacity": None, "paused": False, "backoff": None, "retention": None}
            self.totals[queue] = dict.fromkeys(TOTALS, 0)
            self.names[queue] = {}
        self.ticks: dict[str, float] = {}
        self.workers: dict[str, tuple[str, dict[str, str], float]] = {}
        self.last_id = 0
        self.calendar_went_back = False
        self._endings = 0
        self._may_expire: set[str] = set()
        self._may_promote: set[str] = set()

    # Time

    @property
    def now(self) -> float:
        return self._clock.interval()

    @property
    def now_at(self) -> float:
        return self._clock.calendar()

    def is_overdue(self, job: Record) -> bool:
        """Whether a waiting job must not be started any more; equal counts as passed."""
        return job["state"] in WAITING and job["expires_at"] is not None and job["expires_at"] <= self.now_at

    def is_due(self, job: Record) -> bool:
        return job["state"] == "scheduled" and job["run_at"] <= self.now_at

    def horizon(self, queues: Sequence[str]) -> tuple[float | None, float | None]:
        """Seconds until a lease ends, and until a scheduled job is due, the soonest each; None: never."""
        leases = [job["lease_end"] - self.now for job in self._of(queues, ("leased",))]
        open_queues = [queue for queue in queues if not self.settings[queue]["paused"]]
        due = [job["run_at"] - self.now_at for job in self._of(open_queues, ("scheduled",))]
        return min(leases, default=None), min(due, default=None)

    def instants(self) -> list[float]:
        """How long until something happens by time alone, in seconds; only what is still to come."""
        waits = [job["lease_end"] - self.now for job in self._of(self.settings, ("leased",))]
        for job in self._of(self.settings, WAITING):
            waits += [at - self.now_at for at in (job["run_at"], job["expires_at"]) if at is not None]
        for job in self._of(self.settings, ENDED):
            waits.append(job["ended_at"] + self._keep(job["queue"], job["state"])[1] - self.now_at)
        return sorted({wait for wait in waits if wait > 0})

    # Into the store

    def add(
        self, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
    ) -> list[int | tuple[str, int]] | str:
        """Ids and ("duplicate", id)s, "full", or "never" where so many can never fit."""
        self._may_expire.add(queue)
        live = [job for job in self._of([queue], OPEN) if not self.is_overdue(job)]
        holders = {job["unique_key"]: job["id"] for job in live if job["unique_key"] is not None}
        names = {name: job_id for name, (job_id, _) in self.names[queue].items()}
        answers = self._answers(drafts, holders, names)
        new = {answer: draft for answer, draft in zip(answers, drafts, strict=True) if type(answer) is int}
        capacity = self.settings[queue]["capacity"]
        if capacity is not None and len(new) > capacity:
            return "never"
        if capacity is not None and new and len(live) + len(new) > capacity:
            return "full"
        if known_only and new:
            return "full"
        for job_id, draft in new.items():
            self._store(job_id, queue, draft)
        for name, job_id in names.items():
            self.names[queue].setdefault(name, (job_id, self.now_at + DAY_S))
        return answers

    def _answers(
        self, drafts: Sequence[Draft], holders: dict[str, int], names: dict[str, int]
    ) -> list[int | tuple[str, int]]:
        """One answer per draft as if there is room; notes the keys that this call takes."""
        answers: list[int | tuple[str, int]] = []
        next_id = self.last_id + 1
        for draft in drafts:
            known = names.get(draft.idempotency_key or "") or holders.get(draft.unique_key or "")
            if known is None:
                known = next_id
                answers.append(known)
                next_id += 1
                if draft.unique_key is not None:
                    holders[draft.unique_key] = known
            else:
                answers.append(("duplicate", known))
            if draft.idempotency_key is not None:
                names.setdefault(draft.idempotency_key, known)
        return answers

    def _store(self, job_id: int, queue: str, draft: Draft) -> None:
        run_at = draft.run_at if draft.run_at is not None else self.now_at + draft.delay_s
        expires_at = draft.expires_at
        if draft.expires_s is not None:
            expires_at = self.now_at + draft.expires_s
        self.last_id = job_id
        self.totals[queue]["enqueued"] += 1
        self.jobs[job_id] = {
            "id": job_id,
            "queue": queue,
            "payload": draft.payload,
            "codec": draft.codec,
            "priority": draft.priority,
            "max_attempts": draft.max_attempts,
            "created_at": self.now_at,
            "run_at": run_at,
            "task": draft.task,
            "headers": draft.headers,
            "unique_key": draft.unique_key,
            "idempotency_key": draft.idempotency_key,
            "expires_at": expires_at,
            "backoff": draft.backoff,
            "state": "ready" if run_at <= self.now_at else "scheduled",
            "attempt": 0,
            "delivery": 0,
            "crashes": 0,
            "worker": "",
            "started_at": 0.0,
            "lease_s": 0.0,
            "lease_end": 0.0,
            "cancel_requested": False,
            "progress": "",
            "result": None,
            "ended_at": None,
            "history": (),
        }

    def fire(self, schedule: str, tick_at: float, queue: str, draft: Draft | None) -> Any:
        last_at = self.ticks.get(schedule)
        if last_at is not None and tick_at <= last_at:
            return "lost"
        if draft is None:
            self.ticks[schedule] = tick_at
            return "fired"
        answer = self.add(queue, [draft])
        if isinstance(answer, str):
            return answer
        self.ticks[schedule] = tick_at
        return answer[0]

    # Under leases

    def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: frozenset[str | None] | None,
    ) -> list[Record]:
        leases: list[Record] = []
        visited = [queue for queue in queues if not self.settings[queue]["paused"]]
        for queue in visited:
            able = [job for job in self._of([queue], WAITING) if self._is_claimable(job, tasks)]
            able.sort(key=_place)
            for job in able[: limit - len(leases)]:
                job["state"] = "leased"
                job["attempt"] += 1
                job["delivery"] += 1
                job["worker"], job["started_at"] = worker, self.now_at
                job["lease_s"], job["lease_end"] = lease_s, self.now + lease_s
                leases.append(self.lease(job))
        self._may_expire.update(visited)
        self._may_promote.update(visited)
        if len(leases) < limit:
            # It looked at everything that could be taken, so it met every overdue job among that.
            for job in self._of(visited, ("ready", "scheduled")):
                if self.is_overdue(job) and (job["state"] == "ready" or self.is_due(job)):
                    self._expire(job)
        return leases

    def _is_claimable(self, job: Record, tasks: frozenset[str | None] | None) -> bool:
        if self.is_overdue(job) or (job["state"] == "scheduled" and not self.is_due(job)):
            return False
        if job["state"] != "held" or tasks is None:
            return True
        (*_, cause, _error) = job["history"][-1]
        return job["task"] in tasks and cause != "undecodable"

    def lease(self, job: Record) -> Record:
        """What a lease on the job says now."""
        same = (
            *("id", "queue", "delivery", "attempt", "max_attempts", "crashes", "priority", "codec"),
            *("worker", "lease_s", "lease_end", "created_at", "task", "headers"),
        )
        lease = {name: job[name] for name in same}
        lease["body"] = job["payload"]
        lease["backoff"] = job["backoff"] or self.settings[job["queue"]]["backoff"]
        return lease

    def is_anything_leased(self) -> bool:
        return any(job["state"] == "leased" for job in self.jobs.values())

    def current(self, lease: Lease) -> Record | None:
        """The job, if this delivery of it is current."""
        job = self.jobs.get(lease.id)
        is_current = job is not None and job["state"] == "leased" and job["delivery"] == lease.delivery
        return job if is_current else None

    def settle(self, lease: Lease, verdict: Verdict) -> str:
        job = self.current(lease)
        if job is None or (verdict.cause.value == "lost" and job["lease_end"] != lease.lease_end):
            return "stale"
        kind = type(verdict).__name__
        refund = kind == "Hold" or getattr(verdict, "refund", False)
        is_failure = kind in {"Dead", "Cancelled"} or (kind == "Retry" and not refund)
        error = getattr(verdict, "error", None)
        ended = (job["delivery"], job["attempt"], job["worker"], job["started_at"], self.now_at)
        self._remember(job, (*ended, verdict.cause.value, error))
        back_at = self.now_at + getattr(verdict, "delay_s", 0.0)
        job["attempt"] -= 1 if refund else 0
        job["crashes"] += 1 if getattr(verdict, "crashed", False) else 0
        if kind == "Done":
            job["result"] = getattr(verdict, "result", None)
            state = "succeeded"
        elif kind == "Cancelled" or job["cancel_requested"]:
            state = "cancelled"
        elif kind == "Dead":
            state = "dead"
        elif job["expires_at"] is not None and job["expires_at"] <= back_at:
            state = "expired"
        else:
            job["run_at"] = back_at
            state = "held" if kind == "Hold" else "scheduled" if back_at > self.now_at else "ready"
        job["state"] = state
        if state in ENDED:
            self._end(job, state)
        self._count_settled(self.totals[job["queue"]], state, is_failure=is_failure)
        if verdict.cause.value == "lost":
            self.totals[job["queue"]]["reclaimed"] += 1
        return state

    def _count_settled(self, totals: dict[str, int], state: str, *, is_failure: bool) -> None:
        if state == "succeeded":
            totals["processed"] += 1
            totals["succeeded"] += 1
        if state in {"cancelled", "expired"}:
            totals[state] += 1
        if is_failure:
            totals["processed"] += 1
            totals["failed"] += 1
            what = {"dead": "dead_lettered", "cancelled": "cut", "expired": "cut"}.get(state, "retries")
            totals[what] += 1

    def _remember(self, job: Record, attempt: tuple[Any, ...]) -> None:
        attempts = [*job["history"], attempt]
        job["history"] = tuple(attempts if len(attempts) <= 20 else [attempts[0], *attempts[-19:]])

    def extend(
        self, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None
    ) -> list[bool | str]:
        answers: list[bool | str] = []
        for lease in leases:
            job = self.current(lease)
            if job is None:
                answers.append("stale")
                continue
            if self.now + lease_s > job["lease_end"]:
                job["lease_s"], job["lease_end"] = lease_s, self.now + lease_s
            job["progress"] = (progress or {}).get(job["id"], job["progress"])
            answers.append(job["cancel_requested"])
        return answers

    def ended(self, queues: Sequence[str]) -> dict[int, Record]:
        """The leases whose time is over; equal counts as passed."""
        past = [job for job in self._of(queues, ("leased",)) if job["lease_end"] <= self.now]
        return {job["id"]: self.lease(job) for job in past}

    def leased(self, queue: str, *, worker: str | None, after: int, limit: int) -> list[Record]:
        jobs = [job for job in self._of([queue], ("leased",)) if worker in {None, job["worker"]}]
        return [self.lease(job) for job in jobs if job["id"] > after][:limit]

    def promote(self, queues: Sequence[str]) -> None:
        running = [queue for queue in queues if not self.settings[queue]["paused"]]
        for job in self._of(running, ("scheduled",)):
            if self.is_due(job) and not self.is_overdue(job):
                job["state"] = "ready"
        self._may_promote.update(running)

    # By an operator

    def matching(self, which: Filter, *, queue: str | None = None) -> list[Record]:
        """What a filter chooses, by id."""
        return [
            job
            for job in self._of(self.settings, (*OPEN, *ENDED))
            if queue in {None, job["queue"]}
            and which.queue in {None, job["queue"]}
            and (which.states is None or job["state"] in which.states)
            and which.task in {None, job["task"]}
            and which.worker in {None, job["worker"]}
        ]

    def amend(
        self,
        which: Sequence[int] | Filter,
        act: Act,
        *,
        queue: str | None,
        force: bool,
        states: frozenset[State] | None = None,
    ) -> tuple[list[int], dict[str, list[int]]]:
        """The ids it changed, and those it refused, by reason."""
        if isinstance(which, Filter):
            chosen, unknown = self.matching(which, queue=queue), []
        else:
            known = {i: self.jobs[i] for i in which if i in self.jobs}
            chosen = [job for job in known.values() if queue in {None, job["queue"]}]
            unknown = sorted(set(which) - {job["id"] for job in chosen})
        done: list[int] = []
        refused: dict[str, list[int]] = {}
        for job in sorted(chosen, key=_place):
            reason = self._refusal(job, type(act).__name__, force=force)
            if states is not None and job["state"] not in states:
                reason = "not possible in its state"
            if reason is None:
                self._act(job, act)
                done.append(job["id"])
            else:
                refused.setdefault(reason, []).append(job["id"])
        if unknown:
            refused["not found"] = unknown
        return done, refused

    def _refusal(self, job: Record, act: str, *, force: bool) -> str | None:
        allowed = {
            "Redrive": {"held", "dead", "cancelled", "expired"},
            "Cancel": {*OPEN},
            "Reprioritise": {*OPEN},
            "Delete": {*OPEN, *ENDED},
            "Edit": {*WAITING, "dead", "cancelled", "expired"},
        }[act]
        if job["state"] not in allowed:
            return "not possible in its state"
        if job["state"] == "leased" and act != "Cancel" and not force:
            return "leased by a worker"
        if act == "Redrive" and job["state"] in ENDED:
            capacity = self.settings[job["queue"]]["capacity"]
            others = self._of([job["queue"]], OPEN)
            if capacity is not None and len(others) >= capacity:
                return "queue is full"
            if job["unique_key"] is not None and job["unique_key"] in {o["unique_key"] for o in others}:
                return "unique key is taken"
        return None

    def _act(self, job: Record, act: Act) -> None:
        totals = self.totals[job["queue"]]
        match type(act).__name__:
            case "Redrive":
                if job["state"] != "held":
                    job["attempt"] = job["crashes"] = 0
                    totals["redriven"] += 1
                job["state"], job["run_at"], job["ended_at"] = "ready", self.now_at, None
                job["cancel_requested"] = False
                if job["expires_at"] is not None and job["expires_at"] <= self.now_at:
                    job["expires_at"] = None
            case "Cancel" if job["state"] == "leased":
                job["cancel_requested"] = True
            case "Cancel":
                self._end(job, "cancelled")
                totals["cancelled"] += 1
            case "Reprioritise":
                job["priority"] = getattr(act, "priority", None)
            case "Delete":
                totals["deleted" if job["state"] in OPEN else "pruned"] += 1
                del self.jobs[job["id"]]
            case "Edit":
                job["payload"], job["codec"] = getattr(act, "payload", None), getattr(act, "codec", None)

    def prune(self, stored: Sequence[Job], answer: Mapping[str, int], *, limit: int) -> None:
        """Check what a prune did, given all that is stored after it and its answer."""
        found = {job.id: job.state.value for job in stored}
        before = {job["id"]: job["state"] for job in self.jobs.values()}
        expired = [i for i, state in before.items() if state in WAITING and found.get(i) not in WAITING]
        assert len(expired) <= limit
        for job_id in expired:
            assert self.is_overdue(self.jobs[job_id])
            self._expire(self.jobs[job_id])
        for state in ENDED:
            removed = sum(job["state"] == state and job["id"] not in found for job in self.jobs.values())
            ended = len(expired) if state == "expired" else 0
            # A job that was ended and then removed may count once or twice.
            assert ended <= answer.get(state, 0) <= removed + ended
            assert ended or answer.get(state, 0) == removed
        self._follow_forgetting(found)
        assert sum(answer.values()) <= limit
        if sum(answer.values()) < limit:
            self._check_nothing_left_to_prune()

    def _check_nothing_left_to_prune(self) -> None:
        assert not any(self.is_overdue(job) for job in self.jobs.values())
        for queue in self.settings:
            for state in ENDED:
                count, age_s = self._keep(queue, state)
                kept = self._of([queue], (state,))
                assert len(kept) <= count
                # Where the calendar went back, jobs did not end in the order of their times.
                if not self.calendar_went_back:
                    assert not [job for job in kept if job["ended_at"] <= self.now_at - age_s]

    # What is stored

    def follow(self, stored: Sequence[Job]) -> None:
        """Follow the store where the contract leaves it free, then compare every record."""
        found = {job.id: job for job in stored}
        for job in self.jobs.values():
            state = found[job["id"]].state.value if job["id"] in found else None
            if state in {"expired", None} and self.is_overdue(job) and job["queue"] in self._may_expire:
                self._expire(job)
            elif state == "ready" and self.is_due(job) and job["queue"] in self._may_promote:
                job["state"] = "ready"
        self._may_expire.clear()
        self._may_promote.clear()
        self._follow_forgetting(found)
        assert sorted(found) == sorted(self.jobs)
        for job_id, record in found.items():
            assert plain_record(record) == shown(self.jobs[job_id])

    def _follow_forgetting(self, found: Mapping[int, object]) -> None:
        gone = {(job["queue"], job["state"]) for job in self.jobs.values() if job["id"] not in found}
        for queue, state in gone:
            assert state in ENDED, f"an open job of {queue} has vanished"
            count, age_s = self._keep(queue, state)
            kept = [job for job in self._of([queue], (state,)) if job["id"] in found]
            for job in self._of([queue], (state,)):
                if job["id"] in found:
                    continue
                assert len(kept) >= count or job["ended_at"] <= self.now_at - age_s
                assert not any(_is_older(other, job) for other in kept)
                self.totals[queue]["pruned"] += 1
                del self.jobs[job["id"]]

    def numbers(self, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        return {state: len(self._of([queue], (state,))) for state in (*OPEN, *ENDED)}

    def _keep(self, queue: str, state: str) -> tuple[int, float]:
        retention = self.settings[queue]["retention"]
        if retention is None:
            return DEAD_KEPT if state == "dead" else self._kept
        keep = getattr(retention, state)
        return keep.count, keep.age_s

    def _of(self, queues: Iterable[str], states: Sequence[str]) -> list[Record]:
        """The jobs of these queues in these states, by id."""
        names = set(queues)
        return [
            job for _, job in sorted(self.jobs.items()) if job["queue"] in names and job["state"] in states
        ]

    def _expire(self, job: Record) -> None:
        self._end(job, "expired")
        self.totals[job["queue"]]["expired"] += 1

    def _end(self, job: Record, state: str) -> None:
        self._endings += 1
        job["state"], job["ended_at"], job["ending"] = state, self.now_at, self._endings


def _place(job: Record) -> tuple[int, int]:
    return -job["priority"], job["id"]


def _is_older(job: Record, other: Record) -> bool:
    """Whether it ended before the other, by the order of events and by the calendar."""
    return bool(job["ended_at"] < other["ended_at"] and job["ending"] < other["ending"])


def shown(job: Record) -> Record:
    """The part of a record that the contract fixes, given the job's state."""
    hidden = {"ending"}
    if job["state"] != "leased":
        hidden.update(_LEASE_ONLY)
    if job["state"] not in {"ready", "scheduled"}:
        hidden.update(_WAITING_ONLY)
    return {name: value for name, value in job.items() if name not in hidden}


def plain_record(job: Job) -> Record:
    """A stored record as the model writes it."""
    record = {name: getattr(job, name) for name in job.__struct_fields__}
    record["state"] = job.state.value
    record["history"] = tuple(
        (a.delivery, a.attempt, a.worker, a.started_at, a.ended_at, a.cause.value, a.error)
        for a in job.history
    )
    return shown(record)


def plain_lease(lease: Lease) -> Record:
    """A lease as the model writes it."""
    return {name: getattr(lease, name) for name in _LEASE_SHOWS}


_LEASE_SHOWS = (
    *("id", "queue", "delivery", "attempt", "max_attempts", "crashes", "priority", "body", "codec", "worker"),
    *("lease_s", "lease_end", "created_at", "task", "headers", "backoff"),
)
