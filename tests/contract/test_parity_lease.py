"""The lease API does what the first system did, operation by operation."""

import pytest

from ulak import ArgumentError, Outcome, Terminal


def payloads_in_order(queue):
    """Deliver and ack until nothing is ready."""
    payloads = []
    while (lease := queue.deliver()) is not None:
        payloads.append(lease.payload)
        assert queue.ack(lease) is Outcome.OK
    return payloads


# What the first system tested


def test_an_enqueued_job_is_pending(make):
    queue = make()
    queue.enqueue("a")
    counts = queue.counts()
    assert (counts.pending, counts.leased, counts.acked, counts.dead, counts.total) == (1, 0, 0, 0, 1)


def test_a_delivered_job_ends_by_its_ack(make):
    queue = make()
    job_id = queue.enqueue("a")
    lease = queue.deliver()
    assert (lease.id, lease.payload) == (job_id, "a")
    assert queue.counts().leased == 1
    assert queue.ack(lease) is Outcome.OK
    assert queue.terminal_of(job_id) is Terminal.ACKED
    counts = queue.counts()
    assert (counts.pending, counts.leased, counts.acked, counts.dead, counts.total) == (0, 0, 1, 0, 1)


def test_nothing_is_delivered_from_an_empty_queue(make):
    assert make().deliver() is None


def test_the_larger_priority_is_delivered_first(make):
    queue = make()
    for payload, priority in [("low", 1), ("high", 10), ("middle", 5)]:
        queue.enqueue(payload, priority)
    assert payloads_in_order(queue) == ["high", "middle", "low"]


def test_jobs_of_one_priority_are_delivered_as_they_came(make):
    queue = make()
    for payload in "abcde":
        queue.enqueue(payload, 3)
    assert payloads_in_order(queue) == ["a", "b", "c", "d", "e"]


def test_a_later_job_of_higher_priority_goes_first(make):
    # The low ones are there first, and one of them is out already when the high one comes.
    queue = make()
    queue.enqueue("low 1", 1)
    queue.enqueue("low 2", 1)
    assert queue.deliver().payload == "low 1"
    queue.enqueue("high", 9)
    assert queue.deliver().payload == "high"
    assert queue.deliver().payload == "low 2"


def test_an_acked_job_never_comes_back(make, clock):
    queue = make()
    job_id = queue.enqueue("a")
    queue.ack(queue.deliver())
    clock.advance(3600)
    assert (queue.tick_timeouts(), queue.crash()) == (0, 0)
    assert queue.deliver() is None
    assert queue.terminal_of(job_id) is Terminal.ACKED


def test_a_second_ack_is_stale_and_counts_nothing(make):
    queue = make()
    queue.enqueue("a")
    lease = queue.deliver()
    assert [queue.ack(lease), queue.ack(lease)] == [Outcome.OK, Outcome.STALE]
    assert queue.counts().acked == 1


def test_a_nacked_job_is_delivered_again(make):
    queue = make()
    job_id = queue.enqueue("a")
    first = queue.deliver()
    assert queue.nack(first) is Outcome.OK
    assert (queue.counts().pending, queue.counts().leased) == (1, 0)
    again = queue.deliver()
    assert (again.id, again.payload) == (job_id, "a")
    assert again.delivery > first.delivery
    assert queue.ack(again) is Outcome.OK


def test_a_job_is_dead_after_its_last_attempt(make):
    queue = make(max_attempts=2)
    job_id = queue.enqueue("a")
    queue.nack(queue.deliver())
    assert queue.terminal_of(job_id) is None
    queue.nack(queue.deliver())
    assert queue.terminal_of(job_id) is Terminal.DEAD
    assert queue.deliver() is None
    assert (queue.counts().pending, queue.counts().dead) == (0, 1)


def test_the_lease_before_a_redelivery_is_stale(make):
    queue = make()
    job_id = queue.enqueue("a")
    before = queue.deliver()
    queue.nack(before)
    current = queue.deliver()
    assert (queue.ack(before), queue.nack(before)) == (Outcome.STALE, Outcome.STALE)
    assert queue.terminal_of(job_id) is None
    assert queue.ack(current) is Outcome.OK


def test_a_crash_brings_back_what_was_in_flight(make):
    queue = make()
    ids = {queue.enqueue(payload) for payload in "abc"}
    for _ in range(3):
        queue.deliver()
    assert queue.crash() == 3
    assert {queue.deliver().id for _ in range(3)} == ids


def test_a_lease_is_stale_after_a_crash(make):
    queue = make()
    queue.enqueue("a")
    lease = queue.deliver()
    queue.crash()
    assert queue.ack(lease) is Outcome.STALE
    assert queue.counts().pending == 1


def test_a_tick_reclaims_what_is_past_its_deadline(make):
    # A time-out of nothing has passed as soon as the job is delivered.
    queue = make(visibility_timeout=0)
    job_id = queue.enqueue("a")
    queue.deliver()
    assert queue.tick_timeouts() == 1
    assert queue.deliver().id == job_id


def test_a_tick_leaves_fresh_leases_alone(make):
    queue = make(visibility_timeout=60)
    queue.enqueue("a")
    lease = queue.deliver()
    assert queue.tick_timeouts() == 0
    assert queue.ack(lease) is Outcome.OK


def test_the_order_is_priority_then_age(make):
    queue = make()
    for payload, priority in [("1st", 0), ("2nd", 5), ("3rd", -5), ("4th", 5), ("5th", 0)]:
        queue.enqueue(payload, priority)
    assert payloads_in_order(queue) == ["2nd", "4th", "1st", "5th", "3rd"]


# What its operations did


def test_a_lease_lasts_thirty_seconds_by_default(make, clock):
    queue = make()
    queue.enqueue("a")
    lease = queue.deliver()
    assert lease.lease_end == clock.interval() + 30
    clock.advance(29.5)
    assert queue.tick_timeouts() == 0
    clock.advance(0.5)
    assert queue.tick_timeouts() == 1


@pytest.mark.parametrize("attempts", [0, -1, True, 1.0])
def test_less_than_one_attempt_is_refused(make, attempts):
    with pytest.raises(ArgumentError):
        make(max_attempts=attempts)


def test_any_priority_of_64_bits_counts_and_none_beyond(make):
    queue = make()
    for priority in (-(2**63), 0, 2**63 - 1):
        queue.enqueue(str(priority), priority)
    for priority in (-(2**63) - 1, 2**63):
        with pytest.raises(ArgumentError):
            queue.enqueue("refused", priority)
    assert payloads_in_order(queue) == [str(2**63 - 1), "0", str(-(2**63))]


def test_ids_grow_in_the_order_of_the_calls(make):
    queue = make()
    ids = [queue.enqueue(payload, priority) for payload, priority in [("a", 1), ("b", 9), ("c", 5)]]
    assert ids == sorted(set(ids))
    assert ids[0] >= 1


def test_a_payload_is_delivered_as_it_was_when_it_was_enqueued(make):
    # Neither a later change by the producer nor one by a worker may reach the stored job.
    queue = make()
    payload = {"to": ["ada"]}
    queue.enqueue(payload)
    payload["to"].append("late")
    lease = queue.deliver()
    assert lease.payload == {"to": ["ada"]}
    lease.payload["to"].append("worker")
    queue.nack(lease)
    assert queue.deliver().payload == {"to": ["ada"]}


def test_nack_time_out_and_crash_are_one_failure_step(make, clock):
    # Three attempts, one lost to each cause: the third one is the last, whichever way it fails.
    causes = {
        "nack": lambda queue, lease: queue.nack(lease),
        "tick": lambda queue, lease: (clock.advance(30), queue.tick_timeouts()),
        "crash": lambda queue, lease: queue.crash(),
    }
    for order in (["nack", "tick", "crash"], ["tick", "crash", "nack"], ["crash", "nack", "tick"]):
        queue = make("-".join(order), max_attempts=3)
        job_id = queue.enqueue("a")
        for attempt, cause in enumerate(order, 1):
            assert queue.terminal_of(job_id) is None
            lease = queue.deliver()
            assert lease.attempt == attempt
            causes[cause](queue, lease)
        assert queue.terminal_of(job_id) is Terminal.DEAD


def test_a_tick_counts_those_that_died_of_it_too(make, clock):
    queue = make(max_attempts=1)
    fresh = make("fresh", max_attempts=2)
    for each in (queue, fresh):
        each.enqueue_many(["a", "b"])
        each.deliver_many(2)
    clock.advance(30)
    assert (queue.tick_timeouts(), fresh.tick_timeouts()) == (2, 2)
    assert (queue.counts().dead, fresh.counts().pending) == (2, 2)
    assert (queue.tick_timeouts(), fresh.tick_timeouts()) == (0, 0)


def test_a_deadline_that_is_just_reached_has_passed(make, clock):
    queue = make(visibility_timeout=10)
    queue.enqueue_many(["a", "b"])
    queue.deliver()
    clock.advance(5)
    queue.deliver()
    clock.advance(5)
    assert queue.tick_timeouts() == 1
    clock.advance(5)
    assert queue.tick_timeouts() == 1


def test_a_crash_takes_every_lease_whatever_its_deadline(make, clock):
    queue = make()
    queue.enqueue_many(["fresh", "past", "waiting"])
    fresh = make(visibility_timeout=3600).deliver()
    past = queue.deliver()
    clock.advance(31)
    assert queue.crash() == 2
    assert queue.counts().pending == 3
    assert (queue.ack(fresh), queue.ack(past)) == (Outcome.STALE, Outcome.STALE)


def test_a_delivery_reclaims_ended_leases_by_itself(make, clock):
    # The first system had to be told to look; here whoever asks for work finds what a dead worker held.
    queue = make()
    job_id = queue.enqueue("a")
    before = queue.deliver()
    clock.advance(30)
    again = queue.deliver()
    assert (again.id, again.attempt) == (job_id, 2)
    assert queue.ack(before) is Outcome.STALE
    assert queue.tick_timeouts() == 0


def test_a_live_job_has_no_terminal(make):
    queue = make()
    job_id = queue.enqueue("a")
    assert queue.terminal_of(job_id) is None
    lease = queue.deliver()
    assert queue.terminal_of(job_id) is None
    queue.nack(lease)
    assert queue.terminal_of(job_id) is None


def test_terminals_stay_what_they_are(make, clock):
    queue = make(max_attempts=1)
    acked, dead = queue.enqueue_many(["acked", "dead"])
    first, second = queue.deliver_many(2)
    queue.ack(first)
    queue.nack(second)
    for lease in (first, second):
        assert not queue.ack(lease)
        assert not queue.nack(lease)
        assert not queue.extend(lease, 60)
        assert not queue.release(lease)
    clock.advance(60)
    queue.tick_timeouts()
    queue.crash()
    assert queue.terminal_of(acked) is Terminal.ACKED
    assert queue.terminal_of(dead) is Terminal.DEAD


def test_the_four_counts_tell_the_states_and_sum_to_all(make):
    queue = make(max_attempts=1)
    queue.enqueue_many(["acked", "dead", "leased", "pending"])
    acked, dead, _leased = queue.deliver_many(3)
    queue.ack(acked)
    queue.nack(dead)
    counts = queue.counts()
    assert (counts.pending, counts.leased, counts.acked, counts.dead, counts.total) == (1, 1, 1, 1, 4)


def test_a_delivery_never_waits_unless_it_is_told_to(make, clock):
    # Nobody moves the clock, so a call that slept would fail for want of time.
    queue = make()
    assert queue.deliver() is None
    assert queue.deliver_many(10) == []
    assert clock.sleepers == 0
