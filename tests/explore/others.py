"""What reapers, operators and time may do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tests.explore.actions import Action, of_producers
from tests.explore.short import Short
from tests.explore.step import Acted, End, Step
from tests.explore.workers import of_workers
from tests.explore.world import QUEUE, QUEUES, TICK_S, World, new_priority
from ulak.core import flows, rules
from ulak.core.job import ENDED, OPEN, Cause, Job, Lease, State
from ulak.core.store import Act, Cancel, Change, Delete, Redrive, Reprioritise
from ulak.storage.drive import run

LEASES_MAX = 100


# Reapers


class Look(Action):
    """A reaper looks for leases, and remembers one; it settles it later, or never."""

    helps = True

    def __init__(self, world: World, reaper: int, job_id: int) -> None:
        self._reaper, self._id = reaper, job_id
        self._clocked = world.scope.clocked
        what = "an ended lease" if self._clocked else "a lease"
        self.name = f"reaper {reaper} sees {what} of job {job_id}"

    def is_possible(self, world: World) -> bool:
        if None in world.reapers[: self._reaper] or world.reapers[self._reaper] is not None:
            return False
        job = world.seen.jobs[self._id - 1] if self._id <= len(world.facts) else None
        return job is not None and job in reclaimable(world)

    def run(self, world: World) -> Step:
        leases = look(world)
        seen = next((lease for lease in leases if lease.id == self._id), None)
        world.note(self._reaper, seen)
        return Step(ended=leases) if self._clocked else Step(leased=leases)


def look(world: World) -> list[Lease]:
    """The leases that a reaper sees."""
    if world.scope.clocked:
        return world.store.ended(QUEUES, LEASES_MAX)
    return world.store.leased(QUEUE, limit=LEASES_MAX)


def reclaimable(world: World) -> list[Job]:
    """The jobs whose leases a reaper should see: all, or those past their end."""
    leased = [job for job in world.seen.jobs if job is not None and job.state is State.LEASED]
    if not world.scope.clocked:
        return leased
    return [job for job in leased if job.lease_end <= world.clock.interval()]


class Reclaim(Action):
    """A reaper settles the lease that it saw, however long ago, as lost."""

    helps = True

    def __init__(self, reaper: int, *, crashed: bool, u: float) -> None:
        self._reaper, self._crashed, self._u = reaper, crashed, u
        how = "as its worker is gone" if crashed else "as its time is over"
        self.name = f"reaper {reaper} reclaims what it saw, {how}" + (f", draw {u:g}" if u else "")

    def is_possible(self, world: World) -> bool:
        return world.reapers[self._reaper] is not None

    def run(self, world: World) -> Step:
        lease = world.reapers[self._reaper]
        assert lease is not None
        verdict = rules.failure(lease, Cause.LOST, draw=self._u, crashed=self._crashed)
        (answer,) = world.store.settle([(lease, verdict)])
        world.note(self._reaper, None)
        ends = (End(lease, "crash" if self._crashed else "lost", answer),)
        return Step(ends=ends, u=self._u, is_direct=True)


class Sweep(Action):
    """A reaper looks and settles in one go, as `tick_timeouts()` and `crash()` do."""

    helps = True

    def __init__(self, *, crashed: bool, u: float) -> None:
        self._crashed, self._u = crashed, u
        what = "all leases, as all workers are gone" if crashed else "all ended leases"
        self.name = f"a sweep reclaims {what}" + (f", draw {u:g}" if u else "")

    def is_possible(self, world: World) -> bool:
        return self._crashed or world.scope.clocked

    def run(self, world: World) -> Step:
        leased = [job for job in world.seen.jobs if job is not None and job.state is State.LEASED]
        found = leased if self._crashed else reclaimable(world)
        world.u = self._u
        flow = flows.crash(QUEUE) if self._crashed else flows.reclaim(QUEUES)
        reclaimed = run(world.edge, flow)
        ends = [End(job, "crash" if self._crashed else "lost") for job in found]
        return Step(ends=ends, reclaimed=reclaimed, u=self._u)


# Operators


class Operate(Action):
    """An operator acts on one job, whatever its state."""

    def __init__(self, what: str, act: Act, job_id: int) -> None:
        self._what, self._act, self._id = what, act, job_id
        self.name = f"an operator asks to {what} job {job_id}"

    def is_possible(self, world: World) -> bool:
        if self._id > len(world.facts):
            return False
        job = world.seen.jobs[self._id - 1]
        if isinstance(self._act, Reprioritise):
            return job is not None and job.priority != self._act.priority
        return self._what != "redrive" or world.facts[self._id - 1].redrives < world.scope.redrives

    def run(self, world: World) -> Step:
        job = world.seen.jobs[self._id - 1]
        changed = world.store.amend([self._id], self._act, queue=QUEUE)
        if self._what == "redrive" and changed:
            # A held job goes on as it was.
            is_anew = job is not None and job.state in ENDED
            world.learn(self._id, redrives=1, attempts=-world.facts[self._id - 1].attempts * is_anew)
        return Step(acted=Acted(self._id, self._what, next(iter(changed.refused), None)))


class Pause(Action):
    """An operator pauses the queue, or resumes it."""

    may_cycle = True

    def __init__(self, *, paused: bool) -> None:
        self._paused = paused
        self.helps = not paused
        self.name = "the queue is paused" if paused else "the queue is resumed"

    def is_possible(self, world: World) -> bool:
        return world.rest.is_paused is not self._paused

    def run(self, world: World) -> Step:
        world.store.configure(QUEUE, Change(paused=self._paused))
        world.rest = world.rest._replace(is_paused=self._paused)
        return Step()


class Prune(Action):
    """Ended waiting jobs are expired, and ended ones beyond retention forgotten."""

    name = "prune"

    def is_possible(self, world: World) -> bool:
        return bool(world.facts)

    def run(self, world: World) -> Step:
        world.store.prune()
        return Step(pruned=True)


class Promote(Action):
    """A keeper makes due jobs ready, so that waiters are woken."""

    name = "due jobs are made ready"

    def is_possible(self, world: World) -> bool:
        return world.seen.counts.scheduled > 0

    def run(self, world: World) -> Step:
        return Step(promoted=world.store.promote(QUEUES))


# Time


class Tick(Action):
    """The calendar clock moves one step, towards an instant that some open job waits for."""

    helps = True
    moves_time = True
    name = "the calendar moves on by one tick"

    def is_possible(self, world: World) -> bool:
        at = world.clock.calendar()
        return any(job is not None and job.state in OPEN and _awaits(job, at) for job in world.seen.jobs)

    def run(self, world: World) -> Step:
        horizon_s = world.store.horizon(QUEUES)
        set_calendar(world, world.clock.calendar() + TICK_S)
        return Step(horizon_s=horizon_s)


def _awaits(job: Job, at: float) -> bool:
    is_due_later = job.state is State.SCHEDULED and job.run_at > at
    return is_due_later or (job.expires_at is not None and job.expires_at > at)


class Lapse(Action):
    """The interval clock moves on until one more lease has reached its end."""

    helps = True
    moves_time = True
    name = "time passes to the end of a lease"

    def is_possible(self, world: World) -> bool:
        return any(_ends_later(world))

    def run(self, world: World) -> Step:
        at, horizon_s = world.clock.calendar(), world.store.horizon(QUEUES)
        world.clock.advance(min(_ends_later(world)))
        set_calendar(world, at)
        return Step(ended=look(world), horizon_s=horizon_s)


def _ends_later(world: World) -> Sequence[float]:
    now = world.clock.interval()
    leased = [job for job in world.seen.jobs if job is not None and job.state is State.LEASED]
    return [job.lease_end - now for job in leased if job.lease_end > now]


def set_calendar(world: World, at: float) -> None:
    """Set the calendar clock alone: the two clocks have nothing to do with each other."""
    world.clock.set_calendar(datetime.fromtimestamp(at, UTC))


def all_actions(world: World) -> list[Action]:
    """Every action that the scope allows, in the order in which they are tried."""
    scope = world.scope
    short = Short(world) if scope.short else None
    actions = of_producers(world, short) + of_workers(world, short)
    draws = scope.draws or (0.0,)
    kinds = (False, True) if scope.crash_reclaims else (False,)
    for reaper in range(scope.reapers):
        actions += [Look(world, reaper, job_id) for job_id in range(1, scope.jobs + 1)]
        actions += [Reclaim(reaper, crashed=crashed, u=u) for crashed in kinds for u in draws]
    if scope.sweeps:
        actions += [Sweep(crashed=crashed, u=u) for crashed in (False, True) for u in draws]
    acts: list[tuple[str, Act]] = [("cancel", Cancel())] if scope.cancels else []
    acts += [("redrive", Redrive())] if scope.redrives else []
    acts += [("delete", Delete())] if scope.deletes else []
    for job_id in range(1, scope.jobs + 1):
        actions += [Operate(what, act, job_id) for what, act in acts]
        if scope.reprioritises:
            actions += [Operate("reprioritise", Reprioritise(new_priority(job_id)), job_id)]
    actions += [Pause(paused=True), Pause(paused=False)] if scope.pauses else []
    actions += [Prune()] if any(scope.expires_s) or scope.retention is not None else []
    actions += [Promote()] if scope.promotes else []
    waits = scope.delays or scope.draws or scope.snoozes or any(scope.expires_s) or any(scope.start_delays)
    actions += [Tick()] if waits else []
    actions += [Lapse()] if scope.clocked else []
    return actions
