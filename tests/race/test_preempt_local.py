"""What one process shares beside its stores, under controlled preemption: lines, producers, open handles."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.contract.steps import Q, draft, put
from tests.race.controlled import controlled
from tests.race.orders import History, check
from tests.race.preempt import Plan, World
from tests.race.races import SEEDS
from ulak.core.store import Settings, Until
from ulak.local import LocalQueue, LocalStore, Producer, local_store
from ulak.storage.drive import Edge
from ulak.storage.line import ThreadSignal, WaitLine
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock

# Lines


class Bell(ThreadSignal):
    """A thread's signal, by name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@dataclass
class LineModel:
    """A line as its words say. gone: who is stepping out, but has not passed on yet."""

    until: Until
    waiting: list[str] = field(default_factory=list)
    rung: set[str] = field(default_factory=set)

    def ring(self, wakeups: int) -> None:
        match self.until:
            case Until.READY:
                self.rung.update([name for name in self.waiting if name not in self.rung][:wakeups])
            case Until.ROOM:
                self.rung.update(self.waiting[:1])
            case _:
                self.rung.update(self.waiting)

    def step_out(self, name: str) -> None:
        self.waiting = [other for other in self.waiting if other != name]

    def pass_on(self, name: str) -> None:
        if self.until is Until.ROOM or (self.until is Until.READY and name in self.rung):
            self.ring(1)


class LineRace:
    """Three threads: two waiters that come and go, and one that rings."""

    def __init__(self, world: World, until: Until, seed: int) -> None:
        self.line = WaitLine(until)
        self.history = History[LineModel](world)
        self.bells = {name: Bell(name) for name in ("before", "one", "two", "three")}
        self.line.join(self.bells["before"])
        self.model = LineModel(until, ["before"])
        draws = random.Random(seed)
        last = draws.choice(
            (self.wake_all, partial(self.ring, 2), partial(self.leave, "before"), self.length)
        )
        rings: list[Callable[[], Any]] = [partial(self.ring, draws.choice((1, 2))), last]
        waits = [self.wait("one"), self.wait("two") + self.wait("three")[:1]]
        waits[0] += [partial(self.is_first, draws.choice(list(self.bells)))]
        self.threads = [*(steps[: draws.randint(1, 4)] for steps in waits), rings]

    def wait(self, name: str) -> list[Callable[[], Any]]:
        return [partial(self.join, name), partial(self.clear, name), partial(self.leave, name)]

    def join(self, name: str) -> None:
        self.note("join", name, lambda: self.line.join(self.bells[name]), lambda m: m.waiting.append(name))

    def clear(self, name: str) -> None:
        self.note("clear", name, self.bells[name].clear, lambda m: m.rung.discard(name))

    def leave(self, name: str) -> None:
        # Two steps of the line's: who joins between them may be rung by the second.
        parts = [does(lambda m: m.step_out(name)), does(lambda m: m.pass_on(name))]
        self.history.note(f"leave {name}", lambda: self.line.leave(self.bells[name]), *parts)

    def ring(self, wakeups: int) -> None:
        self.note("ring", str(wakeups), lambda: self.line.ring(wakeups), lambda m: m.ring(wakeups))

    def wake_all(self) -> None:
        self.note("wake", "all", self.line.wake_all, lambda m: m.rung.update(m.waiting))

    def is_first(self, name: str) -> None:
        self.history.note(
            f"is_first {name}",
            lambda: self.line.is_first(self.bells[name]),
            lambda model, answer: (model.waiting[:1] == [name]) == answer,
        )

    def length(self) -> None:
        self.history.note("len", lambda: len(self.line), lambda model, answer: len(model.waiting) == answer)

    def note(
        self, what: str, which: str, call: Callable[[], Any], does_it: Callable[[LineModel], Any]
    ) -> None:
        self.history.note(f"{what} {which}", call, does(does_it))

    def fits(self, model: LineModel) -> None:
        assert {name for name, bell in self.bells.items() if bell.is_set()} == model.rung
        assert [name for name in model.waiting if self.line.is_first(self.bells[name])] == model.waiting[:1]
        assert len(self.line) == len(model.waiting)


def does(change: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    """A step that changes the model and is told nothing."""

    def allows(model: Any, _: Any) -> bool:
        change(model)
        return True

    return allows


def make(steps: Sequence[Callable[[], Any]]) -> None:
    for step in steps:
        step()


@pytest.mark.parametrize("until", Until)
def test_a_line_wakes_whom_some_order_of_its_calls_wakes(until: Until) -> None:
    with controlled() as world:
        for seed in SEEDS:
            race = LineRace(world, until, seed)
            run = world.run([partial(make, steps) for steps in race.threads], Plan(seed, ((80, 10),) * 3))
            check(run, race.history, race.model, copy.deepcopy, race.fits)


# Producers


@dataclass
class LocalModel:
    """What a process knows of a queue: two facts, which change one after the other, and two numbers."""

    active: int = 1
    finished: bool = False
    rejected: int = 0
    stale: int = 0

    def count(self, change: int) -> None:
        self.active += change

    def conclude(self) -> None:
        self.finished = self.active == 0


class LocalRace:
    """Producers that come and finish, and calls that are refused, while others look."""

    def __init__(self, world: World, seed: int) -> None:
        self.local = LocalQueue(MemoryStore(ManualClock()), Q)
        self.history = History[LocalModel](world)
        self.before = Producer(self.local)
        draws = random.Random(seed)
        steps = (self.come_and_go, self.reject, self.stale, self.look, self.await_)
        self.threads = [
            [self.finish],
            *([draws.choice(steps) for _ in range(draws.choice((1, 2)))] for _ in "ab"),
        ]

    def finish(self) -> None:
        self.history.note("finish", self.before.finish, *changes(-1))

    def come_and_go(self) -> None:
        made: list[Producer] = []
        self.history.note("register", lambda: made.append(Producer(self.local)), *changes(1))
        self.history.note("go", made[0].finish, *changes(-1))

    def reject(self) -> None:
        self.history.note(
            "reject", self.local.count_rejected, does(lambda m: setattr(m, "rejected", m.rejected + 1))
        )

    def stale(self) -> None:
        self.history.note(
            "stale", lambda: self.local.count_stale(2), does(lambda m: setattr(m, "stale", m.stale + 2))
        )

    def look(self) -> None:
        self.history.note(
            "finished", lambda: self.local.finished, lambda model, answer: model.finished == answer
        )

    def await_(self) -> None:
        self.history.note(
            "awaited", lambda: self.local.awaited, lambda model, answer: (model.active > 0) == answer
        )

    def fits(self, model: LocalModel) -> None:
        local = self.local
        assert (local.finished, local.awaited) == (model.finished, model.active > 0)
        assert (local.rejected, local.stale) == (model.rejected, model.stale)


def changes(number: int) -> tuple[Callable[[Any, Any], bool], ...]:
    """A producer comes or goes."""
    return does(lambda model: model.count(number)), does(LocalModel.conclude)


def test_producers_and_refused_calls_are_counted_once_each() -> None:
    with controlled() as world:
        for seed in SEEDS:
            race = LocalRace(world, seed)
            run = world.run([partial(make, steps) for steps in race.threads], Plan(seed, ((40, 10),) * 3))
            check(run, race.history, LocalModel(), copy.deepcopy, race.fits)


def test_a_producer_that_many_finish_at_once_has_finished_once() -> None:
    with controlled() as world:
        for seed in SEEDS:
            local = LocalQueue(MemoryStore(ManualClock()), Q)
            producer, other = Producer(local), Producer(local)
            world.run([producer.finish] * 3, Plan(seed, ((20, 10),) * 3)).check()
            assert (local.awaited, local.finished) == (True, False)
            other.finish()
            assert (local.awaited, local.finished) == (False, True)


# Stores


class OnceOpen(MemoryStore):
    """A store that is never opened twice, and never closed unless it is open."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.is_open = False

    def open(self) -> None:
        assert not self.is_open
        self.is_open = True

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


def test_a_store_is_open_while_any_handle_on_it_is() -> None:
    def come_and_go() -> LocalQueue:
        local.open_handle()
        assert store.is_open
        queue = local.queue(Q)
        local.open_handle()
        local.close_handle()
        assert store.is_open
        local.close_handle()
        return queue

    with controlled() as world:
        for seed in SEEDS:
            store = OnceOpen()
            local = LocalStore("memory://", Edge(store, ManualClock()))
            run = world.run([come_and_go] * 3, Plan(seed, ((60, 10),) * 3))
            run.check()
            assert not store.is_open
            assert len({id(queue) for queue in run.answers}) == 1


def test_all_who_open_a_url_share_one_store_until_the_last_has_closed_it() -> None:
    clock = ManualClock()

    def come_and_go() -> None:
        first = local_store("memory://preempted", clock)
        first.edge.store.declare(Q, Settings())
        (job_id,) = put(first.edge.store, draft())
        second = local_store("memory://preempted", clock)
        assert second is first
        second.close_handle()
        assert first.edge.store.get([job_id]) != [None]
        first.close_handle()

    with controlled() as world:
        for seed in SEEDS:
            world.run([come_and_go] * 3, Plan(seed, ((400, 10),) * 3)).check()
            left = local_store("memory://preempted", clock)
            assert left.edge.store.queues() == {}, "a handle was left open"
            left.close_handle()
