"""Where a test of commands runs: on a file, on a server, and on a store in the memory of this process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support import postgres

_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is not there yet; a module that imports this is run on each kind."""
    if request.param == "postgres":
        postgres.need()
        return postgres.fresh_url()
    if request.param == "memory":
        return f"memory://commands-{next(_numbers)}"
    return f"sqlite:///{tmp_path}/jobs.db"
