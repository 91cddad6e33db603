"""Every operation of the memory store under controlled preemption: some order explains what came of it."""

from __future__ import annotations

import pytest

from tests.race.operations import ENDING, OPERATIONS
from tests.race.races import Arena

STORE = Arena(OPERATIONS, ENDING)


@pytest.mark.parametrize("method", STORE.methods)
def test_calls_at_once_are_told_what_some_order_of_them_is_told(method: str) -> None:
    STORE.race(method)
