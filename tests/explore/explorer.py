"""Explores every state that the real store can reach within a scope, breadth first.

    result = explore(scope)
    assert result.violation is None, result.violation

Each transition executes production code: the store's own operations, and the flows and rules of `ulak.core`.
Nothing of the queue is modelled; `laws` judges each step by what could be read before and after it. The first
violation found has the shortest trace there is.

What is not followed: threads (each operation is one atomic step), waiting (`enqueue` that waits for room,
`deliver` that waits for a job), and two ways into the same readable state that left different things in the
store's hidden orders, of which one is followed; `Scope(exact=True)` follows both.

Which actions may lead back. A delivery number only grows, so nothing that includes a claim ever does. What
could repeat without end (releases, snoozes, extensions, redrives) is bounded in the scope; a hold needs no
bound, since each spends a claim by a stranger that some attempt, refund or redrive made possible. Pausing and
resuming do lead back: they are marked (`may_cycle`) and left out when the graph is searched for cycles.

Breaking it on purpose. Give `make_store` something that makes a broken store, or patch what a store uses:

    class Unfenced(MemoryStore):                        # a subclass, or anything that keeps the real store
        def settle(self, settlements): ...              # in `_store` and remembers nothing itself
    result = explore(SMALL["lease"], make_store=Unfenced)

    monkeypatch.setattr(rules, "failure", never_dead)   # rules and flows are called by their module
    result = explore(SMALL["lease"])

    assert result.violation is not None
    assert result.violation.law == "fence"              # which promise was seen to break first
    print(result.violation)                             # the trace, one line a step

An exception out of production code is a violation too, of the law "no exception".
"""

from __future__ import annotations

import gc
import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from tests.explore.actions import Action
from tests.explore.graph import Graph
from tests.explore.keys import Keys
from tests.explore.laws import broken_law
from tests.explore.others import all_actions
from tests.explore.scope import Scope
from tests.explore.trace import line_of
from tests.explore.world import MakeStore, Saved, Seen, World
from ulak.storage.memory import MemoryStore


@dataclass(frozen=True)
class Violation:
    """A law that a step broke: the last one of the shortest trace that leads there."""

    law: str
    text: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = [f"{number:3}  {line}" for number, line in enumerate(self.trace, 1)]
        return "\n".join([f"{self.law}: {self.text}", *steps])


@dataclass
class Result:
    """What an exploration found. is_complete: it covered the whole scope, and all of it is as it should be.

    depth: the length of the longest of the shortest traces. finals: states in which nothing is left to do.
    never: the actions that were never possible, which a scope should not name.
    """

    scope: Scope
    states: int = 0
    transitions: int = 0
    depth: int = 0
    finals: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    never: tuple[str, ...] = ()
    is_complete: bool = False
    violation: Violation | None = None

    def __str__(self) -> str:
        rate = self.transitions / max(self.processor_s, 1e-9)
        found = (
            "no violation"
            if self.is_complete
            else f"VIOLATION: {self.violation}"
            if self.violation
            else "cut short"
        )
        return (
            f"{self.scope.name}: {self.states:,} states, {self.transitions:,} transitions, "
            f"depth {self.depth}, {self.finals:,} final, {self.seconds:.1f} s, "
            f"{self.processor_s:.1f} s of the processor ({rate:,.0f} transitions/s), {found}"
        )


def explore(scope: Scope, make_store: MakeStore = MemoryStore, *, states_max: int | None = None) -> Result:
    """Explore the whole scope, or up to its first violation, or until so many states are known.

    One exploration at a time in a process.
    """
    return _Explorer(scope, make_store).run(states_max)


Level = list[tuple[int, Saved]]


class _Explorer:
    def __init__(self, scope: Scope, make_store: MakeStore) -> None:
        self._make_store = make_store
        self._world = World(scope, make_store)
        self._keys = Keys(self._world)
        self._actions = all_actions(self._world)
        self._was_possible = [False] * len(self._actions)
        self._result = Result(scope)
        self._graph = Graph()
        self._known: dict[bytes, int] = {}
        # Where each state was first reached from, and by which action.
        self._parents, self._via = array("I", [0]), array("H", [0])

    def run(self, states_max: int | None) -> Result:
        started, processor = time.perf_counter(), time.process_time()
        gc.disable()
        try:
            self._explore(states_max)
        finally:
            gc.enable()
        self._result.seconds = time.perf_counter() - started
        self._result.processor_s = time.process_time() - processor
        return self._result

    def _explore(self, states_max: int | None) -> None:
        result = self._result
        saved = self._world.save()
        self._known[self._key(saved[0] if self._world.scope.exact else None)] = 0
        level: Level = [(0, saved)]
        while level and result.violation is None and len(self._known) < (states_max or math.inf):
            level = self._expand(level)
            result.depth += bool(level)
        result.states, result.finals = len(self._known), len(self._graph.finals)
        if not level and result.violation is None:
            self._judge_graph()
            result.is_complete = result.violation is None
            pairs = zip(self._actions, self._was_possible, strict=True)
            result.never = tuple(action.name for action, was_possible in pairs if not was_possible)

    def _key(self, frozen: bytes | None) -> bytes:
        key = self._keys.key()
        return key if frozen is None else key + blake2b(frozen, digest_size=16).digest()

    def _expand(self, level: Level) -> Level:
        """Take every step out of each of these states; the states that nothing led to before."""
        world = self._world
        found: Level = []
        for index, saved in level:
            world.load(saved)
            before = world.seen = world.look()
            self._keys.start()
            if world.is_final():
                self._graph.finals.append(index)
            possible = [number for number, action in enumerate(self._actions) if action.is_possible(world)]
            edges: dict[int, int] = {}
            is_untouched = True
            for number in possible:
                (world.reload if is_untouched else world.load)(saved)
                world.seen = before
                broken, is_untouched = self._step(self._actions[number], before)
                if broken is not None:
                    self._report(*broken, [*self._path(index), number])
                    return []
                target = self._reach(index, number, found)
                if target != index:
                    action = self._actions[number]
                    edges[target] = edges.get(target, 0) | action.helps | 2 * (not action.may_cycle)
                self._was_possible[number] = True
            self._result.transitions += len(possible)
            self._graph.add(edges)
        return found

    def _reach(self, index: int, number: int, found: Level) -> int:
        """The number of the state that the world is in now; a new one joins those that were found."""
        frozen = self._world.freeze() if self._world.scope.exact else None
        key = self._key(frozen)
        target = self._known.get(key)
        if target is None:
            target = self._known[key] = len(self._known)
            self._parents.append(index)
            self._via.append(number)
            found.append((target, self._world.save(frozen)))
        return target

    def _step(self, action: Action, before: Seen) -> tuple[tuple[str, str] | None, bool]:
        """Take one step: the law that it breaks, and how; and whether it left the store as it was."""
        world = self._world
        is_closed, rest = world.is_closed, world.rest
        was_at, was = world.clock.calendar(), world.clock.interval()
        stale, rejected = world.local.stale, world.local.rejected
        try:
            step = action.run(world)
            after = world.look()
        except Exception as error:  # noqa: BLE001 - whatever production code raises is a finding
            return ("no exception", f"{type(error).__name__}: {error}"), False
        is_same = after == before
        after = world.seen = before if is_same else after
        step.before, step.after, step.is_closed, step.keys = before, after, is_closed, rest.keys
        step.scope, step.facts, step.rest = world.scope, world.facts, world.rest
        step.counted = world.local.stale - stale, world.local.rejected - rejected
        step.was_at, step.was = was_at, was
        step.now_at, step.now = world.clock.calendar(), world.clock.interval()
        is_untouched = is_same and world.rest is rest and not action.moves_time and not world.scope.exact
        return broken_law(step), is_untouched

    # What was found

    def _path(self, index: int) -> list[int]:
        """The actions that lead from the start to a state, on the shortest way."""
        path = []
        while index:
            path.append(self._via[index])
            index = self._parents[index]
        return path[::-1]

    def _report(self, law: str, text: str, path: Sequence[int]) -> None:
        """Take the path again from the start with a new store, to tell it line by line."""
        world = World(self._world.scope, self._make_store)
        actions = all_actions(world)
        lines: list[str] = []
        for number in path:
            world.seen = world.look()
            action = actions[number]
            try:
                step = action.run(world)
            except Exception as error:  # noqa: BLE001 - it is the finding
                lines.append(f"{action.name} -> {type(error).__name__}")
                break
            lines.append(line_of(action, step, world.look()))
        self._result.violation = Violation(law, text, tuple(lines))

    def _judge_graph(self) -> None:
        graph = self._graph
        for law, text, state in (
            ("no deadlock", "open jobs, and nothing can happen any more", graph.deadlocked()),
            (
                "can always finish",
                "from here no work and no reclaim brings all jobs to an end",
                graph.stuck(),
            ),
            ("leads on", "this state can come back without end", graph.recurring()),
        ):
            if state is not None:
                self._report(law, text, self._path(state))
                return
