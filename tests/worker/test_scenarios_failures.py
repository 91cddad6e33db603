"""What hurt users of other queues, on failing attempts: killed workers, fatal exceptions, retries.

A test's name carries the id of its scenario.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.pools import AT_ONCE, KINDS, LEASE_S, Gate, is_renewed, kill, of_kind, workers_of
from tests.support.stores import is_write, nth_write, refuse
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak import Backoff, Reject, Terminal

# Killed workers


def test_F5_idle_workers_that_are_killed_are_replaced(make):
    q, ran = make(), []
    with q.workers(ran.append, count=4) as pool:
        eventually(lambda: len(workers_of(q)) == 4)
        killed = workers_of(q)
        for thread in killed:
            kill(thread)
        # It strikes when they wake up.
        q.enqueue_many(range(8))
        eventually(lambda: sorted(ran) == list(range(8)))
        eventually(lambda: not any(thread.is_alive() for thread in killed))
        eventually(lambda: len(workers_of(q)) == 4)
        assert pool.size == 4
        q.enqueue("one more")
        eventually(lambda: ran[-1] == "one more")


def test_F5_workers_that_are_killed_in_a_handler_are_back_at_work(make):
    q, overrunning, ran = make(max_attempts=1), threading.Semaphore(0), []

    def handler(payload):
        if payload == "normal":
            ran.append(payload)
            return
        overrunning.release()
        eventually(lambda: False)

    with q.workers(handler, count=4) as pool:
        ids = q.enqueue_many(["overruns"] * 8)
        for _ in range(2):
            for _ in range(4):
                assert overrunning.acquire(timeout=WAIT_S)
            for thread in workers_of(q):
                kill(thread)
            eventually(lambda: q.counts().leased == 0 or overrunning._value == 4)
        normal = q.enqueue("normal")
        eventually(lambda: q.terminal_of(normal) is Terminal.ACKED)
        eventually(lambda: len(workers_of(q)) == 4)
        assert pool.size == 4
        metrics = pool.metrics()
    assert (metrics.failed, metrics.dead_lettered, metrics.succeeded) == (8, 8, 1)
    for job_id in ids:
        (attempt,) = q.get(job_id).history
        assert (attempt.cause, attempt.error.type) == ("error", "SystemExit")


class Struck(BaseException):
    """What nobody catches by mistake."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Struck()])
def test_F5_a_worker_that_dies_outside_its_handler_is_replaced_and_its_job_fails(timed, clock, kind, error):
    q, ran = timed(visibility_timeout=3600), []
    # It strikes after the handler has returned, and before its verdict is stored.
    refuse(q, nth_write(1, error))
    with q.workers(of_kind(kind, ran.append), count=2, backoff=AT_ONCE) as pool:
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED, clock=clock)
        q.enqueue("normal")
        eventually(lambda: ran == ["payload", "payload", "normal"])
        assert pool.size == 2
        assert pool.drain(timeout=WAIT_S).drained
        metrics = pool.metrics()
    assert (metrics.failed, metrics.succeeded, metrics.reclaimed, metrics.stale) == (1, 2, 1, 0)
    job = q.get(job_id)
    assert [attempt.cause for attempt in job.history] == ["lost", "ack"]
    assert job.crashes == 1


@pytest.mark.parametrize("kind", KINDS)
def test_F5_a_job_renewed_before_its_worker_died_does_not_wait_for_its_lease(timed, clock, kind):
    q = timed()
    refuse(q, nth_write(1, Struck()))
    with Gate() as gate, q.workers(gate.handler(kind), count=1, backoff=AT_ONCE) as pool:
        job_id = q.enqueue("payload")
        gate.entered()
        let_time_pass(clock, LEASE_S / 3, sleepers=1)
        eventually(lambda: is_renewed(q, clock))
        gate.open()
        died_at = clock.interval()
        eventually(lambda: q.get(job_id).delivery == 2, clock=clock)
        # The pool looks for lost workers once a second; the lease had 30 s to go.
        assert clock.interval() - died_at < LEASE_S / 2
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        assert (pool.metrics().reclaimed, pool.metrics().stale) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_R6_a_job_that_kills_its_worker_is_spaced_by_backoff_and_ends(timed, clock, kind):
    q, started = timed(max_attempts=3, visibility_timeout=3600), []

    def decide(name, args):
        return Struck() if name == "turn" and is_write(name, args) else None

    refuse(q, decide)
    spaced = Backoff(base=5, cap=5, floor=5)
    with q.workers(of_kind(kind, lambda _: started.append(clock.interval())), count=1, backoff=spaced):
        job_id = q.enqueue("kills its worker")
        eventually(lambda: q.terminal_of(job_id) is Terminal.DEAD, clock=clock)
    assert len(started) == 3
    # The first crash is made good at once, the second one waits.
    assert started[2] - started[1] >= 5
    assert q.get(job_id).crashes == 3


FATAL = [
    SystemExit(3),
    SystemExit(),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    RecursionError("deep"),
    Struck("own"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_F7_whatever_a_handler_raises_is_a_failed_attempt(make, kind, error):
    q, ran = make(max_attempts=2), []

    def handler(payload):
        ran.append(payload)
        if payload == "fatal":
            raise error

    with q.workers(of_kind(kind, handler), count=1, backoff=AT_ONCE) as pool:
        fatal, normal = q.enqueue("fatal"), q.enqueue("normal")
        assert pool.drain(timeout=WAIT_S).drained
        metrics = pool.metrics()
    assert sorted(ran) == ["fatal", "fatal", "normal"]
    assert (metrics.failed, metrics.retries, metrics.dead_lettered, metrics.succeeded) == (2, 1, 1, 1)
    assert q.terminal_of(normal) is Terminal.ACKED
    causes = [(attempt.cause, attempt.error.text) for attempt in q.get(fatal).history]
    # A coroutine turns StopIteration into a RuntimeError.
    if not (kind == "async def" and isinstance(error, StopIteration)):
        assert causes == [("error", str(error))] * 2
        assert q.get(fatal).history[0].error.type == type(error).__name__


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"]
)
def test_F7_an_exit_in_a_handlers_own_task_does_not_end_the_loop(make, error):
    q, ran = make(max_attempts=1), []

    async def exits():
        raise error

    async def handler(payload):
        if payload == "fatal":
            await asyncio.gather(exits())
        ran.append(payload)

    with q.workers(handler, count=2) as pool:
        for number in range(3):
            fatal = q.enqueue("fatal")
            eventually(lambda fatal=fatal: q.terminal_of(fatal) is Terminal.DEAD)
            assert q.get(fatal).history[0].error.type == type(error).__name__
            q.enqueue(number)
            eventually(lambda number=number: ran == list(range(number + 1)))
        assert pool.size == 2


# Retry and backoff


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_R8_a_handler_that_always_fails_runs_exactly_max_attempts_times(make, kind, max_attempts):
    q, ran = make(max_attempts=max_attempts), []

    def handler(payload):
        ran.append(payload)
        raise ValueError(payload)

    job_id = q.enqueue("payload")
    with q.workers(of_kind(kind, handler), count=2, backoff=AT_ONCE) as pool:
        assert pool.drain(timeout=WAIT_S).drained
    assert len(ran) == max_attempts
    assert q.terminal_of(job_id) is Terminal.DEAD


@pytest.mark.parametrize("kind", KINDS)
def test_R8_a_retry_begins_when_it_is_due_though_all_workers_sleep(timed, clock, kind):
    q, ran = timed(max_attempts=2), []

    def handler(payload):
        ran.append(payload)
        if len(ran) == 1:
            raise ValueError(payload)

    policy = Backoff(base=0.2, cap=0.2, floor=0.2)
    with q.workers(of_kind(kind, handler), count=2, backoff=policy):
        asleep = 3 if kind == "def" else 1  # the workers of an event loop sleep there
        eventually(lambda: clock.sleepers == asleep)
        q.enqueue("job")
        eventually(lambda: q.counts().scheduled == 1)
        # Nobody looks by himself within that time.
        let_time_pass(clock, 0.25, sleepers=asleep)
        eventually(lambda: q.counts().acked == 1)
        assert ran == ["job", "job"]
        (failed, _) = q.jobs("succeeded")[0].history
        assert failed.error.type == "ValueError"


@pytest.mark.parametrize("kind", KINDS)
def test_R9_a_permanent_error_goes_straight_to_the_dead_letters_with_its_reason(make, kind):
    q, ran = make(max_attempts=5), []

    def handler(payload):
        ran.append(payload)
        raise Reject("no such customer")

    job_id = q.enqueue({"customer": 7})
    with q.workers(of_kind(kind, handler), count=1) as pool:
        assert pool.drain(timeout=WAIT_S).drained
        metrics = pool.metrics()
    assert len(ran) == 1
    (dead,) = q.jobs("dead")
    assert (dead.id, dead.payload, dead.attempt) == (job_id, {"customer": 7}, 1)
    assert (dead.history[0].cause, dead.history[0].error.text) == ("reject", "no such customer")
    assert (metrics.failed, metrics.dead_lettered, metrics.retries) == (1, 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_R11_a_full_queue_of_failing_jobs_ends_and_frees_its_producer(make, kind):
    q = make(capacity=1, max_attempts=3)

    def handler(payload):
        raise ValueError(payload)

    with q.workers(of_kind(kind, handler), count=1, backoff=Backoff(base=0.001, cap=0.004)) as pool:
        with q.producer():
            ids = [q.enqueue(number, timeout=WAIT_S) for number in range(20)]
        assert pool.drain(timeout=WAIT_S).drained
        metrics = pool.metrics()
    assert {q.terminal_of(job_id) for job_id in ids} == {Terminal.DEAD}
    assert (metrics.enqueued, metrics.processed, metrics.dead_lettered) == (20, 60, 20)
