"""The worker of a test: the flows of a pool's threads, stepped by the test in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from ulak.app import App
from ulak.clock import Clock, Wakeable
from ulak.context import Context
from ulak.core import flows
from ulak.core.flows import ask
from ulak.core.job import Lease
from ulak.core.store import Store
from ulak.storage.drive import Edge, run
from ulak.worker.execute import Ending
from ulak.worker.runtime import Crew
from ulak.worker.seat import Left, Seat
from ulak.worker.tasks import TaskHandler

_R = TypeVar("_R")


class CrashPlan:
    """Which runs end with the death of their worker."""

    def __init__(self) -> None:
        self.next = 0
        self.all_twice = False
        self._twice: set[tuple[str, int]] = set()

    def kills(self, lease: Lease) -> bool:
        """Whether the worker dies that has just run this."""
        if self.next:
            self.next -= 1
            return True
        key = lease.store, lease.id
        if not self.all_twice or key in self._twice or lease.attempt >= lease.max_attempts:
            return False
        self._twice.add(key)
        return True

    @contextlib.contextmanager
    def until_left(self) -> Iterator[None]:
        """Run each job twice until the block is left."""
        try:
            yield
        finally:
            self.all_twice = False


class _Idle(BaseException):
    """A worker would sleep."""


class _Died(BaseException):
    """A worker dies, as a thread does."""


class _Sleepless:
    """The test's clock, for who is to stop where he would sleep."""

    def __init__(self, clock: Clock) -> None:
        self.interval = clock.interval
        self.calendar = clock.calendar

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:  # noqa: ARG002 - as Clock
        """Never."""
        raise _Idle


class StepWorker:
    """The one worker of an App: the same flows as in a pool's threads, stepped by the test."""

    def __init__(self, app: App, plan: CrashPlan) -> None:
        self._app = app
        self._version = self._version_now()
        self._plan = plan
        self._ran = self._left = self._limit = 0
        self._raised: BaseException | None = None
        # What production makes, down to the order of its queues; it is never started.
        pool = app.workers(1)
        self._crew: Crew = pool._crew  # noqa: SLF001 - this stands in the place of the pool's threads
        self._duties = pool._duties  # noqa: SLF001 - as above
        edge: Edge = pool._edge  # noqa: SLF001 - as above
        self._edge = Edge(edge.store, _Sleepless(edge.clock), edge.draw)
        made = pool._handler  # noqa: SLF001 - as above
        assert isinstance(made, TaskHandler)
        # Innermost, so that it sees what the function raises and not what others make of it.
        arounds = [*made._arounds, self._let_out]  # noqa: SLF001 - as above
        self.handler = TaskHandler(made.by_name, arounds, made.clock)

    def _version_now(self) -> tuple[object, ...]:
        app = self._app
        return app.url, len(app.tasks), len(app.queues), len(app.schedules), len(app._arounds)  # noqa: SLF001 - as above

    @property
    def is_outdated(self) -> bool:
        """Whether something was registered since."""
        return self._version != self._version_now()

    @contextlib.contextmanager
    def _let_out(self, _: Context) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Not the job's own: what ends a test must not be stored as a failed attempt.
            if isinstance(error, KeyboardInterrupt) or _is_of_pytest(type(error)):
                self._raised = error
            raise

    def do_duties(self) -> None:
        """What a pool does by time alone, but for forgetting: the test may ask for what has ended."""
        queues = self._crew.queues
        run(self._edge, flows.reclaim(queues, self._crew.tell_settled))
        run(self._edge, ask(Store.promote, queues))
        for duty in self._duties:
            run(self._edge, duty())

    def work(self, left: int, limit: int) -> int:
        """Run what is ready; how many attempts. Raises AssertionError if more than `left` of `limit` are."""
        self._ran, self._left, self._limit = 0, left, limit
        seat = self._crew.seats[0]
        while True:
            try:
                run(self._edge, self._crew.work(seat, self))
            except _Idle:
                pass
            except _Died:
                run(self._edge, self._crew.lost(seat))
                continue
            return self._ran

    # As `Hands`

    def start(self, seat: Seat) -> None:
        """Nothing to start."""

    def handle(self, seat: Seat, lease: Lease, context: Context) -> Ending:  # noqa: ARG002 - as Hands
        """Run the task in this thread."""
        if self._ran == self._left:
            raise AssertionError(
                f"drain() has run {self._limit:,} jobs and there are more: does a task enqueue itself?"
            )
        self._ran += 1
        ending = contextvars.copy_context().run(self.handler.run, lease, context)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if self._plan.kills(lease):
            raise _Died
        return ending

    def burst(self, seat: Seat, left: list[Left], begin: Callable[[], None]) -> list[Left]:  # noqa: ARG002
        """One job after the other, by the general way."""
        seat.has_more = False
        return left

    def abandon(self) -> None:
        """Nothing to abandon."""


def _is_of_pytest(kind: type[BaseException]) -> bool:
    """Whether it says that a test ends: by pytest.fail or skip, say, or by a time limit of the test."""
    # Their own module is hidden from tracebacks; that of their base is not.
    return any(base.__module__ == "_pytest.outcomes" for base in kind.__mro__)


def where_no_loop_runs(call: Callable[[], _R]) -> _R:
    """Call it here, or in another thread: a `def` task may run an event loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    results: list[_R] = []
    errors: list[BaseException] = []

    def main() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            errors.append(error)

    thread = threading.Thread(target=main, name="ulak-test-drain", daemon=True)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]
