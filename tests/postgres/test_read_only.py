"""After a failover sessions may be left on a server that takes no writes: calls move to one that does."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.support.waiting import eventually
from ulak import AsyncQueue, Outcome
from ulak.storage.postgres.attempt import Tries
from ulak.storage.postgres.pool import SESSIONS_MAX

READ_ONLY = "SET default_transaction_read_only TO on"
"""What makes a session's server, for our statements, one that takes no writes."""


@pytest.fixture
def refused(monkeypatch) -> list[psycopg.Error]:
    """What tries have ended with, from here on."""
    errors, after = [], Tries.after

    def noted(self, error, **known):
        errors.append(error)
        return after(self, error, **known)

    monkeypatch.setattr(Tries, "after", noted)
    return errors


def test_a_session_whose_server_takes_no_writes_is_used_no_more(make, refused):
    q = make()
    q.enqueue("before")
    pool = q._open().edge.store._pool
    # All that it may have, so that nobody else, as who tells others, has one meanwhile.
    stale = [pool.take() for _ in range(SESSIONS_MAX)]
    for session in stale:
        session.db.execute(READ_ONLY)
    for session in stale:
        pool.put(session)
    assert q.get(q.enqueue("after")).payload == "after"
    assert q.ack(q.deliver()) is Outcome.OK
    assert all(session.db.closed for session in stale)
    # Whoever meets the first one closes all that are idle, where the next try might meet one more.
    assert len(refused) <= 1


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
