"""The pytest plugin: the fixture `jobs`. It is loaded wherever ulak is installed, so it loads little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ulak.testing import Jobs


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """Every App works on a store of the test's own, with a clock that it moves; see `ulak.testing.Jobs`."""
    from ulak.testing import Jobs

    with Jobs() as jobs:
        yield jobs
