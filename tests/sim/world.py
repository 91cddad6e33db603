"""A deterministic world: actors that only ask, a scheduler that answers one ask a step, a clock of its own.

Every choice is drawn from seeded sources, and nothing depends on real time, hashes or addresses: one seed is
one history, byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from tests.sim import trace
from tests.sim.clock import SimClock
from tests.sim.faults import Faults
from tests.sim.home import Ear, Home, SimSignal, TaskSignal
from tests.support.history import History, Pen
from tests.support.history.recorder import is_recorded
from ulak.core.flows import Call, Do, Draw, NewSignal, Now, Sleep
from ulak.core.store import Until
from ulak.errors import UlakError
from ulak.storage.drive import Edge

Steps: TypeAlias = Generator[Any, Any, Any]

FAIR_STEPS = 60
"""An actor that could go on is on turn after so many steps at the latest."""

LOOK_STEPS = 64
"""Each so many steps somebody looks whether things go on."""

SLOW = 8.0
"""By how much a slow call of a worker takes longer than others at most."""

HELD_UP_S = 0.05
"""Whoever was kept from going on for longer than this counts as hit by a fault."""


class Killed(BaseException):
    """Strikes an actor from outside, as a time limit or a cancellation may."""


class Flight:
    """A call between its question and its answer."""

    __slots__ = ("answer", "ask", "error", "fault", "is_done", "lag_s", "number", "until")

    def __init__(self, ask: Call, number: int | None, fault: str) -> None:
        self.ask = ask
        self.number = number
        self.fault = fault
        self.until = self.lag_s = 0.0
        self.is_done = False
        self.answer: Any = None
        self.error: BaseException | None = None


class Actor:
    """Something that acts: a worker, a keeper, a producer, whatever asks.

    role: what it is, for those who watch. is_task: like a task of an event loop, else like a thread. doing:
    what it waits for, as it says itself. hit_at: when a fault last touched it, or others kept it from going
    on. held_up_s: for how long, in all.
    """

    def __init__(self, number: int, name: str, role: str, home: Home, steps: Steps) -> None:
        self.number = number
        self.name = name
        self.role = role
        self.home = home
        self.stack = [steps]
        self.is_task = False
        self.doing: tuple[Any, ...] = ()
        self.ask: Any = None
        self.deadline: float | None = None
        self.flight: Flight | None = None
        self.frozen_until = 0.0
        self.is_cancelled = False
        self.ready_at: float | None = None
        self.ready_step = 0
        self.hit_at = 0.0
        self.held_up_s = 0.0
        self.is_over = False
        self.born_at = self.over_at = 0.0
        self.result: Any = None
        self.error: BaseException | None = None

    def soonest(self) -> float | None:
        """When it can go on, as things are; None if only others can make it."""
        if self.flight is not None:
            return max(self.flight.until, self.frozen_until)
        if self.sleeps:
            return None if self.deadline is None else max(self.deadline, self.frozen_until)
        return self.frozen_until

    def was_hit_since(self, moment: float, now: float) -> bool:
        """Whether anything kept it from going on since then, or does so now."""
        waits_s = 0.0 if self.ready_at is None else now - self.ready_at
        return self.hit_at >= moment or waits_s > HELD_UP_S

    @property
    def sleeps(self) -> bool:
        """Whether it waits for others or for its time."""
        return isinstance(self.ask, Sleep) and not self.ask.signal.is_set() and not self.is_cancelled


class World:
    """Homes, actors, one store, one clock.

    Takes the store that homes see from `build`, which gets the bare store's clock and this world. told: what
    callers were told; done: what the store did, in the order in which it did it.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults,
        build: Callable[[World], Any],
        *,
        strategy: str,
        pace_s: float,
        traced: bool,
    ) -> None:
        self.clock = SimClock()
        self.told, self.done = History(), History()
        self.pen = Pen(self.told, self.clock.interval)
        self.faults = faults
        self.store = build(self)
        self.homes: list[Home] = []
        self.actors: list[Actor] = []
        self.everybody: list[Actor] = []
        self.current: Actor | None = None
        self.problems: list[str] = []
        self.trace: list[str] | None = [] if traced else None
        self.steps = 0
        self.on_jump: Callable[[float | None], None] = lambda _: None
        self.on_look: Callable[[], None] = lambda: None
        self.on_over: Callable[[Actor], None] = lambda _: None
        self.on_disturb: Callable[[str], None] = lambda _: None
        self.on_call: Callable[[str, Any, Any], None] = lambda *_: None
        self.pace_s = pace_s
        # How long a call takes each way at most; no fault.
        self.lag_s = 0.0
        self._lags = random.Random(f"lags {seed}")
        self._strategy = strategy
        self._order = random.Random(f"order {seed}")
        self.draw = random.Random(f"draws {seed}").random
        self._ranks: dict[int, float] = {}
        self._numbers = 0
        self._ears: set[tuple[Until, str]] = set()
        self._doomed: list[Home] = []
        self._edges: dict[str, Edge] = {}
        self.net = self.home("net", has_own_lines=False, poll_s=None)

    # People

    def home(self, name: str, *, has_own_lines: bool, poll_s: float | None) -> Home:
        """A new process."""
        home = Home(self, name, has_own_lines=has_own_lines, poll_s=poll_s)
        self.homes.append(home)
        self._edges[name] = Edge(home.view, self.clock, self.draw)
        return home

    def spawn(self, name: str, role: str, home: Home, steps: Steps) -> Actor:
        """A new actor; its first step is taken when it is first on turn."""
        self._numbers += 1
        actor = Actor(self._numbers, name, role, home, steps)
        actor.born_at = self.clock.now
        self.actors.append(actor)
        self.everybody.append(actor)
        return actor

    def listen(self, until: Until, queue: str) -> None:
        """Let processes with lines of their own hear of rings in the store's line."""
        if (until, queue) not in self._ears:
            self._ears.add((until, queue))
            self.store.line(until, queue).join(Ear(self, until, queue))

    def who(self) -> str:
        """The name of the actor on turn."""
        return "nobody" if self.current is None else self.current.name

    def problem(self, text: str) -> None:
        """Note something that must not be."""
        self.problems.append(f"at {self.clock.now:.4f}, step {self.steps}: {text}")

    def note(self, text: str) -> None:
        """A line of the trace, where one is kept."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5} {self.clock.now:10.4f}  {text}")

    # Time

    def step(self) -> bool:
        """Answer one ask, or let time pass until one can be answered; False if nothing can ever happen."""
        if fault := self.faults.of_step():
            self.on_disturb(fault)
        ready, soonest = self._sorted()
        if not ready:
            self.on_jump(soonest)
            if soonest is None:
                return False
            self.clock.now = soonest
            return True
        actor = self._chosen(ready)
        self.steps += 1
        if self.steps % LOOK_STEPS == 0:
            self.on_look()
        self._act(actor)
        self.clock.now += self.pace_s * self._order.random()
        for home in self._doomed:
            self.crash(home)
        self._doomed.clear()
        return True

    def _sorted(self) -> tuple[list[Actor], float | None]:
        """Who can go on now, and when the first of the others can if nobody helps."""
        now = self.clock.now
        ready: list[Actor] = []
        soonest: float | None = None
        for actor in self.actors:
            at = actor.soonest()
            if at is not None and at <= now:
                if actor.ready_at is None:
                    actor.ready_at, actor.ready_step = now, self.steps
                ready.append(actor)
                continue
            if actor.ready_at is not None:
                # A fault has stopped it that was kept waiting already.
                actor.held_up_s += now - actor.ready_at
                actor.ready_at = None
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        return ready, soonest

    def _chosen(self, ready: list[Actor]) -> Actor:
        """Whose turn it is, by this run's strategy; nobody waits for ever."""
        oldest = min(ready, key=lambda actor: (actor.ready_step, actor.number))
        if self.steps - oldest.ready_step > FAIR_STEPS:
            return oldest
        if self._strategy == "sticky" and self.current in ready and self._order.random() < 0.8:
            return self.current
        if self._strategy == "ranks":
            if self._order.random() < 0.02:
                self._ranks[self._order.choice(ready).number] = self._order.random()
            return min(ready, key=lambda actor: (self._rank(actor), actor.number))
        return self._order.choice(ready)

    def _rank(self, actor: Actor) -> float:
        if actor.number not in self._ranks:
            self._ranks[actor.number] = self._order.random()
        return self._ranks[actor.number]

    # Steps

    def _act(self, actor: Actor) -> None:
        now = self.clock.now
        assert actor.ready_at is not None
        late_s = now - actor.ready_at
        actor.held_up_s += late_s
        if late_s > HELD_UP_S:
            self.hit(actor, 0.0)
        actor.ready_at = None
        self.current = actor
        ask = actor.ask
        if isinstance(ask, Call):
            self._call(actor, ask)
            return
        match ask:
            case None:
                self._resume(actor)
            case Sleep():
                killed = Killed() if actor.is_cancelled else None
                actor.is_cancelled = False
                self._resume(actor, error=killed)
            case Now():
                self._resume(actor, now)
            case Draw():
                self._resume(actor, self.draw())
            case NewSignal():
                self._resume(actor, TaskSignal() if actor.is_task else SimSignal())
            case Do(call):
                answer = call()
                if isinstance(answer, Generator):
                    actor.stack.append(answer)
                    answer = None
                self._resume(actor, answer)
            case _:
                raise AssertionError(f"{actor.name} asks for {ask!r}")

    def _resume(self, actor: Actor, answer: Any = None, error: BaseException | None = None) -> None:
        """Pass an answer on, and note what is asked next."""
        actor.ask = actor.deadline = None
        while actor.stack:
            steps = actor.stack[-1]
            try:
                ask = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                actor.stack.pop()
                answer, error = stop.value, None
            except BaseException as raised:  # noqa: BLE001 - it belongs to the steps below, or ends the actor
                actor.stack.pop()
                answer, error = None, raised
            else:
                actor.ask = ask
                if isinstance(ask, Sleep):
                    cut_s = self._edges[actor.home.name].cut(ask.timeout_s)
                    actor.deadline = None if cut_s is None else self.clock.now + cut_s
                return
        actor.result, actor.error = answer, error
        self._leave(actor)

    def _leave(self, actor: Actor) -> None:
        actor.is_over, actor.over_at = True, self.clock.now
        self.actors.remove(actor)
        self.note(f"{actor.name}: over" + ("" if actor.error is None else f", {actor.error!r}"))
        if actor.home.is_alive:
            self.on_over(actor)

    # Calls

    def _call(self, actor: Actor, ask: Call) -> None:
        """Carry a call a stage further: it is asked, it takes effect, its answer arrives."""
        flight = actor.flight
        if flight is None:
            number = self._ask(actor, ask) if actor.role != "wire" else None
            # Waiters' lines are memory of the process, so looking one up never fails.
            fault = "" if ask.name == "line" or actor.role == "wire" else self.faults.of_call(self.clock.now)
            flight = Flight(ask, number, fault)
            if not fault and self.lag_s and ask.name != "line":
                self._lag(actor, flight)
                return
            if fault:
                self.faults.strikes(fault, self.clock.now)
                self.note(f"{actor.name}: fault {fault!r} strikes {ask.name}")
                if fault == "slow":
                    self._hold(actor, flight)
                    return
        if not flight.is_done:
            self._take_effect(actor, flight)
            if flight.lag_s:
                flight.until = self.clock.now + flight.lag_s
                return
            if flight.fault == "late":
                self._hold(actor, flight)
                return
        self._answer(actor, flight)

    def _hold(self, actor: Actor, flight: Flight) -> None:
        pause_s = self.faults.pause_s()
        flight.until = self.clock.now + pause_s
        self.hit(actor, pause_s)
        actor.flight = flight

    def _lag(self, actor: Actor, flight: Flight) -> None:
        """Let a call take its time on the way there, and on the way back, as every call does."""
        # Workers stand in line for a store more often than keepers can afford to.
        most_s = self.lag_s * (SLOW if actor.role == "seat" and self._lags.random() < 0.4 else 1.0)
        flight.until = self.clock.now + self._lags.random() * most_s
        flight.lag_s = self._lags.random() * most_s
        actor.flight = flight

    def _ask(self, actor: Actor, ask: Call) -> int | None:
        if not is_recorded(ask.name):
            return None
        return self.pen.asked(actor.name, ask.name, ask.args, ask.kwargs)

    def _take_effect(self, actor: Actor, flight: Flight) -> None:
        """Do in the store what was asked, as often as the fault says."""
        flight.is_done = True
        if flight.fault in ("before", "busy", "outage"):
            flight.error = self.faults.error(flight.fault)
        else:
            self._do(actor, flight)
        if flight.fault == "twice":
            # The copy is a call of its own, whose answer nobody hears.
            self._ask(actor, flight.ask)
            answer, error = flight.answer, flight.error
            self._do(actor, flight)
            if self.faults.rng.random() < 0.5:
                flight.answer, flight.error = answer, error
        elif flight.fault == "after":
            flight.error = self.faults.error(flight.fault)
        if flight.fault:
            self.hit(actor, 0.0)

    def _do(self, actor: Actor, flight: Flight) -> None:
        ask = flight.ask
        try:
            flight.answer = getattr(actor.home.view, ask.name)(*ask.args, **ask.kwargs)
            flight.error = None
        except UlakError as error:
            flight.error = error
        except Exception as error:  # noqa: BLE001 - no store may fail like this; the caller is told as well
            self.problem(f"the store raised {error!r} at {ask.name}")
            flight.error = error

    def _answer(self, actor: Actor, flight: Flight) -> None:
        actor.flight = None
        outcome = flight.answer if flight.error is None else flight.error
        if self.trace is not None and flight.ask.name != "line":
            self.note(f"{actor.name}: {trace.told(flight.ask, outcome)}")
        if flight.number is not None:
            self.pen.told(actor.name, flight.number, flight.ask.name, outcome)
        if actor.role != "wire" or flight.error is None:
            self._resume(actor, flight.answer, flight.error)
        else:
            self._resume(actor)

    # Disturbances

    def hit(self, actor: Actor, held_up_s: float) -> None:
        """Note that a fault touched an actor."""
        actor.hit_at = max(actor.hit_at, self.clock.now + held_up_s)
        actor.held_up_s += held_up_s

    def freeze(self, actor: Actor, pause_s: float) -> None:
        """Let an actor do nothing for a while."""
        actor.frozen_until = max(actor.frozen_until, self.clock.now + pause_s)
        self.hit(actor, pause_s)

    def kill(self, actor: Actor) -> None:
        """Raise in an actor, where it stands; a call under way runs to its end."""
        self.note(f"{actor.name}: killed")
        self._let_fly(actor)
        self.current = actor
        self._resume(actor, error=Killed())

    def cancel(self, actor: Actor) -> None:
        """Raise in an actor at its next sleep, as an event loop does."""
        actor.is_cancelled = True

    def doom(self, home: Home) -> None:
        """Crash a process at the end of this step."""
        self._doomed.append(home)

    def crash(self, home: Home) -> None:
        """End a process with all its memory; what it had asked the store for may still happen."""
        if not home.is_alive:
            return
        self.note(f"{home.name}: crashes")
        lost = [actor for actor in self.actors if actor.home is home]
        for actor in lost:
            self._let_fly(actor)
        home.is_alive = False
        for actor in lost:
            self.actors.remove(actor)
            actor.is_over = True
            drop(actor)

    def _let_fly(self, actor: Actor) -> None:
        """Let a call that is under way arrive without its caller, or be lost on its way."""
        flight, actor.flight = actor.flight, None
        if flight is not None and not flight.is_done and self.faults.rng.random() < 0.7:
            self.faults.struck["in flight"] += 1
            wire = self.spawn(actor.name, "wire", self.net, _once(flight.ask))
            wire.frozen_until = flight.until

    def end(self) -> None:
        """Let go of whoever still sleeps."""
        for home in self.homes:
            home.is_alive = False
        for actor in self.actors:
            drop(actor)


def drop(actor: Actor) -> None:
    """Close what an actor was doing, the innermost first."""
    while actor.stack:
        actor.stack.pop().close()


def _once(ask: Call) -> Steps:
    yield ask
