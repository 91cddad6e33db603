"""What may happen: each action says when it can, and does it to the real store. Here, what producers do.

`helps`: jobs end by such actions alone, so from every state some way of them must lead to the end.
`may_cycle`: it may lead back to an earlier state; all others only lead on.
`moves_time`: it moves a clock.
"""

from __future__ import annotations

from tests.explore.short import Short, is_plain
from tests.explore.step import Put, Step
from tests.explore.world import HOLDS, QUEUE, Fact, World
from ulak.core import flows
from ulak.core.flows import Handling
from ulak.core.job import Draft, Full
from ulak.errors import Closed
from ulak.storage.drive import run


class Action:
    """Something that may happen."""

    helps = False
    may_cycle = False
    moves_time = False
    name = ""

    def is_possible(self, world: World) -> bool:
        """Whether it can happen now."""
        raise NotImplementedError

    def run(self, world: World) -> Step:
        """Do it."""
        raise NotImplementedError


# Producers


class Enqueue(Action):
    """Enqueue the next job, or several at once. When all are in, only try what must be refused."""

    helps = True

    def __init__(self, count: int) -> None:
        self._count = count
        self.name = "enqueue" if count == 1 else f"enqueue {count} at once"

    def is_possible(self, world: World) -> bool:
        if len(world.facts) + self._count <= world.scope.jobs:
            return True
        return world.is_closed or world.is_full

    def run(self, world: World) -> Step:
        return put(world, len(world.facts), self._count, Handling.NOTHING)


class EnqueueShort(Action):
    """The same, by the short way if it goes."""

    helps = True

    def __init__(self, short: Short, count: int) -> None:
        self._short, self._count = short, count
        self.name = "enqueue, short" if count == 1 else f"enqueue {count} at once, short"

    def is_possible(self, world: World) -> bool:
        is_next = len(world.facts) + self._count <= world.scope.jobs
        return (is_next or world.is_closed or world.is_full) and all(map(is_plain, self._drafts(world)))

    def _drafts(self, world: World) -> list[Draft]:
        return [world.draft(len(world.facts) + more) for more in range(self._count)]

    def run(self, world: World) -> Step:
        number, count, drafts = len(world.facts), self._count, self._drafts(world)

        def otherwise() -> Step:
            return put(world, number, count, Handling.NOTHING)

        if count == 1:
            told = self._short.enqueue(drafts[0].payload, drafts[0].priority, otherwise)
        else:
            entries = [(draft.payload, draft.priority) for draft in drafts]
            told = self._short.enqueue_many(entries, otherwise)
        if isinstance(told, Step):
            return told
        world.facts += (Fact(),) * count
        return Step(put=Put(number, drafts, told if count > 1 else [told]))


class Repeat(Action):
    """Enqueue the latest job again under its idempotency key, as after a lost answer."""

    name = "enqueue the latest again, under its idempotency key"

    def is_possible(self, world: World) -> bool:
        return bool(world.facts)

    def run(self, world: World) -> Step:
        return put(world, len(world.facts) - 1, 1, Handling.NOTHING)


class Spawn(Action):
    """A handler enqueues the next job while it runs, whether or not its delivery is still current."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self.name = f"worker {worker}'s handler enqueues"

    def is_possible(self, world: World) -> bool:
        hand = world.hands[self._worker]
        is_running = hand is not None and len(hand) > 0 and hand[0].knows == HOLDS
        return is_running and len(world.facts) < world.scope.jobs

    def run(self, world: World) -> Step:
        return put(world, len(world.facts), 1, Handling.THIS_QUEUE)


def put(world: World, number: int, count: int, handler: Handling) -> Step:
    """Enqueue jobs by the flow that `try_enqueue` runs."""
    drafts = [world.draft(number + more) for more in range(count)]
    is_handler = handler is Handling.THIS_QUEUE
    try:
        answer = run(world.edge, flows.try_enqueue(world.local, QUEUE, drafts, handler=handler))
    except Closed:
        return Step(put=Put(number, drafts, "closed", is_handler))
    if not isinstance(answer, Full):
        world.facts += (Fact(),) * sum(type(each) is int for each in answer)
        keys = [*world.rest.keys]
        for each, job_id in enumerate(answer, number):
            if each < len(keys):
                keys[each] = keys[each] or int(job_id)
        if tuple(keys) != world.rest.keys:
            world.rest = world.rest._replace(keys=tuple(keys))
    return Step(put=Put(number, drafts, answer, is_handler))


class Finish(Action):
    """A producer finishes."""

    helps = True
    name = "a producer finishes"

    def is_possible(self, world: World) -> bool:
        return world.rest.producers > 0

    def run(self, world: World) -> Step:
        world.local.finish(registered=True)
        world.rest = world.rest._replace(producers=world.rest.producers - 1)
        return Step()


def of_producers(world: World, short: Short | None) -> list[Action]:
    """Every action of a producer that the scope allows."""
    scope = world.scope
    actions: list[Action] = []
    for count in range(1, scope.puts + 1):
        actions += [Enqueue(count)] if scope.general else []
        actions += [EnqueueShort(short, count)] if short is not None else []
    actions += [Repeat()] if scope.idempotent else []
    actions += [Finish()] if scope.producers is not None else []
    return actions
