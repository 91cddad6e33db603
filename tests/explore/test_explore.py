"""Every state within small bounds, on the real store: what holds in all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.explore.explorer import explore
from tests.explore.graph import HELPS, LEADS_ON, Graph
from tests.explore.others import Pause
from tests.explore.scope import SMALL, Scope


@pytest.mark.parametrize("scope", SMALL.values(), ids=SMALL)
def test_no_reachable_state_breaks_a_promise(scope: Scope) -> None:
    """Nobody can find a violation within the scope, and the scope names nothing that never happens."""
    result = explore(scope)
    assert result.is_complete, result
    assert result.never == ()
    assert result.finals > 0


def test_an_exploration_is_repeatable() -> None:
    """The same scope is the same states, in the same order."""
    first, second = explore(SMALL["pair"]), explore(SMALL["pair"])
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)


def test_an_exploration_can_be_cut_short() -> None:
    """A limit ends it early, and the result says so."""
    result = explore(SMALL["pair"], states_max=100)
    assert not result.is_complete
    assert 100 <= result.states < 1000


def test_hidden_differences_are_more_states() -> None:
    """Two ways to the same readable state may leave different things behind it: `exact` follows both."""
    scope = SMALL["hidden"]
    assert explore(scope).states > explore(replace(scope, exact=False)).states


def test_without_a_reaper_a_crash_is_the_end() -> None:
    """A lease that nobody reclaims keeps its job open for ever, and the explorer sees that."""
    result = explore(Scope("no reaper", 1, 1, 1, reapers=0))
    assert result.violation is not None
    assert result.violation.law == "no deadlock"
    assert [line.split(" ->")[0].strip() for line in result.violation.trace[:2]] == [
        "enqueue",
        "worker 0 claims",
    ]
    assert "worker 0 crashes" in result.violation.trace[2]


def test_an_operator_who_could_end_a_job_is_no_way_out() -> None:
    """A job must end by work, so one that only a cancel can end is stuck, and the explorer sees that."""
    result = explore(Scope("no reaper, but cancels", 1, 1, 1, reapers=0, pauses=True, cancels=True))
    assert result.violation is not None
    assert result.violation.law == "can always finish"
    assert "worker 0 crashes" in result.violation.trace[2]


def test_without_a_worker_that_knows_the_task_jobs_stay_held() -> None:
    """Held jobs that nobody can take leave nothing to happen, and the explorer sees that."""
    result = explore(Scope("all strangers", 1, 1, 1, strangers=1, lost_replies=False))
    assert result.violation is not None
    assert result.violation.law == "no deadlock"
    assert "held" in result.violation.trace[-1]


def test_what_leads_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pausing and resuming comes back to the same state, which only they may."""
    monkeypatch.setattr(Pause, "may_cycle", False)
    result = explore(Scope("pause", 1, 1, 1, pauses=True))
    assert result.violation is not None
    assert result.violation.law == "leads on"


def _graph(*edges: dict[int, int], finals: tuple[int, ...]) -> Graph:
    graph = Graph()
    for each in edges:
        graph.add(each)
    graph.finals.extend(finals)
    return graph


BOTH = HELPS | LEADS_ON


def test_a_graph_knows_its_dead_ends() -> None:
    """A state without a way out is a deadlock unless it is final."""
    assert _graph({1: BOTH, 2: BOTH}, {}, {}, finals=(1,)).deadlocked() == 2
    assert _graph({1: BOTH, 2: BOTH}, {}, {}, finals=(1, 2)).deadlocked() is None


def test_a_graph_knows_what_cannot_finish() -> None:
    """A state from which only edges that do not help lead to the end is stuck; a way back is a way."""
    assert _graph({1: BOTH}, {2: LEADS_ON}, {}, finals=(2,)).stuck() == 0
    assert _graph({1: LEADS_ON, 2: BOTH}, {0: HELPS}, {}, finals=(2,)).stuck() is None


def test_a_graph_knows_its_cycles() -> None:
    """A state on a cycle recurs, unless an edge of the cycle may lead back."""
    assert _graph({1: BOTH}, {2: BOTH}, {1: BOTH}, finals=()).recurring() == 1
    assert _graph({1: BOTH}, {2: BOTH}, {1: HELPS}, finals=()).recurring() is None
