"""The rules of the second system, the worker pool, as far as a queue alone can show them."""

import functools
import random
import threading

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import (
    FULL,
    ArgumentError,
    Backoff,
    Closed,
    Keep,
    Outcome,
    QueueFull,
    Refusal,
    Retention,
    State,
    Terminal,
    UlakError,
)

OK = Outcome.OK


def identities_hold(counts):
    """The three sums that hold after every call, with nothing redriven, cancelled, expired or deleted."""
    totals = counts.totals
    return (
        totals.processed == totals.succeeded + totals.failed
        and totals.failed == totals.retries + totals.dead_lettered
        and totals.enqueued == totals.succeeded + totals.dead_lettered + counts.open
    )


def wait_for_sleepers(clock, number):
    eventually(lambda: clock.sleepers == number)


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_T1_max_attempts_is_the_number_of_runs(make, attempts):
    queue = make(max_attempts=3)
    job_id = queue.enqueue("a", max_attempts=attempts)
    seen = []
    while (lease := queue.deliver()) is not None:
        seen.append(lease.attempt)
        queue.nack(lease)
    assert seen == list(range(1, attempts + 1))
    assert queue.terminal_of(job_id) is Terminal.DEAD


def test_T2_the_identities_hold_after_every_call(make, clock):
    # A reclaimed lease is a failed attempt; a released one is none.
    queue = make(max_attempts=3, capacity=10)
    rng = random.Random(2)
    for _ in range(400):
        lease = None
        if rng.random() < 0.5:
            queue.try_enqueue("a")
        else:
            lease = queue.deliver()
        if lease is not None:
            settle = rng.choice([queue.ack, queue.nack, queue.release, lambda _: clock.advance(30)])
            settle(lease)
        if rng.random() < 0.1:
            queue.crash()
        assert identities_hold(queue.counts())
    totals = queue.counts().totals
    assert min(totals.succeeded, totals.dead_lettered, totals.retries, totals.reclaimed) > 0


def test_T2_what_each_total_counts(make, clock):
    # One job succeeds at its third run, after a nack and a time-out; one dies, one is released.
    queue = make(max_attempts=3, capacity=3)
    queue.enqueue("third time", 2)
    queue.enqueue("dies", 1, max_attempts=1)
    queue.enqueue("released")
    assert queue.try_enqueue("refused") is FULL
    queue.nack(queue.deliver())
    queue.deliver()
    clock.advance(30)
    assert queue.tick_timeouts() == 1
    queue.ack(queue.deliver())
    queue.nack(queue.deliver())
    queue.release(queue.deliver())
    totals = queue.counts().totals
    assert (totals.enqueued, totals.processed, totals.succeeded, totals.failed) == (3, 4, 1, 3)
    assert (totals.retries, totals.dead_lettered, totals.reclaimed) == (2, 1, 1)


def test_T3_the_backoff_is_capped_exponential_with_full_jitter():
    # The oracle multiplies step by step, where the code takes a power.
    for base, cap in [(1.0, 60.0), (0.01, 2.0), (3.0, 3.0)]:
        backoff, widest = Backoff(base=base, cap=cap), base
        for failed in range(1, 40):
            for draw in (0.0, 0.25, 0.5, 1.0):
                assert backoff.delay_s(failed, draw) == pytest.approx(draw * min(cap, widest))
            widest *= 2


def test_T3_the_backoff_never_raises_and_never_leaves_its_bounds():
    for backoff in (Backoff(base=1e-9, cap=3e9), Backoff(base=1, cap=10, floor=2)):
        for failed in (1, 2, 1_023, 1_024, 1_025, 10**6, 10**30):
            for draw in (0.0, 1e-300, 0.5, 1.0):
                assert backoff.floor <= backoff.delay_s(failed, draw) <= backoff.cap
        assert backoff.delay_s(10**30, 1.0) == backoff.cap


def test_T3_a_failed_job_is_ready_again_when_its_backoff_is_over(make, clock):
    queue = make(max_attempts=8, backoff=Backoff(base=1, cap=4, floor=0.5))
    job_id = queue.enqueue("a")
    for widest in (1, 2, 4, 4, 4, 4, 4):
        assert queue.nack(queue.deliver()) is OK
        info = queue.get(job_id)
        delay_s = info.run_at.timestamp() - clock.calendar()
        rounding_s = 1e-5  # what is shown is cut to microseconds
        assert info.state is State.SCHEDULED
        assert 0.5 - rounding_s <= delay_s <= widest + rounding_s
        clock.advance(delay_s / 2)
        assert queue.deliver() is None
        clock.advance(delay_s / 2 + 0.001)


def test_T3_jitter_spreads_over_the_whole_width(make, clock):
    queue = make(backoff=Backoff(base=1, cap=60))
    queue.enqueue_many(["a"] * 1_000)
    for lease in queue.deliver_many(1_000):
        queue.nack(lease)
    jobs = queue.jobs(limit=1_000)
    delays = [max(0.0, info.run_at.timestamp() - clock.calendar()) for info in jobs]
    tenths = [sum(low / 10 <= delay < (low + 1) / 10 for delay in delays) for low in range(10)]
    assert sum(tenths) == 1_000
    assert min(tenths) > 50


def test_T3_a_delay_of_ones_own_wins_over_the_stored_backoff(make, clock):
    queue = make(backoff=Backoff(base=50, cap=50, floor=50))
    job_id = queue.enqueue("a")
    queue.nack(queue.deliver(), delay=7)
    assert queue.get(job_id).run_at.timestamp() == clock.calendar() + 7


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "backing off"])
def test_T4_capacity_counts_every_open_job(make, state):
    queue = make(capacity=2)
    queue.enqueue("a")
    queue.enqueue("b", delay=60 if state == "scheduled" else 0)
    if state == "leased":
        queue.deliver_many(2)
    if state == "backing off":
        queue.nack(queue.deliver(), delay=60)
    assert queue.counts().open == 2
    assert queue.try_enqueue("c") is FULL
    with pytest.raises(QueueFull):
        queue.enqueue("c", timeout=0)
    assert (queue.counts().open, queue.counts().total) == (2, 2)


@pytest.mark.parametrize("end", ["nack", "nack with delay", "release", "tick", "crash"])
def test_T4_a_retry_keeps_its_place_and_never_waits_for_room(make, clock, end):
    queue = make(capacity=1)
    queue.enqueue("a")
    lease = queue.deliver()
    {
        "nack": lambda: queue.nack(lease),
        "nack with delay": lambda: queue.nack(lease, delay=10),
        "release": lambda: queue.release(lease),
        "tick": lambda: (clock.advance(30), queue.tick_timeouts()),
        "crash": queue.crash,
    }[end]()
    assert (queue.counts().pending, queue.counts().leased) == (1, 0)
    assert queue.try_enqueue("b") is FULL
    clock.advance(10)
    assert queue.deliver().payload == "a"


@pytest.mark.parametrize("end", ["ack", "death", "cancel", "delete"])
def test_T4_only_an_end_makes_room(make, end):
    queue = make(capacity=1, max_attempts=1)
    job_id = queue.enqueue("a")
    if end == "ack":
        queue.ack(queue.deliver())
    elif end == "death":
        queue.nack(queue.deliver())
    else:
        getattr(queue, end)(job_id)
    assert queue.try_enqueue("b")
    assert queue.try_enqueue("c") is FULL


def test_T4_a_redrive_needs_room_like_an_enqueue(make):
    queue = make(capacity=1, max_attempts=1)
    job_id = queue.enqueue("a")
    queue.nack(queue.deliver())
    queue.enqueue("b")
    assert queue.redrive(job_id).refused == {Refusal.FULL: (job_id,)}
    queue.ack(queue.deliver())
    assert queue.redrive(job_id).done == (job_id,)
    assert queue.counts().open == 1


def test_T4_capacity_is_exact_under_concurrent_producers(make):
    queue = make(capacity=64)
    start = threading.Barrier(8, timeout=WAIT_S)

    def produce():
        start.wait()
        return [answer for _ in range(20) if (answer := queue.try_enqueue("a")) is not FULL]

    producers = [Running(produce) for _ in range(8)]
    ids = [job_id for producer in producers for job_id in producer.result()]
    assert len(ids) == len(set(ids)) == queue.counts().open == 64


def test_T4_a_batch_goes_in_whole_or_not_at_all(make):
    queue = make(capacity=3)
    queue.enqueue_many(["a", "b"])
    with pytest.raises(QueueFull):
        queue.enqueue_many(["c", "d"], timeout=0)
    with pytest.raises(ArgumentError):
        queue.enqueue_many(["c", "d", "e", "f"])
    assert queue.counts().total == 2
    queue.enqueue_many(["c"])
    assert queue.counts().open == 3


def test_T6_the_queue_is_closed_when_the_last_producer_has_finished(make):
    queue = make()
    first, second = queue.producer(), queue.producer()
    first.finish()
    first.finish()
    queue.enqueue("still open, the second producer has not finished")
    with second:
        queue.enqueue("still open")
    for enqueue in (queue.enqueue, queue.try_enqueue, lambda job: queue.enqueue_many([job])):
        with pytest.raises(Closed):
            enqueue("too late")
    assert queue.counts().total == 2


def test_T6_closed_is_not_full(make):
    assert not issubclass(Closed, QueueFull)
    assert not issubclass(QueueFull, Closed)
    queue = make(capacity=1)
    queue.enqueue("a")
    queue.mark_producer_finished()
    with pytest.raises(UlakError) as raised:
        queue.enqueue("b", timeout=0)
    assert type(raised.value) is Closed


def test_T6_a_waiting_producer_is_woken_by_the_end(make, clock):
    queue = make(capacity=1)
    producer = queue.producer()
    queue.enqueue("a")
    waiter = Running(lambda: queue.enqueue("b"))
    wait_for_sleepers(clock, 1)
    producer.finish()
    with pytest.raises(Closed):
        waiter.result()
    assert queue.counts().total == 1


def test_T6_no_producer_is_not_a_finished_one_and_another_reopens(make):
    queue = make()
    queue.enqueue("before any")
    queue.mark_producer_finished()
    with queue.producer():
        queue.enqueue("reopened")
    with pytest.raises(Closed):
        queue.enqueue("too late")


def test_T6_a_waiting_consumer_is_told_when_nothing_can_come_any_more(make, clock):
    queue = make()
    producer = queue.producer()
    queue.enqueue("a")
    lease = queue.deliver()
    consumer = Running(lambda: queue.deliver(timeout=None))
    wait_for_sleepers(clock, 1)
    producer.finish()
    wait_for_sleepers(clock, 1)  # the leased job may still come back
    assert not consumer.is_over
    queue.ack(lease)
    assert consumer.result() is None


def test_T7_a_waiter_that_gives_up_leaves_nothing_behind(make, clock):
    queue = make(capacity=1)
    queue.enqueue("a")
    waiter = Running(lambda: queue.enqueue("gives up", timeout=5))
    wait_for_sleepers(clock, 1)
    clock.advance(5)
    with pytest.raises(QueueFull):
        waiter.result()
    assert (queue.counts().open, queue.counts().total) == (1, 1)
    queue.ack(queue.deliver())
    assert queue.try_enqueue("b")  # nobody stands in the way
    assert queue.counts().total == 2


def test_T7_waiters_get_room_in_the_order_they_came(make, clock):
    queue = make(capacity=1)
    queue.enqueue("first")
    waiters = []
    for number in range(6):
        waiters.append(Running(lambda number=number: queue.enqueue(number)))
        wait_for_sleepers(clock, number + 1)
    served = []
    for waiter in waiters:
        queue.ack(queue.deliver())
        waiter.result()
        (waiting,) = queue.jobs(state="ready")
        served.append(waiting.payload)
    assert served == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("quitter", [0, 1, 2])
def test_T7_a_waiter_that_gives_up_hands_its_turn_on(make, clock, quitter):
    queue = make(capacity=1)
    queue.enqueue("first")
    waiters = []
    for number in range(3):
        wait = functools.partial(queue.enqueue, number, timeout=5 if number == quitter else None)
        waiters.append(Running(wait))
        wait_for_sleepers(clock, number + 1)
    clock.advance(5)
    with pytest.raises(QueueFull):
        waiters.pop(quitter).result()
    served = []
    for waiter in waiters:
        queue.ack(queue.deliver())
        waiter.result()
        served += [info.payload for info in queue.jobs(state="ready")]
    assert served == [number for number in range(3) if number != quitter]


def test_T7_a_duplicate_has_nothing_to_wait_for(make, clock):
    # The queue is full and somebody waits already, but a duplicate takes no room.
    queue = make(capacity=1)
    job_id = queue.enqueue("a", unique_key="key", idempotency_key="once")
    waiter = Running(lambda: queue.enqueue("b"))
    wait_for_sleepers(clock, 1)
    for again in ({"unique_key": "key"}, {"idempotency_key": "once"}):
        assert queue.enqueue("a", timeout=0, **again) == job_id
    queue.ack(queue.deliver())
    waiter.result()
    assert queue.counts().total == 2


def test_T7_who_comes_later_does_not_overtake_who_waits(make, clock):
    queue = make(capacity=2)
    queue.enqueue_many(["a", "b"])
    patient = Running(lambda: queue.enqueue_many(["c", "d"]))
    wait_for_sleepers(clock, 1)
    queue.ack(queue.deliver())
    late = Running(lambda: queue.enqueue("e", timeout=60))
    wait_for_sleepers(clock, 2)
    assert queue.counts().open == 1  # there is room for the late one, but it stands in line
    queue.ack(queue.deliver())
    patient.result()
    assert [info.payload for info in queue.jobs(state="ready")] == ["c", "d"]
    queue.ack(queue.deliver())
    late.result()


def test_T8_a_job_is_counted_before_it_can_be_seen(make):
    queue = make()
    producer = queue.producer()

    def consume():
        seen = []
        while (lease := queue.deliver(timeout=None)) is not None:
            seen.append((queue.counts().open, queue.counts().total >= lease.id))
            queue.ack(lease)
        return seen

    consumers = [Running(consume) for _ in range(2)]
    for _ in range(300):
        queue.enqueue("a")
    producer.finish()
    seen = [look for consumer in consumers for look in consumer.result()]
    assert len(seen) == 300
    assert all(unfinished >= 1 and known for unfinished, known in seen)
    assert queue.counts().open == 0


def test_T8_only_an_end_lowers_what_is_unfinished(make, clock):
    queue = make(max_attempts=10)
    queue.enqueue("a")
    for end in (
        queue.nack,
        lambda lease: queue.nack(lease, delay=1),
        queue.release,
        lambda lease: queue.crash(),
        lambda lease: (clock.advance(30), queue.tick_timeouts()),
    ):
        clock.advance(1)
        lease = queue.deliver()
        assert queue.counts().open == 1
        end(lease)
        assert queue.counts().open == 1
    queue.ack(queue.deliver())
    assert queue.counts().open == 0


def test_T12_a_retry_is_ordered_by_its_age_among_those_that_are_ready(make, clock):
    # The second seed put it at the tail of its channel; C1 says why not.
    queue = make()
    queue.enqueue_many(["a", "b", "c"])
    queue.nack(queue.deliver(), delay=5)
    assert queue.deliver().payload == "b"
    clock.advance(5)
    queue.enqueue("d")
    assert [queue.deliver().payload for _ in range(3)] == ["a", "c", "d"]


def test_T13_dead_letters_are_listed_redriven_edited_and_deleted(make):
    # Ten jobs die after three attempts each, every attempt with an error of its own.
    queue = make(max_attempts=3)
    ids = [queue.enqueue({"number": number}, number % 3) for number in range(10)]
    while (lease := queue.deliver()) is not None:
        queue.nack(lease, error=ValueError(f"job {lease.payload['number']} attempt {lease.attempt}"))

    letters = queue.jobs(state="dead")
    assert [letter.id for letter in letters] == ids
    for number, letter in enumerate(letters):
        assert (letter.payload, letter.priority, letter.attempt) == ({"number": number}, number % 3, 3)
        errors = [(attempt.error.type, attempt.error.text) for attempt in letter.history]
        assert errors == [("ValueError", f"job {number} attempt {attempt}") for attempt in (1, 2, 3)]

    assert set(queue.redrive(ids[:3]).done) == set(ids[:3])
    counts = queue.counts()
    assert (counts.ready, counts.dead, counts.total, counts.totals.redriven) == (3, 7, 10, 3)

    assert queue.edit(ids[3], {"number": 3, "mended": True}).done == (ids[3],)
    edited = queue.get(ids[3])
    anew = queue.enqueue(edited.payload, edited.priority)
    counts = queue.counts()
    assert (counts.ready, counts.dead, counts.total, counts.totals.enqueued) == (4, 7, 11, 11)

    assert len(queue.delete(ids[3:]).done) == 7
    assert queue.jobs(state="dead") == []
    counts = queue.counts()
    assert (counts.ready, counts.dead, counts.pruned, counts.total) == (4, 0, 7, 11)

    done = {}
    while (lease := queue.deliver()) is not None:
        assert lease.attempt == 1
        done[lease.id] = lease.payload
        queue.ack(lease)
    assert done == {**{ids[n]: {"number": n} for n in range(3)}, anew: {"number": 3, "mended": True}}
    counts, totals = queue.counts(), queue.counts().totals
    assert (counts.open, counts.acked, counts.dead, counts.pruned, counts.total) == (0, 4, 0, 7, 11)
    assert (totals.enqueued, totals.redriven, totals.succeeded, totals.dead_lettered) == (11, 3, 4, 10)
    assert (totals.processed, totals.failed, totals.retries) == (34, 30, 20)
    assert totals.enqueued + totals.redriven == totals.succeeded + totals.dead_lettered + counts.open


def test_T13_a_dead_letter_can_be_edited_in_place_and_redriven(make):
    queue = make(max_attempts=1)
    job_id = queue.enqueue({"to": "nobody"})
    queue.nack(queue.deliver(), error="no such address")
    queue.edit(job_id, {"to": "ada"})
    queue.redrive(job_id)
    lease = queue.deliver()
    assert (lease.id, lease.payload) == (job_id, {"to": "ada"})
    assert queue.ack(lease) is OK
    assert [attempt.cause for attempt in queue.get(job_id).history] == ["nack", "ack"]


def test_T13_dead_letters_are_bounded_too(make):
    bound = Retention(Keep(100, 60), Keep(3, 60), Keep(100, 60), Keep(100, 60))
    queue = make(max_attempts=1, retention=bound)
    ids = queue.enqueue_many(["a"] * 8)
    for lease in queue.deliver_many(8):
        queue.nack(lease)
    queue.prune()
    assert [letter.id for letter in queue.jobs(state="dead")] == ids[-3:]
    assert (queue.counts().pruned, queue.counts().totals.dead_lettered) == (5, 8)
