"""Whether there is an order: what calls that ran at once were told must be what they are told one by one.

Each call is an event with the moments at which it began and ended. An order of all events is right if it
puts no event before one that had ended when it began, and if the model, taken through it, gives each event's
answer and in the end what is stored. Histories are short, so all orders are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.race.preempt import Run, World

M = TypeVar("M")
"""A model: what the calls do to it, one at a time, is right by definition."""


@dataclass(frozen=True, eq=False)
class Event(Generic[M]):
    """One call, or an atomic part of one. allows: does it to a model; whether the answer is the model's.

    jobs: how many jobs it may move. after: an event of the same call which comes first.
    """

    shown: str
    begun: int
    ended: int
    answer: Any
    allows: Callable[[M, Any], bool]
    jobs: int = 1
    after: Event[M] | None = None


class History(Generic[M]):
    """The calls of one run, noted by the threads that make them."""

    def __init__(self, world: World) -> None:
        self._moment = world.moment
        self.events: list[Event[M]] = []

    def note(
        self, shown: str, call: Callable[[], Any], *parts: Callable[[M, Any], bool], jobs: int = 1
    ) -> Event[M]:
        """Make the call; the event that has its answer.

        parts: its atomic parts, in order; the last one is told the answer, the others None.
        """
        begun = self._moment()
        answer = call()
        ended = self._moment()
        after: Event[M] | None = None
        for number, allows in enumerate(parts, 1):
            told = answer if number == len(parts) else None
            after = Event(shown, begun, ended, told, allows, jobs, after)
            self.events.append(after)
        assert after is not None
        return after

    def in_flight(self, event: Event[M]) -> int:
        """How many jobs the calls may have moved that were under way during this one."""
        others = {
            (other.begun, other.ended): other.jobs
            for other in self.events
            if other.begun < event.ended and event.begun < other.ended and other.begun != event.begun
        }
        return sum(others.values())

    def order(
        self, model: M, twin: Callable[[M], M], fits: Callable[[M], None]
    ) -> tuple[list[Event[M]] | None, list[str]]:
        """An order that explains everything, or None and why each attempt failed.

        twin: a copy of a model. fits: raises AssertionError where the end is not what is stored.
        """
        failures: list[str] = []

        def search(model: M, left: list[Event[M]], done: list[Event[M]]) -> list[Event[M]] | None:
            if not left:
                try:
                    fits(twin(model))
                except AssertionError as error:
                    failures.append(f"{_names(done)}: then the end is another: {error}")
                    return None
                return done
            first_end = min(event.ended for event in left)
            for event in left:
                if event.begun > first_end or event.after in left:
                    continue
                after = twin(model)
                if not event.allows(after, event.answer):
                    failures.append(f"{_names(done)}: then {event.shown} cannot be told {event.answer!r}")
                    continue
                order = search(after, [other for other in left if other is not event], [*done, event])
                if order is not None:
                    return order
            return None

        by_end = sorted(self.events, key=lambda event: event.ended)
        return search(model, by_end, []), failures

    def told(self) -> list[str]:
        """The events, for whoever must find out."""
        return [f"{e.begun}-{e.ended} {e.shown} -> {e.answer!r}" for e in self.events if e.after is None]


def _names(events: Sequence[Event[Any]]) -> str:
    return " < ".join(event.shown for event in events) or "at first"


def check(
    run: Run, history: History[M], model: M, twin: Callable[[M], M], fits: Callable[[M], None]
) -> list[Event[M]]:
    """The order that explains a run; AssertionError with the whole story if there is none."""
    run.check()
    order, failures = history.order(model, twin, fits)
    assert order is not None, "\n".join(
        ["no order explains", *history.told(), "", *failures[-12:], "", run.told()]
    )
    return order
