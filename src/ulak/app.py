"""An App: a set of tasks, and the store that their jobs are in."""

from __future__ import annotations

import inspect
import itertools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self, TypeVar

from ulak import checks, foreign
from ulak.annotations import is_async
from ulak.aqueue import AsyncQueue
from ulak.calls import TaskOptions
from ulak.clock import SYSTEM, Clock
from ulak.context import Context
from ulak.core.backoff import Backoff
from ulak.core.schedule import Rule
from ulak.core.store import Retention, Settings, Store
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError
from ulak.events import Subscriber
from ulak.executors import Executor, executor_of, refuse_while_loading
from ulak.foreign import no_attribute
from ulak.home import DEFAULT_QUEUE, Home
from ulak.lifespan import working
from ulak.local import LocalStore, clock_for, masked
from ulak.maker import TaskMaker
from ulak.queue import Queue
from ulak.schedules import CatchUpName, Scheduler, Schedules, cron, every
from ulak.task import CoroutineTask, FunctionTask, Task, TaskSettings, runnable_of
from ulak.worker.pool import AsyncPool, Pool
from ulak.worker.record import Recorder
from ulak.worker.refused import Refused
from ulak.worker.tasks import Around, Runnable, TaskHandler, around_of

AnyPool = TypeVar("AnyPool", Pool, AsyncPool)
AnyAround = TypeVar("AnyAround", bound=Callable[[Context], Any])
AnySubscriber = TypeVar("AnySubscriber", bound=Subscriber)

_pool_numbers = itertools.count(1)
_app_numbers = itertools.count(1)
_all: weakref.WeakValueDictionary[int, App] = weakref.WeakValueDictionary()


def all_apps() -> list[App]:
    """The Apps of this process, in the order in which they were made."""
    return [app for _, app in sorted(_all.items())]


class App:
    """Tasks, and the store that their jobs are in. Making one does no I/O; the first call opens the store.

    url: as of `Queue`; `memory://` is a store of the App's own. May be set until the store is opened.
    queues: names, the first of which is the tasks' unless they say otherwise (None: "default"); a mapping
    gives each its capacity. To these come the queues of tasks, and a worker serves them in this order.
    max_attempts, backoff: of jobs whose tasks do not say otherwise. visibility_timeout, retention: as of
    `Queue`. clock: for tests, as `ulak.testing.ManualClock`; all that is open on one URL shares one.
    Raises ConfigError for a URL, ArgumentError for any other argument that cannot be.
    Safe to share between threads and event loops; a context manager of both kinds.

    >>> app = App("memory://")
    >>> @app.task
    ... def welcome(email: str) -> str:
    ...     return f"welcome, {email}"
    >>> with app.workers(2):
    ...     welcome.enqueue("ada@example.org").result(timeout=5)
    'welcome, ada@example.org'
    """

    def __init__(
        self,
        url: str = "memory://",
        *,
        queues: Iterable[str] | Mapping[str, int | None] | None = None,
        max_attempts: int = 5,
        visibility_timeout: Duration = 30.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        retention: Retention | None = None,
        clock: Clock = SYSTEM,
        **unknown: Never,
    ) -> None:
        if unknown:
            known = inspect.signature(App).parameters.keys() - {"unknown"}
            checks.check_names(unknown, known, "App", foreign=foreign.APP_OPTION)
        self._declared = checks.check_queues(queues)
        self._first = next(iter(self._declared), DEFAULT_QUEUE)
        self._max_attempts = checks.check_attempts(max_attempts)
        self._backoff = checks.check_backoff(backoff) or Backoff()
        self._home = Home(
            self,
            url,
            self._declared,
            max_attempts=self._max_attempts,
            lease_s=seconds(visibility_timeout, name="visibility_timeout"),
            retention=checks.check_retention(retention),
            clock=clock,
        )
        self._lock = threading.RLock()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._by_name: dict[str, Task[..., Any]] = {}
        self._runnable: dict[str, Runnable] = {}
        self._arounds: list[Around] = []
        self._events = self._home.events
        self.schedules = Schedules()
        _all[next(_app_numbers)] = self

    if not TYPE_CHECKING:  # it would have any name

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, foreign.APP)

    # Tasks

    @property
    def task(self) -> TaskMaker:
        """Make a function a task: `@app.task`, or with settings, `@app.task(queue="mail", timeout=30)`.

        The function can still be called; `enqueue` and the like are added to it. Settings, as in
        `TaskSettings`: name, aliases, queue, priority, max_attempts, backoff, give_up_on, retry_on, timeout,
        kill_after, expires. Raises ArgumentError for a function that cannot be a task, a name that is taken,
        an annotated type that cannot travel, a setting that there is not.
        """
        return TaskMaker(self._make, {})

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: CatchUpName = "once",
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        using: TaskOptions | None = None,
    ) -> TaskMaker:
        """Enqueue a task by a cron expression: `@app.cron("0 9 * * 1-5", tz="Europe/Istanbul")`.

        Above a function, or above `@app.task(...)` for its settings. catch_up: what becomes of ticks that
        were missed: "skip", "once" or "all". name: the schedule's, else the task's. args, kwargs: of each
        call. using: options of its jobs, as in `using={"unique_key": "report"}`.
        Raises ArgumentError for an expression or a zone that there is not, a schedule's name that is taken,
        arguments that the task does not take, a task of another App.
        """
        told = {"catch_up": catch_up, "name": name, "args": args, "kwargs": kwargs, "using": using}
        return self._scheduling(cron(expression, tz), **told)

    def every(
        self,
        period: Duration,
        *,
        catch_up: CatchUpName = "once",
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        using: TaskOptions | None = None,
    ) -> TaskMaker:
        """Enqueue a task once in each period: `@app.every(30)`, `@app.every("5m")`. Else as `cron`.

        Raises ArgumentError for a period of less than 0.1 s, and as `cron`.
        """
        told = {"catch_up": catch_up, "name": name, "args": args, "kwargs": kwargs, "using": using}
        return self._scheduling(every(period), **told)

    def _scheduling(self, rule: Rule, **told: Any) -> TaskMaker:  # noqa: ANN401 - as `Schedules.add`
        def make(
            function: Any,  # noqa: ANN401 - a function, or a task of this App
            settings: TaskSettings,
            nearby: Mapping[str, Any] | None,
        ) -> Task[..., Any]:
            is_task = isinstance(function, Task)
            task: Task[..., Any] = function if is_task else self._make(function, settings, nearby)
            if task.app is not self:
                raise ArgumentError(f"{task.name} is a task of another App; schedule it there")
            self.schedules.add(task, rule, **told)
            return task

        return TaskMaker(make, {})

    def _make(
        self,
        function: Any,  # noqa: ANN401 - it is checked
        settings: TaskSettings,
        nearby: Mapping[str, Any] | None,
    ) -> Task[..., Any]:
        kind: type[Task[..., Any]] = CoroutineTask if is_async(function) else FunctionTask
        task = kind(
            self._home,
            function,
            settings,
            queue=self._first,
            max_attempts=self._max_attempts,
            backoff=self._backoff,
            nearby=nearby,
        )
        with self._lock:
            for name in (task.name, *task.aliases):
                if (other := self._by_name.get(name)) is not None:
                    raise ArgumentError(
                        f"{name!r} is the name of another task, {other!r}\n"
                        f"  give this one a name of its own: @app.task(name=...)"
                    )
            self._tasks[task.name] = task
            self._by_name |= dict.fromkeys((task.name, *task.aliases), task)
            self._runnable |= dict.fromkeys((task.name, *task.aliases), runnable_of(task))
            self._declared.setdefault(task.queue, None)
        return task

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, without their aliases."""
        return MappingProxyType(self._tasks)

    def find(self, name: str) -> Task[..., Any]:
        """The task of this name or alias. Raises ArgumentError, with the nearest name."""
        if (task := self._by_name.get(name)) is None:
            raise ArgumentError(f"no task {checks.nearest(name, self._by_name)}")
        return task

    def around(self, around: AnyAround) -> AnyAround:
        """Have something go on around each job's function: a context manager that is given its `Context`.

        The same for `def` and `async def` tasks; a function that yields once is taken for one. The first one
        is the outermost. What it raises is a failed attempt; if it swallows what the function raised, the job
        succeeds without a result. Raises ArgumentError for what can be seen to be no such function.
        """
        self._arounds.append(around_of(around))
        return around

    def on(self, subscriber: AnySubscriber) -> AnySubscriber:
        """Tell a function of each event of this process, as in `ulak.events`. It must be quick."""
        if not callable(subscriber):
            raise ArgumentError(f"app.on takes a function of an event, got {type(subscriber).__name__}")
        self._events.subscribe(subscriber)
        return subscriber

    def off(self, subscriber: Subscriber) -> None:
        """Tell a function of no more events."""
        self._events.unsubscribe(subscriber)

    # The store

    @property
    def url(self) -> str:
        """Where its store is."""
        return self._home.url

    @url.setter
    def url(self, url: str) -> None:
        self._home.url = url

    @property
    def queues(self) -> tuple[str, ...]:
        """Its queues, in the order in which they were declared."""
        return tuple(self._declared)

    def queue(self, name: str) -> Queue:
        """The `Queue` of this name, on the App's store. Raises ArgumentError for one it does not have."""
        return self._home.handle(Queue, name)

    def aqueue(self, name: str) -> AsyncQueue:
        """The `AsyncQueue` of this name, on the App's store. Raises as `queue`."""
        return self._home.handle(AsyncQueue, name)

    def open(self) -> Self:
        """Open the store and its queues now, and not at the first call."""
        self._home.open()
        return self

    def close(self) -> None:
        """Let go of the store, after the pools have ended; idempotent. Using the App again opens it again."""
        self._home.close()

    async def aclose(self) -> None:
        """As `close`."""
        await self._home.aclose()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Workers

    def workers(
        self,
        count: int = 8,
        *,
        queues: Iterable[str] | Mapping[str, int | None] | None = None,
        grace: Duration = 30.0,
        max_jobs: int | None = None,
        executor: Executor | None = None,
        target: str | None = None,
    ) -> Pool:
        """A pool of `count` workers that run the tasks' jobs and fire the schedules; start it by `with`.

        `def` tasks run in threads. `async def` ones run on an event loop: of the pool's own, where all are.
        queues: which to serve, in this order (None: all of the App's); a mapping gives each a weight, by
        which they take turns. grace: how long a shutdown lets running jobs finish: seconds, a timedelta
        or text such as "5m". max_jobs: after so many the workers leave; those that run then are finished, so
        there may be a few more.
        executor: "thread" or "async" for one of these, "process" for processes that import the App anew and
        run a job at a time each: one that dies costs its own job an attempt. target: where they find the
        App, as in "shop.jobs:app" (None: where its tasks are). Raises ArgumentError for what does not fit.
        """
        return self._pool(Pool, count, queues, grace, max_jobs=max_jobs, executor=executor, target=target)

    def aworkers(
        self,
        count: int = 8,
        *,
        queues: Iterable[str] | Mapping[str, int | None] | None = None,
        grace: Duration = 30.0,
    ) -> AsyncPool:
        """As `workers`, for an event loop, where `async def` tasks run; start it by `async with`."""
        return self._pool(AsyncPool, count, queues, grace)

    def _pool(
        self,
        kind: type[AnyPool],
        count: int,
        queues: Iterable[str] | Mapping[str, int | None] | None,
        grace: Duration,
        *,
        max_jobs: int | None = None,
        executor: Executor | None = None,
        target: str | None = None,
    ) -> AnyPool:
        refuse_while_loading()
        if not self._by_name:
            raise ArgumentError(
                "an App without tasks would hold every job; import what defines them before workers()"
            )
        served, turns = checks.check_served(self.queues if queues is None else queues)
        for name in served:
            self._home.queue_of(name)
        # Also those that are not served here: schedules may fire into them.
        self.open()
        opened = self._home.queue_of(served[0]).opened()
        clock = opened.edge.clock
        handler = self._handler(clock)
        is_trial = Home.stand_in is not None
        runs = executor_of(self, opened.edge.store, handler, executor, target, is_trial=is_trial)
        settings = Settings(retention=self._home.retention)
        scheduler = Scheduler(
            self.schedules, clock.calendar, settings, self._events, lambda: self._home.sending
        )
        refused = Refused(served, handler.fits)
        return kind(
            opened,
            served,
            runs,
            worker=f"{socket.gethostname()}-{os.getpid()}-app-{next(_pool_numbers)}",
            lease_s=self._home.lease_s,
            count=count,
            grace=grace,
            turns=turns,
            duties=[scheduler.duty, refused.duty],
            has_looked=lambda: refused.has_looked,
            events=self._events,
            jobs_max=checks.check_max_jobs(max_jobs),
            # What is in memory is gone with its process, and so is whoever would look back.
            recorder=Recorder(served) if opened.edge.store.capabilities.durable else None,
        )

    def lifespan(
        self,
        _server: object = None,
        *,
        count: int = 8,
        queues: Iterable[str] | Mapping[str, int | None] | None = None,
        grace: Duration = 30.0,
    ) -> AbstractAsyncContextManager[None]:
        """Run workers beside an ASGI server, on its event loop: `Starlette(lifespan=app.lifespan)`.

        They start with the server, and end with it, within the grace. `def` tasks run on threads. No signal
        is handled here: that is the server's. Give the options of `workers` by `functools.partial`.
        """
        return working(self, lambda: self.aworkers(count, queues=queues, grace=grace))

    # For a process of a pool, and what stands in its place in tests

    def _handler(self, clock: Clock | None = None) -> TaskHandler:
        """What runs its jobs, in a pool or in a process of one. Opens nothing."""
        return TaskHandler(self._runnable, self._arounds, clock or clock_for(self.url, self._home.clock))

    def _store(self) -> Store:
        """Its store, opened."""
        return self._opened().edge.store

    def _opened(self) -> LocalStore:
        """Its store as this process sees it, opened."""
        return self._home.opened(self._first).opened()

    def __reduce__(self) -> str:
        raise TypeError("an App cannot be copied or pickled; import it where it is needed")

    def __repr__(self) -> str:
        return f"App({masked(self.url)!r}, {len(self._tasks)} tasks)"
