"""Watches a simulation from outside for what must happen in time: nobody may wait for what is there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.jobs import CONNOISSEUR, STRANGE, nap
from tests.sim.world import Actor, Steps
from ulak.context import Context
from ulak.core.flows import LOOK_AGAIN_S, Sleep
from ulak.core.job import OPEN, Cause, Counts, Dead, Duplicate, Job, Lease, Outcome, Retry, State, Verdict
from ulak.core.store import Delete, Filter, Fired, Settled, Settlement, Until
from ulak.worker.keeper import RENEWALS_PER_LEASE
from ulak.worker.report import Report
from ulak.worker.runtime import HALT_S, Crew

if TYPE_CHECKING:
    from tests.sim.pool import SimPool
    from tests.sim.service import Process
    from tests.sim.stage import Stage

AFTER_FAULTS_S = 2 * LOOK_AGAIN_S + 0.5
"""How long somebody may wait for what is there, after a fault that may have taken a wake-up along."""

END_LATE_S = 1.0
"""By how much a drain or a shutdown may overrun its limit."""

LOSS_SEEN_S = 0.3
"""How much later than a renewal a handler may learn that its lease is lost."""

HAND_BACK_S = 0.1
"""How long after its end a pool may hold a lease that a worker took at the last moment."""

ORDER_LOOKS = 3
"""Each so many claims the order is checked, which costs a look at all jobs."""


class Run(msgspec.Struct, gc=False):
    """A handler that runs. runs_on_s: how long it may do so once its job was handed back at `handed_back_at`;
    lost_at: when its delivery was ended by somebody else."""

    actor: Actor
    crew: Crew
    claimed_at: float
    started_at: float
    runs_on_s: float | None
    lost_at: float | None = None
    handed_back_at: float | None = None


class Look(msgspec.Struct, frozen=True, gc=False):
    """What there was when whoever ends a pool counted the jobs; `at` and `date` by the two clocks."""

    at: float
    date: float
    counts: Counts


class Watch:
    """Knows who works on what, and since when somebody waits for something that is there."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._claimed_at: dict[tuple[int, int], float] = {}
        self._runs: dict[tuple[int, int], Run] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._last_look: dict[str, Look] = {}
        self._claims = 0
        # Which process took a delivery, where it was one of `ulak work`.
        self._taken_by: dict[tuple[int, int], Process] = {}
        self.fired: Counter[tuple[str, float]] = Counter()
        # Until when a schedule's ticks are nobody's: it began then. Two workers may both begin it.
        self.began: dict[str, float] = {}

    # What the store did

    def called(self, name: str, args: Any, answer: Any) -> None:
        """A call took effect."""
        match name:
            case "claim":
                self._handed_out(answer)
            case "settle":
                self._settled(args[0], answer)
            case "turn":
                self._settled(args[0], answer[0])
                self._handed_out(answer[1])
            case "add":
                self._forget("room", args[0])
            case "fire":
                self._fired(args[0], args[1], args[2], answer)
            case "counts":
                self._counted()
            case "amend" if isinstance(args[1], Delete):
                for (job_id, _), run in self._runs.items():
                    if job_id in answer.done:
                        run.lost_at = self._stage.world.clock.now

    def _handed_out(self, leases: Sequence[Lease]) -> None:
        actor = self._stage.world.current
        process = None if actor is None else self._stage.processes.get(actor.home.name)
        for lease in leases:
            self._claimed_at[lease.id, lease.delivery] = self._stage.world.clock.now
            if process is not None:
                self._taken_by[lease.id, lease.delivery] = process
            for what in ("ready", "seats", "time"):
                self._forget(what, lease.queue)
        self._claims += bool(leases)
        if leases and self._claims % ORDER_LOOKS == 0:
            self._check_order(leases)

    def _fired(self, schedule: str, tick_at: float, queue: str, answer: object) -> None:
        if isinstance(answer, int) and not isinstance(answer, Duplicate):
            self.fired[schedule, tick_at] += 1
            self._forget("room", queue)
        elif answer is Fired.FIRED:
            self.began[schedule] = tick_at

    def _settled(self, settlements: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        for (lease, verdict), answer in zip(settlements, answers, strict=True):
            if answer is not Outcome.STALE:
                self._forget("time", lease.queue)
                self._ended(lease, verdict)

    def _check_order(self, leases: Sequence[Lease]) -> None:
        """What was handed out came before all that is ready still; nothing happened in between."""
        which = Filter(queue=leases[0].queue, states=State.READY)
        ready = [(-job.priority, job.id) for job in self._stage.bare.scan(which, limit=1_000)]
        handed_out = [(-lease.priority, lease.id) for lease in leases]
        if handed_out != sorted(handed_out) or (ready and min(ready) < handed_out[-1]):
            self._stage.world.problem(
                f"{leases} came before jobs that are ahead of them: {sorted(ready)[:3]}"
            )

    def _ended(self, lease: Lease, verdict: Verdict) -> None:
        self._check_unspent(lease, verdict)
        run = self._runs.get((lease.id, lease.delivery))
        if run is not None and verdict.cause is Cause.SHUTDOWN:
            self._handed_back(run, lease)
        if run is None or run.actor is self._stage.world.current:
            return
        run.lost_at = self._stage.world.clock.now
        is_expiry = verdict.cause is Cause.LOST and not (
            isinstance(verdict, Retry | Dead) and verdict.crashed
        )
        if is_expiry and self._was_kept(run, lease.lease_s):
            self._stage.world.problem(
                f"{lease} of {run.crew.worker} ran out, though its keeper was well all the time"
            )

    def _check_unspent(self, lease: Lease, verdict: Verdict) -> None:
        """What a process held that was stopped in order is not lost; its own workers may die of their job."""
        process, who = self._taken_by.get((lease.id, lease.delivery)), self._stage.world.current
        if process is None or who is None or who.home is process.home or verdict.cause is not Cause.LOST:
            return
        # Reapers take the living for dead.
        if who.role != "reaper" and process.is_ending_in_order(since=lease.lease_s):
            self._stage.world.problem(f"{process.name} was stopped in order, and {lease} is spent by that")

    def _handed_back(self, run: Run, lease: Lease) -> None:
        """A job is handed back whose handler runs: it must not, where it can be ended first."""
        now = self._stage.world.clock.now
        run.handed_back_at = now
        if run.crew.halt is not None and not run.actor.was_hit_since(now - 2 * HALT_S, now):
            self._stage.world.problem(f"{lease} was handed back by {run.crew.worker} while its handler runs")

    def _was_kept(self, run: Run, lease_s: float) -> bool:
        """Whether nothing kept the pool from renewing this lease since it was taken."""
        keeper = self._stage.keepers.get(run.crew.worker)
        return (
            keeper is not None
            and not run.crew.stopped
            and not keeper.is_over
            and not keeper.was_hit_since(run.claimed_at - lease_s, self._stage.world.clock.now)
            and run.started_at - run.claimed_at < lease_s / (2 * RENEWALS_PER_LEASE)
        )

    # Handlers

    def starts(self, lease: Lease, crew: Crew, runs_on_s: float | None) -> None:
        """A handler begins."""
        actor, now = self._stage.world.current, self._stage.world.clock.now
        assert actor is not None
        key = lease.id, lease.delivery
        self._runs[key] = Run(actor, crew, self._claimed_at.get(key, now), now, runs_on_s)

    def stops(self, lease: Lease) -> None:
        """It is over, whatever comes of it."""
        self._runs.pop((lease.id, lease.delivery), None)

    def looks(self, lease: Lease, context: Context) -> None:
        """A handler looks whether it still has its lease: a renewal later it must know that it has not."""
        run = self._runs.get((lease.id, lease.delivery))
        if run is not None:
            self._check_runs_on(run, lease)
        if run is None or run.lost_at is None or context.cancelled:
            return
        world, keeper = self._stage.world, self._stage.keepers.get(run.crew.worker)
        known_s = world.clock.now - run.lost_at
        limit_s = run.crew.lease_s / RENEWALS_PER_LEASE + LOSS_SEEN_S
        # In an ended pool it is whoever ended it that tells the handlers, and he may be held up.
        if keeper is None or (run.crew.stopped and not world.faults.is_calm):
            return
        if keeper.was_hit_since(run.lost_at - run.crew.lease_s, world.clock.now):
            return
        if known_s > limit_s:
            world.problem(f"{lease} was lost {known_s:.2f} s ago, and its handler does not know")

    def _check_runs_on(self, run: Run, lease: Lease) -> None:
        """Whatever can be ended does not run on for long once its job was handed back."""
        world, at = self._stage.world, run.handed_back_at
        if at is None or run.runs_on_s is None or not world.faults.is_calm:
            return
        if world.clock.now - at > run.runs_on_s and not run.actor.was_hit_since(at, world.clock.now):
            world.problem(f"{lease} runs {world.clock.now - at:.2f} s after {run.crew.worker} handed it back")

    # Ends of pools

    def started(self) -> tuple[float, float]:
        """When the actor on turn begins something, and what has held it up so far."""
        actor = self._stage.world.current
        assert actor is not None
        return self._stage.world.clock.now, actor.held_up_s

    def took(self, what: str, started: tuple[float, float], allowed_s: float | None) -> None:
        """Something with a limit has ended, for the actor on turn; what held it up does not count."""
        now, held_up_s = self.started()
        took_s = now - started[0] - (held_up_s - started[1])
        if allowed_s is not None and took_s > allowed_s + END_LATE_S:
            self._stage.world.problem(f"{what} took {took_s:.2f} s, allowed were {allowed_s:g} s")

    def ended(self, pool: SimPool, since: float) -> None:
        """A pool has ended: nothing that it held before is held on, and soon nothing at all."""
        world = self._stage.world
        for lease in self._held_by(pool):
            if self._claimed_at.get((lease.id, lease.delivery), since) < since:
                world.problem(f"{pool.worker} has ended, and still holds {lease}")
        world.spawn(f"{pool.worker}.check", "check", world.net, self._check_ended(pool, since))

    def _held_by(self, pool: SimPool) -> list[Lease]:
        bare = self._stage.bare
        return [lease for queue in pool.crew.queues for lease in bare.leased(queue, worker=pool.worker)]

    def left_in_order(self, process: Process) -> None:
        """A process has ended by itself: it holds nothing, and nothing has cut it off."""
        assert process.pool is not None
        if process.is_ending_in_order() and (held := self._held_by(process.pool)):
            self._stage.world.problem(f"{process.name} has left in order, and still holds {held}")

    def _check_ended(self, pool: SimPool, since: float) -> Steps:
        yield from nap(HAND_BACK_S)
        world = self._stage.world
        people = [actor for actor in world.everybody if actor.name.startswith(f"{pool.worker}.")]
        if not pool.home.is_alive or any(actor.was_hit_since(since, world.clock.now) for actor in people):
            return
        held = self._held_by(pool)
        if held:
            world.problem(f"{pool.worker} has ended, and still holds {held}")

    def _counted(self) -> None:
        """Whoever ends a pool may report what he sees once the pool has stopped, and nothing older."""
        world, bare = self._stage.world, self._stage.bare
        match world.current and world.current.doing:
            case ("end", queue, Crew(stopped=True, worker=worker, queues=(_,))):
                look = Look(world.clock.now, world.clock.calendar(), bare.counts([queue])[queue])
                self._last_look[worker] = look

    def done(self, pool: SimPool, report: Report) -> None:
        """The last drain of a queue reports that all is done: all must have been held when it looked last.

        Since then a held job may have been taken for its task, and a handler that was left behind may have
        enqueued. Nothing else may be open.
        """
        look, which = self._last_look.get(pool.worker), Filter(queue=pool.crew.label, states=OPEN)
        jobs = self._stage.bare.scan(which, limit=1_000)
        left = [job for job in jobs if job.state is not State.HELD and not self._is_later(job, look)]
        if look is None or look.counts.open > look.counts.held or left:
            saw = "nothing since its pool stopped" if look is None else look.counts
            self._stage.world.problem(
                f"the last drain of {pool.crew.label} reports {report}, saw {saw}, and leaves {left}"
            )

    def _is_later(self, job: Job, look: Look | None) -> bool:
        """Whether an open job was enqueued, or was taken for its task, only after that look."""
        if look is None:
            return False
        is_taken = job.state is State.LEASED and (job.task, job.worker) == (STRANGE, CONNOISSEUR)
        taken_at = self._claimed_at.get((job.id, job.delivery), -math.inf) if is_taken else -math.inf
        # Each step takes time, so what happened at that very moment came before.
        return job.created_at > look.date or taken_at > look.at

    # Whoever waits

    def jumps(self, soonest: float | None) -> None:
        """Nobody can go on before `soonest`."""
        until = math.inf if soonest is None else soonest
        for queue in self._stage.queues:
            counts = self._stage.bare.counts([queue])[queue]
            settings = self._stage.bare.queues()[queue]
            idle = self._idle(queue) if counts.ready and not settings.paused else None
            self._note("ready", queue, idle, until, f"{counts.ready} jobs are ready")
            room = None if settings.capacity is None else settings.capacity - counts.open
            self._note("room", queue, self._blocked(queue, room), until, f"there is room for {room}")
            self._look_at_keepers(queue, until, has_work=counts.ready > 0 and not settings.paused)

    def looks_around(self) -> None:
        """What must be done in time is done also while others keep the world busy."""
        for queue in self._stage.queues:
            counts = self._stage.bare.counts([queue])[queue]
            is_paused = self._stage.bare.queues()[queue].paused
            self._look_at_keepers(
                queue, self._stage.world.clock.now, has_work=counts.ready > 0 and not is_paused
            )

    def _look_at_keepers(self, queue: str, until: float, *, has_work: bool) -> None:
        slack_s = LOOK_AGAIN_S + LOSS_SEEN_S
        keeper = self._keeper(queue) if self._stage.bare.horizon([queue]) == 0.0 else None
        self._note("time", queue, keeper, until, "something is due", slack_s=slack_s)
        keeper = self._keeper(queue, has_empty_seats=True) if has_work else None
        self._note("seats", queue, keeper, until, "workers that left stay away", slack_s=slack_s)

    def _note(
        self, what: str, queue: str, who: Actor | None, until: float, text: str, *, slack_s: float = 0.0
    ) -> None:
        key, now = (what, queue), self._stage.world.clock.now
        if who is None:
            self._since.pop(key, None)
            return
        since = max(self._since.setdefault(key, now), who.born_at)
        was_lost = now - self._stage.world.faults.lost_at < AFTER_FAULTS_S
        limit_s = slack_s + (AFTER_FAULTS_S if was_lost else self._stage.poll_s or 0.0)
        if until - max(since, who.hit_at) > limit_s:
            waited = f"from {since:.3f} until {until:.3f}"
            self._stage.world.problem(f"queue {queue}: {text}, and {who.name} sleeps {waited}")
            self._since[key] = math.inf

    def _forget(self, what: str, queue: str) -> None:
        """Things move, so nobody waits in vain."""
        self._since.pop((what, queue), None)

    def _idle(self, queue: str) -> Actor | None:
        """Somebody who waits for a job; None if somebody may be under way to it."""
        found = None
        for actor in self._stage.world.actors:
            if not _waits_for_jobs(actor, queue):
                continue
            if actor.flight is not None or actor.frozen_until > self._stage.world.clock.now:
                return None
            is_seat = actor.doing[0] == "seat"
            is_taking = not is_seat or actor.doing[2].taking
            if actor.sleeps and is_taking and len(actor.stack) == 1:
                found = found or actor
        return found

    def _blocked(self, queue: str, room: int | None) -> Actor | None:
        """Somebody first in line who waits for room that is there; None while somebody is under way."""
        found = None
        for actor in self._stage.world.actors:
            if actor.doing[:2] != ("enqueue", queue):
                continue
            if actor.flight is not None or actor.frozen_until > self._stage.world.clock.now:
                return None
            fits = room is None or actor.doing[2] <= room
            # A sleep that is no wait for room is its pause between two attempts.
            if fits and actor.sleeps and isinstance(actor.ask, Sleep):
                line = actor.home.view.line(Until.ROOM, queue)
                if line.is_first(actor.ask.signal):
                    found = found or actor
        return found

    def _keeper(self, queue: str, *, has_empty_seats: bool = False) -> Actor | None:
        """A keeper of this queue that is well; if asked for, of a pool where somebody has left."""
        for pool in self._stage.pools:
            keeper, crew = pool.keeper, pool.crew
            if queue not in crew.queues or keeper is None or keeper.is_over or not pool.home.is_alive:
                continue
            if has_empty_seats and (not crew.taking or crew.size == len(crew.seats)):
                continue
            if keeper.flight is None and keeper.frozen_until <= self._stage.world.clock.now:
                return keeper
        return None


def _waits_for_jobs(actor: Actor, queue: str) -> bool:
    match actor.doing:
        case ("seat", _, Crew(queues=queues)):
            return queue in queues
        case ("deliver", name):
            return bool(name == queue)
    return False
