"""What the last drain of a simulation reports is judged by what was there when it looked last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from tests.sim import people
from tests.sim.jobs import CONNOISSEUR, STRANGE
from tests.sim.pool import SimPool
from tests.sim.stage import Stage, simulate
from tests.sim.world import Steps
from ulak.core import flows, rules
from ulak.core.job import Done, Draft, Hold
from ulak.worker.report import Report
from ulak.worker.runtime import Crew

SEED = 0
STEP_S = 0.0001

Act: TypeAlias = Callable[["LastDrain"], None]


@pytest.fixture
def nobody_else(monkeypatch) -> None:
    """What is held stays so, until the test lets somebody take it."""

    def waits(stage: Stage, *_: Any) -> Steps:
        yield flows.Sleep(stage.over, None)

    monkeypatch.setattr(people, "taker_of_strange", waits)


def test_a_held_job_that_was_taken_while_the_report_was_written_is_no_problem():
    # The seed that showed it: the judge counted after the report, and called the drain wrong.
    assert simulate(39074).problems == []


class LastDrain:
    """Runs a stage without jobs to its end, and lets something happen at its last drain.

    before: what happens just before it first counts for its report. after: just before that is judged.
    """

    def __init__(self, before: Act, after: Act) -> None:
        self.stage = Stage(SEED, profile="calm", traced=False)
        self.queue = self.stage.queues[0]
        self._before, self._after = before, after
        self._judge = self.stage.watch.done
        self.stage.world.on_call = self._called
        self.stage.watch.done = self._done

    def problems(self) -> list[str]:
        """What is wrong in the end."""
        self.stage.run(0)
        assert self._before is self._after is LastDrain.nothing
        return self.stage.world.problems

    def _called(self, name: str, args: Any, answer: Any) -> None:
        if name == "counts" and self._ends():
            act, self._before = self._before, LastDrain.nothing
            act(self)
        self.stage.watch.called(name, args, answer)

    def _done(self, pool: SimPool, report: Report) -> None:
        if pool.crew.label == self.queue:
            self.stage.world.clock.now += STEP_S
            act, self._after = self._after, LastDrain.nothing
            act(self)
        self._judge(pool, report)

    def _ends(self) -> bool:
        actor = self.stage.world.current
        assert actor is not None
        doing = actor.doing
        return actor.name == "closer" and doing[:2] == ("end", self.queue) and doing[2].stopped

    # What may happen

    def nothing(self) -> None:
        """Nothing does."""

    def enqueue(self) -> None:
        """Somebody who was left behind enqueues."""
        self.stage.bare.add(self.queue, [Draft(b"late", "str")])

    def hold(self) -> None:
        """A job is held whose task no pool knows."""
        bare = self.stage.bare
        bare.add(self.queue, [Draft(b"strange", "str", task=STRANGE)])
        (lease,) = bare.claim([self.queue], 1, worker="a pool", lease_s=5.0)
        bare.settle([(lease, Hold())])

    def take(self, worker: str = CONNOISSEUR) -> None:
        """Whoever knows the task takes it."""
        leases = self.stage.bare.claim(
            [self.queue], 1, worker=worker, lease_s=5.0, tasks=frozenset({STRANGE})
        )
        assert len(leases) == 1
        self.stage.watch.called("claim", (), leases)

    def take_as_another(self) -> None:
        """Somebody takes it who is not there to do so."""
        self.take("a pool")

    def hold_and_take(self) -> None:
        """A job is held, and taken at once."""
        self.hold()
        self.take()

    def finish(self) -> None:
        """What is ready or leased is over."""
        bare = self.stage.bare
        bare.claim([self.queue], 1, worker="a pool", lease_s=5.0)
        bare.settle([(lease, Done()) for lease in bare.leased(self.queue)])
        counts = bare.counts([self.queue])[self.queue]
        assert counts.open == counts.held

    def let_go(self) -> None:
        """Whoever has taken it gives it back, and it is ready."""
        self.take()
        (lease,) = self.stage.bare.leased(self.queue)
        self.stage.bare.settle([(lease, rules.give_back())])


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize(
    "after", [LastDrain.nothing, LastDrain.take, LastDrain.enqueue], ids=lambda act: act.__name__
)
def test_what_happens_after_the_last_look_is_not_the_drains(after):
    assert LastDrain(LastDrain.hold, after).problems() == []


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize("after", [LastDrain.take_as_another, LastDrain.let_go], ids=lambda act: act.__name__)
def test_what_cannot_happen_after_the_last_look_is_a_problem(after):
    problems = LastDrain(LastDrain.hold, after).problems()
    assert any("the last drain" in problem for problem in problems), problems


@pytest.fixture
def rash(monkeypatch) -> None:
    """Drains say that all is done whatever they see."""
    write = Crew._report

    def report(crew: Crew, released: int) -> flows.Flow[Report]:
        return msgspec.structs.replace((yield from write(crew, released)), drained=True)

    monkeypatch.setattr(Crew, "_report", report)


@pytest.mark.usefixtures("nobody_else", "rash")
@pytest.mark.parametrize("before", [LastDrain.hold_and_take, LastDrain.enqueue], ids=lambda act: act.__name__)
@pytest.mark.parametrize("after", [LastDrain.nothing, LastDrain.finish], ids=lambda act: act.__name__)
def test_a_drain_that_is_done_though_it_saw_a_job_is_found(before, after):
    problems = LastDrain(before, after).problems()
    assert any("the last drain" in problem and "saw Counts" in problem for problem in problems), problems


def test_a_drain_that_reports_without_a_look_is_found(monkeypatch):
    def report(_: Crew, released: int) -> flows.Flow[Report]:
        yield from ()
        return Report(drained=True, open=0, held=0, paused=False, released=released, dead=0)

    monkeypatch.setattr(Crew, "_report", report)
    problems = LastDrain(LastDrain.nothing, LastDrain.nothing).problems()
    assert any("saw nothing since its pool stopped" in problem for problem in problems), problems
