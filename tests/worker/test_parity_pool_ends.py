"""The rules of the worker pool on its end, and on workers that die."""

import ctypes
import threading

import pytest

from tests.support.pools import AT_ONCE, assert_books_balance
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import Context, Outcome, Retry, State, Terminal

pytestmark = pytest.mark.timeout(30)


def retried(first_run_over):
    """A handler whose first run asks for another one in a minute."""

    def handle(_payload, context: Context):
        if context.attempt == 1:
            first_run_over.set()
            raise Retry(after=60)

    return handle


def test_T9_a_drain_waits_for_sleeping_retries(timed, clock):
    queue, failed = timed(), threading.Event()
    queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        start = clock.interval()
        drain = Running(pool.drain)
        eventually(lambda: queue.counts().scheduled == 1)
        assert not drain.is_over
        eventually(lambda: drain.is_over, clock=clock)
        report = drain.result()
    assert clock.interval() - start >= 60
    assert (report.drained, report.open, report.released) == (True, 0, 0)
    assert queue.counts().acked == 1


def test_T9_a_drain_with_a_deadline_leaves_sleeping_retries_in_the_queue(timed, clock):
    queue, failed = timed(), threading.Event()
    job_id = queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        eventually(lambda: queue.counts().scheduled == 1)
        drain = Running(lambda: pool.drain(timeout=10))
        eventually(lambda: drain.is_over, clock=clock)
        report = drain.result()
    assert (report.drained, report.open) == (False, 1)
    info = queue.get(job_id)
    assert (info.state, info.payload, info.attempt) == (State.SCHEDULED, "a", 1)


def test_T9_a_shutdown_does_not_wait_for_sleeping_retries(timed):
    # Nobody moves the clock, so whoever waited for the retry would wait for ever.
    queue, failed = timed(), threading.Event()
    queue.enqueue("a")
    with queue.workers(retried(failed), count=2) as pool:
        assert failed.wait(WAIT_S)
        eventually(lambda: queue.counts().scheduled == 1)
        report = pool.shutdown()
    assert (report.drained, report.open, report.released) == (False, 1, 0)


def test_T9_stop_now_hands_back_what_runs_unspent(timed):
    queue, began, go_on = timed(max_attempts=1), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(WAIT_S)

    queue.enqueue("a")
    with queue.workers(handle, count=1) as pool:
        assert began.wait(WAIT_S)
        assert pool.shutdown(0).released == 1
        again = queue.deliver()
        assert (again.payload, again.attempt, again.redelivered) == ("a", 1, True)
        go_on.set()
        eventually(lambda: pool.metrics().stale == 1)
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
def test_T10_whatever_a_handler_raises_is_one_failed_attempt(make, is_async):
    queue, runs = make(max_attempts=2), []

    def handle(number):
        runs.append(number)
        if number < len(ERRORS):
            error = ERRORS[number]()
            raise error

    async def ahandle(number):
        handle(number)

    ids = queue.enqueue_many(list(range(len(ERRORS) + 10)))
    with queue.workers(ahandle if is_async else handle, count=2, backoff=AT_ONCE) as pool:
        eventually(lambda: queue.counts().open == 0)
        assert pool.size == 2
        assert_books_balance(queue)
    terminals = [queue.terminal_of(job_id) for job_id in ids]
    assert terminals == [Terminal.DEAD] * len(ERRORS) + [Terminal.ACKED] * 10
    assert sorted(runs) == sorted([*range(len(ERRORS)), *range(len(ids))])
    assert all(len(letter.history) == 2 and letter.history[0].error for letter in queue.jobs(state="dead"))


def test_T10_a_dead_worker_is_replaced(timed, clock):
    # The only worker is killed while it sleeps, as no handler could; the next job must still be done.
    queue, done = timed(), []
    queue.enqueue("a")
    with queue.workers(lambda payload: done.append((payload, threading.current_thread())), count=1) as pool:
        eventually(lambda: queue.counts().acked == 1)
        eventually(lambda: clock.sleepers == 2)  # the worker and the keeper of its lease
        worker = done[0][1]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(SystemExit))
        queue.enqueue("b")
        eventually(lambda: queue.counts().acked == 2, clock=clock)
        assert not worker.is_alive()
        assert pool.size == 1
    assert [payload for payload, _ in done] == ["a", "b"]
    assert done[1][1] is not worker


def test_T11_idle_workers_leave_with_the_last_job(timed):
    # Seven of eight are idle while the eighth runs; nobody moves the clock, so only a call wakes them.
    queue, began, go_on = timed(), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(WAIT_S)

    pool = queue.workers(handle, count=8)
    with pool:
        queue.enqueue("last")
        assert began.wait(WAIT_S)
        queue.mark_producer_finished()
        assert pool.size == 8
        go_on.set()
        eventually(lambda: pool.size == 0)
        assert pool.drain().drained


def test_T11_idle_workers_leave_when_the_producer_finishes_after_the_last_job(timed, clock):
    queue = timed()
    producer = queue.producer()
    with queue.workers(lambda _payload: None, count=8) as pool:
        queue.enqueue("last")
        eventually(lambda: queue.counts().acked == 1)
        eventually(lambda: clock.sleepers == 9)
        producer.finish()
        eventually(lambda: pool.size == 0)


def test_T11_no_thread_is_left_behind(timed, clock):
    # A second job stays in the queue and nobody moves the clock, so only the shutdown can wake who sleeps.
    queue, began, go_on = timed(), threading.Event(), threading.Event()

    def handle(_payload):
        began.set()
        assert go_on.wait(WAIT_S)

    queue.enqueue_many(["runs", "waits"])
    before = set(threading.enumerate())
    pool = queue.workers(handle, count=1)
    pool.start()
    mine = set(threading.enumerate()) - before
    assert began.wait(WAIT_S)
    ending = Running(pool.shutdown)
    eventually(lambda: clock.sleepers == 2)  # the shutdown, and the keeper of the lease
    go_on.set()
    assert ending.result().open == 1
    queue.close()
    for thread in mine:
        thread.join(1)
    assert not [thread.name for thread in mine if thread.is_alive()]
