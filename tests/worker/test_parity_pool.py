"""What the two systems did end to end, and what went wrong on stand-ins, on `Queue.workers`."""

import threading

import pytest

from tests.support.pools import AT_ONCE, assert_books_balance, drain, flaky, produce
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import Backoff, Outcome, Terminal

pytestmark = pytest.mark.timeout(30)


# End to end


def test_a_pool_drains_all_jobs_of_its_producer(make):
    queue, done = make(capacity=64), []
    with queue.workers(done.append, count=4) as pool:
        produce(queue, 1_000)
        drain(pool)
    assert sorted(done) == list(range(1_000))
    counts = queue.counts()
    assert (counts.acked, counts.total, counts.open) == (1_000, 1_000, 0)
    assert pool.size == 0
    assert_books_balance(queue)


def test_the_jobs_of_a_crashed_worker_are_recovered(timed, clock):
    # Ten of fifty jobs go to a worker that never speaks again; its leases are of 20 ms.
    queue, done = timed(), []
    ids = queue.enqueue_many(list(range(50)))
    abandoned = timed(visibility_timeout=0.02).deliver_many(10)
    with queue.workers(done.append, count=4) as pool:
        eventually(lambda: queue.counts().acked == 40)
        assert queue.counts().leased == 10
        eventually(lambda: queue.counts().acked == 50, clock=clock)
    assert sorted(done) == list(range(50))
    assert {queue.terminal_of(job_id) for job_id in ids} == {Terminal.ACKED}
    assert [queue.ack(lease) for lease in abandoned] == [Outcome.STALE] * 10
    assert pool.metrics().reclaimed == 10


def test_poison_jobs_die_and_the_others_succeed(make):
    queue, runs = make(max_attempts=3), []
    good = queue.enqueue_many([f"good {number}" for number in range(10)])
    poison = queue.enqueue_many([f"poison {number}" for number in range(10)])
    queue.mark_producer_finished()

    def handle(payload):
        runs.append(payload)
        if payload.startswith("poison"):
            raise ValueError(payload)

    with queue.workers(handle, count=4, backoff=AT_ONCE) as pool:
        drain(pool)
    assert {queue.terminal_of(job_id) for job_id in good} == {Terminal.ACKED}
    assert {queue.terminal_of(job_id) for job_id in poison} == {Terminal.DEAD}
    assert sum(payload.startswith("poison") for payload in runs) == 30
    assert len(runs) == 40
    assert_books_balance(queue)


def test_jobs_of_high_priority_are_processed_first(make):
    queue, done = make(), []
    queue.enqueue_many(["low"] * 100)
    for _ in range(5):
        queue.enqueue("high", 10)
    queue.mark_producer_finished()
    with queue.workers(done.append, count=1) as pool:
        drain(pool)
    assert done == ["high"] * 5 + ["low"] * 100


# Facts measured on stand-ins


@pytest.mark.parametrize("capacity", [1, 8])
def test_retries_into_a_full_queue_do_not_deadlock(make, capacity):
    # A retry that is put back by its own worker waits for ever here, at both capacities.
    queue, runs = make(capacity=capacity, max_attempts=3), []
    with queue.workers(flaky(0.9, 1, runs), count=1, backoff=AT_ONCE) as pool:
        produce(queue, 200)
        drain(pool)
    counts = queue.counts()
    assert (counts.acked + counts.dead, counts.total) == (200, 200)
    assert len(runs) == pool.metrics().processed
    assert_books_balance(queue)


def test_with_capacity_one_and_every_attempt_failing_all_jobs_die(make):
    queue, runs = make(capacity=1, max_attempts=3), []
    with queue.workers(flaky(1, 0, runs), count=4, backoff=AT_ONCE) as pool:
        produce(queue, 100)
        drain(pool)
    assert (queue.counts().dead, len(runs)) == (100, 300)
    assert [len(letter.history) for letter in queue.jobs(state="dead")] == [3] * 100
    assert_books_balance(queue)


def test_workers_do_not_leave_because_nothing_is_pending(timed, clock):
    # Each job comes only when the one before it is finished, so that nothing is pending in between.
    queue, done = timed(capacity=8), threading.Semaphore(0)
    with queue.workers(lambda _payload: done.release(), count=4) as pool, queue.producer():
        for number in range(20):
            queue.enqueue(number)
            assert done.acquire(timeout=WAIT_S)
            eventually(lambda: queue.counts().open == 0)
            eventually(lambda: clock.sleepers == 5)  # four workers and the keeper of their leases
            assert pool.size == 4
    assert (queue.counts().acked, pool.size) == (20, 0)


def test_failing_work_never_exceeds_the_capacity(make):
    # The stand-in held 158,000 unfinished jobs at capacity 64, since sleeping retries did not count.
    queue, seen, over = make(capacity=64, max_attempts=3), [], threading.Event()

    def watch():
        while not over.is_set():
            seen.append(queue.counts().open)

    watcher = Running(watch)
    with queue.workers(flaky(0.9, 9), count=8, backoff=Backoff(base=0.005, cap=0.01)) as pool:
        producer = produce(queue, 600)
        drain(pool)
    over.set()
    watcher.result()
    assert len(producer.result()) == 600
    assert 0 < max(seen) <= 64
    assert_books_balance(queue)
