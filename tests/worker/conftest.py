"""Queues for worker pools, on every storage that must keep the contract, on the real clock or the test's."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract import conftest
from tests.contract.conftest import StorageKind, clock  # noqa: F401 - a fixture
from tests.support.pools import LEASE_S, let_threads_end
from tests.support.queues import Make, handles
from tests.support.waiting import eventually
from ulak import Queue
from ulak.testing import ManualClock

# Under another name, since "kind" is the kind of handler here.
storage = conftest.kind


@pytest.fixture
def queue_url(storage: StorageKind) -> str:
    """A new, empty store."""
    return storage.url()


@pytest.fixture
def make(queue_url: str) -> Iterator[Make]:
    """Opens handles on one queue, on the real clock, with a new name since its threads carry it."""
    with handles(queue_url, f"q{uuid.uuid4().hex[:8]}") as make:
        yield make


@pytest.fixture
def timed(make: Make, clock: ManualClock) -> Iterator[Make]:  # noqa: F811
    """Opens handles on the test's clock, with leases of 30 s unless told otherwise."""
    opened: list[Queue] = []

    def open_handle(**options: Any) -> Queue:
        opened.append(make(**{"clock": clock, "visibility_timeout": LEASE_S, **options}))
        return opened[-1]

    yield open_handle
    for q in opened:
        let_threads_end(clock, q)


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """All threads that pools started in a module have ended soon after its last test."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        started = set(threading.enumerate()) - before
        return [thread.name for thread in started if thread.name.startswith("ulak-")]

    with contextlib.suppress(AssertionError):
        # A store whose loop was closed under it is left after ten seconds.
        eventually(lambda: not left(), within_s=30.0)
    assert left() == []
