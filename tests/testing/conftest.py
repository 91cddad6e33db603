"""An App whose jobs run when the test drains them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest

from ulak import App, Backoff
from ulak.testing import Jobs


@pytest.fixture(autouse=True)
def no_other_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps of other tests in this process are none of these tests' business, nor are their schedules."""
    monkeypatch.setattr("ulak.app._all", weakref.WeakValueDictionary())


@pytest.fixture
def app() -> Iterator[App]:
    """An App that is there before the test's jobs are."""
    with App("memory://", queues={"default": None, "mail": 2}, backoff=Backoff(base=10, cap=1000)) as app:
        yield app


@pytest.fixture
def jobs(app: App) -> Iterator[Jobs]:
    with Jobs() as jobs:
        yield jobs
