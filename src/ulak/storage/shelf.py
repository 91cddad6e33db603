"""One queue of the memory store: its jobs in the order they are claimed, due, expire and are forgotten.

Nothing here locks; the store does. Heaps and lanes may hold entries of jobs that have moved on: an entry
counts only if the job is still where the entry says, and a structure that is mostly stale is swept.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator

from ulak.core import rules
from ulak.core.flows import CALENDAR_SLEEP_MAX_S, least
from ulak.core.job import ENDED, OPEN, Counts, Job, State, Totals
from ulak.core.store import IDEMPOTENCY_S, Retention, Settings, Tasks, Until
from ulak.storage.line import WaitLine
from ulak.storage.registry import Registry

_SWEEP_SLACK = 64
_NO_RINGS = dict.fromkeys(Until, 0)
_EMPTY_LANES_MAX = 16


class Lane:
    """The ready jobs of one priority, by id: those that came in order, and those that came back."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh: deque[int] = deque()
        self.returned: list[int] = []

    def push(self, job_id: int) -> None:
        """Put a job in its place."""
        if not self.fresh or self.fresh[-1] < job_id:
            self.fresh.append(job_id)
        else:
            heapq.heappush(self.returned, job_id)

    def head(self) -> int | None:
        """The lowest id, or None."""
        if self.returned and (not self.fresh or self.returned[0] < self.fresh[0]):
            return self.returned[0]
        return self.fresh[0] if self.fresh else None

    def pop(self) -> int:
        """Take out the lowest id."""
        if self.returned and (not self.fresh or self.returned[0] < self.fresh[0]):
            return heapq.heappop(self.returned)
        return self.fresh.popleft()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.returned)


class Shelf:
    """One queue.

    jobs: the store's registry, shared by all its queues. touched: collects the queues that have somebody to
    wake.
    """

    def __init__(self, name: str, jobs: Registry, retention: Retention, touched: set[Shelf]) -> None:
        self.name = name
        self.settings = Settings()
        self.totals = Totals()
        self.numbers = dict.fromkeys(State, 0)
        self.unique: dict[str, int] = {}
        self.idempotent: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.lines = {until: WaitLine(until) for until in Until}
        self._dead_pruned = 0
        self._rings = _NO_RINGS.copy()
        self._touched = touched
        self._jobs = jobs
        self._default_retention = retention
        self._lanes: dict[int, Lane] = {}
        self._priorities: list[int] = []
        self._lane_entries = 0
        self._due: list[tuple[float, int]] = []
        self._expiring: list[tuple[float, int]] = []
        self._held: dict[str | None, list[tuple[int, int]]] = {}
        self._leases: dict[float, OrderedDict[int, Job]] = {}
        self._ended: dict[State, deque[tuple[float, int]]] = {state: deque() for state in ENDED}

    @property
    def open(self) -> int:
        """Unfinished jobs: what `capacity` bounds."""
        return sum(self.numbers[state] for state in OPEN)

    @property
    def retention(self) -> Retention:
        """What is kept of ended jobs."""
        return self.settings.retention or self._default_retention

    def counts(self) -> Counts:
        """A snapshot of states and totals."""
        n = self.numbers
        return Counts(
            ready=n[State.READY],
            scheduled=n[State.SCHEDULED],
            leased=n[State.LEASED],
            held=n[State.HELD],
            acked=n[State.SUCCEEDED],
            dead=n[State.DEAD],
            cancelled=n[State.CANCELLED],
            expired=n[State.EXPIRED],
            totals=Totals(*(getattr(self.totals, name) for name in Totals.__struct_fields__)),
        )

    def count(self, *names: str) -> None:
        """Raise totals by one each."""
        for name in names:
            setattr(self.totals, name, getattr(self.totals, name) + 1)

    # Waking waiters

    def ring(self, until: Until, wakeups: int = 1) -> None:
        """Note that waiters are to be woken when the lock is let go."""
        self._rings[until] += wakeups
        self._touched.add(self)

    def served(self, jobs: int) -> None:
        """So many ready jobs were just taken, so that many waiters need not wake."""
        self._rings[Until.READY] = max(0, self._rings[Until.READY] - jobs)

    def take_rings(self) -> list[tuple[WaitLine, int]]:
        """The waiters to wake, once."""
        rings = [(self.lines[until], wakeups) for until, wakeups in self._rings.items() if wakeups]
        self._rings = _NO_RINGS.copy()
        return rings

    def take_dead_pruned(self) -> int:
        """How many dead jobs retention removed since the last call."""
        pruned, self._dead_pruned = self._dead_pruned, 0
        return pruned

    # Moving jobs

    def put(self, job: Job) -> None:
        """Take in a new job, in its state."""
        self.numbers[job.state] += 1
        if job.unique_key is not None:
            self.unique[job.unique_key] = job.id
        self._enter(job)

    def move(self, job: Job, state: State) -> None:
        """Bring a job into another state; its other fields are already what that state needs."""
        was = job.state
        if was is State.LEASED:
            self._drop_lease(job)
        self.numbers[was] -= 1
        self.numbers[state] += 1
        job.state = state
        self._enter(job)
        if was in OPEN and state in ENDED:
            if job.unique_key is not None:
                self.unique.pop(job.unique_key, None)
            self.ring(Until.ROOM, 1)
            self._trim(state)
        elif was in ENDED and job.unique_key is not None:
            self.unique[job.unique_key] = job.id
        self._note_drained()

    def remove(self, job: Job) -> None:
        """Forget a job altogether."""
        if job.state is State.LEASED:
            self._drop_lease(job)
        if job.state in OPEN:
            if job.unique_key is not None:
                self.unique.pop(job.unique_key, None)
            self.ring(Until.ROOM, 1)
        self.numbers[job.state] -= 1
        self._jobs.drop(job.id)
        self._note_drained()

    def lease(self, job: Job, lease_s: float, lease_end: float) -> None:
        """Lease a waiting job, or move the end of a lease."""
        if job.state is State.LEASED:
            self._drop_lease(job)
        else:
            self.numbers[job.state] -= 1
            self.numbers[State.LEASED] += 1
            job.state = State.LEASED
        job.lease_s, job.lease_end = lease_s, lease_end
        self._enter(job)

    def _job(self, job_id: int) -> Job:
        job = self._jobs.get(job_id)
        assert job is not None
        return job

    def _enter(self, job: Job) -> None:
        match job.state:
            case State.READY:
                self._push_ready(job)
            case State.SCHEDULED:
                self._push(self._due, (job.run_at, job.id), State.SCHEDULED)
                self.ring(Until.DUE, int(self._due[0][1] == job.id))
            case State.HELD:
                self._push_held(job)
            case State.LEASED:
                # Lease ends of one length only grow, so each dict is in order of its ends.
                self._leases.setdefault(job.lease_s, OrderedDict())[job.id] = job
            case _:
                assert job.ended_at is not None
                self._ended[job.state].append((job.ended_at, job.id))
        if job.expires_at is not None and job.state in _EXPIRABLE:
            self._push(self._expiring, (job.expires_at, job.id), *_EXPIRABLE)

    def _push_held(self, job: Job) -> None:
        held = self._held.setdefault(job.task, [])
        heapq.heappush(held, (-job.priority, job.id))
        if len(held) > 2 * self.numbers[State.HELD] + _SWEEP_SLACK:
            held[:] = sorted({entry for entry in held if self._is_held_entry(entry)})
        self.ring(Until.READY, 1)

    def _push_ready(self, job: Job) -> None:
        lane = self._lanes.get(job.priority)
        if lane is None:
            lane = self._lanes[job.priority] = Lane()
            insort(self._priorities, job.priority)
        lane.push(job.id)
        self._lane_entries += 1
        if self._lane_entries > 2 * self.numbers[State.READY] + _SWEEP_SLACK:
            self._sweep_lanes()
        self.ring(Until.READY, 1)

    def _push(self, heap: list[tuple[float, int]], entry: tuple[float, int], *states: State) -> None:
        heapq.heappush(heap, entry)
        if len(heap) > 2 * sum(self.numbers[state] for state in states) + _SWEEP_SLACK:
            is_live = self._is_due_entry if heap is self._due else self._is_expiring_entry
            heap[:] = sorted({entry for entry in heap if is_live(entry)})

    def _sweep_lanes(self) -> None:
        entries = {(p, i) for p, lane in self._lanes.items() for i in (*lane.fresh, *lane.returned)}
        self._lanes.clear()
        self._priorities.clear()
        for priority, job_id in sorted(entries, key=lambda entry: entry[1]):
            if self._is_ready_entry(priority, job_id):
                self._lanes.setdefault(priority, Lane()).fresh.append(job_id)
        self._priorities.extend(sorted(self._lanes))
        self._lane_entries = sum(map(len, self._lanes.values()))

    def _is_ready_entry(self, priority: int, job_id: int) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.state is State.READY and job.priority == priority

    def _is_due_entry(self, entry: tuple[float, int]) -> bool:
        job = self._jobs.get(entry[1])
        return job is not None and job.state is State.SCHEDULED and job.run_at == entry[0]

    def _is_expiring_entry(self, entry: tuple[float, int]) -> bool:
        job = self._jobs.get(entry[1])
        return job is not None and job.state in _EXPIRABLE and job.expires_at == entry[0]

    def _drop_lease(self, job: Job) -> None:
        bucket = self._leases[job.lease_s]
        del bucket[job.id]
        if not bucket:
            del self._leases[job.lease_s]

    def _note_drained(self) -> None:
        n = self.numbers
        if n[State.LEASED] == 0 and (self.settings.paused or n[State.READY] + n[State.SCHEDULED] == 0):
            self.ring(Until.DRAINED, 1)

    def rebuild(self, jobs: list[Job]) -> None:
        """Make all orders and numbers anew from the jobs themselves, which are given by id."""
        self.numbers = dict.fromkeys(State, 0)
        self.unique.clear()
        for order in (self._lanes, self._priorities, self._due, self._expiring, self._held, self._leases):
            order.clear()
        self._lane_entries = 0
        self._ended = {state: deque() for state in ENDED}
        # In order of ends, as leases and ended jobs are kept.
        for job in sorted(jobs, key=lambda job: (job.ended_at or 0.0, job.lease_end, job.id)):
            if job.state in ENDED and job.ended_at is None:
                job.ended_at = job.created_at
            self.put(job) if job.state in OPEN else self._keep(job)
        self._balance()

    def _keep(self, job: Job) -> None:
        self.numbers[job.state] += 1
        self._enter(job)

    def _balance(self) -> None:
        """Totals that follow from others are made to; at most the interrupted change is counted wrongly."""
        t = self.totals
        t.failed = t.retries + t.dead_lettered + t.cut
        t.processed = t.succeeded + t.failed
        gone = t.succeeded + t.dead_lettered + t.cancelled + t.expired + t.deleted
        t.enqueued = gone + self.open - t.redriven

    # Time

    def expire(self, now_at: float, *, limit: int | None = None) -> int:
        """End waiting jobs past their `expires_at`, at most `limit`; how many."""
        ended = 0
        while self._expiring and self._expiring[0][0] <= now_at and ended != limit:
            entry = heapq.heappop(self._expiring)
            if self._is_expiring_entry(entry):
                job = self._job(entry[1])
                job.ended_at = now_at
                self.count("expired")
                self.move(job, State.EXPIRED)
                ended += 1
        return ended

    def promote(self, now_at: float) -> int:
        """Make every scheduled job that is due ready, at its own place; how many."""
        promoted = 0
        while self._due and self._due[0][0] <= now_at:
            entry = heapq.heappop(self._due)
            if self._is_due_entry(entry):
                self.move(self._job(entry[1]), State.READY)
                promoted += 1
        return promoted

    def take(self, tasks: Tasks | None) -> Job | None:
        """The next job to lease: the best ready one, or a held one of these tasks that comes before it."""
        lane = self._best_lane()
        head = lane.head() if lane is not None else None
        ready = None if head is None else self._job(head)
        held_task, held = self._best_held(tasks)
        if held is not None and (ready is None or (-held.priority, held.id) < (-ready.priority, ready.id)):
            heapq.heappop(self._held[held_task])
            return held
        if ready is not None:
            assert lane is not None
            lane.pop()
            self._lane_entries -= 1
        return ready

    def _best_lane(self) -> Lane | None:
        for priority in reversed(self._priorities):
            lane = self._lanes[priority]
            while (head := lane.head()) is not None:
                if self._is_ready_entry(priority, head):
                    return self._drop_empty_lanes(lane)
                lane.pop()
                self._lane_entries -= 1
        return self._drop_empty_lanes(None)

    def _drop_empty_lanes(self, found: Lane | None) -> Lane | None:
        # A few empty lanes are kept, so that a queue that runs empty again and again does not rebuild them.
        if len(self._priorities) > _EMPTY_LANES_MAX:
            while self._priorities and not self._lanes[self._priorities[-1]]:
                del self._lanes[self._priorities.pop()]
        return found

    def _best_held(self, tasks: Tasks | None) -> tuple[str | None, Job | None]:
        best_task, best = None, None
        if self.numbers[State.HELD] == 0:
            self._held.clear()
            return best_task, best
        for task, heap in self._held.items():
            if tasks is not None and task not in tasks:
                continue
            while heap and not self._is_held_entry(heap[0]):
                heapq.heappop(heap)
            if heap and (best is None or heap[0] < (-best.priority, best.id)):
                best_task, best = task, self._job(heap[0][1])
        return best_task, best

    def _is_held_entry(self, entry: tuple[int, int]) -> bool:
        job = self._jobs.get(entry[1])
        return job is not None and job.state is State.HELD and job.priority == -entry[0]

    def past(self, now: float) -> Iterator[Job]:
        """The leased jobs whose lease has ended, at interval time `now`."""
        for bucket in self._leases.values():
            for job in bucket.values():
                if job.lease_end > now:
                    break
                yield job

    def leased(self) -> list[Job]:
        """All leased jobs, by id."""
        return sorted((job for bucket in self._leases.values() for job in bucket.values()), key=_id)

    def horizon_s(self, *, now: float, now_at: float) -> float | None:
        """Seconds until time alone makes a job claimable: a lease ends, or a scheduled job is due."""
        while self._due and not self._is_due_entry(self._due[0]):
            heapq.heappop(self._due)
        lease_s = least(*(next(iter(bucket.values())).lease_end - now for bucket in self._leases.values()))
        due_s = None
        if self._due and not self.settings.paused:
            due_s = min(self._due[0][0] - now_at, CALENDAR_SLEEP_MAX_S)
        soonest = least(lease_s, due_s)
        return None if soonest is None else max(0.0, soonest)

    # Forgetting

    def _trim(self, state: State) -> None:
        self._forget(state, self.numbers[state] - self.retention.of(state).count)

    def prune(self, now_at: float, limit: int) -> dict[State, int]:
        """End what has expired, then forget ended jobs beyond retention, at most `limit`; how many."""
        self.forget_keys(now_at)
        pruned: dict[State, int] = {}
        if expired := self.expire(now_at, limit=limit):
            pruned[State.EXPIRED] = expired
            limit -= expired
        for state in self._ended:
            keep = self.retention.of(state)
            over = self.numbers[state] - keep.count
            gone = self._forget(state, min(over, limit))
            gone += self._forget(state, limit - gone, before_at=now_at - keep.age_s)
            if gone:
                pruned[state] = pruned.get(state, 0) + gone
                limit -= gone
        return pruned

    def _forget(self, state: State, limit: int, *, before_at: float | None = None) -> int:
        entries, gone = self._ended[state], 0
        while entries and gone < limit:
            ended_at, job_id = entries[0]
            if self._is_ended_entry(state, entries[0]):
                if before_at is not None and ended_at > before_at:
                    break
                self.remove(self._job(job_id))
                self.count("pruned")
                if state is State.DEAD:
                    self._dead_pruned += 1
                    self._touched.add(self)
                gone += 1
            entries.popleft()
        if len(entries) > 2 * self.numbers[state] + _SWEEP_SLACK:
            self._ended[state] = deque(entry for entry in entries if self._is_ended_entry(state, entry))
        return gone

    def _is_ended_entry(self, state: State, entry: tuple[float, int]) -> bool:
        job = self._jobs.get(entry[1])
        return job is not None and job.state is state and job.ended_at == entry[0]

    def remember_key(self, key: str, job_id: int, now_at: float) -> None:
        """Remember which job an idempotency key stands for."""
        self.idempotent[key] = (now_at + IDEMPOTENCY_S, job_id)

    def forget_keys(self, now_at: float) -> None:
        """Forget idempotency keys whose time is over."""
        while self.idempotent:
            key, (until_at, _) = next(iter(self.idempotent.items()))
            if until_at > now_at:
                break
            del self.idempotent[key]


_EXPIRABLE = tuple(
    state for state in State if state in rules.TABLE[rules.Event.EXPIRE] and state is not State.LEASED
)


def _id(job: Job) -> int:
    return job.id
