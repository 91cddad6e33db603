"""What the simulation has found, each in its smallest form."""

from __future__ import annotations

from tests.sim.home import SimSignal
from ulak.core.job import Draft
from ulak.core.store import Until
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock


def test_a_job_that_a_claim_makes_ready_on_its_way_wakes_somebody():
    # One worker is on its way to a job that is ready. The claim it makes finds a second one due, takes the
    # first, and must wake the other worker for the second: nobody else will.
    clock = ManualClock()
    store = MemoryStore(clock)
    on_its_way, idle = SimSignal(), SimSignal()
    line = store.line(Until.READY, "q")
    line.join(on_its_way)
    line.join(idle)
    store.add("q", [Draft(b"due soon", "bytes", delay_s=1.0)])
    store.add("q", [Draft(b"ready", "bytes", priority=9)])
    assert (on_its_way.is_set(), idle.is_set()) == (True, False)
    clock.advance(1.0)
    (lease,) = store.claim(["q"], 1, worker="w", lease_s=30.0)
    assert lease.priority == 9
    assert store.counts(["q"])["q"].ready == 1
    assert idle.is_set()
