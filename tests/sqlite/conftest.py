"""Files on a real disk, and queues on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.queues import Make, handles
from tests.support.roles import LONG_S, QUEUE, Ahead


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store's file is, or will be."""
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    """The store in that file."""
    return f"sqlite:///{path}"


@pytest.fixture
def clock() -> Ahead:
    """The machine's clocks, as far ahead as the test says."""
    return Ahead()


@pytest.fixture
def make(url: str, clock: Ahead) -> Iterator[Make]:
    """Opens handles of the test's own process on the file, and closes them in the end."""
    with handles(url, QUEUE, clock=clock, visibility_timeout=LONG_S) as make:
        yield make
