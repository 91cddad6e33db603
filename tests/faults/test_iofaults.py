"""I/O faults under the real store, a few of each; the campaign makes thousands."""

from __future__ import annotations

import random

import pytest

from tests.faults.strikes import FAULTS, Fault
from tests.faults.together import strike_together
from tests.faults.troubles import JOURNALS, chosen, strike

POINTS = 60
TOGETHER_MAX = 2


def test_a_fault_is_told_and_nothing_is_lost_by_it() -> None:
    seed = random.randrange(1_000_000)
    tallies = [strike(point) for point in chosen(POINTS, seed)]
    failed = [failure for tally in tallies for failure in tally.failed]
    assert not failed, f"seed {seed}:\n" + "\n".join(failed)
    answers = sum((tally.answers for tally in tallies), start=tallies[0].answers)
    assert min(answers["ok"], answers["StorageUnavailable"], answers["StorageFull"]) > 0


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "persistent"])
@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_callers_of_one_commit_hear_the_truth_each(fault: Fault, journal: str, persistent: bool) -> None:
    for nth in range(1, TOGETHER_MAX + 1):
        is_struck, problems = strike_together(journal, fault, nth, persistent=persistent)
        assert not problems, f"call {nth}"
        if not is_struck:
            break
