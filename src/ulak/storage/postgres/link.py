"""A session on the server: how it is connected and set, and how it executes what a step asks.

A session commits each statement by itself unless BEGIN was sent. What it is set to is set by us, whatever the
server's defaults are. Behind a proxy that hands out sessions by the transaction nothing can be set for longer
than one, so there each transaction says it anew, and statements are not prepared.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors, pq, sql
from psycopg.pq.abc import PGconn
from psycopg.types import array, numeric

from ulak.clock import MACHINE
from ulak.errors import ConfigError
from ulak.storage.postgres.asks import Execute, Rows
from ulak.storage.postgres.faults import unreachable
from ulak.storage.postgres.place import Place, options_of

R = TypeVar("R")
Work = Generator[Execute, Rows, R]

LOCK_S = 3.0
"""How long a statement waits for a row or table that another transaction holds, before StorageBusy."""

BRIEF_S = 0.1
"""How long it waits at first, in a pool's sessions, where other calls may wait with it."""

ANSWER_S = 5.0
"""How long the server may take to answer what takes it no time."""

CONNECT_S = 10
PREPARED_MAX = 500

_KEEPALIVES = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
_ALWAYS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    # What is read as text is to be the number that was stored.
    "extra_float_digits": "1",
    "jit": "off",
    # Every statement walks an index in its order, few rows at a time, however little or much there is now: so
    # it is planned once for a session. To plan one takes two to four times as long as to run it.
    "plan_cache_mode": "force_generic_plan",
    "enable_indexscan": "on",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # So that the server finds out by itself that a client is gone, also amid a statement.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "12000",
}
_SINCE_14 = {"client_connection_check_interval": "1s", "idle_session_timeout": "0"}
_SINCE_17 = {"transaction_timeout": "0"}
# Servers on other systems may refuse to look whether a client is gone.
_SET = (
    "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted (name, value) "
    "WHERE name <> 'client_connection_check_interval' OR version() LIKE '%%linux%%'"
)

IDLE = pq.TransactionStatus.IDLE


def search_path(schema: str) -> str:
    """Where names of tables are looked up: never first among a session's temporary ones."""
    return f'"{schema}", pg_temp'


BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""What begins a transaction of ours."""


def begin_text(place: Place, lock_s: float, *, is_proxied: bool) -> str:
    """The same, with what is said in the transaction for it alone."""
    text = f"{BEGIN}; SET LOCAL lock_timeout TO '{lock_s * 1000:.0f}ms'"
    if not is_proxied:
        return text
    path = sql.SQL("SET LOCAL search_path TO {}, pg_temp").format(sql.Identifier(place.schema)).as_string()
    return f"{text}; {path}"


def adapt(adapters: psycopg.abc.AdaptContext) -> None:
    """Have parameters sent as is quickest.

    Every int as int8: else a statement is prepared anew for each size of each number. Lists in binary: as
    text each item is looked through for what is to be quoted, and bytes are sent twice as long.
    """
    for dumper in (numeric.Int8Dumper, numeric.Int8BinaryDumper):
        adapters.adapters.register_dumper(int, dumper)
    adapters.adapters.register_dumper(list, array.ListBinaryDumper)


_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?(.)")
_compiled: dict[str, tuple[str, tuple[str, ...]]] = {}


def compiled(ask: Execute) -> tuple[str, Sequence[Any]]:
    """The statement with its parameters by number, as the server takes it: worked out once."""
    found = _compiled.get(ask.text)
    if found is None:
        found = _compiled[ask.text] = _compile(ask.text)
    query, names = found
    params = ask.params
    if isinstance(params, Mapping):
        return query, [params[name] for name in names]
    return query, params


def _compile(text: str) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if name is None and kind == "%":
            return "%"
        assert kind == "s", f"no placeholder of ours: {match[0]!r}"
        if name is None or name not in names:
            names.append(name or "")
        return f"${len(names) if name is None else names.index(name) + 1}"

    return _PLACEHOLDER.sub(number, text), tuple(names)


class Session:
    """One connection for threads; one thread at a time uses it.

    begin: what begins a transaction. lock_s: how long a statement waits for others then, and without one.
    backend: the server's process. number: its own among a pool's. since: when its present call began; 0 at
    rest. is_owed: an answer that nobody waited for has yet to come.
    """

    def __init__(self, place: Place, lock_s: float = LOCK_S) -> None:
        self.lock_s = lock_s
        self.number = 0
        self.since = 0.0
        self.is_owed = False
        self.db = _connect(psycopg.Connection[Any].connect, place)
        try:
            adapt(self.db)
            self._cursor = psycopg.RawCursor(self.db)
            self.begin, self.is_proxied = "", False
            (found,) = self.execute(Execute(_WHO))
            self.backend, self.is_proxied = _who(self.db, found)
            self.begin = begin_text(place, lock_s, is_proxied=True) if self.is_proxied else BEGIN
            self.execute(_settings(self.db, place, lock_s, is_proxied=self.is_proxied))
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.Error):
                raise unreachable(error, str(place)) from None
            raise

    def execute(self, ask: Execute) -> Rows:
        """The rows of one statement. Raises psycopg.Error."""
        cursor = self._cursor
        query, params = compiled(ask)
        cursor.execute(query, params, binary=bool(params))
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    def drive(self, work: Work[R]) -> R:
        """Run work to its end."""
        step: Callable[[Any], Execute] = work.send
        reply: Any = None
        while True:
            try:
                ask = step(reply)
            except StopIteration as stop:
                answer: R = stop.value
                return answer
            step = work.send
            try:
                reply = self.execute(ask)
            except BaseException as error:  # noqa: BLE001 - it belongs to the work, which rolls back and lets it out
                step, reply = work.throw, error

    def send(self, ask: Execute) -> None:
        """Send a statement and wait for no answer; `hear` it before anything else is done."""
        query, params = compiled(ask)
        (names,) = params
        db = self.db.pgconn
        # Names of our own, in which nothing is to be quoted.
        db.send_query_params(query.encode(), [f"{{{','.join(names)}}}".encode()])
        self.is_owed = True
        db.flush()

    def hear(self) -> bool:
        """Take the answer to what was sent, if any; False if there is none, or the end came after it."""
        if self.is_owed:
            self.is_owed = False
            try:
                answer(self.db.pgconn)
            except psycopg.Error:
                return False
            return is_at_rest(self.db)
        return True

    def is_usable(self) -> bool:
        """Whether it is at rest, and the server has not ended it meanwhile, as far as is heard here."""
        return self.is_owed or is_at_rest(self.db)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(psycopg.Error, OSError):
            self.db.close()


class LoopSession:
    """The same for one event loop."""

    def __init__(self, db: psycopg.AsyncConnection[Any], lock_s: float) -> None:
        self.db = db
        self.lock_s = lock_s
        adapt(db)
        self._cursor = psycopg.AsyncRawCursor(db)
        self.begin, self.is_proxied, self.backend, self.number = "", False, 0, 0
        self.since = 0.0

    @classmethod
    async def connect(cls, place: Place, lock_s: float = LOCK_S) -> LoopSession:
        """A new one. Raises StorageUnavailable, ConfigError."""
        session = cls(await _aconnect(place), lock_s)
        try:
            (found,) = await session.execute(Execute(_WHO))
            session.backend, session.is_proxied = _who(session.db, found)
            session.begin = begin_text(place, lock_s, is_proxied=True) if session.is_proxied else BEGIN
            await session.execute(_settings(session.db, place, lock_s, is_proxied=session.is_proxied))
        except BaseException as error:
            session.close()
            if isinstance(error, psycopg.Error):
                raise unreachable(error, str(place)) from None
            raise
        return session

    async def execute(self, ask: Execute) -> Rows:
        """The rows of one statement. Raises psycopg.Error."""
        cursor = self._cursor
        query, params = compiled(ask)
        await cursor.execute(query, params, binary=bool(params))
        return await cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    async def drive(self, work: Work[R]) -> R:
        """Run work to its end."""
        step: Callable[[Any], Execute] = work.send
        reply: Any = None
        while True:
            try:
                ask = step(reply)
            except StopIteration as stop:
                answer: R = stop.value
                return answer
            step = work.send
            try:
                reply = await self.execute(ask)
            except BaseException as error:  # noqa: BLE001 - as above
                step, reply = work.throw, error

    def is_usable(self) -> bool:
        """As a `Session`'s."""
        return is_at_rest(self.db)

    def close(self) -> None:
        """End it, also where its loop is closed."""
        with contextlib.suppress(psycopg.Error, OSError):
            self.db.pgconn.finish()


Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_WHO = "SELECT pg_backend_pid(), current_setting('server_version_num')::int"


def _who(db: Connection, found: tuple[Any, ...]) -> tuple[int, bool]:
    """The server's process, and whether somebody stands between: then the client was told another one."""
    backend: int = found[0]
    return backend, backend != db.info.backend_pid


def _settings(db: Connection, place: Place, lock_s: float, *, is_proxied: bool) -> Execute:
    if is_proxied:
        db.prepare_threshold = None
        return Execute("SELECT 1")
    db.prepare_threshold, db.prepared_max = 1, PREPARED_MAX
    wanted = {**_ALWAYS, "lock_timeout": f"{lock_s * 1000:.0f}ms", "search_path": search_path(place.schema)}
    if db.info.server_version >= 140_000:
        wanted |= _SINCE_14
    if db.info.server_version >= 170_000:
        wanted |= _SINCE_17
    return Execute(_SET, (list(wanted), list(wanted.values())))


def is_at_rest(db: Connection) -> bool:
    """Whether no transaction is open and nothing was heard of the server: that would be its end."""
    if db.pgconn.transaction_status != IDLE:
        return False
    poll = select.poll()
    poll.register(db.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def answer(db: PGconn) -> None:
    """Wait until all that was sent is answered.

    Raises psycopg.OperationalError if nothing comes back, or an error.
    """
    until = MACHINE.interval() + ANSWER_S
    poll = select.poll()
    while True:
        while db.flush() or db.is_busy():
            poll.register(db.socket, select.POLLIN | (select.POLLOUT if db.flush() else 0))
            if not poll.poll(max(0.0, until - MACHINE.interval()) * 1000):
                raise psycopg.OperationalError("the session is silent")
            db.consume_input()
        result = db.get_result()
        if result is None:
            return
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.OperationalError("the session has failed")


def _asked(place: Place) -> dict[str, Any]:
    given = options_of(place)
    wanted = {**_KEEPALIVES, "connect_timeout": CONNECT_S, "application_name": "ulak"}
    return {
        **{name: value for name, value in wanted.items() if name not in given},
        "client_encoding": "utf8",
        "autocommit": True,
    }


def _connect(connect: Callable[..., psycopg.Connection[Any]], place: Place) -> psycopg.Connection[Any]:
    try:
        return connect(place.conninfo, **_asked(place))
    except errors.ProgrammingError:
        raise _unreadable(place) from None
    except psycopg.Error as error:
        raise unreachable(error, str(place)) from None


async def _aconnect(place: Place) -> psycopg.AsyncConnection[Any]:
    try:
        return await psycopg.AsyncConnection[Any].connect(place.conninfo, **_asked(place))
    except errors.ProgrammingError:
        raise _unreadable(place) from None
    except psycopg.Error as error:
        raise unreachable(error, str(place)) from None


def _unreadable(place: Place) -> ConfigError:
    # What the library says of it may hold a password.
    return ConfigError(
        f"the URL of {place} cannot be read, or has an option that the library does not know\n"
        f"  it is 'postgresql://user:password@host:port/database?option=value', with %XX for what is special"
    )


def sever(db: Connection) -> None:
    """In a forked child: let go of a connection that is the parent's, without a word to the server."""
    with contextlib.suppress(psycopg.Error, OSError):
        socket = db.pgconn.socket
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(null, socket, inheritable=False)
        finally:
            os.close(null)
