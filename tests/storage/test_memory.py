"""What only the memory store can be made to do."""

from __future__ import annotations

import pytest

from tests.support.stores import stand_before
from ulak import Queue, StorageUnavailable
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock

LEASE_S = 30.0


class ThirdJobFails(MemoryStore):
    """Memory cannot undo half a batch; here the error comes in the middle of one, once."""

    settled = 0

    def _settle(self, *args):
        self.settled += 1
        if self.settled == 3:
            raise StorageUnavailable("the store refuses this job")
        return super()._settle(*args)


def test_L7_an_error_between_two_jobs_of_one_write_loses_neither():
    clock = ManualClock()
    with Queue("memory://", visibility_timeout=LEASE_S, clock=clock) as q:
        stand_before(q, lambda _: ThirdJobFails(clock))
        q.enqueue_many(range(50))
        q.deliver_many(50)
        clock.advance(LEASE_S)
        with pytest.raises(StorageUnavailable):
            q.tick_timeouts()
        q.tick_timeouts()
        counts = q.counts()
        assert (counts.leased, counts.ready, counts.totals.reclaimed) == (0, 50, 50)
        assert [len(job.history) for job in q.jobs()] == [1] * 50
