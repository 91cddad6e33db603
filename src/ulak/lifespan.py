"""Workers that start and end with a server, on its event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from ulak.worker.pool import AsyncPool


@contextlib.asynccontextmanager
async def working(
    store: AbstractAsyncContextManager[object], make_pool: Callable[[], AsyncPool]
) -> AsyncIterator[None]:
    """While inside, the store is open and the pool works; then it is shut down within its grace.

    It is never drained, whatever its producers have said: a server that is stopped is to end. Who is
    cancelled while it shuts down hands back at once what runs.
    """
    async with store:
        pool = make_pool()
        await pool.start()
        try:
            yield
        finally:
            try:
                await pool.shutdown()
            except BaseException:
                await pool.shutdown(0)
                raise
