"""After a failover sessions may be left on a server that takes no writes: calls move to one that does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tests.support.waiting import eventually
from ulak import AsyncQueue, Outcome

READ_ONLY = "SET default_transaction_read_only TO on"
"""What makes a session's server, for our statements, one that takes no writes."""


def test_a_session_whose_server_takes_no_writes_is_used_no_more(make):
    q = make()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(q.enqueue, range(100)))
        pool = q._open().edge.store._pool
        # Nobody else, as who tells others, has them meanwhile.
        stale = [pool.take() for _ in range(len(pool._idle))]
        for session in stale:
            session.db.execute(READ_ONLY)
            pool.put(session)
        # Until one of these calls has got one of them.
        eventually(lambda: list(threads.map(q.enqueue, range(8))) and any(each.db.closed for each in stale))
    assert q.ack(q.deliver()) is Outcome.OK
    assert not set(stale) & {session for session, _ in pool._idle}
    assert all(session.db.closed for session in stale)


def test_the_same_on_an_event_loop(url):
    async def main() -> None:
        async with AsyncQueue(url, "mail") as q:
            await q.enqueue("before")
            store = q._open().edge.store
            (pool,) = store._loops.values()
            # It tells others first.
            await asyncio.to_thread(eventually, lambda: pool._idle)
            for session, _ in pool._idle:
                await session.db.execute(READ_ONLY)
            assert await q.enqueue("after") == 2

    asyncio.run(main())
