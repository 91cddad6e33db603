"""One queue of the memory store: its rows in the order they are claimed, due, expire and are forgotten.

Nothing here locks; the store does.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import MappingProxyType

import msgspec

from ulak.core.flows import CALENDAR_SLEEP_MAX_S
from ulak.core.job import ENDED, OPEN, Counts, Draft, Lease, Spec, State, Totals
from ulak.core.store import IDEMPOTENCY_S, Retention, Settings, Tasks, Until
from ulak.storage.ends import Ends
from ulak.storage.line import WaitLine
from ulak.storage.order import Held, Lanes, RowHeap, place
from ulak.storage.row import Registry, Row

_NEVER = math.inf
_AT_ONCE = -math.inf
_WAITING = (State.READY, State.SCHEDULED, State.HELD)
_ENDED_STALE_MAX = 64
_EMPTY_LENGTHS_MAX = 16
_NO_RINGS = dict.fromkeys(Until, 0)

# What `counts` makes of the other numbers, so that it cannot disagree with them.
_DERIVED = frozenset({"enqueued", "processed", "succeeded", "failed"})


class Shelf:
    """One queue.

    entered, left: how many jobs became open (enqueued or redriven) and ceased to be, ever.
    leases: the current ones, by their length, then by job; in order of their ends. pinned: the lengths whose
    dicts are held elsewhere.
    alarm, alarm_at: the first instant, on each clock, at which a taker must do more than take the head of a
    lane: before it no lease has ended, nothing is due or expires, nothing is paused or held.
    succeeded_max: how long the order of succeeded jobs may be.
    """

    __slots__ = (
        "_awaited",
        "_dead_pruned",
        "_default_retention",
        "_due",
        "_ended_ids",
        "_expiring",
        "_held",
        "_jobs",
        "_last_spec",
        "_rings",
        "_settings",
        "_stale_ended",
        "_touched",
        "alarm",
        "alarm_at",
        "backoff",
        "capacity",
        "ended",
        "entered",
        "held",
        "idempotent",
        "lanes",
        "leases",
        "left",
        "lines",
        "name",
        "pinned",
        "pruned",
        "scheduled",
        "succeeded_max",
        "totals",
        "unique",
    )

    def __init__(
        self, name: str, jobs: Registry, retention: Retention, touched: set[Shelf], awaited: Ends
    ) -> None:
        self.name = name
        self.totals = Totals()
        self.entered = self.left = self.pruned = 0
        self.unique: dict[str, int] = {}
        self.idempotent: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.leases: dict[float, dict[int, Lease]] = {}
        self.pinned: set[float] = set()
        self.ended: dict[State, deque[Row]] = {state: deque() for state in ENDED}
        self.alarm = self.alarm_at = _NEVER
        self.lines = {until: WaitLine(until) for until in Until}
        self._rings = _NO_RINGS.copy()
        self._ended_ids: list[int] = []
        self._dead_pruned = 0
        self._touched = touched
        self._awaited = awaited
        self._jobs = jobs
        self._default_retention = retention
        self._last_spec: Spec | None = None
        self.clear()
        self.settings = Settings()

    def clear(self) -> None:
        """Forget where every row is; what is held elsewhere stays the same object."""
        self.scheduled = self.held = 0
        self.lanes = Lanes()
        self._due: RowHeap[float] = RowHeap(State.SCHEDULED)
        self._expiring: RowHeap[float] = RowHeap(*_WAITING, drop=_unwatch)
        self._held = Held()
        self._stale_ended = dict.fromkeys(ENDED, 0)
        self.unique.clear()
        for leases in self.leases.values():
            leases.clear()
        for rows in self.ended.values():
            rows.clear()

    @property
    def settings(self) -> Settings:
        """What is stored with the queue."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings
        self.capacity = settings.capacity
        self.backoff = settings.backoff
        self.set_limits()

    def set_limits(self) -> None:
        """Say how far the quick way may go."""
        self._limit_succeeded()
        self.set_alarm()

    def _limit_succeeded(self) -> None:
        self.succeeded_max = self.retention.succeeded.count + self._stale_ended[State.SUCCEEDED]

    @property
    def retention(self) -> Retention:
        """What is kept of ended jobs."""
        return self._settings.retention or self._default_retention

    @property
    def open(self) -> int:
        """Unfinished jobs: what `capacity` bounds."""
        return self.entered - self.left

    @property
    def leased(self) -> int:
        """Jobs under a lease."""
        return sum(map(len, self.leases.values()))

    @property
    def ready(self) -> int:
        """Jobs that wait for a worker only."""
        return self.open - self.leased - self.scheduled - self.held

    def kept(self, state: State) -> int:
        """Stored jobs in an ended state."""
        return len(self.ended[state]) - self._stale_ended[state]

    def counts(self) -> Counts:
        """A snapshot of states and totals."""
        return Counts(
            ready=self.ready,
            scheduled=self.scheduled,
            leased=self.leased,
            held=self.held,
            acked=self.kept(State.SUCCEEDED),
            dead=self.kept(State.DEAD),
            cancelled=self.kept(State.CANCELLED),
            expired=self.kept(State.EXPIRED),
            totals=self._all_totals(),
        )

    def _all_totals(self) -> Totals:
        t = self.totals
        succeeded = self.left - t.dead_lettered - t.cancelled - t.expired - t.deleted
        failed = t.retries + t.dead_lettered + t.cut
        return msgspec.structs.replace(
            t,
            enqueued=self.entered - t.redriven,
            succeeded=succeeded,
            failed=failed,
            processed=succeeded + failed,
            pruned=self.pruned,
        )

    def count(self, *names: str) -> None:
        """Raise totals by one each."""
        for name in names:
            if name == "pruned":
                self.pruned += 1
            elif name not in _DERIVED:
                setattr(self.totals, name, getattr(self.totals, name) + 1)

    # Waking waiters

    def ring(self, until: Until, wakeups: int = 1) -> None:
        """Note that waiters are to be woken when the gate is open again."""
        self._rings[until] += wakeups
        self._touched.add(self)

    def _over(self, row: Row) -> None:
        """Note that who waits for its end is to be woken. Whoever comes from now on looks after that."""
        if self._awaited.waiting:
            self._ended_ids.append(row.id)
            self._touched.add(self)

    def spare_rings(self) -> None:
        """What was made ready and taken at once need wake nobody."""
        self._rings[Until.READY] = min(self._rings[Until.READY], self.ready + self.held)

    def take_rings(self) -> list[tuple[WaitLine, int]]:
        """The waiters to wake, once."""
        rings = [(self.lines[until], wakeups) for until, wakeups in self._rings.items() if wakeups]
        self._rings = _NO_RINGS.copy()
        return rings

    def take_ended_ids(self) -> list[int]:
        """The jobs whose ends are to be told, once."""
        ended, self._ended_ids = self._ended_ids, []
        return ended

    def take_dead_pruned(self) -> int:
        """How many dead jobs retention removed since the last call."""
        pruned, self._dead_pruned = self._dead_pruned, 0
        return pruned

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left that could still run."""
        return self.leased == 0 and (self._settings.paused or self.open == self.held)

    # Moving rows

    def spec_of(self, draft: Draft) -> Spec:
        """What the job is asked to be; jobs without options of their own share it."""
        headers = None if draft.headers is None else MappingProxyType(dict(draft.headers))
        spec = Spec(
            self.name,
            draft.codec,
            draft.max_attempts,
            draft.task,
            # Leases and records share it, so nobody may change it.
            headers,
            draft.unique_key,
            draft.idempotency_key,
            draft.backoff,
        )
        if self._last_spec == spec:
            return self._last_spec
        self._last_spec = spec
        return spec

    def put(self, row: Row) -> None:
        """Take in a new job, in its state."""
        assert row.state is not None
        self.entered += 1
        self.number(row.state, 1)
        if row.spec.unique_key is not None:
            self.unique[row.spec.unique_key] = row.id
        self.enter(row)

    def move(self, row: Row, state: State, *, popped: bool = False) -> None:
        """Bring a row into another state; its other fields are already what that state needs.

        popped: it was taken out of its order already, as its head.
        """
        was = row.state
        assert was is not None
        if was is State.LEASED:
            assert row.grant is not None
            del self.leases[row.grant.lease_s][row.id]
        self.number(was, -1)
        self.number(state, 1)
        row.state = state
        if not popped:
            self._discard(row, was)
        self.enter(row)
        if state in ENDED:
            self.left += 1
            self._free(row)
            self._over(row)
            self.trim(state)
        if self.is_drained:
            self.ring(Until.DRAINED)

    def put_off(self, row: Row) -> bool:
        """Have a row whose lease is gone wait until it is due; whether nothing else is due before it."""
        run_at = row.run_at
        row.state = State.SCHEDULED
        self.scheduled += 1
        self._due.push(run_at, row)
        self.alarm_at = min(self.alarm_at, run_at)
        head = self._due.head()
        return head is not None and head[1] is row

    def replace(self, row: Row, other: Row) -> None:
        """Put a changed copy of a row in its place; `other.state` says where it goes.

        Nobody changes a row that a lease, or an order, may point at.
        """
        was, state = row.state, other.state
        assert was is not None
        assert state is not None
        self._jobs.rows[row.id] = other
        row.state = None
        self.number(was, -1)
        self.number(state, 1)
        self._discard(row, was)
        if was is State.LEASED:
            return
        if was in ENDED and state in OPEN:
            self.entered += 1
            if other.spec.unique_key is not None:
                self.unique[other.spec.unique_key] = other.id
        self.enter(other)

    def remove(self, row: Row) -> None:
        """Forget a job altogether."""
        was = row.state
        assert was is not None
        if was is State.LEASED:
            assert row.grant is not None
            del self.leases[row.grant.lease_s][row.id]
        del self._jobs.rows[row.id]
        row.state = None
        self.number(was, -1)
        self._discard(row, was)
        self._over(row)
        if was in OPEN:
            self.left += 1
            self._free(row)
        if self.is_drained:
            self.ring(Until.DRAINED)

    def _discard(self, row: Row, was: State) -> None:
        """The row left an order by another way than as its head. It does not look as if it were there."""
        match was:
            case State.READY:
                self.lanes.discard(self.ready)
            case State.SCHEDULED:
                self._due.discard()
            case State.HELD:
                self._held.discard(row)
            case State.LEASED:
                pass
            case _:
                self._discard_ended(was)
        if row.state not in OPEN and row.more is not None and row.more.watched:
            self._expiring.discard()

    def _discard_ended(self, was: State) -> None:
        self._stale_ended[was] += 1
        if self._stale_ended[was] > _ENDED_STALE_MAX and self._stale_ended[was] > self.kept(was):
            live = [row for row in self.ended[was] if row.state is was]
            # In place, because the quick way appends to it.
            self.ended[was].clear()
            self.ended[was].extend(live)
            self._stale_ended[was] = 0
        self._limit_succeeded()

    def number(self, state: State, change: int) -> None:
        """Count a row in, or out of, a state."""
        if state is State.SCHEDULED:
            self.scheduled += change
        elif state is State.HELD:
            self.held += change

    def _free(self, row: Row) -> None:
        """An open row has ended or gone: its key and its room are free."""
        if row.spec.unique_key is not None:
            self.unique.pop(row.spec.unique_key, None)
        self.ring(Until.ROOM)

    def enter(self, row: Row) -> None:
        """Put a row in the order of its state."""
        match row.state:
            case State.READY:
                self.lanes.push(row)
                self.ring(Until.READY)
            case State.SCHEDULED:
                self._due.push(row.run_at, row)
                self.alarm_at = min(self.alarm_at, row.run_at)
                head = self._due.head()
                if head is not None and head[1] is row:
                    self.ring(Until.DUE)
            case State.HELD:
                self._held.push(row)
                # Who takes anything, and so a refused one, looks by itself; others would be woken in vain.
                if not row.is_refused:
                    self.ring(Until.READY)
            case _:
                assert row.state is not None
                self.ended[row.state].append(row)
                return
        more = row.more
        if more is not None and more.expires_at is not None and not more.watched:
            more.watched = True
            self._expiring.push(more.expires_at, row)
            self.alarm_at = min(self.alarm_at, more.expires_at)
        if self._is_unusual:
            self.alarm = _AT_ONCE

    # Leases

    def take(self, row: Row, lease: Lease) -> None:
        """Lease the row that `next_row` gave."""
        if row.state is State.HELD:
            self._held.pop(row)
            self.number(State.HELD, -1)
        else:
            self.lanes.pop(row)
        self.hold(row, lease)
        row.delivery = lease.delivery
        row.claimed_at = lease.claimed_at
        row.state = State.LEASED

    def lease_of(self, row: Row) -> Lease:
        """The current lease of a leased row."""
        assert row.grant is not None
        return self.leases[row.grant.lease_s][row.id]

    def renew(self, row: Row, lease: Lease) -> None:
        """Put another lease in place of a row's current one."""
        assert row.grant is not None
        del self.leases[row.grant.lease_s][row.id]
        self.hold(row, lease)

    def hold(self, row: Row, lease: Lease) -> None:
        """Note a lease as the row's current one."""
        row.grant = lease.grant
        # Ends of one length only grow, so each dict is in order of its ends.
        self.leases.setdefault(lease.grant.lease_s, {})[row.id] = lease
        self.alarm = min(self.alarm, lease.lease_end)

    def pin(self, lease_s: float) -> dict[int, Lease]:
        """The leases of one length, in a dict that stays in use."""
        self.pinned.add(lease_s)
        return self.leases.setdefault(lease_s, {})

    def past(self, now: float) -> Iterator[Lease]:
        """The leases that have ended, at interval time `now`."""
        for leases in self.leases.values():
            for lease in leases.values():
                if lease.lease_end > now:
                    break
                yield self._as_now(lease)

    def all_leases(self) -> list[Lease]:
        """All current leases, by job."""
        leases = (lease for leases in self.leases.values() for lease in leases.values())
        return sorted(map(self._as_now, leases), key=_job_id)

    def _as_now(self, lease: Lease) -> Lease:
        """The lease as it would be given now: an operator may have changed what it shows."""
        row = self._jobs.rows.get(lease.id, lease.work)
        backoff = row.spec.backoff or self.backoff
        if row is lease.work and backoff == lease.backoff:
            return lease
        return msgspec.structs.replace(lease, work=row, backoff=backoff)

    def _first_end(self) -> float:
        """When the first lease ends; never, if there is none."""
        if len(self.leases) > _EMPTY_LENGTHS_MAX + len(self.pinned):
            self.leases = {s: leases for s, leases in self.leases.items() if leases or s in self.pinned}
        firsts = (next(iter(leases.values())) for leases in self.leases.values() if leases)
        return min((lease.lease_end for lease in firsts), default=_NEVER)

    # Time

    @property
    def _is_unusual(self) -> bool:
        return bool(self._settings.paused or self.held or self.lanes.between)

    def set_alarm(self, now: float = _NEVER) -> None:
        """Say from when on a taker must look closer.

        now: interval time. An alarm ahead of it stays as it is, since finding the first end of a lease goes
        through all that ended before it.
        """
        heads = (self._expiring.head(), self._due.head())
        self.alarm_at = min((head[0] for head in heads if head is not None), default=_NEVER)
        if self._is_unusual:
            self.alarm = _AT_ONCE
        elif self.alarm <= now:
            self.alarm = self._first_end()

    def promote(self, now_at: float) -> int:
        """Make every scheduled job that is due ready, at its own place; how many."""
        promoted = 0
        while (head := self._due.head()) and head[0] <= now_at:
            self._due.pop()
            self.move(head[1], State.READY, popped=True)
            promoted += 1
        return promoted

    def expire(self, now_at: float, *, limit: int | None = None) -> int:
        """End waiting jobs past their `expires_at`, at most `limit`; how many."""
        ended = 0
        while ended != limit and (head := self._expiring.head()) and head[0] <= now_at:
            self._expiring.pop()
            row = head[1]
            row.ended_at = now_at
            self.move(row, State.EXPIRED)
            self.count("expired")
            ended += 1
        return ended

    def next_row(self, tasks: Tasks | None) -> Row | None:
        """The next row to lease: the best ready one, or a held one of these tasks that comes before it."""
        best = self.lanes.head()
        if self.held:
            held = self._held.head(tasks)
            if held is not None and (best is None or place(held) < place(best)):
                return held
        return best

    @property
    def refused(self) -> int:
        """How many of the held jobs are refused, or were: an upper bound."""
        return self._held.refused

    def held_rows(self, *, refused: bool) -> list[Row]:
        """The held rows, or only the refused ones, by id."""
        return self._held.rows(refused=refused)

    def horizon_s(self, *, now: float, now_at: float) -> float | None:
        """Seconds until time alone makes a job claimable: a lease ends, or a scheduled job is due."""
        soonest_s = self._first_end() - now
        due = self._due.head()
        if due is not None and not self._settings.paused:
            soonest_s = min(soonest_s, due[0] - now_at, CALENDAR_SLEEP_MAX_S)
        return None if soonest_s == _NEVER else max(0.0, soonest_s)

    # Forgetting

    def trim(self, state: State) -> None:
        """Forget the ended jobs of a state beyond the number that is kept."""
        self._forget(state, self.kept(state) - self.retention.of(state).count)

    def prune(self, now_at: float, limit: int) -> dict[State, int]:
        """End what has expired, then forget ended jobs beyond retention, at most `limit`; how many."""
        self.forget_keys(now_at)
        pruned: dict[State, int] = {}
        if expired := self.expire(now_at, limit=limit):
            pruned[State.EXPIRED] = expired
            limit -= expired
        for state in self.ended:
            keep = self.retention.of(state)
            gone = self._forget(state, min(self.kept(state) - keep.count, limit))
            gone += self._forget(state, limit - gone, before_at=now_at - keep.age_s)
            if gone:
                pruned[state] = pruned.get(state, 0) + gone
                limit -= gone
        return pruned

    def _forget(self, state: State, limit: int, *, before_at: float = _NEVER) -> int:
        rows, gone = self.ended[state], 0
        while rows and gone < limit:
            row = rows[0]
            if row.state is state:
                assert row.ended_at is not None
                if row.ended_at > before_at:
                    break
                del self._jobs.rows[row.id]
                row.state = None
                self._over(row)
                gone += 1
            else:
                self._stale_ended[state] -= 1
                self._limit_succeeded()
            rows.popleft()
        self.pruned += gone
        if gone and state is State.DEAD:
            self._dead_pruned += gone
            self._touched.add(self)
        return gone

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


def _unwatch(row: Row) -> None:
    if row.more is not None:
        row.more.watched = False


def _job_id(lease: Lease) -> int:
    return lease.id
