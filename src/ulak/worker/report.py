"""What a pool reports: where it is, how it ended, and what has happened in its queues since it started."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence

import msgspec

from ulak.clock import Clock
from ulak.core.flows import Flow, ask
from ulak.core.job import Counts, Totals
from ulak.core.store import Store
from ulak.local import LocalQueue

AHEAD = "ahead_s"
SINCE = "since_at"


def about_process(clock: Clock) -> Mapping[str, str]:
    """Its host, since when, and by how much the calendar is ahead of the interval clock.

    A later look at both clocks tells whether somebody has set the calendar meanwhile.
    """
    return {
        "host": socket.gethostname(),
        # Not rounded up: what it does next is never before it.
        SINCE: f"{math.floor(clock.calendar() * 1000) / 1000:.3f}",
        AHEAD: f"{ahead_s(clock):.3f}",
    }


def ahead_s(clock: Clock) -> float:
    """By how many seconds the calendar clock is ahead of the interval clock."""
    return clock.calendar() - clock.interval()


class Report(msgspec.Struct, frozen=True):
    """How a drain or a shutdown ended; numbers are of all queues of the pool together.

    drained: every producer had finished, and nothing was left that could still run.
    open: unfinished jobs left there; of these, held ones wait for a worker that knows their task, and
    paused says that a queue is paused.
    released: deliveries handed back unspent because time was over. dead: dead jobs stored there.
    """

    drained: bool
    open: int
    held: int
    paused: bool
    released: int
    dead: int


class PoolMetrics(msgspec.Struct, frozen=True):
    """What happened in the pool's queues since it started, in one snapshot.

    rejected and stale count this process only.

    At rest: processed = succeeded + failed; failed = retries + dead_lettered + cut.
    """

    enqueued: int
    processed: int
    succeeded: int
    failed: int
    retries: int
    dead_lettered: int
    cut: int
    reclaimed: int
    stale: int
    rejected: int


class Tally:
    """Knows what has happened in some queues since `begin`."""

    def __init__(self, local_queues: Sequence[LocalQueue]) -> None:
        self._local_queues = tuple(local_queues)
        self._queues = tuple(local.name for local in local_queues)
        self._start = Totals()
        self._start_stale = self._start_rejected = 0

    def begin(self) -> Flow[None]:
        """Note where the totals stand, before the first worker starts."""
        self._start = _summed((yield from ask(Store.counts, self._queues)))
        self._start_stale, self._start_rejected = self._refused()

    def _refused(self) -> tuple[int, int]:
        return (
            sum(local.stale for local in self._local_queues),
            sum(local.rejected for local in self._local_queues),
        )

    def metrics(self) -> Flow[PoolMetrics]:
        """What happened since `begin`."""
        totals = _summed((yield from ask(Store.counts, self._queues)))
        stale, rejected = self._refused()
        grown = {
            name: getattr(totals, name) - getattr(self._start, name)
            for name in PoolMetrics.__struct_fields__
            if name not in ("stale", "rejected")
        }
        return PoolMetrics(**grown, stale=stale - self._start_stale, rejected=rejected - self._start_rejected)


def _summed(counts: Mapping[str, Counts]) -> Totals:
    """The totals of several queues together."""
    names = Totals.__struct_fields__
    return Totals(*(sum(getattr(of_queue.totals, name) for of_queue in counts.values()) for name in names))
