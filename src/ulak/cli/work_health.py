"""What `ulak work --health` answers: whether its loops go round, whether it can work, and its metrics."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from ulak.cli.health_server import Answer, Listener, Routes
from ulak.cli.options import Address
from ulak.cli.output import visible
from ulak.clock import SYSTEM
from ulak.errors import MissingExtra, SchemaError, UlakError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ulak.app import App
    from ulak.core.store import Store
    from ulak.local import LocalStore
    from ulak.worker.pool import Pool
    from ulak.worker.supervisor import Supervisor

LIVE_S = 30.0
"""A loop that has not gone round for so long does not live."""

SAY_EVERY_S = 1.0

ONE_S = 1.0
"""How long a request waits for another one that is at the store."""


class Check(NamedTuple):
    """One thing that was looked at. text: what was found."""

    name: str
    is_ok: bool
    text: str


def _answer(checks: Sequence[Check]) -> Answer:
    lines = [
        f"{'ok    ' if check.is_ok else 'failed'} {check.name}: {visible(check.text)}" for check in checks
    ]
    is_ok = all(check.is_ok for check in checks)
    status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, "".join(f"{line}\n" for line in lines).encode())


class Questions:
    """Answers the four paths. What needs the store is done one by one, so that it cannot keep all threads.

    live, ready, startup: look, without the store. store: the store, opened. registry: of its figures.
    """

    def __init__(
        self,
        live: Callable[[], Sequence[Check]],
        ready: Callable[[], Sequence[Check]],
        startup: Callable[[], Sequence[Check]],
        store: Callable[[], Store],
        registry: Callable[[], CollectorRegistry],
    ) -> None:
        self._ready, self._store = ready, store
        self._registry: CollectorRegistry | None = None
        self._why_none = ""
        try:
            self._registry = registry()
        except MissingExtra as error:
            self._why_none = str(error.args[0])
        self._at_store = threading.Lock()
        self.routes: Routes = {
            "/livez": lambda: _answer(live()),
            "/readyz": lambda: self._one_at_a_time(self._readiness),
            "/startupz": lambda: _answer(startup()),
            "/metrics": lambda: self._one_at_a_time(self._metrics),
        }

    def _one_at_a_time(self, answer: Callable[[], Answer]) -> Answer:
        if not self._at_store.acquire(timeout=ONE_S):
            return _answer([Check("store", is_ok=False, text="an earlier request still waits for it")])
        try:
            return answer()
        finally:
            self._at_store.release()

    def _readiness(self) -> Answer:
        return _answer([*self._ready(), *_checks_of(self._store)])

    def _metrics(self) -> Answer:
        if self._registry is None:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._why_none}\n".encode())
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Answer(HTTPStatus.OK, generate_latest(self._registry), CONTENT_TYPE_LATEST)


def _checks_of(store: Callable[[], Store]) -> list[Check]:
    """Whether the store answers, and has the schema of this version, which is looked at when it is opened."""
    try:
        store().queues()
    except SchemaError as error:
        return [
            Check("store", is_ok=True, text="it answers"),
            Check("schema", is_ok=False, text=_short(error)),
        ]
    except UlakError as error:
        return [Check("store", is_ok=False, text=_short(error))]
    return [
        Check("store", is_ok=True, text="it answers"),
        Check("schema", is_ok=True, text="of this version"),
    ]


def _short(error: UlakError) -> str:
    return str(error.args[0]).partition("\n")[0]


@contextlib.contextmanager
def of_process(where: Address, app: App, pool: Pool) -> Iterator[str]:
    """Answer for this process, while inside; gives what to say of it."""

    def live() -> list[Check]:
        silent_s = pool.silent_s
        if silent_s is None:
            return [Check("keeper", is_ok=True, text="it has not begun")]
        return [Check("keeper", is_ok=silent_s < LIVE_S, text=f"it went round {silent_s:.1f} s ago")]

    def ready() -> list[Check]:
        takes = pool.takes_jobs
        return [Check("workers", is_ok=takes, text="they take jobs" if takes else "they take no more jobs")]

    def startup() -> list[Check]:
        begun = pool.silent_s is not None
        return [Check("keeper", is_ok=begun, text="it has begun" if begun else "it has not begun")]

    def registry() -> CollectorRegistry:
        from ulak.telemetry import registry_of

        return registry_of(app)

    questions = Questions(live, ready, startup, app._store, registry)  # noqa: SLF001 - as the worker does
    with Listener(where, questions.routes) as listener:
        yield f"; health {listener.address}"


class _TheirStore:
    """The store of other processes, opened here when it is first asked for. url: as in `of_fleet`."""

    def __init__(self, url: Callable[[], str | None]) -> None:
        self._url = url
        self._opened: tuple[str, LocalStore] | None = None

    def opened(self) -> LocalStore:
        """The store. Raises UlakError as long as nobody has said where it is."""
        from ulak.local import local_store

        if (told := self._url()) is None:
            raise UlakError("no process works yet, which would tell where it is")
        if self._opened is None or self._opened[0] != told:  # another one since a --reload
            self.close()
            self._opened = told, local_store(told, SYSTEM)
        return self._opened[1]

    def close(self) -> None:
        """Let go of it."""
        if self._opened is not None:
            self._opened[1].close_handle()
            self._opened = None


@contextlib.contextmanager
def of_fleet(where: Address, supervisor: Supervisor, url: Callable[[], str | None]) -> Iterator[str]:
    """As `of_process`, for all processes of a supervisor. url: where their store is, once one has said so."""
    theirs = _TheirStore(url)

    def live() -> list[Check]:
        silent_s = SYSTEM.interval() - supervisor.tended_at
        supervises = Check("supervisor", is_ok=silent_s < LIVE_S, text=f"it looked {silent_s:.1f} s ago")
        processes = [
            Check(
                f"process {number}", is_ok=lives_s < LIVE_S, text=f"it said {lives_s:.1f} s ago that it lives"
            )
            for number, lives_s in supervisor.silent_s.items()
        ]
        return [supervises, *processes]

    def ready() -> list[Check]:
        working = 0 if supervisor.is_stopping else len(supervisor.silent_s)
        return [Check("workers", is_ok=working > 0, text=f"processes that take jobs: {working}")]

    def startup() -> list[Check]:
        has = supervisor.has_worked
        return [Check("workers", is_ok=has, text="a process works" if has else "no process works yet")]

    def registry() -> CollectorRegistry:
        from ulak.telemetry import registry_of_store

        return registry_of_store(theirs.opened, lambda: url() or "")

    questions = Questions(live, ready, startup, lambda: theirs.opened().edge.store, registry)
    try:
        with Listener(where, questions.routes) as listener:
            yield f"; health {listener.address}"
    finally:
        theirs.close()


@contextlib.contextmanager
def saying(pool: Pool, say: Callable[[], object]) -> Iterator[str]:
    """In a child: tell the parent again and again that this process lives, as long as it does."""
    ended = threading.Event()

    def main() -> None:
        while not ended.is_set():
            silent_s = pool.silent_s
            if silent_s is not None and silent_s < LIVE_S:
                say()
            SYSTEM.wait(ended, SAY_EVERY_S)

    threading.Thread(target=main, name="ulak-health", daemon=True).start()
    try:
        yield ""
    finally:
        ended.set()
