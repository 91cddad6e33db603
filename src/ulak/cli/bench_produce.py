"""The load generator: enqueues jobs when they are due, and writes down when it did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from ulak.cli.bench_load import payloads
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_records import Records
from ulak.clock import SYSTEM, MachineClock, Wakeable, pause

SLEEP_MAX_S = 0.05
"""How long it sleeps at most before it looks whether it is to stop."""


class BlockedClock(MachineClock):
    """The clocks of any store, which also count how long each thread sleeps on them: in an enqueue there is
    nothing to sleep for but room.
    """

    def __init__(self) -> None:
        self._slept: dict[int, float] = {}

    def watch(self) -> Callable[[], float]:
        """Count the calling thread's sleep from now on; what tells how long it has slept."""
        thread, slept = threading.get_ident(), self._slept
        slept[thread] = 0.0
        return lambda: slept[thread]

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed."""
        thread = threading.get_ident()
        since = self.interval()
        super().wait(event, timeout_s)
        if thread in self._slept:
            self._slept[thread] += self.interval() - since


class Generator:
    """Enqueues the jobs of a plan, with one thread or several.

    enqueue: called with a payload and a priority. now, sleep, slept: the clock, for tests; `slept` tells how
    long the calling thread has slept for room so far.
    """

    def __init__(
        self,
        plan: Plan,
        records: Records,
        enqueue: Callable[[bytes, int], object],
        *,
        now: Callable[[], float] = SYSTEM.interval,
        sleep: Callable[[float], object] = pause,
    ) -> None:
        self._plan = plan
        self._records = records
        self._enqueue = enqueue
        self._now = now
        self._sleep = sleep
        self._start_at = 0.0
        self.called = [0] * plan.producers
        self.is_stopped = False

    def begin(self) -> None:
        """Start the schedule."""
        self._start_at = self._now()

    def produce(self, number: int, slept: Callable[[], float]) -> None:
        """Enqueue every n-th job, of n producers, from this number on; returns when all are in."""
        plan = self._plan
        ordinals: Iterable[int] = range(number, plan.jobs_all, plan.producers)
        if plan.rate:
            ordinals = self._when_due(ordinals)
        elif plan.duration_s is not None:
            ordinals = self._until_time_is_over(ordinals)
        self._put_all(ordinals, number, slept)

    def _put_all(self, ordinals: Iterable[int], number: int, slept: Callable[[], float]) -> None:
        # Each job costs what is done here, so all of it is at hand.
        records, enqueue, now, priorities = self._records, self._enqueue, self._now, self._plan.priorities
        due, called, returned, blocked = records.due, records.called, records.returned, records.blocked
        payload_of, is_saturated = payloads(self._plan.payload_bytes), not self._plan.rate
        slept_s = slept()
        for done, ordinal in enumerate(ordinals, 1):
            if self.is_stopped:
                return
            payload, priority = payload_of(ordinal), ordinal % priorities
            called[ordinal] = called_at = now()
            if is_saturated:
                due[ordinal] = called_at
            enqueue(payload, priority)
            returned[ordinal] = now()
            if (so_far_s := slept()) != slept_s:
                blocked[ordinal], slept_s = so_far_s - slept_s, so_far_s
            self.called[number] = done

    def _until_time_is_over(self, ordinals: Iterable[int]) -> Iterator[int]:
        until = self._start_at + (self._plan.duration_s or 0.0)
        for ordinal in ordinals:
            if self._now() >= until:
                return
            yield ordinal

    def _when_due(self, ordinals: Iterable[int]) -> Iterator[int]:
        """Each job as it is due, and at once if it was before."""
        due, now = self._records.due, self._now
        for ordinal in ordinals:
            due[ordinal] = due_at = due[ordinal] + self._start_at
            while (left_s := due_at - now()) > 0 and not self.is_stopped:
                self._sleep(min(left_s, SLEEP_MAX_S))
            yield ordinal
