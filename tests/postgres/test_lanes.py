"""Of calls that share a statement, one that waits for somebody's transaction delays none of the others."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.postgres import conninfo
from tests.support.roles import QUEUE
from tests.support.waiting import WAIT_S, eventually
from ulak import AsyncQueue, Duplicate, Outcome
from ulak.core.job import Done, Draft
from ulak.core.rules import give_back
from ulak.storage.group import Merge
from ulak.storage.postgres.asks import Scene
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.enqueue import add
from ulak.storage.postgres.lanes import Lanes, Run
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.place import place_of

psycopg = pytest.importorskip("psycopg")

WELL_UNDER_S = 0.5
"""So soon those are done whom nobody is in the way of."""


def timed(call, *args):
    """What it answers, and how long it took."""
    start = time.monotonic()
    return call(*args), time.monotonic() - start


@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "with keys of their own"])
def test_who_waits_for_a_key_delays_nobody(make, url, keyed):
    q = make()
    q.enqueue("first")
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(20) as threads:
        q.enqueue("mine", unique_key="k", connection=db)
        blocked = [threads.submit(q.enqueue, "theirs", unique_key="k") for _ in range(3)]
        time.sleep(0.02)
        others = [
            threads.submit(timed, lambda key: q.enqueue("x", unique_key=key), f"{number}" if keyed else None)
            for number in range(10)
        ]
        assert max(call.result()[1] for call in others) < WELL_UNDER_S
        assert not any(call.done() for call in blocked)
        db.commit()
        # Then they are answered: it is there.
        assert all(isinstance(call.result(), Duplicate) for call in blocked)


@pytest.mark.parametrize("call", ["ack", "turn"])
def test_who_waits_for_a_job_delays_nobody(make, url, call):
    q = make()
    q.enqueue_many(range(12))
    store = q._open().edge.store
    open_one, *leases = [q.deliver() for _ in range(12)]
    settle = {
        "ack": lambda lease, verdict: store.settle([(lease, verdict)]),
        "turn": lambda lease, verdict: store.turn([(lease, verdict)], [q.name], 1, worker="w", lease_s=60.0)[
            0
        ],
    }[call]
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(20) as threads:
        q.ack(open_one, connection=db)
        blocked = [threads.submit(settle, open_one, give_back()) for _ in range(2)]
        time.sleep(0.02)
        others = [threads.submit(timed, settle, lease, Done()) for lease in leases]
        assert max(call.result()[1] for call in others) < WELL_UNDER_S
        assert not any(call.done() for call in blocked)
        db.commit()
        assert [call.result() for call in blocked] == [[Outcome.STALE]] * 2


def test_on_an_event_loop_who_waits_delays_nobody(make, url):
    make().enqueue("first")

    async def main(db) -> None:
        async with AsyncQueue(url, QUEUE) as q:
            blocked = [asyncio.create_task(q.enqueue("theirs", unique_key="k")) for _ in range(2)]
            await asyncio.sleep(0.02)
            start = time.monotonic()
            await asyncio.gather(*(q.enqueue("x", unique_key=f"{number}") for number in range(10)))
            assert time.monotonic() - start < WELL_UNDER_S
            assert not any(call.done() for call in blocked)
            db.commit()
            await asyncio.gather(*blocked, return_exceptions=True)

    with psycopg.connect(conninfo(url)) as db:
        make().enqueue("mine", unique_key="k", connection=db)
        asyncio.run(main(db))


def test_many_who_wait_leave_connections_for_the_others(make, url):
    q = make()
    q.enqueue("first")
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(40) as threads:
        q.enqueue("mine", unique_key="k", connection=db)
        blocked = [threads.submit(q.enqueue, "theirs", unique_key="k") for _ in range(30)]
        time.sleep(1.0)
        assert timed(q.counts)[1] < WELL_UNDER_S
        assert timed(q.enqueue, "x")[1] < WELL_UNDER_S
        db.rollback()
        assert sum(call.exception() is None for call in blocked) >= 1


def test_who_waits_for_room_goes_on_together(make, url):
    q = make(capacity=1_000)
    q.enqueue("first")
    with psycopg.connect(conninfo(url)) as db, ThreadPoolExecutor(20) as threads:
        q.enqueue("mine", connection=db)
        waiting = [threads.submit(q.enqueue, number) for number in range(20)]
        time.sleep(0.5)
        db.commit()
        assert len({call.result() for call in waiting}) == 20


def test_calls_share_a_statement_up_to_so_many_bytes():
    sent: list[int] = []
    is_first, go_on = threading.Event(), threading.Event()

    def together(_, parts: list[int]) -> list[int]:
        sent.append(sum(parts))
        return parts

    def run(make, *, waits_s):
        if not is_first.is_set():
            is_first.set()
            go_on.wait(WAIT_S)
        return make(None)

    lanes = Lanes(run, lambda _: None)

    def call(size: int) -> int:
        return lanes.call(Run(lambda _: size, Merge("add", size, together, size)))

    sizes = [3 * 2**20] * 7
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(call, 1)
        assert is_first.wait(WAIT_S)
        others = [threads.submit(call, size) for size in sizes]
        eventually(lambda: len(lanes._lanes["add"].group._line) == 8)
        go_on.set()
        assert [first.result(), *(other.result() for other in others)] == [1, *sizes]
    # The last one goes alone.
    assert sent == [6 * 2**20] * 3


def test_a_large_call_is_stored_in_parts_all_or_none(make, url):
    q = make(capacity=100)
    q.enqueue("first")
    drafts = [Draft(b"x" * 2**20, "bytes", priority=number) for number in range(40)]
    session = Session(place_of(url))
    sent: list[int] = []

    def seen(step):
        reply = None
        while True:
            try:
                ask = step.send(reply)
            except StopIteration as stop:
                return stop.value
            sent.append(sum(map(len, ask.params.get("payload", ()) if isinstance(ask.params, dict) else ())))
            reply = yield ask

    try:
        work = Attempt(seen(add(Scene("store", 1, shard=0), q.name, drafts)), session.begin, is_proxied=False)
        ids = session.drive(work.work())
    finally:
        session.close()
    assert [size for size in sent if size] == [16 * 2**20, 16 * 2**20, 8 * 2**20]
    assert (ids, q.counts().ready) == (sorted(ids), 41)
    assert [job.priority for job in q.jobs(limit=100)[1:]] == list(range(40))
