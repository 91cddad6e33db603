"""What only the memory store can be made to do."""

from __future__ import annotations

import sys

import pytest

from tests.support.stores import stand_before
from ulak import Filter, Queue, StorageUnavailable
from ulak.core.job import Cause, Draft, Hold
from ulak.core.store import HELD_SORTED_MAX
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


def lines_run(call):
    """How many lines of ulak a call runs."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        lines += event == "line" and "/ulak/" in frame.f_code.co_filename
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return lines


def with_held(q, held):
    q.enqueue_many([b"x"] * held)
    leases = q.deliver_many(held)
    causes = (Cause.UNKNOWN_TASK, Cause.UNDECODABLE)
    q._edge.store.settle([(lease, Hold(causes[lease.id % 2])) for lease in leases])
    return [lease.id for lease in leases]


def test_held_jobs_are_found_among_themselves():
    def cost(others):
        with Queue("memory://") as q:
            ids = with_held(q, 20)
            q.enqueue_many([b"x"] * others)
            which = Filter(queue=q.name, states="held")
            assert [job.id for job in q._edge.store.scan(which)] == ids
            return lines_run(lambda: q._edge.store.scan(which))

    assert cost(1_000) == cost(10)


@pytest.mark.parametrize("way", ["take", "cancel", "expire", "redrive", "edit and take", "hold again"])
def test_nothing_is_kept_of_a_task_that_has_no_held_jobs_any_more(way):
    clock = ManualClock()
    with Queue("memory://", clock=clock) as q:
        store = q._edge.store
        ids = store.add(
            q.name,
            [
                Draft(b"x", "bytes", task=f"task-{n}", expires_at=clock.calendar() + 60)
                for n in range(100)
                for _ in range(2)
            ],
        )
        held = Hold(Cause.UNKNOWN_TASK)
        store.settle([(lease, held) for lease in q.deliver_many(200)])
        by_task = store.shelf(q.name)._held._by_task
        assert len(by_task) == 100
        match way:
            case "take":
                assert len(q.deliver_many(200)) == 200
            case "cancel":
                assert len(q.cancel(ids).done) == 200
            case "expire":
                clock.advance(60)
                assert q.deliver() is None
            case "redrive":
                assert len(q.redrive(ids).done) == 200
            case "edit and take":
                q.edit(ids[0], b"other")
                assert len(q.deliver_many(200)) == 200
            case "hold again":
                store.settle([(lease, held) for lease in q.deliver_many(200)])
                assert len(by_task) == 100
                assert [lease.id for lease in q.deliver_many(200)] == ids
        assert by_task == {}


def test_very_many_held_jobs_are_not_sorted_for_each_page():
    with Queue("memory://") as q:
        ids = with_held(q, HELD_SORTED_MAX + 1)
        which, store = Filter(queue=q.name, states="held"), q._edge.store
        assert [job.id for job in store.scan(which, after=ids[5], limit=3)] == ids[6:9]
        assert lines_run(lambda: store.scan(which, limit=3)) < 500


def test_an_upkeep_gives_back_the_table_of_what_is_gone():
    with Queue("memory://") as q:
        jobs = q._edge.store.jobs
        jobs.rows = dict.fromkeys(range(200_000))
        for job_id in range(200_000):
            del jobs.rows[job_id]
        # A pool's keeper does so each second, also where its workers are too busy to.
        q.prune()
        assert sys.getsizeof(jobs.rows) < 1_000
