"""Pools in odd company: handlers that end them, loops that die, logs that raise, jobs left behind."""

import asyncio
import logging
from typing import Any

import pytest

from tests.support.pools import causes
from tests.support.waiting import eventually
from ulak import AsyncQueue, Backoff, Closed, Context, Queue, Terminal, WouldDeadlock

AT_ONCE = Backoff(base=0.001, cap=0.001)


@pytest.mark.parametrize("end", ["drain", "shutdown"])
def test_a_handler_cannot_end_its_own_pool_and_is_told_so(make, end):
    q = make(max_attempts=1)
    pools: list[Any] = []

    def handler(_: object) -> None:
        getattr(pools[0], end)()

    with q.workers(handler, count=1) as pool:
        pools.append(pool)
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.DEAD)
    job = q.get(job_id)
    assert job is not None
    assert job.error is not None
    assert job.error.type == WouldDeadlock.__name__


def test_a_handler_that_cancels_its_own_task_spends_its_attempts_and_dies(make):
    q = make(max_attempts=2)

    async def handler(_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with q.workers(handler, count=1, backoff=AT_ONCE):
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.DEAD)
    assert causes(q.get(job_id)) == ["error", "error"]


def test_a_task_that_a_handler_left_behind_is_in_no_handler_any_more(queue_url):
    outcomes: list[type[BaseException]] = []

    async def main() -> None:
        async with AsyncQueue(queue_url) as q:
            release, left = asyncio.Event(), []

            async def behind() -> None:
                await release.wait()
                try:
                    await q.enqueue("too late")
                except Closed as error:
                    outcomes.append(type(error))

            async def handler(_: object) -> None:
                left.append(asyncio.create_task(behind()))

            async with q.workers(handler, count=1) as pool:
                async with q.producer():
                    await q.enqueue("payload")
                await pool.drain()
            release.set()
            await asyncio.gather(*left)

    asyncio.run(main())
    assert outcomes == [Closed]


def test_a_log_filter_that_raises_orphans_no_job(make):
    def raises(record: logging.LogRecord) -> bool:
        if hasattr(record, "job_id"):
            raise RuntimeError
        return True

    q, ran = make(), []
    log = logging.getLogger("ulak")
    log.addFilter(raises)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        with q.workers(ran.append, count=1) as pool:
            with q.producer():
                q.enqueue_many(range(20))
            assert pool.drain(timeout=20).drained
    finally:
        log.removeFilter(raises)
        log.setLevel(level)
    assert ran == list(range(20))


def test_leaving_with_open_jobs_is_a_warning(make, caplog):
    q = make()
    with q.workers(print, count=1):
        q.enqueue("left", delay=3600)
    assert "1 job is left open" in caplog.text


def test_a_report_says_how_many_dead_jobs_there_are(make):
    q = make(max_attempts=1)
    with q.workers(lambda number: 1 / number, count=1) as pool:
        with q.producer():
            q.enqueue(0)
        assert pool.drain(timeout=20).dead == 1


@pytest.mark.parametrize("waits_for", ["room", "a job"])
def test_a_waiter_whose_loop_was_closed_stands_in_nobodys_way(queue_url, waits_for):
    q, aq = Queue(queue_url, capacity=1), AsyncQueue(queue_url)
    loop = asyncio.new_event_loop()
    if waits_for == "room":
        q.enqueue("first")
    waiting = loop.create_task(aq.enqueue("never") if waits_for == "room" else aq.deliver(None))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    if waits_for == "room":
        q.ack(q.deliver())
        assert q.enqueue("second", timeout=5) > 0
    else:
        ran: list[object] = []
        with q.workers(ran.append, count=1):
            eventually(lambda: len(q._edge.store.line("ready", q.name)) >= 1)
            q.enqueue("job")
            eventually(lambda: ran == ["job"])
    waiting._log_destroy_pending = False
    waiting.get_coro().close()


def test_headers_of_a_lease_or_a_record_cannot_change_what_is_stored(make):
    q = make()
    job_id = q.enqueue("payload", headers={"from": "here"})
    for headers in (q.get(job_id).headers, q.deliver().headers):
        with pytest.raises(TypeError):
            headers["evil"] = "x"
    assert q.get(job_id).headers == {"from": "here"}


def test_the_payload_comes_before_the_context(make):
    def handler(job: Context, payload: object) -> None:
        """Takes them the wrong way round."""

    with pytest.raises(ValueError, match="the payload comes first"):
        make().workers(handler)


def test_a_running_pool_keeps_its_store_when_the_last_queue_on_it_is_closed():
    ran: list[object] = []
    q = Queue("memory://kept-by-its-pool")
    pool = q.workers(ran.append, count=1)
    pool.start()
    q.close()
    again = Queue("memory://kept-by-its-pool")
    again.enqueue("payload")
    eventually(lambda: ran == ["payload"])
    again.close()
    pool.shutdown()
    assert Queue("memory://kept-by-its-pool").counts().total == 0
