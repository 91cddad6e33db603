"""Lets faults strike the people of a simulation: stops, kills, crashes, clocks that are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.sim.home import Home, SimSignal
from tests.sim.world import Actor, Steps
from tests.support.history.lines import Happened
from ulak.core.flows import Sleep

if TYPE_CHECKING:
    from tests.sim.stage import Stage

CRASHES_MAX = 4
TURNS_S = (0.5, 5.0, 30.0)
OUTAGE_S_MAX = 2.0


class Trouble:
    """What goes wrong beside calls. Draws whom it strikes from the source of the faults."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world = stage.world
        self._faults = stage.world.faults
        self._rng = stage.world.faults.rng
        self._crashes = 0
        self._furthest_s = 0.0
        self._strikes: Mapping[str, Callable[[], bool]] = {
            "freeze": self._freeze,
            "stop": self._stop_one,
            "kill": self._kill,
            "crash": self._crash,
            "turn": self._turn,
            "outage": self._go_away,
            "deaf": self._deafen,
        }

    def strike(self, fault: str) -> None:
        """Let a fault strike, if there is anybody to strike."""
        if self._people() and self._strikes[fault]():
            self._faults.strikes(fault, self._world.clock.now)
            self._world.note(f"fault {fault!r} strikes")

    def _people(self) -> list[Actor]:
        return [actor for actor in self._world.actors if actor.role not in ("wire", "check")]

    def _homes(self) -> list[Home]:
        return [home for home in self._world.homes if home.is_alive and home is not self._world.net]

    def _freeze(self) -> bool:
        self._world.freeze(self._rng.choice(self._people()), self._faults.pause_s())
        return True

    def _stop_one(self) -> bool:
        self._stop(self._rng.choice(self._homes()), self._faults.pause_s())
        return True

    def _stop(self, home: Home, pause_s: float) -> None:
        for actor in self._world.actors:
            if actor.home is home:
                self._world.freeze(actor, pause_s)

    def _kill(self) -> bool:
        """A worker dies anywhere, or somebody who waits where a cancellation reaches him."""
        actors = self._world.actors
        waiting = [actor for actor in actors if actor.role in ("consumer", "producer") and actor.sleeps]
        seats = [actor for actor in actors if actor.role == "seat" and actor.ask is not None]
        if not waiting and not seats:
            return False
        actor = self._rng.choice(waiting + seats)
        if actor.role == "seat" and not self._stage.is_task(actor):
            self._world.kill(actor)
        else:
            self._world.cancel(actor)
        return True

    def _crash(self) -> bool:
        if not self._may_crash():
            return False
        home = self._rng.choice(self._homes())
        self._world.crash(home)
        self._crashes += 1
        self._stage.restart(home)
        return True

    def _may_crash(self) -> bool:
        return self._stage.has_several_homes and self._crashes < CRASHES_MAX

    def _turn(self) -> bool:
        """Set the calendar clock, forwards or back."""
        clock, by_s = self._world.clock, self._rng.choice((-1, 1)) * self._rng.choice(TURNS_S)
        self._furthest_s = max(self._furthest_s, clock.ahead_s)
        clock.step_calendar(by_s)
        if by_s < 0:
            for history in (self._world.told, self._world.done):
                history.add(Happened("clock", clock.now, "calendar back"))
        return True

    def _go_away(self) -> bool:
        self._faults.outage_until = self._world.clock.now + min(self._faults.pause_s(), OUTAGE_S_MAX)
        return True

    def _deafen(self) -> bool:
        home = self._rng.choice(self._homes())
        home.deaf_until = self._faults.lost_at = self._world.clock.now + self._faults.pause_s()
        return True

    # What handlers do to their surroundings

    def stall(self, lease_s: float) -> None:
        """Stop whoever is on turn, or its whole process, for longer than its lease."""
        actor = self._world.current
        assert actor is not None
        if not self._faults.is_on:
            return
        pause_s = lease_s * self._rng.uniform(1.2, 2.5)
        if self._faults.is_calm or self._rng.random() < 0.5:
            self._world.freeze(actor, pause_s)
        else:
            self._stop(actor.home, pause_s)
        self._faults.struck["stalled handler"] += 1

    def crash_here(self) -> Steps:
        """Take the process along, where there are others."""
        actor = self._world.current
        assert actor is not None
        if self._faults.is_on and self._may_crash():
            self._faults.struck["crashing handler"] += 1
            self._crashes += 1
            self._world.doom(actor.home)
            self._stage.restart(actor.home)
            yield Sleep(SimSignal(), None)

    # The end of all faults

    def end(self) -> None:
        """Nothing strikes any more, what was stopped goes on, and the calendar is set right."""
        world = self._world
        world.note("faults stop")
        self._faults.is_on = False
        world.clock.step_calendar(max(0.0, self._furthest_s - world.clock.ahead_s))
        for actor in world.actors:
            actor.frozen_until = min(actor.frozen_until, world.clock.now)
            if actor.flight is not None:
                actor.flight.until = min(actor.flight.until, world.clock.now)
        for home in world.homes:
            home.deaf_until = 0.0
        self._faults.lost_at = min(self._faults.lost_at, world.clock.now)
