"""Workers stopped at some moments of their first second, at random points, and in turn; nothing is lost.

The whole of it is a campaign of its own (`tests/campaigns/stops.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stopping import Tally, control, first_moments, random_points, rolling

ALONE_OR_NOT = pytest.mark.parametrize("args", [[], ["--processes", "2"]], ids=["alone", "processes"])


def passes(tally: Tally) -> None:
    assert tally.problems == [], tally.told()
    assert tally.jobs > 0


@ALONE_OR_NOT
def test_a_stop_in_the_first_moments_loses_nothing(tmp_path: Path, args: list[str]) -> None:
    offsets_s = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6]
    passes(first_moments(tmp_path, offsets_s=offsets_s, args=args, seed=1))


def test_a_signal_that_is_held_back_ends_it_in_order_however_early_it_came(tmp_path: Path) -> None:
    tally = first_moments(tmp_path, offsets_s=[0.0, 0.02, 0.04, 0.06, 0.08, 0.1], seed=2, held=True)
    passes(tally)
    assert tally.statuses == {0: 6}


@pytest.mark.parametrize(
    "args",
    [[], ["--processes", "2"], ["--executor", "process"]],
    ids=["alone", "processes", "process executor"],
)
def test_a_stop_at_a_random_point_spends_no_attempt(tmp_path: Path, args: list[str]) -> None:
    passes(random_points(tmp_path, stops=3, args=args, seed=3))


def test_workers_that_do_not_hand_back_are_found_out(tmp_path: Path) -> None:
    problems = control(tmp_path, seed=4).problems
    assert any("dead, attempt 1" in problem for problem in problems), problems


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    passes(rolling(tmp_path, rounds=1, seed=5))
