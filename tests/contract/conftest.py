"""The storages that must keep the contract: each test of this folder that asks for `store` or `kind` runs on
every one of them, unchanged. A new storage is one more entry in `KINDS`.

ULAK_STORAGES=memory,... narrows the choice while developing. ULAK_EXAMPLES says how many runs that are drawn
are made on each; without it a storage behind a wire, where a run takes longer, has a part of them. One that
cannot be reached is skipped with its reason, except where CI is set: there it is an error, so that nothing is
ever silently left untested.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.queues import Make, handles
from ulak.clock import Clock
from ulak.core.store import Capabilities, Store
from ulak.storage.memory import MemoryStore
from ulak.storage.sqlite.store import SqliteStore
from ulak.testing import ManualClock

_numbers = itertools.count(1)

FILES_MAX = 40
EXAMPLES = 200


@dataclass(frozen=True)
class StorageKind:
    """One storage under test.

    make: a fresh, empty store on this clock; the caller opens and closes it.
    url: where `Queue` finds a fresh, empty store that several handles can share.
    capabilities: what the store must declare.
    unreachable: why the storage cannot be used on this machine; None if it can.
    part: which part of the runs that are drawn is made on it here; a campaign makes them all.
    """

    name: str
    make: Callable[[Clock], Store]
    url: Callable[[], str]
    capabilities: Capabilities
    unreachable: Callable[[], str | None] = lambda: None
    part: float = 1.0

    @property
    def examples(self) -> int:
        """How many runs of a kind that is drawn are made on it."""
        return int(os.environ.get("ULAK_EXAMPLES", EXAMPLES * self.part))


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    """Where the files of this test process lie; in memory where the machine has such a place."""
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() else Path(tempfile.gettempdir())
    # Those of processes that were killed before they could clean up.
    for left in place.glob("ulak-[0-9]*-*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not _is_alive(int(left.name.split("-")[1])):
                shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"ulak-{os.getpid()}-", dir=place)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _new_file() -> str:
    directory = Path(_directory().name)
    number = next(_numbers)
    # Each has some megabytes set aside. No test has so many open at once.
    for old in directory.glob(f"contract-{number - FILES_MAX}.db*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return str(directory / f"contract-{number}.db")


def _on_server(clock: Clock) -> Store:
    # Its library need not be there.
    from ulak.storage.postgres.place import place_of
    from ulak.storage.postgres.store import PostgresStore

    return PostgresStore(place_of(postgres.fresh_url()), clock)


KINDS = (
    StorageKind(
        name="memory",
        make=MemoryStore,
        url=lambda: f"memory://contract-{next(_numbers)}",
        capabilities=Capabilities(durable=False, immediate=True, processes=False, transactions=False),
    ),
    StorageKind(
        name="sqlite",
        make=lambda clock: SqliteStore(_new_file(), clock),
        url=lambda: f"sqlite:///{_new_file()}",
        capabilities=Capabilities(
            durable=True, immediate=False, processes=True, transactions=True, poll_s=1.0
        ),
    ),
    StorageKind(
        name="postgres",
        make=_on_server,
        url=postgres.fresh_url,
        capabilities=Capabilities(
            durable=True, immediate=False, processes=True, transactions=True, poll_s=1.0
        ),
        unreachable=postgres.unreachable,
        part=0.25,
    ),
)


def chosen_kinds() -> list[StorageKind]:
    """The kinds to run, narrowed by ULAK_STORAGES if that is set."""
    names = [name.strip() for name in os.environ.get("ULAK_STORAGES", "").split(",") if name.strip()]
    unknown = set(names) - {kind.name for kind in KINDS}
    if unknown:
        known = ", ".join(kind.name for kind in KINDS)
        raise pytest.UsageError(f"ULAK_STORAGES names {sorted(unknown)}; there are {known}")
    return [kind for kind in KINDS if not names or kind.name in names]


@pytest.fixture(params=chosen_kinds(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> StorageKind:
    """One storage after the other, each of them reachable."""
    chosen: StorageKind = request.param
    reason = chosen.unreachable()
    if reason is not None:
        if os.environ.get("CI", "") not in {"", "0", "false"}:
            pytest.fail(f"{chosen.name} cannot be reached, and CI may leave out no storage: {reason}")
        pytest.skip(f"{chosen.name} cannot be reached: {reason}")
    return chosen


@pytest.fixture
def clock() -> ManualClock:
    """Both clocks, moved by the test."""
    return ManualClock()


@pytest.fixture
def store(kind: StorageKind, clock: ManualClock) -> Iterator[Store]:
    """A fresh, open, empty store on the test's clock."""
    made = kind.make(clock)
    made.open()
    yield made
    made.close()


@pytest.fixture
def new_url(kind: StorageKind) -> Callable[[], str]:
    """Names a new, empty store each time it is called."""
    return kind.url


@pytest.fixture
def queue_url(new_url: Callable[[], str]) -> str:
    """A new, empty store."""
    return new_url()


@pytest.fixture
def make(queue_url: str, clock: ManualClock) -> Iterator[Make]:
    """Opens handles on one store, on the test's clock, and closes them in the end."""
    with handles(queue_url, clock=clock) as make:
        yield make
