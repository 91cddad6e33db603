"""Flows that are refused: by a closed handle, or by others who hold what they would settle."""

import pytest

from tests.core.make import lease
from tests.core.stage import Stage
from ulak.core import flows
from ulak.core.flows import Call
from ulak.core.job import Outcome
from ulak.core.rules import give_back
from ulak.errors import Closed


def test_a_closed_handle_refuses_an_enqueue_before_anything_is_asked() -> None:
    stage = Stage()
    stage.closed = True
    flow = flows.try_enqueue(stage, "mail", [], handler=flows.Handling.NOTHING)
    with pytest.raises(Closed, match="this handle"):
        next(flow)


def test_a_closed_handle_refuses_a_deliver_before_anything_is_asked() -> None:
    stage = Stage()
    stage.closed = True
    flow = flows.deliver(stage, "mail", 1, worker="w", lease_s=5.0, timeout_s=0.0)
    with pytest.raises(Closed, match="this handle"):
        next(flow)


def test_what_is_claimed_after_the_close_is_handed_back_unspent() -> None:
    stage, late = Stage(), lease()
    flow = flows.deliver(stage, "mail", 1, worker="w", lease_s=5.0, timeout_s=0.0)
    asked = next(flow)
    assert isinstance(asked, Call)
    assert asked.name == "ended"
    assert flow.send([]).name == "claim"
    stage.closed = True
    handed_back = flow.send([late])
    assert (handed_back.name, handed_back.args) == ("settle", ([(late, give_back())],))
    with pytest.raises(Closed):
        flow.send([late])


def test_a_reclaim_that_settles_nothing_of_what_it_found_does_not_look_again_at_once() -> None:
    flow = flows.reclaim(["mail"])
    next(flow)
    assert isinstance(flow.send([lease()]), flows.Draw)
    assert flow.send(0.5).name == "settle"
    with pytest.raises(StopIteration) as end:
        flow.send([Outcome.STALE])
    assert end.value.value == 0
