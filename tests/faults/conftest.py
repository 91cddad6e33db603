"""These suites reach into the SQLite of this Python; where that cannot be, they say so."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.library import HiddenLibrary, load
from tests.faults.place import FAST


@pytest.fixture(autouse=True, scope="session")
def reachable_library() -> None:
    """Skips where this Python hides its SQLite; in CI that is a failure, since nothing would be proven."""
    try:
        load()
    except HiddenLibrary as hidden:
        if os.environ.get("CI", "") not in {"", "0", "false"}:
            pytest.fail(str(hidden))
        pytest.skip(str(hidden))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the test's own, in memory where that is possible."""
    with tempfile.TemporaryDirectory(prefix="ulak-", dir=FAST) as name:
        yield Path(name)
