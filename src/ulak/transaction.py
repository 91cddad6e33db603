"""A handler's own transaction on its store's database, in which its job is finished too."""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any, Protocol


class Acks(Protocol):
    """What finishes the job: a Context."""

    def ack(self, *, connection: object) -> None:
        """In the transaction of this connection."""

    async def aack(self, *, connection: object) -> None:
        """In that of one of an event loop."""


class Transaction:
    """`with context.transaction() as tx:`, or `async with`; tx is the database library's own connection.

    At the end of the block the job is finished in it, and it is committed. An exception rolls it back, and is
    a failed attempt as any other. store: one whose `capabilities.transactions` is true.
    """

    def __init__(self, context: Acks, store: Any) -> None:  # noqa: ANN401 - beside the protocol
        self._context = context
        self._store = store
        self._db: Any = None

    def __enter__(self) -> Any:  # noqa: ANN401 - as the library has it
        self._db = self._store.open_transaction()
        return self._db

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._context.ack(connection=self._db)
                self._store.commit_transaction(self._db)
        finally:
            # What was not committed is rolled back by this.
            self._db.close()

    async def __aenter__(self) -> Any:  # noqa: ANN401 - as above
        self._db = await self._store.aopen_transaction()
        return self._db

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._context.aack(connection=self._db)
                await self._store.acommit_transaction(self._db)
        finally:
            closing = self._db.close()
            if inspect.isawaitable(closing):
                await closing
