"""The load generator: enqueues jobs when they are due, and writes down when it did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ulak.cli.bench_load import payload_of
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
        ordinals = range(number, plan.jobs_all, plan.producers)
        for ordinal in ordinals if plan.duration_s is None else self._until_time_is_over(ordinals):
            if plan.rate and not self._await(ordinal):
                return
            if self.is_stopped:
                return
            self._put(ordinal, slept)
            self.called[number] += 1

    def _until_time_is_over(self, ordinals: Iterable[int]) -> Iterable[int]:
        until = self._start_at + (self._plan.duration_s or 0.0)
        for ordinal in ordinals:
            if self._now() >= until:
                return
            yield ordinal

    def _await(self, ordinal: int) -> bool:
        """Sleep until the job is due, not at all if it was before; False if it is not to come any more."""
        due = self._records.due
        due[ordinal] += self._start_at
        while (left_s := due[ordinal] - self._now()) > 0:
            if self.is_stopped:
                return False
            self._sleep(min(left_s, SLEEP_MAX_S))
        return True

    def _put(self, ordinal: int, slept: Callable[[], float]) -> None:
        records, plan = self._records, self._plan
        payload, priority = payload_of(ordinal, plan.payload_bytes), ordinal % plan.priorities
        slept_s = slept()
        records.called[ordinal] = called_at = self._now()
        if not plan.rate:
            records.due[ordinal] = called_at
        self._enqueue(payload, priority)
        records.returned[ordinal] = self._now()
        records.blocked[ordinal] = slept() - slept_s
