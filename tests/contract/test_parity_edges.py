"""The edge cases of the first system, row by row, and what it left untested."""

import copy
import gc
import threading

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S
from ulak import ArgumentError, Backoff, Outcome, Terminal

OK, STALE = Outcome.OK, Outcome.STALE


def deliver_payload(queue):
    return queue.deliver().payload


# The table of edge cases, row by row


def test_a_late_ack_or_nack_before_the_tick_is_honoured(make, clock):
    queue = make()
    queue.enqueue_many(["a", "b"])
    first, second = queue.deliver_many(2)
    clock.advance(3600)
    assert queue.ack(first) is OK
    assert queue.nack(second) is OK
    counts = queue.counts()
    assert (counts.acked, counts.pending, counts.leased) == (1, 1, 0)


@pytest.mark.parametrize("reclaim", ["tick_timeouts", "crash"])
def test_an_ack_after_the_reclaim_is_stale_even_before_redelivery(make, clock, reclaim):
    queue = make()
    queue.enqueue("a")
    lease = queue.deliver()
    clock.advance(30)
    assert getattr(queue, reclaim)() == 1
    assert (queue.ack(lease), queue.nack(lease)) == (STALE, STALE)
    assert (queue.counts().pending, queue.counts().acked) == (1, 0)


def test_a_nack_at_the_last_attempt_is_ok_and_the_lease_stale_from_then_on(make):
    queue = make(max_attempts=1)
    job_id = queue.enqueue("a")
    lease = queue.deliver()
    assert queue.nack(lease) is OK
    assert queue.terminal_of(job_id) is Terminal.DEAD
    assert (queue.ack(lease), queue.nack(lease)) == (STALE, STALE)
    assert queue.terminal_of(job_id) is Terminal.DEAD


@pytest.mark.parametrize("reclaim", ["tick_timeouts", "crash"])
def test_with_one_attempt_a_timeout_or_a_crash_is_death(make, clock, reclaim):
    queue = make(max_attempts=1)
    job_id = queue.enqueue("a")
    queue.deliver()
    clock.advance(30)
    assert getattr(queue, reclaim)() == 1
    assert queue.terminal_of(job_id) is Terminal.DEAD
    assert queue.deliver() is None


def test_a_redelivered_job_returns_to_its_old_place(make):
    queue = make()
    queue.enqueue_many(["a", "b", "c"])
    queue.nack(queue.deliver())
    assert [deliver_payload(queue) for _ in range(3)] == ["a", "b", "c"]


def test_without_a_backoff_a_poison_job_stays_at_the_head(make):
    # So did the first system; a stored backoff, which every pool has, is what ends it.
    queue = make(max_attempts=5)
    queue.enqueue_many(["a", "b"])
    delivered = []
    while (lease := queue.deliver()) is not None:
        delivered.append(lease.payload)
        assert (queue.nack(lease) if lease.payload == "a" else queue.ack(lease)) is OK
    assert delivered == ["a", "a", "a", "a", "a", "b"]


def test_with_a_backoff_a_poison_job_lets_the_others_pass(make):
    queue = make(max_attempts=5, backoff=Backoff(base=1, cap=60, floor=0.5))
    queue.enqueue_many(["a", "b"])
    queue.nack(queue.deliver())
    assert deliver_payload(queue) == "b"


def test_after_a_crash_jobs_come_back_to_their_old_places(make):
    # A, B and C are out, D waits, and E comes after the crash.
    queue = make()
    queue.enqueue_many(["a", "b", "c", "d"])
    queue.deliver_many(3)
    queue.crash()
    queue.enqueue("e")
    assert [deliver_payload(queue) for _ in range(5)] == ["a", "b", "c", "d", "e"]


def test_a_lease_of_no_length_is_over_at_once(make):
    queue = make(visibility_timeout=0)
    queue.enqueue("a")
    first = queue.deliver()
    assert queue.tick_timeouts() == 1
    assert queue.ack(first) is STALE
    second = queue.deliver()
    assert queue.ack(second) is OK  # nobody reclaimed it


def test_the_first_page_of_the_seed_holds_with_its_one_error_mended(make, clock):
    # It asserted that a tick right after a delivery for 30 s reclaims one job: it reclaims none.
    queue = make(max_attempts=3, visibility_timeout=30)
    queue.enqueue("send-newsletter", 1)
    job_id = queue.enqueue("charge-card", 10)
    lease = queue.deliver()
    assert (lease.id, lease.payload) == (job_id, "charge-card")
    assert queue.tick_timeouts() == 0
    clock.advance(30)
    assert queue.tick_timeouts() == 1
    again = queue.deliver()
    assert again.id == job_id
    assert queue.ack(again) is OK
    assert queue.ack(again) is STALE
    assert queue.ack(lease) is STALE
    assert queue.terminal_of(job_id) is Terminal.ACKED


def test_of_two_copies_of_a_lease_one_is_honoured(make):
    queue = make()
    queue.enqueue("a")
    lease = queue.deliver()
    assert (queue.ack(copy.copy(lease)), queue.ack(lease)) == (OK, STALE)
    assert queue.counts().acked == 1


def test_a_dropped_lease_is_still_held_until_its_time_is_over(make, clock):
    queue = make()
    job_id = queue.enqueue("a")
    queue.deliver()
    gc.collect()
    assert queue.deliver() is None
    assert queue.counts().leased == 1
    clock.advance(30)
    assert queue.tick_timeouts() == 1
    assert queue.deliver().id == job_id


# What it left untested


def test_an_unknown_id_has_no_terminal(make):
    queue, other = make(), make("other")
    job_id = other.enqueue("of another queue")
    other.ack(other.deliver())
    assert [queue.terminal_of(unknown) for unknown in (0, -1, 10**18, job_id)] == [None] * 4
    assert [queue.get(unknown) for unknown in (0, -1, 10**18, job_id)] == [None] * 4
    for nonsense in ("1", 1.0, None, True):
        with pytest.raises(ArgumentError):
            queue.terminal_of(nonsense)


def test_two_sweepers_reclaim_each_lease_once(make, clock):
    queue = make()
    for _ in range(20):
        queue.enqueue_many([b""] * 50)
        leases = queue.deliver_many(queue.counts().pending)
        clock.advance(30)
        start = threading.Barrier(2, timeout=WAIT_S)

        def sweep(start=start):
            start.wait()
            return queue.tick_timeouts()

        sweepers = [Running(sweep) for _ in range(2)]
        assert sum(sweeper.result() for sweeper in sweepers) == len(leases)
        queue.ack_many(queue.deliver_many(len(leases)))
    assert queue.counts().totals.reclaimed == 20 * 50


def test_an_ack_racing_a_tick_has_one_winner(make, clock):
    queue = make()
    for _ in range(100):
        queue.enqueue("a")
        lease = queue.deliver()
        clock.advance(30)
        start = threading.Barrier(2, timeout=WAIT_S)
        acked = Running(lambda lease=lease: queue.ack(lease), start)
        ticked = Running(queue.tick_timeouts, start)
        outcome, reclaimed = acked.result(), ticked.result()
        assert (outcome, reclaimed) in {(OK, 0), (STALE, 1)}
        assert queue.terminal_of(lease.id) is (Terminal.ACKED if outcome is OK else None)
        if outcome is STALE:
            assert queue.ack(queue.deliver()) is OK
    counts = queue.counts()
    assert (counts.acked, counts.open, counts.total) == (100, 0, 100)
