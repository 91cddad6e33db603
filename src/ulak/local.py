"""What one process knows of a store and never stores: its producers, its refused calls, its open handles."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from ulak.clock import Clock
from ulak.core.store import Store, Until
from ulak.errors import ArgumentError, ConfigError
from ulak.names import QUEUE_NAME
from ulak.storage.drive import Edge
from ulak.storage.memory import MemoryStore

_log = logging.getLogger("ulak")


class LocalQueue:
    """One queue as this process sees it. A handle may close, the process's own view never does.

    finished: every producer that registered has finished; False if none ever registered.
    """

    closed = False

    def __init__(self, store: Store, name: str) -> None:
        self.rejected = 0
        self.stale = 0
        self.name = name
        self._store = store
        self._lock = threading.Lock()
        self._active = 0
        self._registered = False
        self.finished = False

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


class View:
    """One queue as one handle of this process sees it: the flows' `Local`."""

    def __init__(self, local: LocalQueue) -> None:
        self.closed = False
        self.local = local
        self.count_rejected = local.count_rejected
        self.count_stale = local.count_stale

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


class LocalStore:
    """One store as this process sees it, shared by all handles on the same URL."""

    def __init__(self, url: str, edge: Edge) -> None:
        self.edge = edge
        self._url = url
        self._queues: dict[str, LocalQueue] = {}
        self._handles = 0

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

    def close_handle(self) -> None:
        """One handle less; with the last one the store closes and is forgotten here."""
        with _registry_lock:
            self._handles -= 1
            if self._handles == 0:
                if _registry.get(self._url) is self:
                    del _registry[self._url]
                self.edge.store.close()


_registry_lock = threading.RLock()
_registry: dict[str, LocalStore] = {}


def local_store(url: str, clock: Clock) -> LocalStore:
    """This process's view of the store of this URL, with one more handle open on it.

    `memory://` is private: a store of its own each time. Any other URL is shared inside the process.
    Raises ArgumentError if the store is open with another clock.
    """
    with _registry_lock:
        local = _registry.get(url) or LocalStore(url, Edge(MemoryStore(clock), clock))
        if local.edge.clock is not clock:
            raise ArgumentError(
                f"{masked(url)} is open in this process with another clock; pass that one as clock=, "
                "or take another URL"
            )
        local.open_handle()
        if url != PRIVATE_URL:
            _registry[url] = local
        return local


PRIVATE_URL = "memory://"


def check_url(url: object) -> str:
    """The URL, if it names a store that exists here. Raises ConfigError, without the URL's secrets."""
    if not isinstance(url, str):
        raise ConfigError(f"a store's URL is a str such as 'memory://', got {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError("a store's URL starts with a scheme: 'memory://' or 'memory://name'")
    if scheme != "memory":
        raise ConfigError(
            f"no store for {scheme + '://'!r}; this version has 'memory://' and 'memory://name'"
        )
    if rest and not QUEUE_NAME.fullmatch(rest):
        raise ConfigError(f"the name in 'memory://name' must match {QUEUE_NAME.pattern}")
    return url


def masked(url: str) -> str:
    """The URL as it may be shown: without a user's name and password.

    >>> masked("redis://ada:secret@host/0")
    'redis://***@host/0'
    """
    scheme, separator, rest = url.partition("://")
    # Up to the last "@", since a password may hold one.
    _, at, place = rest.rpartition("@")
    return f"{scheme}{separator}***@{place}" if at else url
