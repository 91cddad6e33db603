"""Steps inside a transaction of the caller's own: they are stored when it commits, and only then.

Nothing here waits for room: the caller holds the transaction, so nobody else could make any meanwhile. What
a step sets is set back, and what it leaves when it fails is nothing: it runs inside a savepoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.rows import tuple_row
from psycopg.types import array, numeric, string

from ulak.core.job import Draft, Full
from ulak.core.store import Settled, Settlement, Until
from ulak.errors import ArgumentError, StorageBusy
from ulak.storage.postgres import book, change, enqueue
from ulak.storage.postgres.asks import Execute, Rows, Scene, Step
from ulak.storage.postgres.bell import ring
from ulak.storage.postgres.faults import AGAIN, UNIQUE, explained
from ulak.storage.postgres.link import LOCK_S, compiled, search_path
from ulak.storage.postgres.place import Place

R = TypeVar("R")

RUNS_MAX = 5
"""How often a step is run in one transaction before it is left to the caller to try again."""

_KINDS = "psycopg 3's, a SQLAlchemy Session or Connection on psycopg 3, or Django's django.db.connection"
_SET = """
WITH was AS MATERIALIZED (
    SELECT current_setting('search_path') AS path, current_setting('lock_timeout') AS patience
)
SELECT path, patience, set_config('search_path', %s, true), set_config('lock_timeout', %s, true)
FROM was
"""
_BEFORE = (
    "SELECT current_setting('transaction_isolation') <> 'read committed' "
    "AND EXISTS (SELECT FROM queues WHERE name = ANY(%(queues)s::text[]) AND capacity IS NOT NULL), "
    f"{change.ARE_MANY}"
)
_SET_BACK = "SELECT set_config('search_path', %s, true), set_config('lock_timeout', %s, true)"

Named = Callable[[Mapping[tuple[Until, str], int]], list[str]]


def work(
    place: Place, uid: str, new_scene: Callable[[], Scene], make: Callable[[Scene], Step[R]], named: Named
) -> Generator[Execute, Rows, R]:
    """The statements of a step in the transaction that is open. named: the channels to ring at its commit."""
    yield Execute("SAVEPOINT ulak")
    try:
        ((path, patience, *_),) = yield Execute(_SET, (search_path(place.schema), f"{LOCK_S:g}s"))
        try:
            stored = yield Execute("SELECT uid FROM store")
        except errors.UndefinedTable:
            stored = []
        _check_same(place, is_same=stored == [(uid,)])
        answer, scene = yield from _again(make, new_scene)
        if channels := named(scene.rings):
            yield ring(channels)
        if isinstance(answer, Full):
            # Nothing of it is kept: the locks that it took would be, to the end of the caller's transaction.
            yield Execute("ROLLBACK TO SAVEPOINT ulak")
        else:
            yield Execute(_SET_BACK, (path, patience))
    except BaseException:
        with contextlib.suppress(psycopg.Error):
            yield Execute("ROLLBACK TO SAVEPOINT ulak")
            yield Execute("RELEASE SAVEPOINT ulak")
        raise
    yield Execute("RELEASE SAVEPOINT ulak")
    return answer


def _again(
    make: Callable[[Scene], Step[R]], new_scene: Callable[[], Scene]
) -> Generator[Execute, Rows, tuple[R, Scene]]:
    """Run the step; again, where another call has stored the same key just now."""
    for _ in range(RUNS_MAX):
        scene = new_scene()
        yield Execute("SAVEPOINT ulak_step")
        try:
            answer = yield from make(scene)
        except psycopg.Error as error:
            if error.sqlstate != UNIQUE:
                raise
            yield Execute("ROLLBACK TO SAVEPOINT ulak_step")
        else:
            return answer, scene
    raise StorageBusy("others store jobs under the same key all the time; nothing was changed\n  try again")


def add(
    scene: Scene, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
) -> Step[list[int] | Full]:
    """Store jobs. Raises ArgumentError where the transaction does not see who has taken room meanwhile."""
    ((is_blind, are_many),) = yield Execute(_BEFORE, {"queues": [queue]})
    if is_blind:
        raise ArgumentError(
            f"queue {queue!r} has a capacity, and connection= is in a transaction that sees nothing newer\n"
            f"  begin it as READ COMMITTED, or enqueue outside of it"
        )
    if are_many:
        yield from change.gather(scene, [queue])
    return (yield from enqueue.add(scene, queue, drafts, known_only=known_only))


def settle(scene: Scene, settlements: Sequence[Settlement]) -> Step[list[Settled]]:
    """Apply verdicts, one answer per settlement."""
    yield from change.gather(scene, (lease.work.spec.queue for lease, _ in settlements))
    return (yield from book.settle(scene, settlements))


def _check_same(place: Place, *, is_same: bool) -> None:
    if not is_same:
        raise ArgumentError(f"connection= is on another database than {place}; a commit must cover both")


def run_joined(connection: object, place: Place, work: Generator[Execute, Rows, R]) -> R:
    """Run it in the transaction of a connection for threads.

    Raises ArgumentError if it cannot be joined; StorageBusy if others are in the way.
    """
    db = _raw(connection)
    if isinstance(db, psycopg.AsyncConnection):
        raise ArgumentError(
            "connection= belongs to an event loop, and this call to a thread\n"
            "  use AsyncQueue, or a task's aenqueue"
        )
    cursor = psycopg.RawCursor(_checked(db), row_factory=tuple_row)
    _adapt(cursor)
    step: Callable[[Any], Execute] = work.send
    reply: Any = None
    with _told(place):
        while True:
            try:
                ask = step(reply)
            except StopIteration as stop:
                answer: R = stop.value
                return answer
            step = work.send
            try:
                query, params = compiled(ask)
                cursor.execute(query, params, prepare=False, binary=bool(params))
                reply = cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []
            except BaseException as error:  # noqa: BLE001 - it belongs to the work, which lets it out
                step, reply = work.throw, error


async def arun_joined(connection: object, place: Place, work: Generator[Execute, Rows, R]) -> R:
    """The same for an event loop's; a connection for threads is used as it is."""
    db = await _araw(connection)
    if not isinstance(db, psycopg.AsyncConnection):
        return run_joined(connection, place, work)
    cursor = psycopg.AsyncRawCursor(_checked(db), row_factory=tuple_row)
    _adapt(cursor)
    step: Callable[[Any], Execute] = work.send
    reply: Any = None
    with _told(place):
        while True:
            try:
                ask = step(reply)
            except StopIteration as stop:
                answer: R = stop.value
                return answer
            step = work.send
            try:
                query, params = compiled(ask)
                await cursor.execute(query, params, prepare=False, binary=bool(params))
                is_rows = cursor.pgresult is not None and cursor.pgresult.nfields
                reply = await cursor.fetchall() if is_rows else []
            except BaseException as error:  # noqa: BLE001 - as above
                step, reply = work.throw, error


@contextlib.contextmanager
def _told(place: Place) -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate in AGAIN or error.sqlstate == "55P03":
            raise StorageBusy(
                f"others are in the way of this transaction in {place}; nothing of ulak's was changed in it\n"
                f"  roll it back and try again"
            ) from None
        raise explained(error, str(place)) from None


def _adapt(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Have values come and go as ulak's do, whatever the caller has its connection do."""
    for dumper in (numeric.Int8Dumper, numeric.Int8BinaryDumper):
        cursor.adapters.register_dumper(int, dumper)
    cursor.adapters.register_dumper(list, array.ListBinaryDumper)
    cursor.adapters.register_dumper(str, string.StrBinaryDumper)
    cursor.adapters.register_dumper(str, string.StrDumper)
    for name in ("text", "varchar", "name"):
        cursor.adapters.register_loader(name, string.TextLoader)
        cursor.adapters.register_loader(name, string.TextBinaryLoader)


C = TypeVar("C", bound="psycopg.Connection[Any] | psycopg.AsyncConnection[Any]")


def _checked(db: C) -> C:
    """The connection, if the caller's commit ends the transaction that is open, or opens with the call."""
    status = db.info.transaction_status
    if db.closed:
        raise ArgumentError("connection= is closed")
    if status == pq.TransactionStatus.INERROR:
        raise ArgumentError("connection= is in a transaction that has failed: roll it back, and begin again")
    if db.info.pipeline_status != pq.PipelineStatus.OFF:
        raise ArgumentError("connection= is in a pipeline, which answers nothing yet: leave that first")
    if db.info.encoding == "ascii":
        raise ArgumentError("connection= has client_encoding SQL_ASCII, which reads no text: set it to UTF8")
    if status == pq.TransactionStatus.IDLE and db.autocommit:
        raise ArgumentError(
            "connection= must be inside a transaction, which your commit ends: with connection.transaction():"
        )
    return db


# What others make of a connection


def _raw(connection: object) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    """The library's connection inside what the caller has."""
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return connection
    found: Any = connection
    if _is_of(found, "django") or hasattr(found, "in_atomic_block"):
        if not found.in_atomic_block:
            raise ArgumentError("connection= must be inside a transaction: with transaction.atomic():")
        found.ensure_connection()
        found = found.connection
    elif _is_of(found, "sqlalchemy"):
        if hasattr(found, "sync_session") or hasattr(found, "sync_connection"):
            raise ArgumentError(
                "connection= belongs to an event loop, and this call to a thread\n"
                "  use AsyncQueue, or a task's aenqueue"
            )
        found = _of_sqlalchemy(found if not hasattr(found, "get_bind") else found.connection())
    if not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        raise ArgumentError(f"connection= is {_KINDS}; got {type(connection).__name__}")
    return found


async def _araw(connection: object) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    found: Any = connection
    if _is_of(found, "sqlalchemy") and hasattr(found, "sync_session"):
        found = await found.connection()
    if _is_of(found, "sqlalchemy") and hasattr(found, "sync_connection"):
        _check_begun(found)
        return _raw((await found.get_raw_connection()).driver_connection)
    return _raw(connection)


def _of_sqlalchemy(found: Any) -> Any:  # noqa: ANN401 - the library need not be there
    if not hasattr(found, "in_transaction"):
        return found
    _check_begun(found)
    return found.connection.driver_connection


def _check_begun(found: Any) -> None:  # noqa: ANN401 - as above
    if not found.in_transaction():
        raise ArgumentError("connection= must be inside a transaction: with connection.begin():")


def _is_of(found: object, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(found).__mro__)
