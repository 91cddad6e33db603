"""Power losses of the real store, a few of each way; the campaign makes thousands."""

from __future__ import annotations

import random

import pytest

from tests.faults.losses import CONTROL, WAYS, Way, run_way

IMAGES = 24
STEPS = 120


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_power_loss_loses_nothing_that_was_answered(way: Way) -> None:
    seed = random.randrange(1_000_000)
    tally = run_way(way, seed, IMAGES, STEPS)
    assert not tally.failed, "\n".join(tally.failed)
    assert tally.images >= IMAGES
    assert tally.during_recovery
    assert tally.used_up


def test_relaxed_durability_is_seen_to_lose() -> None:
    tally = run_way(CONTROL, 1, IMAGES, STEPS)
    assert any("lost" in failure for failure in tally.failed)
