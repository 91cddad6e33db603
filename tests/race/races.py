"""Races drawn from a seed: which calls, on which small store, in how many threads, under which schedule.

ULAK_SCHEDULES sets how many schedules each operation gets, ULAK_SEED where the seeds begin.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import cache, partial

from tests.contract.model import Model
from tests.race.controlled import controlled
from tests.race.operations import Operation, Scene
from tests.race.orders import History, check
from tests.race.preempt import Length, Plan, World
from tests.race.stage import Stage, new_model, twin


def seeds(usual: int) -> range:
    """The seeds of one case: as many as are usual for it, unless a campaign says otherwise."""
    first = int(os.environ.get("ULAK_SEED", "0"))
    return range(first, first + int(os.environ.get("ULAK_SCHEDULES", str(usual))))


SEEDS = seeds(100)
the_model = cache(new_model)


class Arena:
    """Operations that may meet, each with each other and with those of `others`.

    ending: those made one after the other in the end, since what is stored must still come in order.
    stage: makes what they work on.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        ending: Sequence[Operation],
        *,
        others: Sequence[Operation] = (),
        stage: Callable[[Scene], Stage] = Stage,
    ) -> None:
        self.operations = operations
        self.others = others
        self.ending = ending
        self.stage = stage
        self.methods = tuple(dict.fromkeys(operation.method for operation in operations))
        self._lengths: dict[tuple[Operation, Scene], Length] = {}

    def length(self, world: World, operation: Operation, scene: Scene) -> Length:
        """How many points and crossings an operation passes when nobody meets it."""
        if (operation, scene) not in self._lengths:
            alone = partial(operation.make, self.stage(scene), History[Model](world))
            (self._lengths[operation, scene],) = world.run([alone], Plan(0, [(0, 0)])).lengths
        return self._lengths[operation, scene]

    def race(self, method: str, seeds: Sequence[int] = SEEDS) -> None:
        """Race a method against the others. Raises AssertionError where no order explains what came of it."""
        with controlled() as world:
            for seed in seeds:
                Race(self, method, seed).run(world)


class Race:
    """Two or three threads, of one call or two each."""

    def __init__(self, arena: Arena, method: str, seed: int) -> None:
        draws = random.Random(f"{method} {seed}")
        first = draws.choice([op for op in arena.operations if op.method == method])
        self.arena = arena
        self.seed = seed
        self.scene: Scene = draws.choice(first.scenes)
        here: dict[str, list[Operation]] = {}
        for operation in (*arena.operations, *arena.others):
            if self.scene in operation.scenes:
                here.setdefault(operation.method, []).append(operation)
        partners = [draws.choice(here[draws.choice(list(here))]) for _ in range(draws.choice((1, 1, 2, 3)))]
        if draws.randrange(5) == 0:
            partners[0] = draws.choice(here[method])
        self.threads = [[first], *([partner] for partner in partners[:2])]
        if len(partners) == 3:
            draws.choice(self.threads).append(partners[2])

    def run(self, world: World) -> None:
        """Run it, and find the order that explains it."""
        arena, history = self.arena, History[Model](world)
        stage = arena.stage(self.scene)
        calls = [partial(make_all, operations, stage, history) for operations in self.threads]
        run = world.run(calls, Plan(self.seed, [self.length(world, made) for made in self.threads]))
        run.check()
        make_all(arena.ending, stage, history)
        check(run, history, the_model(self.scene), twin, stage.fits)

    def length(self, world: World, operations: Sequence[Operation]) -> Length:
        """How many points and crossings a thread passes alone."""
        each = [self.arena.length(world, operation, self.scene) for operation in operations]
        return sum(points for points, _ in each), sum(crossings for _, crossings in each)


def make_all(operations: Sequence[Operation], stage: Stage, history: History[Model]) -> None:
    """Make the calls, one after the other."""
    for operation in operations:
        operation.make(stage, history)
