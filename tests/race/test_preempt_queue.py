"""The calls of `Queue` under controlled preemption, beside each other and beside the store's own operations:
some order explains what came of them.
"""

from __future__ import annotations

import pytest

from tests.race.handles import BESIDE, CALLS, QUEUE_ENDING, QueueStage
from tests.race.races import Arena

QUEUE = Arena(CALLS, QUEUE_ENDING, others=BESIDE, stage=QueueStage)


@pytest.mark.parametrize("method", QUEUE.methods)
def test_calls_at_once_are_told_what_some_order_of_them_is_told(method: str) -> None:
    QUEUE.race(method)
