"""A claim whose answer is lost, or whose caller is: what it has leased is handed back unspent, no more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.proxy import FaultProxy
from tests.support.roles import LONG_S, QUEUE
from tests.support.strikes import CLAIMS, struck_at
from tests.support.waiting import eventually
from ulak import AsyncQueue, Outcome, Queue, StorageUnavailable, Terminal

SOON_S = 1.0
"""So soon after the server can be reached again."""

CLAIM = b"taken AS"
"""What only claims say to the server."""


@pytest.fixture
def proxy(url) -> Iterator[FaultProxy]:
    with FaultProxy(url) as proxy:
        yield proxy


def assert_handed_back(q: Queue, job_id: int) -> None:
    eventually(lambda: q.counts().ready == 1, SOON_S)
    job = q.get(job_id)
    assert (job.attempt, job.delivery) == (0, 1)
    assert [(attempt.attempt, attempt.cause) for attempt in job.history] == [(1, "release")]


def test_a_claim_whose_answer_is_lost_is_handed_back_and_its_job_has_all_attempts(proxy, make, url):
    q, direct = make(url=proxy.url(url), max_attempts=1), make()
    job_id = q.enqueue("once")
    proxy.lose_reply(CLAIM)
    with pytest.raises(StorageUnavailable, match="before it said whether"):
        q.deliver()
    assert_handed_back(direct, job_id)
    lease = q.deliver()
    assert (lease.attempt, lease.delivery, q.ack(lease)) == (1, 2, Outcome.OK)


def test_it_is_handed_back_soon_after_a_server_is_back(proxy, make, url):
    q, direct = make(url=proxy.url(url), max_attempts=1), make()
    job_id = q.enqueue("once")
    proxy.lose_reply(CLAIM)
    with pytest.raises(StorageUnavailable, match="before it said whether"):
        q.deliver()
    proxy.refuses = True
    proxy.cut()
    time.sleep(3.0)  # longer than a call tries
    assert direct.counts().leased == 1
    proxy.heal()
    assert_handed_back(direct, job_id)


def test_workers_run_jobs_whose_claims_were_lost_and_nothing_is_dead(proxy, make, url):
    q, direct = make(url=proxy.url(url), max_attempts=1), make()
    ran: list[Any] = []
    # Held by this process too, in the same queue, and not lost.
    q.enqueue("mine", max_attempts=1)
    mine = q.deliver()
    with q.workers(ran.append, count=4):
        for number in range(20):
            proxy.lose_reply(b"" if number % 2 else CLAIM)
            q_id = direct.enqueue(number, max_attempts=1)
            eventually(lambda: direct.terminal_of(q_id) is Terminal.ACKED)  # noqa: B023
    assert sorted(ran) == list(range(20))
    assert direct.counts().leased == 1
    assert q.ack(mine) is Outcome.OK


def test_an_event_loops_lost_claim_is_handed_back(proxy, make, url):
    direct = make()
    job_id = direct.enqueue("once", max_attempts=1)

    async def main() -> None:
        async with AsyncQueue(proxy.url(url), QUEUE, visibility_timeout=LONG_S) as q:
            await q.counts()
            proxy.lose_reply(CLAIM)
            with pytest.raises(StorageUnavailable, match="before it said whether"):
                await q.deliver()
            await asyncio.to_thread(assert_handed_back, direct, job_id)

    asyncio.run(main())


# Ctrl-C

SPARED = ("with self._freed:", "with self._mutex:", "try:")
"""Whoever leaves one gives its lock back, and no strike of ours could mend that; or where none can fall."""


# A session may be struck amid its being given back.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CLAIMS)
def test_an_interrupt_at_any_line_between_the_answer_and_the_return_leaves_no_lease(make, name):
    q = make()
    store = q._open().edge.store
    job_id = q.enqueue("once", max_attempts=1)
    for line_number in range(1, 1000):
        with struck_at(KeyboardInterrupt, line_number, after="leases_of", spared=SPARED):
            CLAIMS[name](store)
            break
        eventually(lambda: q.counts().leased == 0, SOON_S)
        job = q.get(job_id)
        assert (job.attempt, job.delivery) == (0, line_number)
    assert line_number > 10
    assert q.counts().leased == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_of_a_shared_claim_that_is_struck_each_other_caller_has_what_it_was_told(make):
    q = make()
    store = q._open().edge.store
    q.enqueue_many(range(400))
    held: list[int] = []
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            with contextlib.suppress(StorageUnavailable):
                _, leases = CLAIMS["turn"](store)
                held.extend(lease.id for lease in leases)

    others = [threading.Thread(target=take) for _ in range(4)]
    for other in others:
        other.start()
    for line_number in range(1, 60):
        with (
            contextlib.suppress(StorageUnavailable),
            struck_at(KeyboardInterrupt, line_number, after="leases_of", spared=SPARED),
        ):
            held.extend(lease.id for lease in CLAIMS["turn"](store)[1])
    over.set()
    for other in others:
        other.join()
    eventually(lambda: q.counts().leased == len(held), SOON_S)
    assert sorted(held) == [job.id for job in q.jobs("leased", limit=1000)]
