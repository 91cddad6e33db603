"""The rules of the worker pool on attempts, metrics, retries and full queues."""

import threading

import pytest

from tests.support.pools import AT_ONCE, assert_books_balance, drain, flaky
from tests.support.waiting import WAIT_S, eventually
from ulak import FULL, Backoff, Context, Outcome, QueueFull, Retry, State, WouldDeadlock
from ulak.core.store import Until

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("attempts", [1, 4])
def test_T1_max_attempts_is_the_number_of_runs_of_a_handler(make, attempts):
    queue, runs = make(max_attempts=attempts), []
    queue.enqueue("a")
    queue.mark_producer_finished()
    with queue.workers(flaky(1, 0, runs), count=2, backoff=AT_ONCE) as pool:
        drain(pool)
    assert (len(runs), queue.counts().dead) == (attempts, 1)


def test_T2_each_metric_counts_what_it_says(timed, clock):
    # "slow" is taken away in its first run and succeeds in its second; "poison" dies; one more finds no room.
    queue = timed(capacity=2, max_attempts=2)
    queue.enqueue("before the pool, so not its business")
    queue.ack(queue.deliver())
    began, go_on = threading.Event(), threading.Event()

    def handle(payload):
        if payload == "poison":
            raise ValueError
        began.set()
        assert go_on.wait(WAIT_S)

    with queue.workers(handle, count=1, backoff=Backoff(base=1, cap=1)) as pool:
        queue.enqueue("slow", 1)
        queue.enqueue("poison")
        assert queue.try_enqueue("no room") is FULL
        with pytest.raises(QueueFull):
            queue.enqueue("no room", timeout=0)
        assert began.wait(WAIT_S)
        eventually(queue.crash)
        go_on.set()
        eventually(lambda: queue.counts().open == 0, clock=clock)
        metrics = pool.metrics()
    assert (metrics.enqueued, metrics.succeeded, metrics.dead_lettered) == (2, 1, 1)
    assert (metrics.processed, metrics.failed, metrics.retries) == (4, 3, 2)
    assert (metrics.reclaimed, metrics.stale, metrics.rejected) == (1, 1, 2)
    assert_books_balance(queue)


def test_T3_a_retry_sleeps_outside_of_the_worker(timed, clock):
    # There is one worker; while the failed job waits for its time, the worker does the others.
    queue, done = timed(), []

    def handle(payload, context: Context):
        if payload == "again" and context.attempt == 1:
            raise Retry(after=60)
        done.append(payload)

    queue.enqueue_many(["again", "b", "c"])
    with queue.workers(handle, count=1):
        eventually(lambda: done == ["b", "c"])
        assert queue.counts().scheduled == 1
        eventually(lambda: len(done) == 3, clock=clock)
    assert done == ["b", "c", "again"]


def test_T3_a_pool_stores_its_backoff_so_that_a_poison_job_does_not_stay_at_the_head(timed, clock):
    queue, runs = timed(max_attempts=5), []

    def handle(payload):
        runs.append(payload)
        if payload == "a":
            raise ValueError

    queue.enqueue_many(["a", "b"])
    with queue.workers(handle, count=1, backoff=Backoff(base=1, cap=4, floor=0.5)):
        eventually(lambda: queue.counts().acked == 1)
        eventually(lambda: queue.counts().dead == 1, clock=clock)
    assert runs == ["a", "b", "a", "a", "a", "a"]
    assert queue.settings().backoff == Backoff(base=1, cap=4, floor=0.5)


def test_T5_a_handler_is_refused_where_it_would_wait_for_itself(make):
    # Two workers hold the only two places, and each wants a third; nobody could ever make room.
    queue, answers = make(capacity=2), []
    together = threading.Barrier(2, timeout=WAIT_S)

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


def test_T5_a_handler_with_a_time_limit_waits_so_long(timed, clock):
    queue, answers = timed(capacity=1), []

    def handle(_payload):
        start = clock.interval()
        try:
            queue.enqueue("child", timeout=5)
        except QueueFull:
            answers.append(clock.interval() - start)

    queue.enqueue("a")
    room = queue._edge.store.line(Until.ROOM, queue.name)
    with queue.workers(handle, count=1):
        eventually(lambda: len(room))
        clock.advance(4.9)
        assert answers == []
        clock.advance(0.1)
        # The time stands still from here on; whoever had not slept yet is woken again.
        eventually(lambda: answers, clock=clock, step_s=0.0)
    assert answers == [pytest.approx(5)]


def test_T5_a_handler_is_not_stopped_where_there_is_room_or_by_a_drain(make):
    queue, done = make(capacity=4), []

    def handle(payload):
        done.append(payload)
        if payload < 50:
            queue.enqueue(payload + 1)

    queue.enqueue(0)
    queue.mark_producer_finished()
    with queue.workers(handle, count=2) as pool:
        drain(pool)
    assert done == list(range(51))


def test_C4_a_pool_is_a_client_of_the_lease_api(timed, clock):
    # What a worker runs is a leased job like any other; when it is taken away, the worker's ack is stale.
    queue, began, go_on = timed(), threading.Semaphore(0), threading.Event()

    def handle(_payload):
        began.release()
        assert go_on.wait(WAIT_S)

    job_id = queue.enqueue("a")
    with queue.workers(handle, count=1) as pool:
        assert began.acquire(timeout=WAIT_S)
        assert (queue.counts().leased, queue.get(job_id).state) == (1, State.LEASED)
        assert queue.terminal_of(job_id) is None
        eventually(queue.crash)
        mine = queue.deliver()
        assert (mine.id, mine.attempt) == (job_id, 2)
        go_on.set()
        eventually(lambda: pool.metrics().stale == 1)
        assert queue.terminal_of(job_id) is None
        assert queue.ack(mine) is Outcome.OK
    assert queue.counts().acked == 1
