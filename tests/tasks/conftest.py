"""Apps, on every storage that must keep the contract, on the real clock or the test's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest

from tests.contract.conftest import StorageKind, clock, kind  # noqa: F401 - fixtures
from tests.support.pools import AT_ONCE
from tests.support.waiting import eventually
from tests.worker.conftest import no_thread_is_left  # noqa: F401 - a fixture
from ulak import App
from ulak.testing import ManualClock

MakeApp: TypeAlias = Callable[..., App]


@pytest.fixture
def app_url(kind: StorageKind) -> str:  # noqa: F811
    """A new, empty store."""
    return kind.url()


@contextlib.contextmanager
def apps(url: str, **common: Any) -> Iterator[MakeApp]:
    """Makes Apps on one store, with these options unless told otherwise, and closes them in the end."""
    with ExitStack() as opened:

        def make(url: str = url, **options: Any) -> App:
            app = App(url, **{**common, **options})
            opened.callback(app.close)
            return app

        yield make


@pytest.fixture
def make_app(app_url: str) -> Iterator[MakeApp]:
    """Makes Apps on one store, on the real clock; failed jobs are tried again at once."""
    with apps(app_url, backoff=AT_ONCE) as make:
        yield make


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """One App, on the real clock."""
    return make_app()


@pytest.fixture
def timed(app_url: str, clock: ManualClock) -> Iterator[MakeApp]:  # noqa: F811
    """Makes Apps on one store, on the test's clock."""
    before = set(threading.enumerate())
    with apps(app_url, clock=clock) as make:
        yield make

    def left() -> list[threading.Thread]:
        return [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("ulak-")]

    # Some may sleep on it.
    eventually(lambda: not left(), clock=clock, step_s=1.0)
