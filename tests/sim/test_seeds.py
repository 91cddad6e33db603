"""A hundred seeds of the simulation: whatever strikes, nothing is lost, run twice at once or left waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.sim.faults import PER_CALL, PER_STEP, PROFILES
from tests.sim.stage import STEPS, Result, simulate

BATCHES = 2
BATCH = 50

# What a batch cannot do without is not tested by it.
STRUCK = (*PER_CALL, *PER_STEP, "outage", "in flight", "stalled handler")
AGAIN = ("after expiry", "after failure", "after crash", "after release", "after redrive")
SEEN = (
    "closed",
    "cut off by an end",
    "duplicate",
    "full",
    "ended by undecodable",
    "fired",
    "full in the end",
    "hurried by a second signal",
    "killed by a halt",
    "left as all was done",
    "stale",
    "stopped by a signal",
    "stored as cancelled",
    "stored as dead",
    "stored as expired",
    "stored as succeeded",
    "went the short way",
    "would deadlock",
)


def blame(result: Result) -> str:
    """What to say of a seed that failed."""
    again = f"python3 dev.py campaign simulate --seed {result.seed}"
    return "\n".join([f"seed {result.seed} ({result.profile}); see it with: {again}", *result.problems])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_seed_has_a_problem_and_every_fault_strikes(batch):
    struck, again, seen, steps = Counter(), Counter(), Counter(), 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        result = simulate(seed)
        assert not result.problems, blame(result)
        struck += result.struck
        again += result.done.again
        seen += result.seen
        steps += result.steps
    assert steps >= BATCH * STEPS
    assert [name for name in STRUCK if not struck[name]] == []
    assert [name for name in AGAIN if not again[name]] == []
    assert [name for name in SEEN if not seen[name]] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_one_seed_is_one_history_byte_for_byte(profile):
    first, second = simulate(7, profile=profile), simulate(7, profile=profile, traced=True)
    assert first.history == second.history
    assert first.problems == second.problems
    assert simulate(8, profile=profile).history != first.history


DIGEST = """
import hashlib
from tests.sim.stage import simulate
histories = [simulate(seed).history for seed in range(8)]
print(hashlib.sha256(b"".join(histories)).hexdigest())
"""


def test_a_history_does_not_depend_on_the_hashes_of_a_process():
    digests = set()
    for hash_seed in ("1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True, text=True
        )
        digests.add(told.stdout)
    assert len(digests) == 1


def test_a_trace_tells_who_asked_what_and_which_faults_struck():
    result = simulate(3, profile="all", traced=True)
    assert len(result.trace) > STEPS // 4
    assert any("fault" in line for line in result.trace)
    assert any("turn(" in line for line in result.trace)
