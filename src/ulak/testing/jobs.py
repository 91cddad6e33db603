"""All jobs of a test: what was enqueued, what became of it, and what happens next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from ulak.app import App, all_apps
from ulak.checks import check_names, nearest
from ulak.core.job import Counts, State
from ulak.core.job import Job as Record
from ulak.core.store import Store
from ulak.durations import Duration, seconds
from ulak.errors import ArgumentError
from ulak.home import Home, Host
from ulak.info import info_of
from ulak.local import LocalStore
from ulak.storage.drive import Edge
from ulak.storage.line import LoopSignal
from ulak.storage.memory import MemoryStore
from ulak.task import Task
from ulak.testing.clock import ManualClock
from ulak.testing.seen import (
    EnqueuedJob,
    arguments_of,
    failed,
    key_of,
    named,
    records,
    signature,
    task_called,
    told,
)
from ulak.testing.worker import CrashPlan, StepWorker, where_no_loop_runs

DRAIN_MAX = 10_000
"""How many jobs a drain runs, unless told otherwise."""

TICKS_MAX = 100_000
"""How many ticks of schedules one `advance` comes by."""

DRAW = 0.999
"""What random draws are in tests: a retry waits as long as its backoff lets it, so `advance` can tell."""

_active: list[Jobs] = []
_active_lock = threading.RLock()

_TICK_STEP_S = 1e-6
_DONE = (State.SUCCEEDED, State.CANCELLED)


class Jobs:
    """While inside, every App of the process works on a new memory store, and on `clock`; then as before.

    Nothing runs by itself: `drain` runs what is ready, in this thread, by the rules of production. Apps with
    the same URL share a store, those on `memory://` have one each. The pytest fixture `jobs` gives one; in
    other frameworks, `with Jobs() as jobs:`.
    """

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.clock: ManualClock = _TestClock(at)
        self._lock = threading.Lock()
        # By what Apps on the same store have in common.
        self._stores: dict[str, LocalStore] = {}
        self._workers: dict[App, StepWorker] = {}
        self._plan = CrashPlan()
        self._is_draining = False
        self._before = Home.stand_in
        self._is_left = False
        self._laid_aside: dict[App, Callable[[], None]] = {}

    def __enter__(self) -> Self:
        with _active_lock:
            if self in _active:
                raise ArgumentError("this Jobs was entered already; make another one")
            _active.append(self)
            self._is_left, self._stores, self._workers = False, {}, {}
            # First, so that nobody opens an App's own store who comes in between.
            self._before, Home.stand_in = Home.stand_in, self._store_of
            if sum(bool(app.schedules) for app in all_apps()) > 1:
                # Some may be of tests that are over, and their ticks are nobody's any more.
                gc.collect()
            self._laid_aside = {app: app._home.lay_aside() for app in all_apps()}  # noqa: SLF001 - for this
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _active_lock, contextlib.ExitStack() as ending:
            self._is_left = True
            # One that was entered before another and is left before it has to wait for that one's end.
            left = list(itertools.takewhile(lambda jobs: jobs._is_left, reversed(_active)))  # noqa: SLF001
            del _active[len(_active) - len(left) :]
            for jobs in reversed(left):
                ending.callback(jobs._leave)  # noqa: SLF001 - the same module

    def _leave(self) -> None:
        """Have every App be as it was when this was entered."""
        Home.stand_in = self._before
        with contextlib.ExitStack() as ending:
            for store in self._stores.values():
                ending.callback(store.close_handle)
            for app in all_apps():
                # One that was made meanwhile has nothing to go back to.
                ending.callback(self._laid_aside.pop(app, app.close))
            for worker in self._workers.values():
                ending.callback(worker.handler.close)

    # What was enqueued, what became of it

    def enqueued(self, task: Task[..., Any] | str | None = None, /, **arguments: object) -> list[EnqueuedJob]:
        """The jobs of the test, of this task and with these arguments, in the order of their enqueue.

        task: a task, its name, or None for all jobs. Also those that have ended.
        Raises ArgumentError for an argument that the task does not have.
        """
        if isinstance(task, str):
            task = task_called(task)
        if task is None:
            if arguments:
                raise ArgumentError("enqueued() takes arguments together with the task that has them")
            return self._all()
        check_names(arguments, signature(task).parameters, f"task {task.name}", "argument")
        names = {task.name, *task.aliases}
        return [
            job
            for job in self._all(key_of(task.app))
            if job.task in names
            and all(name in job.arguments and arguments[name] == job.arguments[name] for name in arguments)
        ]

    @property
    def dead(self) -> list[EnqueuedJob]:
        """The dead jobs."""
        return [job for job in self._all() if job.state is State.DEAD]

    @property
    def errors(self) -> list[str]:
        """A line for each attempt that has failed: of which job, with what, where."""
        return [f"{named(job)}, {told(attempt)}" for job in self._all() for attempt in failed(job)]

    def assert_all_done(self) -> None:
        """Raises AssertionError unless all jobs have succeeded, or were cancelled; it says how they are."""
        lines = []
        for job in self._all():
            if job.state not in _DONE:
                lines.append(f"{named(job)} is {job.state.value}: {job.next}")
                lines += [f"    {told(attempt)}" for attempt in failed(job)]
        if lines:
            raise AssertionError("\n".join(["not all jobs are done", *lines]))

    def counts(self, queue: str) -> Counts:
        """The states and totals of a queue. Raises ArgumentError if not exactly one store has it."""
        stores = [store.edge.store for store in self._stores.values()]
        having = [store for store in stores if queue in store.queues()]
        if not having:
            used = {name for store in stores for name in store.queues()}
            raise ArgumentError(f"no App has used a queue {nearest(queue, used)}")
        if len(having) > 1:
            several = f"several Apps with stores of their own have a queue {queue!r}"
            raise ArgumentError(f"{several}; ask app.queue({queue!r}).counts()")
        return having[0].counts([queue])[queue]

    # What happens

    def drain(self, limit: int = DRAIN_MAX) -> int:
        """Run everything that is ready now, what that enqueues included; how many attempts were run.

        They run in this thread; those of `async def` tasks on an event loop of their own, and all of them in
        another thread if a loop runs here. What a job raises is stored as in production and does not come out
        here: see `errors` and `assert_all_done`. Retries and delayed jobs wait for `advance`.
        Raises AssertionError if more than `limit` are ready.
        """
        if self._is_draining:
            raise AssertionError("drain() is called by a job that a drain runs")
        self._is_draining = True
        try:
            return where_no_loop_runs(partial(self._drain, limit))
        finally:
            self._is_draining = False

    def _drain(self, limit: int) -> int:
        ran = 0
        while True:
            before = ran
            for app in self._apps():
                ran += self._worker_of(app).work(limit - ran, limit)
            if ran == before:
                return ran

    def advance(self, duration: Duration) -> None:
        """Let time pass, and do what workers do by time alone; `drain` runs what has become ready.

        duration: such as "30s", seconds, or a timedelta. Due jobs become ready, leases that have ended are
        reclaimed, and each schedule fires at its ticks.
        """
        left_s = seconds(duration, name="duration")
        self._do_duties()
        for _ in range(TICKS_MAX):
            step_s = min(left_s, self._until_tick_s())
            self.clock.advance(step_s)
            left_s -= step_s
            self._do_duties()
            if left_s <= 0:
                return
        raise AssertionError(
            f"more than {TICKS_MAX:,} ticks of schedules in one advance(); take smaller steps"
        )

    def crash_worker(self) -> None:
        """Have the worker of the next job die once the job has run to its end, before that is stored.

        So it is delivered again, an attempt the fewer; if that was the last one, it is dead.
        """
        self._plan.next += 1

    def run_twice(self) -> contextlib.AbstractContextManager[None]:
        """Have each job run a second time, as by `crash_worker`; as a context manager, only while inside.

        Those that have one attempt left are run once, since they would not be delivered again.
        """
        self._plan.all_twice = True
        return self._plan.until_left()

    # Behind it

    def _store_of(self, app: Host) -> LocalStore:
        """The store that stands in for an App's own, with one handle more open."""
        key = key_of(app)
        with self._lock:
            if key not in self._stores:
                edge = _TestEdge(MemoryStore(self.clock), self.clock, lambda: DRAW)
                self._stores[key] = LocalStore(f"test {key}", edge)
                self._stores[key].open_handle()
            self._stores[key].open_handle()
            return self._stores[key]

    def _apps(self) -> list[App]:
        """Those that have something to do: a store that was used in the test, or schedules."""
        return [app for app in all_apps() if app.tasks and (app.schedules or key_of(app) in self._stores)]

    def _all(self, key: str | None = None) -> list[EnqueuedJob]:
        """The jobs of one store, or of all."""
        stores = [(each, store.edge.store) for each, store in self._stores.items() if key in (None, each)]
        found = [self._seen(each, store, record) for each, store in stores for record in records(store)]
        # Of one instant and store, they stay in the order of their ids.
        return sorted(found, key=lambda job: job.created_at)

    def _seen(self, key: str, store: Store, record: Record) -> EnqueuedJob:
        paused = store.queues()[record.queue].paused
        info = info_of(record, now=self.clock.interval(), now_at=self.clock.calendar(), paused=paused)
        values = {name: getattr(info, name) for name in info.__struct_fields__}
        apps = [app for app in all_apps() if key_of(app) == key]
        return EnqueuedJob(**values, arguments=arguments_of(record, apps))

    def _worker_of(self, app: App) -> StepWorker:
        made = self._workers.get(app)
        if made is None or made.is_outdated:
            if made is not None:
                made.handler.close()
            made = self._workers[app] = StepWorker(app, self._plan)
        return made

    def _do_duties(self) -> None:
        for app in self._apps():
            self._worker_of(app).do_duties()

    def _until_tick_s(self) -> float:
        now_at = self.clock.calendar()
        following = [schedule.rule.next_after(now_at) for app in self._apps() for schedule in app.schedules]
        next_at = min((at for at in following if at is not None), default=float("inf"))
        return max(next_at - now_at, _TICK_STEP_S)


class _TestClock(ManualClock):
    _patience_s = 5.0
    _hint = "; jobs run when the test calls jobs.drain(), before it waits for them"

    async def await_signal(self, signal: LoopSignal, timeout_s: float | None) -> None:
        """As `wait`, on an event loop."""
        if timeout_s is not None and timeout_s <= 0:
            await asyncio.sleep(0)
            return
        with self._sleeping(signal, timeout_s):
            await signal.wait(self._patience_s)
            if not signal.is_set():
                raise self._unmoved()


class _TestEdge(Edge, frozen=True):
    """On its event loops too, time passes by `advance` alone."""

    async def asleep(self, signal: LoopSignal, timeout_s: float | None) -> None:
        assert isinstance(self.clock, _TestClock)
        await self.clock.await_signal(signal, self.cut(timeout_s))
