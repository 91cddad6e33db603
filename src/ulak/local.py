"""What one process knows of a store and never stores: its producers, its refused calls, its open handles."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ulak.clock import MACHINE, SYSTEM, Clock
from ulak.core.store import Store, Until
from ulak.errors import ArgumentError, Closed, ConfigError, MissingExtra
from ulak.metrics import Histogram
from ulak.names import QUEUE_NAME
from ulak.storage.drive import Edge
from ulak.storage.memory import MemoryStore

if TYPE_CHECKING:
    from ulak.storage.postgres.place import Place

_log = logging.getLogger("ulak")


class LocalQueue:
    """One queue as this process sees it. A handle may close, the process's own view never does.

    finished: every producer that registered has finished; False if none ever registered.
    """

    closed = False

    def __init__(self, store: Store, name: str) -> None:
        self.rejected = 0
        self.stale = 0
        # How long enqueues waited for room; None until one did.
        self.blocked: Histogram | None = None
        self.name = name
        self._store = store
        self._lock = threading.Lock()
        self._active = 0
        self._registered = False
        self.finished = False

    def forget_parent(self) -> None:
        """In a forked child: no producer has registered here."""
        self._lock = threading.Lock()
        self._active = 0
        self._registered = self.finished = False

    @property
    def awaited(self) -> bool:
        """Whether a registered producer has not finished yet."""
        return self._active > 0

    def register(self) -> None:
        """One more producer; reopens a finished queue."""
        with self._lock:
            self._active += 1
            self._registered = True
            self.finished = False

    def finish(self, *, registered: bool) -> None:
        """A producer has finished; one that never registered counts as registered now."""
        with self._lock:
            self._active -= registered
            self._registered = True
            self.finished = self._active == 0
            unfinished = 0 if registered else self._active
        if unfinished:
            _log.warning(
                "queue %s: mark_producer_finished() is for a producer that never registered; %d registered "
                "with q.producer() have not finished, so the queue stays open: call producer.finish()",
                self.name,
                unfinished,
            )
        self.wake_all()

    def wake_all(self) -> None:
        """Make every waiter of this process look again."""
        for until in Until:
            self._store.line(until, self.name).wake_all()

    def count_rejected(self) -> None:
        """An enqueue found no room."""
        with self._lock:
            self.rejected += 1

    def count_stale(self, stale: int) -> None:
        """So many settlements were refused as stale."""
        if stale:
            with self._lock:
                self.stale += stale

    def count_blocked(self, blocked_s: float) -> None:
        """An enqueue has waited so long for room."""
        with self._lock:
            self.blocked = self.blocked or Histogram()
            self.blocked.record(blocked_s)


class View:
    """One queue as one handle of this process sees it: the flows' `Local`."""

    def __init__(self, local: LocalQueue) -> None:
        self.closed = False
        self.local = local
        self.count_rejected = local.count_rejected
        self.count_stale = local.count_stale
        self.count_blocked = local.count_blocked

    @property
    def finished(self) -> bool:
        """Whether every producer that registered has finished."""
        return self.local.finished

    def close(self) -> None:
        """The handle is closed: whoever waits through it looks again, and hears of it."""
        self.closed = True
        self.local.wake_all()


class Producer:
    """One registered producer of a queue. Finish it once its last enqueue has returned, best by `with`."""

    def __init__(self, local: LocalQueue) -> None:
        self._local = local
        self._lock = threading.Lock()
        self._finished = False
        local.register()

    def finish(self) -> None:
        """Say that nothing more comes from here. Doing it again changes nothing."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._local.finish(registered=True)

    def __repr__(self) -> str:
        return f"Producer(queue={self._local.name!r}, finished={self._finished})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()


class Forgetful(Protocol):
    """What a forked child has to begin anew."""

    def forget_parent(self) -> None:
        """In a forked child: what threads of the parent were about to do is not going on here."""


class LocalStore:
    """One store as this process sees it, shared by all handles on the same URL."""

    def __init__(self, key: str, edge: Edge) -> None:
        self.edge = edge
        self._key = key
        self._queues: dict[str, LocalQueue] = {}
        self._handles = 0
        watch_forks(self)

    def forget_parent(self) -> None:
        """In a forked child: no producer has registered here."""
        for queue in self._queues.values():
            queue.forget_parent()

    def queue(self, name: str) -> LocalQueue:
        """This process's view of one queue."""
        with _registry_lock:
            if name not in self._queues:
                self._queues[name] = LocalQueue(self.edge.store, name)
            return self._queues[name]

    def open_handle(self) -> None:
        """One handle more; the first one opens the store."""
        with _registry_lock:
            if self._handles == 0:
                self.edge.store.open()
            self._handles += 1

    def join(self) -> None:
        """One handle more on what others have open. Raises Closed if nobody has it open any more."""
        with _registry_lock:
            if self._handles == 0:
                raise Closed(
                    "the store of this pool was closed before the pool was started\n"
                    "  start a pool while the App or Queue that made it is open, or have it make another"
                )
            self._handles += 1

    @property
    def last_id(self) -> int:
        """The last id given to a job, where ids begin anew once the store is closed; else 0."""
        store = self.edge.store
        return store.jobs.last_id if isinstance(store, MemoryStore) else 0

    def number_after(self, last_id: int) -> None:
        """Give this id to no job, nor one before it, where ids begin anew once the store is closed."""
        if isinstance(self.edge.store, MemoryStore):
            self.edge.store.number_after(last_id)

    def close_handle(self) -> None:
        """One handle less; with the last one the store closes and is forgotten here."""
        with _registry_lock:
            self._handles -= 1
            if self._handles == 0:
                if _registry.get(self._key) is self:
                    del _registry[self._key]
                self.edge.store.close()


_registry_lock = threading.RLock()
_registry: dict[str, LocalStore] = {}
_all: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def watch_forks(one: Forgetful) -> None:
    """Have it forget its parent in each child that is forked."""
    _all.add(one)


def _forget_parent() -> None:
    """In a forked child: producers are facts of one process, and its threads' locks may be held for ever."""
    global _registry_lock  # noqa: PLW0603 - there is one registry
    _registry_lock = threading.RLock()
    for one in list(_all):
        one.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)


def local_store(url: str, clock: Clock, *, owner: str = "") -> LocalStore:
    """This process's view of the store of this URL, with one more handle open on it.

    `memory://` is private: a store of its own each time, or as long as anything of this owner has it open.
    Any other URL is shared inside the process. Raises ArgumentError if the store is open with another clock.
    """
    with _registry_lock:
        clock = clock_for(url, clock)
        # No name that anybody can give has this sign.
        key = f"{url}#{owner}" if owner and url == PRIVATE_URL else _key_of(url)
        local = _registry.get(key) or LocalStore(key, Edge(_make_store(url, clock), clock))
        if local.edge.clock is not clock:
            raise ArgumentError(
                f"{masked(url)} is open in this process with another clock; pass that one as clock=, "
                "or take another URL"
            )
        local.open_handle()
        if key != PRIVATE_URL:
            _registry[key] = local
        return local


def joined_store(url: str) -> LocalStore | None:
    """As `local_store`, with whatever clock it has, if anybody in this process has it open; else None."""
    with _registry_lock:
        local = _registry.get(_key_of(url))
        if local is not None:
            local.open_handle()
        return local


PRIVATE_URL = "memory://"
_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")
_ON_SERVER = ("postgresql:", "postgres:")


def _key_of(url: str) -> str:
    """What two URLs of one store have in common: for a file, where it lies."""
    if is_on_server(url):
        # Both words are the library's.
        return f"postgresql:{url.partition(':')[2]}"
    if not url.startswith("sqlite:"):
        return url
    path, options = file_of(url)
    return f"sqlite:{sorted(options.items())}:{os.path.realpath(path)}"


def clock_for(url: str, clock: Clock) -> Clock:
    """Leases in a file are on a clock that all processes of the machine share."""
    return MACHINE if clock is SYSTEM and url.startswith("sqlite:") else clock


def is_on_server(url: str) -> bool:
    """Whether the URL is one of a PostgreSQL store."""
    return url.startswith(_ON_SERVER)


def _make_store(url: str, clock: Clock) -> Store:
    if is_on_server(url):
        return _make_on_server(url, clock)
    if not url.startswith("sqlite:"):
        return MemoryStore(clock)
    # Only whoever asks for it pays for its import.
    from ulak.storage.sqlite.link import Options
    from ulak.storage.sqlite.store import SqliteStore

    path, options = file_of(url)
    return SqliteStore(path, clock, Options(**options))


def check_library() -> None:
    """Raises MissingExtra where the library for stores on servers is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra(
            f"a postgresql:// store needs psycopg, which cannot be imported: {error}\n"
            "  pip install 'ulak[postgres]'"
        ) from None
    del psycopg


def _make_on_server(url: str, clock: Clock) -> Store:
    check_library()
    from ulak.storage.postgres.store import PostgresStore

    return PostgresStore(server_of(url), clock)


def server_of(url: str) -> Place:
    """The servers, the database and the schema that a URL of a PostgreSQL store names. Raises ConfigError."""
    from ulak.storage.postgres.place import place_of

    return place_of(url)


def file_of(url: str) -> tuple[str, dict[str, str]]:
    """The path and the options in `sqlite:///path?durability=...&journal=...`. Raises ConfigError.

    >>> file_of("sqlite:///jobs.db?journal=truncate")
    ('jobs.db', {'journal': 'truncate'})
    """
    from urllib.parse import parse_qsl, unquote

    place, _, query = url.partition("?")
    host, slash, path = place.removeprefix("sqlite://").partition("/")
    path = unquote(path)
    if path.startswith(":"):
        raise ConfigError(f"there is no sqlite store named {path[:20]!r}; in memory it is 'memory://'")
    if host or not slash or not path or "\0" in path or "#" in path:
        raise ConfigError(
            "a SQLite store's URL is 'sqlite:///jobs.db', relative to the current directory, or "
            "'sqlite:////var/lib/app/jobs.db'"
        )
    given = parse_qsl(query, keep_blank_values=True)
    options = dict(given)
    if len(options) < len(given):
        raise ConfigError("an option of sqlite:// is given twice")
    for name, value in options.items():
        allowed = _FILE_OPTIONS.get(name)
        if allowed is None:
            raise ConfigError(f"sqlite:// has no option {name!r}; there are {', '.join(_FILE_OPTIONS)}")
        if value not in allowed:
            raise ConfigError(f"{name}= is one of {', '.join(allowed)}")
    return path, options


_FILE_OPTIONS = {"durability": ("full", "relaxed"), "journal": ("wal", "truncate")}


def check_url(url: object) -> str:
    """The URL, if it names a store that exists here. Raises ConfigError, without the URL's secrets."""
    if not isinstance(url, str):
        raise ConfigError(f"a store's URL is a str such as 'memory://', got {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(
            "a store's URL starts with a scheme: 'memory://', 'memory://name', 'sqlite:///jobs.db', "
            "'postgresql://user@host/database'"
        )
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"no store for {scheme + '://'!r}; this version has 'memory://', 'memory://name', "
            f"'sqlite:///jobs.db' and 'postgresql://user@host/database'"
        )
    if scheme == "sqlite":
        file_of(url)
        return url
    if is_on_server(url):
        server_of(url)
        return url
    if rest and not QUEUE_NAME.fullmatch(rest):
        raise ConfigError(f"the name in 'memory://name' must match {QUEUE_NAME.pattern}")
    return url


def masked(url: str) -> str:
    """The URL as it may be shown: without a user's name and password.

    >>> masked("postgresql://ada:secret@host/app?sslmode=require")
    'postgresql://***@host/app'
    """
    if is_on_server(url):
        try:
            return str(server_of(url))
        except ConfigError:
            # Where the secret ends is not to be told.
            return f"{url.partition('://')[0]}://***"
    scheme, separator, rest = url.partition("://")
    # Up to the last "@", since a password may hold one.
    _, at, place = rest.rpartition("@")
    return f"{scheme}{separator}***@{place}" if at else url


def place_of(url: str) -> str:
    """Where a store is, as one looks for it: the absolute path of a file, with its options; else `masked`.

    >>> place_of("sqlite:////var/lib/app/jobs.db?durability=relaxed")
    '/var/lib/app/jobs.db (durability=relaxed)'
    """
    if not url.startswith("sqlite:"):
        return masked(url)
    path, options = file_of(url)
    told = ", ".join(f"{name}={value}" for name, value in options.items())
    # As above.
    from pathlib import Path

    return f"{Path(path).absolute()}{f' ({told})' if told else ''}"
