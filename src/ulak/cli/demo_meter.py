"""The handler of a demo, which fails as the seed has drawn, and the measuring of its jobs.

Nothing is kept per job that has ended: each thread counts into histograms of its own, and what is known of an
open job travels in its payload.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypedDict

from ulak import Context
from ulak.cli.demo_plan import Latency, Plan
from ulak.clock import SYSTEM, MachineClock, Wakeable
from ulak.failures import fails
from ulak.metrics import Histogram


class Payload(TypedDict):
    """A demo's job. due_at: on the interval clock of the process that made it."""

    ordinal: int
    due_at: float


class InjectedFailure(Exception):
    """The failure that the seed has drawn for this attempt."""


class _Delivery(NamedTuple):
    """What a thread's handler has just done, until the pool has settled it."""

    job_id: int
    attempt: int
    payload: Payload
    failed: bool
    ends: bool


class _Tally:
    """What one thread has measured. delivery: what the thread runs now."""

    def __init__(self) -> None:
        self.latency = Latency(Histogram(), Histogram(), Histogram())
        self.delivery: _Delivery | None = None
        self.last_settled_at = 0.0


class Meter(logging.Filter):
    """Handles the jobs of one run, and measures them.

    A handler cannot see when its job is settled, since that comes after it. But the pool says so to the
    logger "ulak", in the worker's own thread, once its settle has returned; so the meter listens there, as a
    filter of that logger. Of what the pool says of these jobs it passes on what is at `log_level` or above,
    and the failures that the run itself injects only if INFO is shown too: they would bury all else. So it is
    with what the pool says once `is_ending` is set, of jobs that are left open: the summary says it.
    """

    def __init__(self, plan: Plan, *, log_level: int) -> None:
        super().__init__()
        self._plan = plan
        self._log_level = log_level
        self.is_ending = False
        # Not while jobs of an earlier run are finished: nobody knows here when those were due.
        self.is_measuring = True
        self._thread = threading.local()
        self._tallies: list[_Tally] = []
        # Ordinal -> when the job was accepted or settled, whichever was known first. No more than are open.
        self._first_at: dict[int, float] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, measure. A success is said at DEBUG, so the logger has to let that through."""
        logger = logging.getLogger("ulak")
        before = logger.level
        logger.addFilter(self)
        logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logger.setLevel(before)
            logger.removeFilter(self)

    def handle(self, payload: Payload, context: Context) -> None:
        """Succeed or fail, as the seed has it. Raises InjectedFailure."""
        tally = self._tally()
        if self.is_measuring and not context.redelivered:
            tally.latency.due_to_start.record(SYSTEM.interval() - payload["due_at"])
        plan, attempt = self._plan, context.attempt
        failed = fails(plan.seed, payload["ordinal"], attempt, plan.fail_rate)
        ends = not failed or attempt >= plan.max_attempts
        tally.delivery = _Delivery(context.id, attempt, payload, failed, ends)
        if failed:
            raise InjectedFailure(f"seed {plan.seed} fails attempt {attempt} of job {payload['ordinal']}")

    def accepted(self, ordinal: int) -> None:
        """Note that the enqueue call of this job has just returned."""
        self._between(self._tally(), ordinal, accepted_at=SYSTEM.interval())

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the time, if the record says that this thread's delivery is settled; pass it on or not."""
        if self.is_ending and not hasattr(record, "job_id") and self._log_level > logging.INFO:
            return record.levelno > logging.WARNING
        tally: _Tally | None = getattr(self._thread, "tally", None)
        delivery = tally.delivery if tally is not None else None
        if tally is None or delivery is None or getattr(record, "job_id", None) != delivery.job_id:
            return True
        tally.delivery = None
        if delivery.ends and self.is_measuring:
            self._settled(tally, delivery.payload)
        return record.levelno >= self._log_level and not (delivery.failed and self._log_level > logging.INFO)

    def _settled(self, tally: _Tally, payload: Payload) -> None:
        tally.last_settled_at = SYSTEM.interval()
        tally.latency.due_to_settled.record(tally.last_settled_at - payload["due_at"])
        self._between(tally, payload["ordinal"], settled_at=tally.last_settled_at)

    def _between(
        self,
        tally: _Tally,
        ordinal: int,
        *,
        accepted_at: float | None = None,
        settled_at: float | None = None,
    ) -> None:
        """Hand one of the two instants over to whoever comes with the other one.

        A worker may be done with a job before the producer's call has returned: that counts as no time.
        """
        mine = accepted_at if settled_at is None else settled_at
        assert mine is not None
        first_at = self._first_at.setdefault(ordinal, mine)
        if first_at is not mine:
            del self._first_at[ordinal]
            waited_s = mine - first_at if accepted_at is None else 0.0
            tally.latency.accepted_to_settled.record(waited_s)

    def _tally(self) -> _Tally:
        tally: _Tally | None = getattr(self._thread, "tally", None)
        if tally is None:
            tally = self._thread.tally = _Tally()
            self._tallies.append(tally)
        return tally

    def latency(self) -> Latency:
        """What all threads have measured; to be read once they have stopped."""
        merged = Latency(Histogram(), Histogram(), Histogram())
        for tally in self._tallies:
            merged.due_to_settled.merge(tally.latency.due_to_settled)
            merged.accepted_to_settled.merge(tally.latency.accepted_to_settled)
            merged.due_to_start.merge(tally.latency.due_to_start)
        return merged

    @property
    def last_settled_at(self) -> float:
        """When the last job ended, on the interval clock; 0 if none did."""
        return max((tally.last_settled_at for tally in self._tallies), default=0.0)


class RoomClock(MachineClock):
    """The clocks of any store, which also measure how long one thread, the producer's, sleeps on them: in an
    enqueue there is nothing to sleep for but room.
    """

    def __init__(self) -> None:
        self.slept_s = 0.0
        self._sleeper: int | None = None

    def measure_this_thread(self) -> None:
        """Measure the calling thread."""
        self._sleeper = threading.get_ident()

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        """Sleep in this thread until the event is set or `timeout_s` have passed."""
        if threading.get_ident() != self._sleeper:
            super().wait(event, timeout_s)
            return
        since = self.interval()
        super().wait(event, timeout_s)
        self.slept_s += self.interval() - since
