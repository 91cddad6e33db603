"""Stores on a real server, and queues on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres
from tests.support.postgres import Server, fresh_url, own_server
from tests.support.queues import Make, handles
from tests.support.roles import LONG_S, QUEUE


@pytest.fixture(autouse=True)
def _needs_a_server() -> None:
    """Skip, or fail where CI is set, if there can be none."""
    postgres.need()


@pytest.fixture
def url() -> str:
    """A store that is not there yet, on the server that all tests share."""
    return fresh_url()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that the test may stop and kill."""
    with own_server() as server:
        yield server


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Opens handles of the test's own process on the store, and closes them in the end."""
    with handles(url, QUEUE, visibility_timeout=LONG_S) as make:
        yield make
