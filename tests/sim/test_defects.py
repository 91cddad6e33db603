"""The simulation finds defects that are planted: each within so many seeds, and by what it breaks."""

from __future__ import annotations

import pytest

from tests.sim.defects import DEFECTS
from tests.sim.stage import simulate


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name):
    defect = DEFECTS[name]
    found: list[str] = []
    with defect.rule():
        for seed in range(defect.seeds):
            found = simulate(seed, breaks=defect.store, profile=defect.profile).problems
            if any(defect.found_by in problem for problem in found):
                return
    pytest.fail(f"{name}: not found by {defect.found_by!r} in {defect.seeds} seeds; the last said {found}")
