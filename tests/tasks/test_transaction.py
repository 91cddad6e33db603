"""`context.transaction()`: what a handler writes and the end of its job are committed, or neither."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, ArgumentError, Context, LeaseLost, State

# Of this process's own, since tests share a server's database.
TABLE = f"effects_{secrets.token_hex(8)}"
MADE = f"CREATE TABLE {TABLE} (job BIGINT)"
WRITTEN = f"INSERT INTO {TABLE} VALUES ({{}})"


@pytest.fixture
def joined(make_app: MakeApp) -> Iterator[App]:
    """An App whose store has transactions that can be joined, with a table of the user's beside it."""
    app = make_app()
    store = app.open().queue("default")._edge.store
    if not store.capabilities.transactions:
        pytest.skip("no transactions")
    change(app, MADE)
    yield app
    change(app, f"DROP TABLE {TABLE}")


def change(app: App, statement: str) -> None:
    db = app.queue("default")._edge.store.open_transaction()
    db.execute(statement)
    db.commit()
    db.close()


def effects(app: App) -> int:
    db = app.queue("default")._edge.store.open_transaction()
    try:
        return db.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0]
    finally:
        db.close()


def charging(app: App, how: str, fail_first: int = 0) -> object:
    """A task of one write, which fails after it for its first attempts."""
    if how == "def":

        @app.task(max_attempts=5)
        def charge(context: Context) -> int:
            with context.transaction() as tx:
                tx.execute(WRITTEN.format(context.id))
                if context.attempt <= fail_first:
                    raise ValueError("not yet")
            return 7

        return charge

    @app.task(name="charge", max_attempts=5)
    async def acharge(context: Context) -> int:
        async with context.transaction() as tx:
            done = tx.execute(WRITTEN.format(context.id))
            if hasattr(done, "__await__"):
                await done
            if context.attempt <= fail_first:
                raise ValueError("not yet")
        return 7

    return acharge


@pytest.mark.parametrize("how", ["def", "async def"])
def test_what_is_written_and_the_end_of_the_job_are_committed_once(joined: App, how: str) -> None:
    charge = charging(joined, how, fail_first=2)
    with joined.workers(1):
        job = charge.enqueue()
        assert job.result(WAIT_S) is None
    assert (job.status(), effects(joined)) == (State.SUCCEEDED, 1)
    assert [attempt.attempt for attempt in job.info().history if attempt.error] == [1, 2]
    assert joined.queue("default").counts().totals.processed == 3


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_lease_that_was_lost_meanwhile_writes_nothing(joined: App, how: str) -> None:
    errors: list[BaseException] = []
    queue = joined.queue("default")

    def lose(context: Context) -> None:
        if not context.redelivered:
            eventually(queue.crash)

    if how == "def":

        @joined.task
        def charge(context: Context) -> None:
            try:
                lose(context)
                with context.transaction() as tx:
                    tx.execute(WRITTEN.format(context.id))
            except LeaseLost as error:
                errors.append(error)
                raise
    else:

        @joined.task
        async def charge(context: Context) -> None:
            try:
                lose(context)
                async with context.transaction() as tx:
                    done = tx.execute(WRITTEN.format(context.id))
                    if hasattr(done, "__await__"):
                        await done
            except LeaseLost as error:
                errors.append(error)
                raise

    with joined.workers(1):
        job = charge.enqueue()
        eventually(lambda: job.status() is State.SUCCEEDED)
    assert len(errors) == 1
    assert effects(joined) == 1


def test_a_store_without_transactions_says_so(make_app: MakeApp) -> None:
    app = make_app("memory://")

    @app.task(max_attempts=1)
    def charge(context: Context) -> None:
        with context.transaction():
            pass

    with app.workers(1):
        job = charge.enqueue()
        eventually(lambda: job.status() is State.DEAD)
    (attempt,) = job.info().history
    assert attempt.error is not None
    assert attempt.error.type.endswith(ArgumentError.__name__)
