"""What campaigns take from the code is there: they are not run with the suite, and would fail much later."""

from __future__ import annotations

import pytest

from tests.campaigns import ci
from tests.campaigns.mutants import ROOT, changed
from tests.campaigns.named import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_defect_that_is_planted_still_fits_into_the_code(mutant: Mutant) -> None:
    assert changed(mutant) != (ROOT / "src/ulak" / mutant.file).read_text()


@pytest.mark.parametrize("step", ci.STEPS, ids=lambda step: step[0])
def test_each_step_before_a_landing_is_a_program(step: tuple[str, ...]) -> None:
    assert (ROOT / f"{step[0].replace('.', '/')}.py").is_file()
