"""Processes of `ulak work` in a simulation, and who starts, stops and replaces them.

Pool, keeper and duties are the real ones. What a process does around them is here as `cli/work_process.py`
has it: signals become notes, each ends the pool once more, a deadline cuts off what takes too long.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

from tests.sim.home import SimSignal
from tests.sim.pool import SimPool
from tests.sim.world import Steps
from ulak.cli.work_fleet import KILL_S
from ulak.cli.work_process import HURRY_S, LEAVE_S
from ulak.core.flows import Now, Sleep
from ulak.core.job import Draft
from ulak.core.schedule import CatchUp, Every
from ulak.durations import SECONDS_MAX
from ulak.errors import UlakError
from ulak.schedules import Schedule
from ulak.worker.pool import KEEPER_WAIT_S
from ulak.worker.report import Report

if TYPE_CHECKING:
    from tests.sim.stage import Stage

LOOK_S = 0.05
"""How often whoever watches over a process looks at it."""

RESTART_S = 0.1
WORK_S = 1.0
STEPS_MAX = 60
"""A stop comes after a drawn time and, half the time, so many steps of others at most: so at any point."""

RUNS_ON_S = LEAVE_S + 0.6
"""How long a thread may run on after its job was handed back: until the end of its process."""


def rest(duration_s: float, signal: SimSignal | None = None) -> Steps:
    """Let so much time pass, unless this is set before; a sleep may be cut short by others."""
    signal, until = signal or SimSignal(), (yield Now()) + duration_s
    while not signal.is_set() and (left_s := until - (yield Now())) > 0:
        yield Sleep(signal, left_s)


class Process:
    """One process. stopped_at: when the first signal came. has_left: it has ended in order."""

    def __init__(self, stage: Stage) -> None:
        rng = stage.rng
        self.home = stage.new_home()
        self.name = self.home.name
        self.stopped_at: float | None = None
        self.has_left = False
        self.over = SimSignal()
        self.pool: SimPool | None = None
        self.grace_s = rng.choice((0.0, 0.0, 0.3, 1.0, 5.0))
        self._stage = stage
        self._inbox: list[str | Report | None] = []
        self._signal = SimSignal()
        self._signals = 0
        stage.processes[self.name] = self
        stage.world.spawn(f"{self.name}.main", "process", self.home, self._main())

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, in whatever way."""
        return self.home.is_alive and not self.over.is_set()

    def signal(self) -> None:
        """SIGTERM: the first is a wish, the second an order."""
        if not self.is_alive:
            return
        self._signals += 1
        self._stage.world.note(f"{self.name}: signal {self._signals}")
        self._stage.seen["stopped by a signal" if self._signals == 1 else "hurried by a second signal"] += 1
        if self._signals == 1:
            self.stopped_at = self._stage.world.clock.now
        self._tell("stop" if self._signals == 1 else "hurry")
        within_s = self.grace_s + LEAVE_S if self._signals == 1 else HURRY_S
        self._stage.world.spawn(f"{self.name}.deadline", "deadline", self.home, self._cut_off(within_s))

    def is_ending_in_order(self, since: float = 0.0) -> bool:
        """Whether it was stopped, and nothing has touched it from `since` seconds before that on."""
        world = self._stage.world
        if self.stopped_at is None or not (self.home.is_alive or self.has_left):
            return False
        begin = self.stopped_at - since
        if world.faults.lost_at > begin:
            return False
        people = [actor for actor in world.everybody if actor.home is self.home]
        return not any(actor.was_hit_since(begin, world.clock.now) for actor in people)

    # Inside

    def _tell(self, note: str | Report | None) -> None:
        self._inbox.append(note)
        self._signal.set()

    def _main(self) -> Steps:
        rng = self._stage.rng
        # It imports its App; who is stopped then has begun nothing.
        yield from rest(rng.choice((0.0, 0.05, 0.5)))
        if self._signals == 0:
            try:
                yield from self._work()
            except UlakError:
                # Whoever watches over it starts another one.
                self._stage.seen["left since the store was away"] += 1
        self._exit()
        yield Sleep(SimSignal(), None)

    def _work(self) -> Steps:
        self.pool = pool = self._stage.work_pool(self.home)
        yield from pool.start()
        self._spawn("end", self._await_end(pool))
        endings = 0
        if self._stage.rng.random() < 0.15:
            self._begin("drain", SECONDS_MAX)
            endings = 1
        while True:
            match (yield from self._next()):
                case "stop":
                    self._begin("shutdown", self.grace_s)
                    endings += 1
                case "hurry":
                    self._begin("shutdown", 0.0)
                    endings += 1
                case "spent":
                    if self._signals == 0:
                        self._stage.seen["left after its last job"] += 1
                        self._begin("shutdown", SECONDS_MAX)
                        endings += 1
                case Report():
                    endings -= 1
                    if endings == 0:
                        break
                case None:
                    with contextlib.suppress(UlakError):
                        yield from pool.crew.shutdown(0.0, pool.hands)
                    return
        yield from self._see_keeper_off(pool)
        self.has_left = True
        self._stage.watch.left_in_order(self)

    def _next(self) -> Steps:
        while not self._inbox:
            self._signal.clear()
            yield Sleep(self._signal, None)
        return self._inbox.pop(0)

    def _spawn(self, name: str, steps: Steps) -> None:
        self._stage.world.spawn(f"{self.name}.{name}", "end", self.home, steps)

    def _begin(self, how: str, grace_s: float) -> None:
        assert self.pool is not None

        def end(pool: SimPool) -> Steps:
            self._tell((yield from pool.end(how, None, grace_s)))

        self._spawn(how, end(self.pool))

    def _await_end(self, pool: SimPool) -> Steps:
        """Tell once the workers have left since they may run no more."""
        yield from pool.crew.left(None)
        if pool.crew.is_spent:
            self._tell("spent")

    def _see_keeper_off(self, pool: SimPool) -> Steps:
        start = yield Now()
        while pool.keeper is not None and not pool.keeper.is_over and (yield Now()) - start < KEEPER_WAIT_S:
            yield from rest(LOOK_S)

    def _cut_off(self, within_s: float) -> Steps:
        yield from rest(within_s)
        if self.is_alive and not self.has_left:
            self._stage.seen["cut off by its deadline"] += 1
            if self._signals == 1 and self.pool is not None and self.is_ending_in_order():
                self._stage.world.problem(f"{self.name} had nothing to wait for, and was cut off")
            self._exit()
        yield Sleep(SimSignal(), None)

    def _exit(self) -> None:
        """End with all its threads, wherever they are."""
        self._stage.world.note(f"{self.name}: exits")
        self.over.set()
        self._stage.world.doom(self.home)


def supervisor(stage: Stage, _home: object, _queue: str, *, rounds: int) -> Steps:
    """Keeps one process running, and restarts it as a deploy does, again and again."""
    rng = stage.rng
    for _ in range(rounds):
        lives_s = rng.choice((0.0, 0.05, 0.6, 2.0, 5.0)) * rng.random()
        stop_at = (yield Now()) + lives_s
        process = Process(stage)
        while (left_s := stop_at - (yield Now())) > 0 and not stage.is_calm:
            if not process.is_alive:
                yield from rest(RESTART_S)
                process = Process(stage)
            yield Sleep(process.over if process.is_alive else SimSignal(), min(LOOK_S, left_s))
        if rng.random() < 0.6:
            yield from _await_work(process)
        if rng.random() < 0.5:
            for _ in range(rng.randrange(STEPS_MAX)):
                yield Now()
        yield from _stop(stage, process, rng)
        if stage.is_calm:
            return


def _await_work(process: Process) -> Steps:
    """Wait until a worker of it claims or runs a job, for a while."""
    until = (yield Now()) + WORK_S
    while process.is_alive and (yield Now()) < until:
        seats = [] if process.pool is None else process.pool.crew.seats
        if any(seat.running is not None or seat.is_claiming for seat in seats):
            return
        yield Sleep(process.over, LOOK_S)


def _stop(stage: Stage, process: Process, rng: random.Random) -> Steps:
    """Stop it, sometimes in a hurry; kill it when it does not end."""
    kill_at = (yield Now()) + process.grace_s + KILL_S
    process.signal()
    if rng.random() < 0.2:
        yield from rest(rng.uniform(0.0, process.grace_s + 0.2))
        process.signal()
    while process.is_alive and (yield Now()) < kill_at:
        yield Sleep(process.over, LOOK_S)
    if process.is_alive:
        stage.seen["killed as it did not end"] += 1
        stage.world.crash(process.home)


def schedules_of(stage: Stage, rng: random.Random) -> list[Schedule]:
    """What all processes of a run fire."""
    return [
        Schedule(
            name=f"tick{number}",
            task="tick",
            queue=rng.choice(stage.queues),
            rule=Every(rng.choice((0.4, 1.0, 3.0))),
            catch_up=rng.choice(list(CatchUp)),
            draft=Draft(stage.maker.draft(is_child=True).payload, "str", max_attempts=3),
        )
        for number in range(rng.choice((0, 1, 2)))
    ]
