"""The store of an App: its handles there, who is told of what is stored, how it is let go of."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, TypeAlias, TypeVar, cast

from ulak import checks, events
from ulak.clock import Clock
from ulak.core.flows import Flow
from ulak.core.job import Draft
from ulak.core.store import Retention
from ulak.errors import ArgumentError, Closed, ConfigError
from ulak.events import Events
from ulak.handle import Handle
from ulak.local import PRIVATE_URL, LocalStore, check_url, local_store, watch_forks
from ulak.storage.drive import arun, run
from ulak.taskqueue import TaskQueue
from ulak.unserved import Unserved

AnyHandle = TypeVar("AnyHandle", bound=Handle)
R = TypeVar("R")

DEFAULT_QUEUE = "default"

_numbers = itertools.count(1)


class Hosted(Protocol):
    """A task, as far as it can be seen from outside."""

    @property
    def function(self) -> Callable[..., object]:
        """The function itself."""

    @property
    def is_async(self) -> bool:
        """Whether a call has to be awaited."""

    @property
    def kill_after_s(self) -> float | None:
        """How long after it was asked to end its process is killed."""


class Host(Protocol):
    """An App, as far as what is below it needs it."""

    @property
    def url(self) -> str:
        """Where its store is."""

    @property
    def tasks(self) -> Mapping[str, Hosted]:
        """Its tasks by name."""


class Sent:
    """Jobs that are being enqueued together. drafts: as they are to be stored. ids: once they are."""

    def __init__(self, drafts: list[Draft]) -> None:
        self.drafts = drafts
        self.ids: list[int] = []


Sending: TypeAlias = Callable[[str, str, list[Draft]], AbstractContextManager[Sent]]
"""What goes on around an enqueue of jobs, given their task and queue."""

StandIn: TypeAlias = Callable[[Host], LocalStore]
"""Answers with a store for an App, with one handle more open on it."""


class Home:
    """What an App, its tasks and its jobs share: one store, found by the first call, and the handles on it.

    declared: its queues, each with its capacity; what is declared later is found too. lease_s: of all leases.
    retention: of all queues.
    """

    stand_in: ClassVar[StandIn | None] = None
    """What tests put in the place of every App's own store."""

    def __init__(
        self,
        app: Host,
        url: str,
        declared: Mapping[str, int | None],
        *,
        max_attempts: int,
        lease_s: float,
        retention: Retention | None,
        clock: Clock,
    ) -> None:
        self.app = app
        self.lease_s = lease_s
        self.clock = clock
        self.events = Events()
        self.sending: Sending | None = None
        self._url = check_url(url)
        self._declared = declared
        self._max_attempts = max_attempts
        self.retention = retention
        self._owner = str(next(_numbers))
        self._store: LocalStore | None = None
        self._stand_in: StandIn | None = None
        self._last_id = 0
        self._handles: dict[tuple[type[Handle], str], Handle] = {}
        self._unserved: Unserved | None = None
        self.forget_parent()
        watch_forks(self)

    def forget_parent(self) -> None:
        """In a forked child: the threads that held the locks are not here."""
        self._lock = threading.RLock()
        self._store_lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        with self._lock:
            if self._store is not None:
                raise ConfigError(f"{self.app!r} has opened its store; set its url before the first use")
            self._url = check_url(url)
            self._handles.clear()

    # Handles

    def queue_of(self, name: str) -> TaskQueue:
        """What its tasks do with one of its queues. Opens nothing. Raises ArgumentError if there is none."""
        return self.handle(TaskQueue, name)

    def handle(self, kind: type[AnyHandle], name: str) -> AnyHandle:
        """A handle on a queue, made anew once it was closed. Opens nothing. Raises as `queue_of`."""
        made = self._handles.get((kind, name))
        if made is not None and not made.is_closed:
            return cast("AnyHandle", made)
        with self._lock:
            # Another thread may have made it meanwhile.
            made = self._handles.get((kind, name))
            if made is None or made.is_closed:
                made = self._handles[kind, name] = self._new_handle(kind, name)
            return cast("AnyHandle", made)

    def _new_handle(self, kind: type[AnyHandle], name: str) -> AnyHandle:
        if name not in self._declared and (name != DEFAULT_QUEUE or self._declared):
            declare = f"\n  declare it: App(queues=[..., {name!r}])" if checks.may_be_queue(name) else ""
            raise ArgumentError(f"the App has no queue {checks.nearest(name, self._declared)}{declare}")
        handle = kind(
            self._url,
            name,
            max_attempts=self._max_attempts,
            visibility_timeout=self.lease_s,
            capacity=self._declared.get(name),
            retention=self.retention,
            clock=self.clock,
        )
        return handle.found_by(self._one_handle_more)

    def _one_handle_more(self) -> LocalStore:
        """The store, with one handle more open on it; the App has one itself, so that all share one store."""
        with self._store_lock:
            if (store := self._store) is None:
                store = self._store = self._found(Home.stand_in)
                if store.edge.store.capabilities.durable:
                    self._unserved = Unserved(functools.partial(self._is_left, store), store.edge.clock)
            store.open_handle()
            return store

    def _found(self, stand_in: StandIn | None) -> LocalStore:
        """The store, or what stands in for it, with one handle more open on it."""
        self._stand_in = stand_in
        if stand_in is not None:
            return stand_in(self.app)
        store = local_store(self._url, self.clock, owner=self._owner)
        # Whoever holds a job of before must not be shown another one.
        store.number_after(self._last_id)
        return store

    # Calls

    def run(self, queue: str, what: Callable[[TaskQueue], Flow[R]]) -> R:
        """Run a flow on one of its queues, opened for it. Raises Closed if the App is closed meanwhile."""
        handle = self.opened(queue)
        try:
            return run(handle.edge, what(handle))
        except Closed as error:
            raise self._told(error, handle) from None

    async def arun(self, queue: str, what: Callable[[TaskQueue], Flow[R]]) -> R:
        """As `run`, on an event loop."""
        handle = self.opened(queue)
        try:
            return await arun(handle.edge, what(handle))
        except Closed as error:
            raise self._told(error, handle) from None

    def opened(self, queue: str) -> TaskQueue:
        """One of its queues, opened; once more, where another thread closes the App meanwhile."""
        while True:
            handle = self.queue_of(queue)
            try:
                handle.opened()
            except Closed:
                if not handle.is_closed:
                    raise
            else:
                return handle

    def _told(self, error: Closed, handle: TaskQueue) -> Closed:
        """What to tell whoever has no handle of his own, and knows of none."""
        if not handle.is_closed:
            return error
        emptied = "; what was in its memory is gone" if self._url == PRIVATE_URL else ""
        return Closed(
            f"{self.app!r} was closed while this call was under way, which has changed nothing\n"
            f"  call again, and it is opened again{emptied}"
        )

    def enqueued(self, queue: str, task: str, job_id: int, *, existed: bool) -> None:
        """Tell of a job that was stored, or that stood for its key already."""
        if self.events.is_heard or events.is_logged(events.Enqueued):
            self.events.tell(events.Enqueued(job_id, queue, task, existed))
        # Read once, since another thread may be closing the App.
        if (unserved := self._unserved) is not None:
            unserved.note(queue, job_id)

    def _is_left(self, store: LocalStore, queue: str, job_id: int) -> bool:
        handle = self._handles.get((TaskQueue, queue))
        # Whoever looks after a job must not open what was closed, nor look for it in another store.
        if handle is None or not handle.is_on(store):
            return False
        return run(store.edge, cast("TaskQueue", handle).is_left(job_id))

    # Open and closed

    def open(self) -> None:
        """Open the store and all queues."""
        for name in tuple(self._declared) or (DEFAULT_QUEUE,):
            self.queue_of(name).opened()

    def close(self) -> None:
        """Let go of the store; idempotent. Raises what hinders a handle from closing, once all have been."""
        if (store := self._start_closing()) is not None:
            run(store.edge, self._closing(store))

    async def aclose(self) -> None:
        """As `close`."""
        if (store := self._start_closing()) is not None:
            await arun(store.edge, self._closing(store))

    def _closing(self, store: LocalStore) -> Flow[None]:
        failed: Exception | None = None
        try:
            for handle in self._taken():
                try:
                    yield from handle.closing()
                except Exception as error:  # noqa: BLE001 - the others must be closed all the same
                    failed = failed or error
        finally:
            self._last_id = max(self._last_id, store.last_id)
            store.close_handle()
        if failed is not None:
            raise failed

    def _start_closing(self) -> LocalStore | None:
        with self._store_lock:
            store, self._store = self._store, None
            unserved, self._unserved = self._unserved, None
        if unserved is not None:
            unserved.close()
        return store

    def _taken(self) -> list[Handle]:
        with self._lock:
            taken = list(self._handles.values())
            self._handles.clear()
        return taken

    def lay_aside(self) -> Callable[[], None]:
        """Be as if the store was not opened yet, until what is returned is called: then as before.

        For tests, once the `stand_in` is there. What is opened meanwhile is let go of then, and the URL is
        what it was.
        """
        with self._store_lock:
            store, unserved, stand_in = self._store, self._unserved, self._stand_in
            if stand_in is not None and stand_in == Home.stand_in:
                # It is there already, and somebody was as quick as to open it.
                store = unserved = None
            else:
                self._store = self._unserved = None
            url, last_id = self._url, self._last_id
        with self._lock:
            handles = dict(self._handles)
        # With no lock held: a handle that is being opened holds its own, and asks for the store.
        back = [handle.lay_aside(store) for handle in handles.values()]

        def take_up_again() -> None:
            self.close()
            for take_up in back:
                take_up()
            with self._lock, self._store_lock:
                self._handles, self._store, self._unserved = handles, store, unserved
                self._url, self._last_id, self._stand_in = url, last_id, stand_in

        return take_up_again
