"""Pools of processes for the App of `errands.py`, and fixtures for their tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doors import Door, door
from tests.support.pids import children_of, open_files
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.processes.errands import app, marks
from ulak import Failure, Job, Pool


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process and no open file is left after a test."""
    open_before = open_files()
    yield
    assert children_of() == []
    eventually(lambda: open_files() <= open_before)


@pytest.fixture
def url(tmp_path: Path, caplog: pytest.LogCaptureFixture, nothing_is_left: None) -> Iterator[str]:
    """A new file for the App, which is closed after the test."""
    caplog.set_level(logging.CRITICAL, "ulak")
    app.url = f"sqlite:///{tmp_path / 'jobs.db'}"
    yield app.url
    app.close()
    marks.clear()


@pytest.fixture
def gate() -> Iterator[Door]:
    with door() as made:
        yield made


def processes(count: int = 2, **options: Any) -> Pool:
    return app.workers(count, executor="process", **{"grace": WAIT_S, **options})


def run_all(count: int = 2) -> None:
    """Run what is ready, to the end."""
    with processes(count) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def errors_of(job: Job[Any]) -> list[Failure | None]:
    """How each of its deliveries failed."""
    return [attempt.error for attempt in job.info().history]
