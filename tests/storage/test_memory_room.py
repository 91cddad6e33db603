"""Room in the memory store, where one enqueue does not end all overdue jobs unless it must."""

from ulak import FULL, Queue
from ulak.testing import ManualClock


def test_an_enqueue_is_not_full_while_overdue_jobs_stand_in_its_way() -> None:
    clock = ManualClock()
    q = Queue("memory://", capacity=500, clock=clock)
    for _ in range(500):
        q.enqueue("overdue", delay=60, expires=5)
    q.configure(capacity=10)
    assert q.try_enqueue("before their time") is FULL
    clock.advance(5)
    assert q.try_enqueue("after it") is not FULL
    assert q.counts().expired == 500
