"""Tells of what a pool can only watch: a loop that stands still, jobs that run far longer than theirs do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ulak.core import flows
from ulak.core.flows import LOOK_AGAIN_S, Flow
from ulak.core.job import Lease
from ulak.worker.pulse import Pulse
from ulak.worker.runtime import Crew

_log = logging.getLogger("ulak")

BLOCKED_S = 2.0
"""A loop that has not answered for so long is blocked: everything else on it waits."""

HELD_UP_S = 3.0
"""How much later than it should the keeper looks, before that is told."""

LONG_S = 3600.0
TIMES_P99 = 10
RUNS_MIN = 100
LONG_MIN_S = 30.0
"""A job is overdue after an hour; or after ten times what 99 of 100 runs of its task took, once there were
enough of them, but not before this."""

LATE_LOOKS = 2
"""At how many looks in a row a job's time is over that is told to go on though it is."""

_JOBS_SHOWN = 5


class Overseer:
    """A duty of the keeper's. It changes nothing: a thread cannot be stopped, and a timeout is the task's."""

    def __init__(self, crew: Crew, pulses: Sequence[Pulse]) -> None:
        self._crew = crew
        self._pulses = pulses
        self._blocked: set[Pulse] = set()
        self._looked_at: float | None = None
        # (job, delivery) -> when it was first seen, and whether it was told.
        self._seen: dict[tuple[int, int], tuple[float, bool]] = {}
        # (job, delivery) -> at how many looks its time was over.
        self._over: dict[tuple[int, int], int] = {}

    @property
    def looked_at(self) -> float | None:
        """When it looked last, on the interval clock; None before it first did."""
        return self._looked_at

    @property
    def late(self) -> list[Lease]:
        """Jobs that run now, though two looks have seen that their time was over."""
        over = self._over
        held = [running for seat in self._crew.seats if (running := seat.running) is not None]
        return [lease for lease, _ in held if over.get((lease.id, lease.delivery), 0) >= LATE_LOOKS]

    def duty(self) -> Flow[float | None]:
        """Look at all of it."""
        now = yield from flows.now()
        held = [now_held for seat in self._crew.seats if (now_held := seat.running) is not None]
        running = [lease for lease, _ in held]
        self._tell_held_up(now, running)
        self._tell_blocked(now, running)
        self._tell_lost([lease for lease, context in held if context.timed_out])
        self._tell_overdue(now, [lease for lease, context in held if not context.timed_out])
        self._looked_at = now
        return LOOK_AGAIN_S

    def _tell_held_up(self, now: float, running: Sequence[Lease]) -> None:
        if self._looked_at is None or (late_s := now - self._looked_at - LOOK_AGAIN_S) < HELD_UP_S:
            return
        _log.warning(
            "the keeper of queue %s was held up for %.1f s, and could renew no lease: code in C that keeps "
            "the interpreter, a store that does not answer, or a stopped process; running: %s",
            self._crew.label,
            late_s,
            shown(running),
        )

    def _tell_blocked(self, now: float, running: Sequence[Lease]) -> None:
        for pulse in self._pulses:
            silent_s = pulse.silent_s(now)
            if silent_s < BLOCKED_S:
                self._blocked.discard(pulse)
            elif pulse not in self._blocked:
                self._blocked.add(pulse)
                _log.warning(
                    "the event loop of queue %s has stood still for %.1f s, at %s: all its jobs wait for "
                    "that one; make it await, or a def; running: %s",
                    self._crew.label,
                    silent_s,
                    pulse.where(),
                    shown(running),
                )

    def _tell_lost(self, over: Sequence[Lease]) -> None:
        """Of jobs that go on though their time is over; most have ended by the second look."""
        before = self._over
        self._over = {key: before.get(key, 0) + 1 for key in ((job.id, job.delivery) for job in over)}
        for lease in over:
            if self._over[lease.id, lease.delivery] == LATE_LOOKS:
                _log.warning(
                    "job %d%s of queue %s still runs, though its task's timeout is over; its worker takes no "
                    "other job until it returns, as do %d of %d; kill_after= and processes end such jobs",
                    lease.id,
                    "" if lease.task is None else f" ({lease.task})",
                    lease.queue,
                    len(over),
                    len(self._crew.seats),
                    extra={"job_id": lease.id, "queue": lease.queue, "task": lease.task},
                )

    def _tell_overdue(self, now: float, running: Iterable[Lease]) -> None:
        before, self._seen = self._seen, {}
        for lease in running:
            key = lease.id, lease.delivery
            since, is_told = before.get(key, (now, False))
            if not is_told and now - since > LONG_MIN_S and now - since > self._long_s(lease):
                is_told = True
                _log.warning(
                    "job %d%s of queue %s runs for %.0f s now; its lease is renewed as long as it does; "
                    "a timeout= of its task would end it",
                    lease.id,
                    "" if lease.task is None else f" ({lease.task})",
                    lease.queue,
                    now - since,
                    extra={"job_id": lease.id, "queue": lease.queue, "task": lease.task},
                )
            self._seen[key] = since, is_told

    def _long_s(self, lease: Lease) -> float:
        usual_s = self._crew.run_times.p99_s(lease.task, RUNS_MIN)
        return LONG_S if usual_s is None else min(LONG_S, max(LONG_MIN_S, TIMES_P99 * usual_s))


def shown(running: Sequence[Lease]) -> str:
    """Some jobs, in a line."""
    first = sorted(running, key=lambda lease: lease.id)[:_JOBS_SHOWN]
    jobs = [f"job {lease.id}{f' ({lease.task})' if lease.task else ''}" for lease in first]
    more = len(running) - len(jobs)
    return ", ".join(jobs) + (f" and {more} more" if more else "") if jobs else "nothing"
