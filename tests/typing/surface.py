"""The public surface as a user writes it: checked by two type checkers, and run."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_type

from ulak import (
    FULL,
    AsyncQueue,
    Backoff,
    Changed,
    Context,
    Counts,
    Filter,
    Full,
    JobInfo,
    JobOptions,
    Keep,
    Lease,
    NewJob,
    Outcome,
    Pool,
    PoolMetrics,
    Queue,
    Report,
    Retention,
    Terminal,
)


def leases() -> None:
    q = Queue("memory://", name="mail", max_attempts=3, visibility_timeout=30.0, capacity=1000)
    job_id = q.enqueue({"to": "ada@example.org"}, priority=10)
    assert_type(job_id, int)
    q.enqueue("charge-card", 10)
    later = q.enqueue(
        b"later", delay=timedelta(hours=1), expires=7200, headers={"from": "here"}, max_attempts=2
    )
    q.enqueue(b"then", run_at=datetime(2100, 1, 1, tzinfo=UTC), unique_key="then", backoff=Backoff(cap=5))
    answer = q.try_enqueue([1, 2], idempotency_key="once")
    assert_type(answer, int | Literal[Full.FULL])
    if answer is FULL:
        raise AssertionError
    assert_type(answer, int)

    lease = q.deliver()
    assert_type(lease, Lease | None)
    assert lease is not None
    assert (lease.id, lease.payload, lease.priority) == (job_id, {"to": "ada@example.org"}, 10)
    assert_type(lease.token, tuple[int, int])
    assert_type(q.extend(lease, 30), Outcome)
    assert q.ack(lease) is Outcome.OK
    assert q.ack(lease) is Outcome.STALE
    assert q.acked_by(lease)
    assert q.terminal_of(job_id) is Terminal.ACKED
    assert_type(q.terminal_of(later), Terminal | None)

    lease = q.deliver(timeout=5)
    assert lease is not None
    q.nack(lease, delay=None, error=ValueError("no"))
    lease = q.deliver()
    assert lease is not None
    q.release(lease)
    assert q.tick_timeouts() == 0
    assert q.crash() == 0


def batches() -> None:
    q = Queue("memory://", visibility_timeout=timedelta(seconds=30))
    ids = q.enqueue_many([b"plain", NewJob({"n": 1}, priority=9, delay=0.0)])
    assert_type(ids, list[int])
    taken = q.deliver_many(100)
    assert_type(taken, list[Lease])
    assert [lease.id for lease in taken] == [ids[1], ids[0]]
    assert q.ack_many(taken) == [Outcome.OK, Outcome.OK]
    counts = q.counts()
    assert_type(counts, Counts)
    assert (counts.acked, counts.pending, counts.open, counts.total) == (2, 0, 0, 2)


def options() -> None:
    q = Queue("memory://", retention=Retention(dead=Keep(1000, 86_400)))
    common: JobOptions = {"max_attempts": 2, "delay": None, "unique_key": None}
    q.enqueue(1, **common)
    assert_type(q.try_enqueue(2, 5, **common), int | Literal[Full.FULL])
    assert q.counts().ready == 2


def operators() -> None:
    q = Queue("memory://", max_attempts=1)
    first, second, third, fourth = q.enqueue_many([1, 2, 3, 4])
    for lease in q.deliver_many(2):
        q.nack(lease, error="broken")
    dead = q.jobs(state="dead", after=0, limit=100)
    assert_type(dead, list[JobInfo])
    assert [job.id for job in dead] == [first, second]
    assert q.edit(first, "mended").done == (first,)
    assert_type(q.redrive([first]), Changed)
    assert not q.redrive(dead[:1])
    q.edit(dead[0], "mended again")
    assert q.redrive(Filter(states="dead")).done == (second,)
    q.cancel(third)
    q.reprioritise(fourth, priority=9)
    info = q.get(fourth)
    assert info is not None
    assert info.priority == 9
    assert q.delete([fourth]).done == (fourth,)
    q.configure(capacity=500)
    q.pause()
    assert q.deliver() is None
    q.resume()
    q.close()


def pools() -> None:
    done: list[object] = []

    def handler(payload: object, job: Context) -> None:
        done.append((payload, job.attempt))

    with Queue("memory://", capacity=10) as q:
        with q.workers(handler, count=2, backoff=Backoff(base=0.05, cap=2.0)) as pool:
            assert_type(pool, Pool)
            with q.producer():
                for number in range(20):
                    q.enqueue(number)
            report = pool.drain(timeout=30)
            assert_type(report, Report)
            assert report.drained
            assert_type(pool.metrics(), PoolMetrics)
        assert pool.size == 0
    assert len(done) == 20


async def loops() -> None:
    done: list[object] = []

    async def handler(payload: object) -> None:
        done.append(payload)

    async with AsyncQueue("memory://", capacity=2) as q:
        async with q.workers(handler, count=2) as pool:
            async with q.producer():
                for number in range(10):
                    assert_type(await q.enqueue(number, timeout=5), int)
            await pool.drain()
        assert_type(await q.counts(), Counts)
    assert len(done) == 10


def main() -> None:
    leases()
    batches()
    options()
    operators()
    pools()
    asyncio.run(loops())
