"""Flows that are refused: by a closed handle, or by others who hold what they would settle."""

import pytest

from tests.core.make import lease
from tests.core.stage import Script, Stage, call
from ulak.core import flows
from ulak.core.flows import Call, Handling, NewSignal, Now, Sleep
from ulak.core.job import FULL, Outcome
from ulak.core.rules import give_back
from ulak.core.store import Until
from ulak.errors import Closed

CLOSED = "this handle on queue 'mail' is closed; make a new one [U102]"
ENDED = call("ended", ["mail"], 100)
CLAIM = call("claim", ["mail"], 1, worker="w", lease_s=5.0)
ROOM = call("line", Until.ROOM, "mail")


def test_a_closed_handle_refuses_an_enqueue_before_anything_is_asked() -> None:
    stage = Stage()
    stage.closed = True
    flow = flows.try_enqueue(stage, "mail", [], handler=Handling.NOTHING)
    with pytest.raises(Closed) as caught:
        next(flow)
    assert str(caught.value) == CLOSED


def test_a_closed_handle_refuses_a_deliver_before_anything_is_asked() -> None:
    stage = Stage()
    stage.closed = True
    flow = flows.deliver(stage, "mail", 1, worker="w", lease_s=5.0, timeout_s=0.0)
    with pytest.raises(Closed) as caught:
        next(flow)
    assert str(caught.value) == CLOSED


def test_a_close_wakes_a_deliver_that_waits_and_takes_it_out_of_its_lines() -> None:
    stage = Stage()

    def close() -> None:
        stage.closed = True

    untils = (Until.READY, Until.DUE, Until.DRAINED)
    script: Script = [
        *[(ENDED, []), (CLAIM, [])],
        *[(Now(), 100.0), (NewSignal(), stage.signal)],
        *[(call("line", until, "mail"), stage.lines[until]) for until in untils],
        *[f"join {until}" for until in untils],
        "clear",
        *[(ENDED, []), (CLAIM, [])],
        *[(call("horizon", ["mail"]), None), (Sleep(stage.signal, 1.0), close)],
        "clear",
        *[f"leave {until}" for until in untils],
    ]
    with pytest.raises(Closed):
        stage.play(flows.deliver(stage, "mail", 1, worker="w", lease_s=5.0, timeout_s=None), script)


def test_a_close_wakes_an_enqueue_that_waits_for_room_also_in_its_handlers_own_queue() -> None:
    stage = Stage()

    def close() -> None:
        stage.closed = True

    script: Script = [
        (ROOM, stage.lines[Until.ROOM]),
        (call("add", "mail", [], known_only=False), FULL),
        *[(Now(), 100.0), (NewSignal(), stage.signal)],
        *["join room", "clear", "first in room"],
        (call("add", "mail", []), FULL),
        *[(Now(), 100.0), (Sleep(stage.signal, 1.0), close)],
        *["clear", "leave room"],
    ]
    with pytest.raises(Closed):
        stage.play(flows.enqueue(stage, "mail", [], timeout_s=9.0, handler=Handling.THIS_QUEUE), script)


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


def test_a_close_that_comes_while_nothing_is_claimed_has_nothing_to_hand_back() -> None:
    stage = Stage()

    def close() -> list[object]:
        stage.closed = True
        return []

    flow = flows.deliver(stage, "mail", 1, worker="w", lease_s=5.0, timeout_s=0.0)
    assert stage.play(flow, [(ENDED, []), (CLAIM, close)]) == []


def test_a_reclaim_that_settles_nothing_of_what_it_found_does_not_look_again_at_once() -> None:
    flow = flows.reclaim(["mail"])
    next(flow)
    assert isinstance(flow.send([lease()]), flows.Draw)
    assert flow.send(0.5).name == "settle"
    with pytest.raises(StopIteration) as end:
        flow.send([Outcome.STALE])
    assert end.value.value == 0
