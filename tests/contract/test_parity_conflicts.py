"""Where the two systems disagreed, and which of them ulak follows."""

from tests.support.threads import Running
from tests.support.waiting import eventually
from ulak import FULL, Backoff, Keep, Retention, Terminal


def test_C1_backoff_says_when_and_age_says_where(make, clock):
    # All four fail together and come back at different times, but among the ready the oldest is first.
    queue = make()
    queue.enqueue_many(["a", "b", "c", "d"])
    leases = queue.deliver_many(4)
    for lease, delay in zip(leases, (30, 10, 20, 10), strict=True):
        queue.nack(lease, delay=delay)
    clock.advance(10)
    assert queue.deliver().payload == "b"
    clock.advance(20)
    assert [queue.deliver().payload for _ in range(3)] == ["a", "c", "d"]


def test_C1_a_nack_without_delay_is_the_first_seed_even_under_a_backoff(make):
    queue = make(max_attempts=3, backoff=Backoff(base=60, cap=60, floor=60))
    queue.enqueue_many(["a", "b"])
    delivered = []
    for _ in range(3):
        lease = queue.deliver()
        delivered.append(lease.payload)
        queue.nack(lease, delay=0)
    assert delivered == ["a", "a", "a"]
    assert queue.deliver().payload == "b"


def test_C2_a_queue_is_unbounded_unless_it_is_given_a_capacity(make):
    free, bounded = make(), make("bounded", capacity=1)
    assert free.settings().capacity is None
    free.enqueue_many([b""] * 20_000)
    assert free.try_enqueue(b"one more")
    bounded.enqueue("a")
    assert bounded.try_enqueue("b") is FULL


def test_C3_a_delivery_can_wait_for_work(make, clock):
    queue = make()
    waiter = Running(lambda: queue.deliver(timeout=60))
    eventually(lambda: clock.sleepers == 1)
    queue.enqueue("a")
    assert waiter.result().payload == "a"


def test_C3_a_waiting_delivery_gives_up_in_time(make, clock):
    queue = make()
    start = clock.interval()
    waiter = Running(lambda: queue.deliver(timeout=3))
    eventually(lambda: waiter.is_over, clock=clock)
    assert waiter.result() is None
    assert clock.interval() - start >= 3


def test_C3_a_waiting_delivery_takes_what_becomes_due_or_is_reclaimed(make, clock):
    # The clock may be well past the one before the waiter has come to look: it comes first by its priority.
    queue = make()
    start = clock.interval()
    queue.enqueue("leased", 1)
    queue.deliver()
    queue.enqueue("delayed", delay=40)
    for expected, due_s in [("leased", 30), ("delayed", 40)]:
        waiter = Running(lambda: queue.deliver(timeout=None))
        eventually(lambda waiter=waiter: waiter.is_over, clock=clock)
        lease = waiter.result()
        assert (lease.payload, clock.interval() - start >= due_s - 1) == (expected, True)
        queue.ack(lease)


def test_C5_pending_waits_and_open_is_unfinished(make):
    queue = make()
    queue.enqueue_many(["leased", "ready"])
    queue.enqueue("delayed", delay=60)
    queue.deliver()
    counts = queue.counts()
    assert (counts.ready, counts.scheduled, counts.leased) == (1, 1, 1)
    assert (counts.pending, counts.open) == (2, 3)


def test_C6_what_is_kept_is_a_setting_and_bounded_by_default(make, clock):
    # A default bound in number and age has its own test; here it is replaced, and by age alone.
    queue = make(max_attempts=1)
    queue.configure(retention=Retention(*(Keep(1_000, age_s) for age_s in (10, 100, 10, 10))))
    acked, dead = queue.enqueue_many(["acked", "dead"])
    first, second = queue.deliver_many(2)
    queue.ack(first)
    queue.nack(second)
    clock.advance(11)
    queue.prune()
    assert (queue.terminal_of(acked), queue.terminal_of(dead)) == (None, Terminal.DEAD)
    clock.advance(100)
    queue.prune()
    assert queue.terminal_of(dead) is None
    assert (queue.counts().pruned, queue.counts().total) == (2, 2)
