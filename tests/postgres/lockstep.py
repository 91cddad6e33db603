"""Runs steps on connections of their own, statement by statement, in an order that is given.

What waits for a lock of another is left waiting, and the next one is let go; at last all run to their ends.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.faults import AGAIN
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.place import place_of

Make = Callable[[Scene], Step[Any]]
_WAIT_S = 20.0
_GLANCE_S = 0.002


def orders(*moves: int) -> Iterator[tuple[int, ...]]:
    """All orders in which actors can make so many moves each."""
    numbers = [number for number, several in enumerate(moves) for _ in range(several)]
    yield from sorted(set(itertools.permutations(numbers)))


class Actor:
    """One connection. Its statements are run by a thread, since one may have to wait for another actor's."""

    def __init__(self, url: str, shard: int) -> None:
        self._session = Session(place_of(url))
        # It waits as long as the order has it wait.
        self._session.execute(Execute(f"SET lock_timeout TO '{_WAIT_S:g}s'"))
        self._shard = shard
        self._asks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._reply: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.backend = self._session.backend
        self.is_over = True
        self.answer: Any = None

    def begin(self, make: Make, uid: str) -> None:
        """Get ready to run this step."""
        self._make, self._uid = make, uid
        self.is_over, self.runs = False, 0
        self._restart()

    def _restart(self) -> None:
        self.runs += 1
        assert self.runs < 5
        scene = Scene(self._uid, 1, shard=self._shard, holder=self._shard + 1)
        # In a transaction also where it could do without: so others can come between it and its commit.
        self._work = Attempt(self._make(scene), self._session.begin, is_proxied=True).work()
        self._next: Any = next(self._work)

    def move(self, is_blocked: Callable[[int], bool]) -> None:
        """Send the next statement, and wait until it is done, or waits for others."""
        if self.is_over or not self._is_idle.is_set():
            return
        self._is_idle.clear()
        self._asks.put(self._next)
        while not self._is_idle.wait(_GLANCE_S):
            if is_blocked(self.backend):
                return
        self.note()

    def note(self) -> None:
        """Take up what came of the statement, if it is done."""
        if self.is_over or not self._is_idle.is_set() or self._reply is None:
            return
        (reply, error), self._reply = self._reply, None
        try:
            self._next = self._work.send(reply) if error is None else self._work.throw(error)
        except StopIteration as stop:
            self.is_over, self.answer = True, stop.value
        except psycopg.Error as failure:
            if failure.sqlstate not in AGAIN:
                raise
            self._restart()

    def await_reply(self) -> bool:
        """Wait a moment for what is under way; whether it is done."""
        return self._is_idle.wait(_GLANCE_S)

    def _run(self) -> None:
        while (ask := self._asks.get()) is not None:
            try:
                self._reply = (self._session.execute(ask), None)
            except BaseException as error:  # noqa: BLE001 - it is the step's
                self._reply = (None, error)
            self._is_idle.set()

    def close(self) -> None:
        self._asks.put(None)
        self._thread.join(_WAIT_S)
        self._session.close()


class Lockstep:
    """Actors on one store, and an observer who sees which of them waits for another."""

    def __init__(self, url: str, uid: str, actors: int) -> None:
        self._uid = uid
        self._observer = Session(place_of(url))
        self.actors = [Actor(url, number) for number in range(actors)]

    def run(self, makes: Sequence[Make], order: Sequence[int]) -> list[Any]:
        """What the steps answer, their statements being sent in this order as far as locks allow."""
        for actor, make in zip(self.actors, makes, strict=False):
            actor.begin(make, self._uid)
        actors = self.actors[: len(makes)]
        for number in order:
            for actor in actors:
                actor.note()
            actors[number].move(self._is_blocked)
        rounds = 0
        while not all(actor.is_over for actor in actors):
            rounds += 1
            assert rounds < _WAIT_S / _GLANCE_S, "they wait for each other"
            for actor in actors:
                if actor.await_reply():
                    actor.note()
                    actor.move(self._is_blocked)
        return [actor.answer for actor in actors]

    def _is_blocked(self, backend: int) -> bool:
        found = self._observer.db.execute("SELECT pg_blocking_pids(%s::int) <> '{}'", (backend,)).fetchone()
        return bool(found and found[0])

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        self._observer.close()
