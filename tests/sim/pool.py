"""Pools of the simulation: the real crew, keeper and duties, with hands that are actors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.sim.home import Home
from tests.sim.jobs import Outcome, perform, raising
from tests.sim.short import write_quick
from tests.sim.trace import brief
from tests.sim.world import Actor, Killed, Steps
from ulak.context import Context
from ulak.core import rules
from ulak.core.flows import Now
from ulak.core.job import Cause, Failure, Hold, Lease
from ulak.errors import UlakError
from ulak.schedules import Schedule, Scheduler
from ulak.worker.execute import Failed, Handler
from ulak.worker.hands import replace_lost
from ulak.worker.keeper import Keeper
from ulak.worker.overseer import Overseer
from ulak.worker.refused import Refused
from ulak.worker.report import Report
from ulak.worker.runtime import CLAIM_S, HALT_S, Crew
from ulak.worker.seat import Left, Seat

if TYPE_CHECKING:
    from tests.sim.stage import Stage


_WORKER_LOST = Failed(Cause.LOST, Failure("WorkerLost", "its process was lost"))
_MISFIT = Hold(cause=Cause.UNDECODABLE, error=Failure("ArgumentMisfit", "not before the next deploy"))


class SimHands:
    """Carries workers as actors; behaves as threads do or, if `are_tasks`, as the tasks of an event loop.

    runs_on_s: how long a handler may go on after its job was handed back; None where it may for ever.
    """

    def __init__(
        self, stage: Stage, home: Home, crew: Crew, *, are_tasks: bool, runs_on_s: float | None
    ) -> None:
        self._stage = stage
        self._home = home
        self._crew = crew
        self._are_tasks = are_tasks
        self._runs_on_s = runs_on_s
        self._actors: dict[int, Actor] = {}
        # Seats whose handler runs, in a pool whose handlers can be ended from outside.
        self._in_handler: set[int] = set()
        self._is_halted = False
        self._handler = Handler(self._end)
        self._outcome: Outcome = stage.die

    def start(self, seat: Seat) -> None:
        """A new actor takes this seat."""
        actor = self._stage.world.spawn(
            f"{self._crew.worker}.{seat.number}", "seat", self._home, self._main(seat)
        )
        actor.doing = "seat", self._crew.label, self._crew
        actor.is_task = self._are_tasks
        self._actors[seat.number] = actor

    def _main(self, seat: Seat) -> Steps:
        try:
            yield from self._crew.work(seat, self)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever ends a worker, its seat must be taken again
            if not isinstance(error, Killed | UlakError):
                self._stage.world.problem(f"worker {self._crew.worker}.{seat.number} died of {error!r}")
            if self._crew.taking:
                return
        else:
            self._check_left(seat)
        if seat.asked_to_end and self._crew.taking:
            return
        self._crew.seat_left(seat)

    def _check_left(self, seat: Seat) -> None:
        """Workers of a pool that takes jobs leave only once the producers of their process have finished."""
        if self._crew.taking and not seat.asked_to_end:
            self._stage.seen["left as all was done"] += 1
            if not self._crew.finished:
                self._stage.world.problem(f"{self._crew.worker}.{seat.number} left before the producers")

    def handle(self, seat: Seat, lease: Lease, context: Context) -> Steps:
        """The steps of a handler, and how it ended."""
        return self._handle(seat, lease, context)

    def burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> Steps:
        """The steps of a worker that goes the short way, and what is left in the end."""
        return self._burst(seat, left, begin)

    def _burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> Steps:
        # The same as threads and tasks do, but that others come to their turn in between.
        crew = self._crew
        draw = self._stage.world.draw
        if crew.quick is None or not crew.finish_quickly(left, draw):
            return left
        yield Now()
        while (taken := crew.take_quickly(seat, begin)) is not None:
            self._stage.seen["went the short way"] += 1
            lease, context = taken
            if not isinstance(context, Context):
                return [(lease, context)]
            ending = yield from self._handle(seat, lease, context)
            if not crew.end_quickly(lease, ending, draw):
                return [(lease, ending)]
            yield Now()
        return []

    def _handle(self, seat: Seat, lease: Lease, context: Context) -> Steps:
        if self._crew.halt is not None:
            return (yield from self._handle_elsewhere(seat, lease, context))
        stage, was_killed = self._stage, False
        stage.watch.starts(lease, self._crew, self._runs_on_s)
        stage.world.note(f"{stage.world.who()}: runs the handler of {brief(lease)}")
        try:
            outcome = yield from perform(stage, lease, context)
        except Killed as killed:
            # What strikes a thread or a task inside its handler is the handler's error.
            outcome, was_killed = raising(killed), True
        finally:
            stage.watch.stops(lease)
        if outcome == stage.die:
            raise Killed
        if outcome == stage.misfit:
            context.ended = True
            return _MISFIT
        self._outcome = outcome
        ending = self._handler.run(lease, context)
        if self._are_tasks:
            seat.asked_to_end = was_killed
            if was_killed and not self._crew.taking:
                return rules.give_back(Cause.SHUTDOWN)
        return ending

    def _handle_elsewhere(self, seat: Seat, lease: Lease, context: Context) -> Steps:
        """As a process does that runs one job at a time: it is killed at a halt, and dies alone."""
        stage, number = self._stage, seat.number
        try:
            if self._is_halted:
                return rules.give_back(Cause.SHUTDOWN)
            stage.watch.starts(lease, self._crew, self._runs_on_s)
            stage.world.note(f"{stage.world.who()}: a process runs the handler of {brief(lease)}")
            self._in_handler.add(number)
            try:
                self._outcome = yield from perform(stage, lease, context)
            except Killed as killed:
                if self._is_halted:
                    stage.seen["killed by a halt"] += 1
                    return rules.give_back(Cause.SHUTDOWN)
                self._outcome = raising(killed)
            finally:
                self._in_handler.discard(number)
                if self._is_halted:
                    self._actors[number].is_cancelled = False
                stage.watch.stops(lease)
            if self._outcome == stage.die:
                stage.seen["lost the process of a job"] += 1
                return _WORKER_LOST
            if self._outcome == stage.misfit:
                return _MISFIT
            return self._handler.run(lease, context)
        finally:
            context.ended = True

    def halt(self) -> None:
        """Kill the processes that run jobs, whatever they do."""
        self._is_halted = True
        for number in sorted(self._in_handler):
            actor = self._actors[number]
            actor.frozen_until = min(actor.frozen_until, self._stage.world.clock.now)
            self._stage.world.cancel(actor)

    def _end(self, payload: object, context: Context) -> None:
        """What the real machinery calls as the user's handler, once its steps are done."""
        if payload not in self._stage.maker.scripts:
            self._stage.world.problem(f"a handler was given {payload!r}")
        self._outcome()

    def lost(self) -> list[Seat]:
        """Seats whose actor is over without having left."""
        actors = self._actors
        return [
            seat
            for seat in self._crew.seats
            if not seat.left and seat.number in actors and actors[seat.number].is_over
        ]

    def abandon(self) -> None:
        """Time is over: tasks are cancelled, threads cannot be."""
        if self._are_tasks:
            for actor in self._actors.values():
                if not actor.is_over:
                    self._stage.world.cancel(actor)


class SimPool:
    """One pool of one home.

    turns: the weights of its queues. jobs_max: how many it may run. can_halt: its jobs run in processes of
    their own. schedules: what it fires; None for a pool without an App, which has no duties of its own.
    runs_on_s: as in `SimHands`.
    """

    def __init__(
        self,
        stage: Stage,
        home: Home,
        queues: Sequence[str],
        *,
        worker: str,
        count: int,
        lease_s: float,
        are_tasks: bool,
        turns: Mapping[str, int] | None = None,
        jobs_max: int | None = None,
        can_halt: bool = False,
        schedules: Sequence[Schedule] | None = None,
        runs_on_s: float | None = None,
    ) -> None:
        self.home = home
        self.worker = worker
        self.are_tasks = are_tasks
        # Only the bare store has a short way.
        store = stage.bare if stage.has_short_ways else home.view
        refused = None if schedules is None else Refused(queues, lambda _: stage.is_calm)
        self.crew = Crew(
            store,
            [home.local(queue) for queue in queues],
            worker=worker,
            count=count,
            lease_s=lease_s,
            turns=turns,
            jobs_max=jobs_max,
            has_looked=(lambda: True) if refused is None else (lambda: refused.has_looked),
            halt=self._halt if can_halt else None,
        )
        self.duties = []
        if refused is not None:
            scheduler = Scheduler(schedules or (), stage.world.clock.calendar)
            self.duties = [scheduler.duty, refused.duty, Overseer(self.crew, []).duty]
        write_quick(stage, self.crew)
        self.hands = SimHands(stage, home, self.crew, are_tasks=are_tasks, runs_on_s=runs_on_s)
        self.keeper: Actor | None = None
        self._stage = stage

    def start(self) -> Steps:
        """Start the workers and their keeper."""
        yield from self.crew.tally.begin()
        for seat in self.crew.seats:
            self.hands.start(seat)
        replace = lambda: replace_lost(self.crew, self.hands)  # type: ignore[arg-type]  # noqa: E731
        keeper = Keeper(self.crew, replace, self.duties)
        self.keeper = self._stage.world.spawn(f"{self.worker}.keeper", "keeper", self.home, keeper.keep())
        self._stage.keepers[self.worker] = self.keeper

    def _halt(self) -> None:
        self.hands.halt()

    def end(self, how: str, limit_s: float | None, grace_s: float) -> Steps:
        """Drain or shut down, as users do; the report, or None if the store was away."""
        stage, start, actor = self._stage, self._stage.watch.started(), self._stage.world.current
        assert actor is not None
        actor.doing = "end", self.crew.label, self.crew
        try:
            report: Report
            if how == "drain":
                report = yield from self.crew.drain(limit_s, grace_s, self.hands)
            else:
                report = yield from self.crew.shutdown(grace_s, self.hands)
        except UlakError:
            # As `with` does for its users, whom a second error reaches.
            with contextlib.suppress(UlakError):
                yield from self.crew.shutdown(0.0, self.hands)
            return None
        finally:
            actor.doing = ()
        # A claim that is under way is waited for.
        late_s = CLAIM_S + (0.0 if self.crew.halt is None else HALT_S)
        allowed_s = None if limit_s is None and how == "drain" else (limit_s or 0.0) + grace_s + late_s
        stage.watch.took(f"{how} of {self.worker}", start, allowed_s)
        stage.seen["cut off by an end"] += report.released
        stage.watch.ended(self, start[0])
        return report
