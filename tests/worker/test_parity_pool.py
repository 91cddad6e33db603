"""What the two systems did end to end, and the rules of the worker pool, on `Queue.workers`."""

import ctypes
import random
import threading

import pytest

from tests.contract import parity
from ulak import FULL, Backoff, Context, Outcome, QueueFull, Retry, State, Terminal, WouldDeadlock
from ulak.clock import SYSTEM

kind, new_url, queue_url = parity.kind, parity.new_url, parity.queue_url
clock, make_queue = parity.clock, parity.make_queue

pytestmark = pytest.mark.timeout(30)

SHORT = Backoff(base=0.0005, cap=0.002)
"""For pools on the real clock: retries that tests need not wait for."""


def flaky(rate, seed, log=None):
    """A handler that fails at this rate, by a source of its own."""
    rng, lock = random.Random(seed), threading.Lock()

    def handle(payload):
        with lock:
            fails = rng.random() < rate
            if log is not None:
                log.append(payload)
        if fails:
            raise RuntimeError("injected")

    return handle


def produce(queue, jobs):
    """Enqueue so many jobs from a thread of its own, as the only producer."""
    producer = queue.producer()

    def main():
        with producer:
            return [queue.enqueue(number) for number in range(jobs)]

    return parity.in_thread(main)


def drain(pool):
    """Run to the end, but not for ever."""
    report = pool.drain(timeout=20)
    assert (report.drained, report.open, report.released) == (True, 0, 0)


def assert_books_balance(queue):
    """Nothing is unfinished, and the three sums hold."""
    counts, totals = queue.counts(), queue.counts().totals
    assert counts.open == 0
    assert totals.processed == totals.succeeded + totals.failed
    assert totals.failed == totals.retries + totals.dead_lettered
    assert totals.enqueued == totals.succeeded + totals.dead_lettered


# End to end


def test_a_pool_drains_all_jobs_of_its_producer(make_queue):
    queue, done = make_queue(clock=SYSTEM, capacity=64), []
    with queue.workers(done.append, count=4) as pool:
        produce(queue, 1_000)
        drain(pool)
    assert sorted(done) == list(range(1_000))
    counts = queue.counts()
    assert (counts.acked, counts.total, counts.open) == (1_000, 1_000, 0)
    assert pool.size == 0
    assert_books_balance(queue)


def test_the_jobs_of_a_crashed_worker_are_recovered(make_queue, clock):
    # Ten of fifty jobs go to a worker that never speaks again; its leases are of 20 ms.
    queue, done = make_queue(), []
    ids = queue.enqueue_many(list(range(50)))
    abandoned = make_queue(visibility_timeout=0.02).deliver_many(10)
    with queue.workers(done.append, count=4) as pool:
        parity.until(lambda: queue.counts().acked == 40)
        assert queue.counts().leased == 10
        parity.until(lambda: queue.counts().acked == 50, clock=clock)
    assert sorted(done) == list(range(50))
    assert {queue.terminal_of(job_id) for job_id in ids} == {Terminal.ACKED}
    assert [queue.ack(lease) for lease in abandoned] == [Outcome.STALE] * 10
    assert pool.metrics().reclaimed == 10


def test_poison_jobs_die_and_the_others_succeed(make_queue):
    queue, runs = make_queue(clock=SYSTEM, max_attempts=3), []
    good = queue.enqueue_many([f"good {number}" for number in range(10)])
    poison = queue.enqueue_many([f"poison {number}" for number in range(10)])
    queue.mark_producer_finished()

    def handle(payload):
        runs.append(payload)
        if payload.startswith("poison"):
            raise ValueError(payload)

    with queue.workers(handle, count=4, backoff=SHORT) as pool:
        drain(pool)
    assert {queue.terminal_of(job_id) for job_id in good} == {Terminal.ACKED}
    assert {queue.terminal_of(job_id) for job_id in poison} == {Terminal.DEAD}
    assert sum(payload.startswith("poison") for payload in runs) == 30
    assert len(runs) == 40
    assert_books_balance(queue)


def test_jobs_of_high_priority_are_processed_first(make_queue):
    queue, done = make_queue(clock=SYSTEM), []
    queue.enqueue_many(["low"] * 100)
    for _ in range(5):
        queue.enqueue("high", 10)
    queue.mark_producer_finished()
    with queue.workers(done.append, count=1) as pool:
        drain(pool)
    assert done == ["high"] * 5 + ["low"] * 100


# Facts measured on stand-ins


@pytest.mark.parametrize("capacity", [1, 8])
def test_retries_into_a_full_queue_do_not_deadlock(make_queue, capacity):
    # A retry that is put back by its own worker waits for ever here, at both capacities.
    queue, runs = make_queue(clock=SYSTEM, capacity=capacity, max_attempts=3), []
    with queue.workers(flaky(0.9, 1, runs), count=1, backoff=SHORT) as pool:
        produce(queue, 200)
        drain(pool)
    counts = queue.counts()
    assert (counts.acked + counts.dead, counts.total) == (200, 200)
    assert len(runs) == pool.metrics().processed
    assert_books_balance(queue)


def test_with_capacity_one_and_every_attempt_failing_all_jobs_die(make_queue):
    queue, runs = make_queue(clock=SYSTEM, capacity=1, max_attempts=3), []
    with queue.workers(flaky(1, 0, runs), count=4, backoff=SHORT) as pool:
        produce(queue, 100)
        drain(pool)
    assert (queue.counts().dead, len(runs)) == (100, 300)
    assert [len(letter.history) for letter in queue.jobs(state="dead")] == [3] * 100
    assert_books_balance(queue)


def test_workers_do_not_leave_because_nothing_is_pending(make_queue, clock):
    # Each job comes only when the one before it is finished, so that nothing is pending in between.
    queue, done = make_queue(capacity=8), threading.Semaphore(0)
    with queue.workers(lambda _payload: done.release(), count=4) as pool, queue.producer():
        for number in range(20):
            queue.enqueue(number)
            assert done.acquire(timeout=parity.PATIENCE_S)
            parity.until(lambda: queue.counts().open == 0)
            parity.until(lambda: clock.sleepers == 5)  # four workers and the keeper of their leases
            assert pool.size == 4
    assert (queue.counts().acked, pool.size) == (20, 0)


def test_failing_work_never_exceeds_the_capacity(make_queue):
    # The stand-in held 158,000 unfinished jobs at capacity 64, since sleeping retries did not count.
    queue, seen, over = make_queue(clock=SYSTEM, capacity=64, max_attempts=3), [], threading.Event()

    def watch():
        while not over.is_set():
            seen.append(queue.counts().open)

    watcher = parity.in_thread(watch)
    with queue.workers(flaky(0.9, 9), count=8, backoff=Backoff(base=0.005, cap=0.01)) as pool:
        producer = produce(queue, 600)
        drain(pool)
    over.set()
    watcher.result(parity.PATIENCE_S)
    assert len(producer.result(parity.PATIENCE_S)) == 600
    assert 0 < max(seen) <= 64
    assert_books_balance(queue)


# The rules


@pytest.mark.parametrize("attempts", [1, 4])
def test_T1_max_attempts_is_the_number_of_runs_of_a_handler(make_queue, attempts):
    queue, runs = make_queue(clock=SYSTEM, max_attempts=attempts), []
    queue.enqueue("a")
    queue.mark_producer_finished()
    with queue.workers(flaky(1, 0, runs), count=2, backoff=SHORT) as pool:
        drain(pool)
    assert (len(runs), queue.counts().dead) == (attempts, 1)


def test_T2_each_metric_counts_what_it_says(make_queue, clock):
    # "slow" is taken away in its first run and succeeds in its second; "poison" dies; one more finds no room.
    queue = make_queue(capacity=2, max_attempts=2)
    queue.enqueue("before the pool, so not its business")
    queue.ack(queue.deliver())
    began, go_on = threading.Event(), threading.Event()

    def handle(payload):
        if payload == "poison":
            raise ValueError
        began.set()
        assert go_on.wait(parity.PATIENCE_S)

    with queue.workers(handle, count=1, backoff=Backoff(base=1, cap=1)) as pool:
        queue.enqueue("slow", 1)
        queue.enqueue("poison")
        assert queue.try_enqueue("no room") is FULL
        with pytest.raises(QueueFull):
            queue.enqueue("no room", timeout=0)
        assert began.wait(parity.PATIENCE_S)
        assert queue.crash() == 1
        go_on.set()
        parity.until(lambda: queue.counts().open == 0, clock=clock)
        metrics = pool.metrics()
    assert (metrics.enqueued, metrics.succeeded, metrics.dead_lettered) == (2, 1, 1)
    assert (metrics.processed, metrics.failed, metrics.retries) == (4, 3, 2)
    assert (metrics.reclaimed, metrics.stale, metrics.rejected) == (1, 1, 2)
    assert_books_balance(queue)


def test_T3_a_retry_sleeps_outside_of_the_worker(make_queue, clock):
    # There is one worker; while the failed job waits for its time, the worker does the others.
    queue, done = make_queue(), []

    def handle(payload, context: Context):
        if payload == "again" and context.attempt == 1:
            raise Retry(after=60)
        done.append(payload)

    queue.enqueue_many(["again", "b", "c"])
    with queue.workers(handle, count=1):
        parity.until(lambda: done == ["b", "c"])
        assert queue.counts().scheduled == 1
        parity.until(lambda: len(done) == 3, clock=clock)
    assert done == ["b", "c", "again"]


def test_T3_a_pool_stores_its_backoff_so_that_a_poison_job_does_not_stay_at_the_head(make_queue, clock):
    queue, runs = make_queue(max_attempts=5), []

    def handle(payload):
        runs.append(payload)
        if payload == "a":
            raise ValueError

    queue.enqueue_many(["a", "b"])
    with queue.workers(handle, count=1, backoff=Backoff(base=1, cap=4, floor=0.5)):
        parity.until(lambda: queue.counts().acked == 1)
        parity.until(lambda: queue.counts().dead == 1, clock=clock)
    assert runs == ["a", "b", "a", "a", "a", "a"]
    assert queue.settings().backoff == Backoff(base=1, cap=4, floor=0.5)


def test_T5_a_handler_is_refused_where_it_would_wait_for_itself(make_queue):
    # Two workers hold the only two places, and each wants a third; nobody could ever make room.
    queue, answers = make_queue(clock=SYSTEM, capacity=2), []
    together = threading.Barrier(2, timeout=parity.PATIENCE_S)

    def handle(_payload):
        together.wait()
        try:
            queue.enqueue("child")
        except WouldDeadlock:
            answers.append(queue.try_enqueue("child"))
        together.wait()

    queue.enqueue_many(["a", "b"])
    queue.mark_producer_finished()
    with queue.workers(handle, count=2) as pool:
        drain(pool)
    assert answers == [FULL, FULL]
    assert (queue.counts().acked, queue.counts().total) == (2, 2)


def test_T5_a_handler_with_a_time_limit_waits_so_long(make_queue, clock):
    queue, answers = make_queue(capacity=1), []

    def handle(_payload):
        start = clock.interval()
        try:
            queue.enqueue("child", timeout=5)
        except QueueFull:
            answers.append(clock.interval() - start)

    queue.enqueue("a")
    with queue.workers(handle, count=1):
        parity.until(lambda: answers, clock=clock)
    assert 5 <= answers[0] < 6


def test_T5_a_handler_is_not_stopped_where_there_is_room_or_by_a_drain(make_queue):
    queue, done = make_queue(clock=SYSTEM, capacity=4), []

    def handle(payload):
        done.append(payload)
        if payload < 50:
            queue.enqueue(payload + 1)

    queue.enqueue(0)
    queue.mark_producer_finished()
    with queue.workers(handle, count=2) as pool:
        drain(pool)
    assert done == list(range(51))


def retried(first_run_over):
    """A handler whose first run asks for another one in a minute."""

    def handle(_payload, context: Context):
        if context.attempt == 1:
            first_run_over.set()
            raise Retry(after=60)

    return handle


def test_T9_a_drain_waits_for_sleeping_retries(make_queue, clock):
    queue, failed = make_queue(), threading.Event()
    queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        start = clock.interval()
        drain = parity.in_thread(pool.drain)
        parity.until(lambda: queue.counts().scheduled == 1)
        assert not drain.done()
        parity.until(drain.done, clock=clock)
        report = drain.result(0)
    assert clock.interval() - start >= 60
    assert (report.drained, report.open, report.released) == (True, 0, 0)
    assert queue.counts().acked == 1


def test_T9_a_drain_with_a_deadline_leaves_sleeping_retries_in_the_queue(make_queue, clock):
    queue, failed = make_queue(), threading.Event()
    job_id = queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        parity.until(lambda: queue.counts().scheduled == 1)
        drain = parity.in_thread(lambda: pool.drain(timeout=10))
        parity.until(drain.done, clock=clock)
        report = drain.result(0)
    assert (report.drained, report.open) == (False, 1)
    info = queue.get(job_id)
    assert (info.state, info.payload, info.attempt) == (State.SCHEDULED, "a", 1)


def test_T9_a_shutdown_does_not_wait_for_sleeping_retries(make_queue):
    # Nobody moves the clock, so whoever waited for the retry would wait for ever.
    queue, failed = make_queue(), threading.Event()
    queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        assert failed.wait(parity.PATIENCE_S)
        parity.until(lambda: queue.counts().scheduled == 1)
        report = pool.shutdown()
    assert (report.drained, report.open, report.released) == (False, 1, 0)


def test_T9_stop_now_hands_back_what_runs_unspent(make_queue):
    queue, began, go_on = make_queue(max_attempts=1), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(parity.PATIENCE_S)

    queue.enqueue("a")
    with queue.workers(handle, count=1) as pool:
        assert began.wait(parity.PATIENCE_S)
        assert pool.shutdown(0).released == 1
        again = queue.deliver()
        assert (again.payload, again.attempt, again.redelivered) == ("a", 1, True)
        go_on.set()
        parity.until(lambda: pool.metrics().stale == 1)
    assert queue.ack(again) is Outcome.OK


class HostileError(BaseException):
    """Cannot be shown, and is not even an Exception."""

    __str__ = __repr__ = lambda *_: (_ for _ in ()).throw(RuntimeError("no"))


ERRORS = [
    ValueError,
    HostileError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    lambda: RuntimeError("\ud800" + "x" * 1_000_000),
    lambda: BaseExceptionGroup("several", [ValueError(), HostileError()]),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_T10_whatever_a_handler_raises_is_one_failed_attempt(make_queue, is_async):
    queue, runs = make_queue(clock=SYSTEM, max_attempts=2), []

    def handle(number):
        runs.append(number)
        if number < len(ERRORS):
            error = ERRORS[number]()
            raise error

    async def ahandle(number):
        handle(number)

    ids = queue.enqueue_many(list(range(len(ERRORS) + 10)))
    with queue.workers(ahandle if is_async else handle, count=2, backoff=SHORT) as pool:
        parity.until(lambda: queue.counts().open == 0)
        assert pool.size == 2
        assert_books_balance(queue)
    terminals = [queue.terminal_of(job_id) for job_id in ids]
    assert terminals == [Terminal.DEAD] * len(ERRORS) + [Terminal.ACKED] * 10
    assert sorted(runs) == sorted([*range(len(ERRORS)), *range(len(ids))])
    assert all(len(letter.history) == 2 and letter.history[0].error for letter in queue.jobs(state="dead"))


def test_T10_a_dead_worker_is_replaced(make_queue, clock):
    # The only worker is killed while it sleeps, as no handler could; the next job must still be done.
    queue, done = make_queue(), []
    queue.enqueue("a")
    with queue.workers(lambda payload: done.append((payload, threading.current_thread())), count=1) as pool:
        parity.until(lambda: queue.counts().acked == 1)
        parity.until(lambda: clock.sleepers == 2)  # the worker and the keeper of its lease
        worker = done[0][1]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(SystemExit))
        queue.enqueue("b")
        parity.until(lambda: queue.counts().acked == 2, clock=clock)
        assert not worker.is_alive()
        assert pool.size == 1
    assert [payload for payload, _ in done] == ["a", "b"]
    assert done[1][1] is not worker


def test_T11_idle_workers_leave_with_the_last_job(make_queue):
    # Seven of eight are idle while the eighth runs; nobody moves the clock, so only a call wakes them.
    queue, began, go_on = make_queue(), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(parity.PATIENCE_S)

    pool = queue.workers(handle, count=8)
    with pool:
        queue.enqueue("last")
        assert began.wait(parity.PATIENCE_S)
        queue.mark_producer_finished()
        assert pool.size == 8
        go_on.set()
        parity.until(lambda: pool.size == 0)
        assert pool.drain().drained


def test_T11_idle_workers_leave_when_the_producer_finishes_after_the_last_job(make_queue, clock):
    queue = make_queue()
    producer = queue.producer()
    with queue.workers(lambda _payload: None, count=8) as pool:
        queue.enqueue("last")
        parity.until(lambda: queue.counts().acked == 1)
        parity.until(lambda: clock.sleepers == 9)
        producer.finish()
        parity.until(lambda: pool.size == 0)


def test_T11_no_thread_is_left_behind(make_queue, clock):
    # A second job stays in the queue and nobody moves the clock, so only the shutdown can wake who sleeps.
    queue, began, go_on = make_queue(), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(parity.PATIENCE_S)

    queue.enqueue_many(["runs", "waits"])
    before = set(threading.enumerate())
    pool = queue.workers(handle, count=1)
    pool.start()
    mine = set(threading.enumerate()) - before
    assert began.wait(parity.PATIENCE_S)
    ending = parity.in_thread(pool.shutdown)
    parity.until(lambda: clock.sleepers == 2)  # the shutdown, and the keeper of the lease
    go_on.set()
    assert ending.result(parity.PATIENCE_S).open == 1
    for thread in mine:
        thread.join(1)
    assert not [thread.name for thread in mine if thread.is_alive()]


def test_C4_a_pool_is_a_client_of_the_lease_api(make_queue, clock):
    # What a worker runs is a leased job like any other; when it is taken away, the worker's ack is stale.
    queue, began, go_on = make_queue(), threading.Semaphore(0), threading.Event()

    def handle(_payload):
        began.release()
        assert go_on.wait(parity.PATIENCE_S)

    job_id = queue.enqueue("a")
    with queue.workers(handle, count=1) as pool:
        assert began.acquire(timeout=parity.PATIENCE_S)
        assert (queue.counts().leased, queue.get(job_id).state) == (1, State.LEASED)
        assert queue.terminal_of(job_id) is None
        assert queue.crash() == 1
        mine = queue.deliver()
        assert (mine.id, mine.attempt) == (job_id, 2)
        go_on.set()
        parity.until(lambda: pool.metrics().stale == 1)
        assert queue.terminal_of(job_id) is None
        assert queue.ack(mine) is Outcome.OK
    assert queue.counts().acked == 1
