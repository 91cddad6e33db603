"""The flow of an enqueue, driven by hand: the order of its asks, and what it does at each answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.stage import Script, Stage, call
from ulak.core import flows
from ulak.core.flows import Flow, Handling, NewSignal, Now, Sleep
from ulak.core.job import FULL, Draft, Duplicate
from ulak.core.store import Settings, Signal, Until
from ulak.errors import Closed, QueueFull, StorageBusy, WouldDeadlock

QUEUE = "mail"
DRAFTS = [Draft(payload=b"hello", codec="bytes")]
TIMEOUT_S = 5.0
ADD = call("add", QUEUE, DRAFTS)
ROOM = call("line", Until.ROOM, QUEUE)
QUEUES = call("queues")


def enqueue(
    stage: Stage, *, timeout_s: float | None = TIMEOUT_S, handler: Handling = Handling.NOTHING
) -> Flow[list[int]]:
    return flows.enqueue(stage, QUEUE, DRAFTS, timeout_s=timeout_s, handler=handler)


def finds_no_room(stage: Stage) -> Script:
    """An enqueue looks, finds no room, stands in line at time 100, and looks once more."""
    return [
        (ROOM, stage.lines[Until.ROOM]),
        (ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), stage.signal),
        "join room",
        "clear",
        (ADD, FULL),
    ]


@pytest.mark.parametrize("timeout_s", [None, 0.0, 5.0])
@pytest.mark.parametrize("handler", Handling)
def test_enqueue_with_room_neither_joins_nor_waits(handler: Handling, timeout_s: float | None) -> None:
    stage = Stage()
    flow = enqueue(stage, timeout_s=timeout_s, handler=handler)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (ADD, [7])]) == [7]
    assert stage.rejected == 0


def test_enqueue_of_a_duplicate_is_answered_though_nothing_is_stored() -> None:
    stage = Stage()
    assert stage.play(enqueue(stage), [(ROOM, stage.lines[Until.ROOM]), (ADD, [Duplicate(3)])]) == [3]


def test_enqueue_that_finds_no_room_joins_the_line_then_looks_again_then_sleeps() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.5),
        (Sleep(stage.signal, 4.5), None),
        "clear",
        (ADD, FULL),
        (Now(), 103.0),
        (Sleep(stage.signal, 2.0), None),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]
    assert stage.rejected == 0


def test_room_made_between_the_first_look_and_joining_is_taken_without_a_sleep() -> None:
    stage = Stage()
    script: Script = [*finds_no_room(stage)[:-1], (ADD, [7]), "leave room"]
    assert stage.play(enqueue(stage), script) == [7]


def test_enqueue_without_a_limit_asks_for_no_time_and_sleeps_without_one() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Sleep(stage.signal, None), None),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage, timeout_s=None), script) == [7]


def test_enqueue_behind_others_joins_before_it_looks() -> None:
    stage = Stage()
    stage.lines[Until.ROOM].others = 2
    script: Script = [
        (ROOM, stage.lines[Until.ROOM]),
        (Now(), 100.0),
        (NewSignal(), stage.signal),
        "join room",
        "clear",
        (ADD, FULL),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), None),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {QUEUE: Settings(capacity=1_000)},
            "queue 'mail' stayed at its capacity of 1,000 open jobs for 5 s;",
        ),
        ({QUEUE: Settings()}, "queue 'mail' stayed at its capacity for 5 s;"),
        ({}, "queue 'mail' stayed at its capacity for 5 s;"),
    ],
    ids=["bounded", "made unbounded meanwhile", "unknown"],
)
def test_enqueue_gives_up_after_a_last_look_when_time_is_over(
    settings: dict[str, Settings], text: str
) -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), None),
        "clear",
        (ADD, FULL),
        (Now(), 105.0),
        "leave room",
        "count rejected",
        (QUEUES, settings),
    ]
    with pytest.raises(QueueFull) as caught:
        stage.play(enqueue(stage), script)
    assert str(caught.value).startswith(f"{text} nothing was stored\n")
    assert "q.configure(capacity=...)" in str(caught.value)


def test_room_that_comes_with_the_end_of_time_is_still_taken() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 104.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]


@pytest.mark.parametrize("handler", Handling)
def test_enqueue_with_a_timeout_of_zero_never_sleeps(handler: Handling) -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        "leave room",
        "count rejected",
        (QUEUES, {QUEUE: Settings(capacity=1)}),
    ]
    with pytest.raises(QueueFull, match="stayed at its capacity of 1 open jobs; nothing was stored"):
        stage.play(enqueue(stage, timeout_s=0.0, handler=handler), script)


@pytest.mark.parametrize("handler", [Handling.NOTHING, Handling.OTHER_QUEUE])
def test_enqueue_after_every_producer_has_finished_is_closed_and_asks_nothing(handler: Handling) -> None:
    stage = Stage(finished=True)
    with pytest.raises(
        Closed, match="queue 'mail' takes no more jobs: every registered producer has finished"
    ):
        stage.play(enqueue(stage, handler=handler), [])


def test_a_handlers_enqueue_into_its_own_queue_is_not_refused_by_a_drain() -> None:
    stage = Stage(finished=True)
    flow = enqueue(stage, handler=Handling.THIS_QUEUE)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (ADD, [7])]) == [7]


def test_a_handler_that_waits_for_room_in_its_own_queue_is_not_refused_by_a_drain() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), stage.finish),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage, handler=Handling.THIS_QUEUE), script) == [7]


@pytest.mark.parametrize("handler", [Handling.NOTHING, Handling.OTHER_QUEUE])
def test_a_waiting_enqueue_is_woken_with_closed_when_the_last_producer_finishes(handler: Handling) -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), stage.finish),
        "clear",
        "leave room",
    ]
    with pytest.raises(Closed):
        stage.play(enqueue(stage, handler=handler), script)
    assert stage.rejected == 0


def test_enqueue_that_closes_while_it_joins_stores_nothing() -> None:
    stage = Stage()

    def last_producer_finishes() -> Signal:
        stage.finish()
        return stage.signal

    script: Script = [
        (ROOM, stage.lines[Until.ROOM]),
        (ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), last_producer_finishes),
        "join room",
        "clear",
        "leave room",
    ]
    with pytest.raises(Closed):
        stage.play(enqueue(stage), script)


@pytest.mark.parametrize("handler", [Handling.THIS_QUEUE, Handling.OTHER_QUEUE])
def test_a_handler_without_a_limit_raises_instead_of_waiting(handler: Handling) -> None:
    stage = Stage()
    with pytest.raises(WouldDeadlock, match="queue 'mail' is full, and a handler must not wait"):
        stage.play(
            enqueue(stage, timeout_s=None, handler=handler), [(ROOM, stage.lines[Until.ROOM]), (ADD, FULL)]
        )


def test_a_handler_with_a_limit_waits_like_anybody() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), None),
        "clear",
        (ADD, [7]),
        "leave room",
    ]
    assert stage.play(enqueue(stage, handler=Handling.OTHER_QUEUE), script) == [7]


@pytest.mark.parametrize("error", [StorageBusy("held"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", ["add", "now", "sleep", "add again"])
def test_whatever_ends_a_waiting_enqueue_takes_it_out_of_the_line(where: str, error: BaseException) -> None:
    stage = Stage()
    waits: dict[str, Script] = {
        "add": [*finds_no_room(stage)[:-1], (ADD, error)],
        "now": [*finds_no_room(stage), (Now(), error)],
        "sleep": [*finds_no_room(stage), (Now(), 100.0), (Sleep(stage.signal, 5.0), error)],
        "add again": [
            *finds_no_room(stage),
            (Now(), 100.0),
            (Sleep(stage.signal, 5.0), None),
            "clear",
            (ADD, error),
        ],
    }
    with pytest.raises(type(error)):
        stage.play(enqueue(stage), [*waits[where], "leave room"])
    assert stage.rejected == 0


def test_an_error_before_the_line_leaves_nothing_behind() -> None:
    stage = Stage()
    with pytest.raises(StorageBusy):
        stage.play(enqueue(stage), [(ROOM, stage.lines[Until.ROOM]), (ADD, StorageBusy("held"))])


def test_dropping_a_waiting_enqueue_takes_it_out_of_the_line() -> None:
    stage = Stage()
    flow = enqueue(stage, timeout_s=None)
    assert next(flow) == ROOM
    for answer in (stage.lines[Until.ROOM], FULL, 100.0, stage.signal, FULL):
        last = flow.send(answer)
    assert last == Sleep(stage.signal, None)
    flow.close()
    assert stage.noted == ["join room", "clear", "leave room"]


@pytest.mark.xfail(raises=AssertionError, reason="whoever joins the line looks at once, also behind others")
def test_a_newcomer_does_not_take_the_room_of_those_who_stand_in_line() -> None:
    # Room has been made and the first in line has been woken, but has not looked yet.
    stage = Stage()
    stage.lines[Until.ROOM].others = 1
    flow = enqueue(stage)
    assert next(flow) == ROOM
    asked = flow.send(stage.lines[Until.ROOM])
    while not isinstance(asked, Sleep):
        assert asked != ADD
        asked = flow.send(stage.signal if isinstance(asked, NewSignal) else 100.0)


@pytest.mark.xfail(
    raises=AssertionError, reason="WouldDeadlock is raised without a look when others wait for room"
)
@pytest.mark.parametrize("answer", [[Duplicate(3)], [7]], ids=["duplicate", "there is room"])
def test_a_handler_behind_others_is_refused_only_if_it_would_have_to_wait(answer: list[int]) -> None:
    stage = Stage()
    stage.lines[Until.ROOM].others = 1
    flow = enqueue(stage, timeout_s=None, handler=Handling.THIS_QUEUE)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (ADD, answer)]) == answer


# Try to enqueue


def try_enqueue(stage: Stage, handler: Handling = Handling.NOTHING) -> Flow[Any]:
    return flows.try_enqueue(stage, QUEUE, DRAFTS, handler=handler)


def test_try_enqueue_answers_at_once_and_counts_a_refusal() -> None:
    stage = Stage()
    assert stage.play(try_enqueue(stage), [(ADD, [7])]) == [7]
    assert stage.rejected == 0
    assert stage.play(try_enqueue(stage), [(ADD, FULL), "count rejected"]) is FULL
    assert stage.rejected == 1


@pytest.mark.parametrize("handler", Handling)
def test_try_enqueue_is_closed_as_enqueue_is(handler: Handling) -> None:
    stage = Stage(finished=True)
    if handler is Handling.THIS_QUEUE:
        assert stage.play(try_enqueue(stage, handler), [(ADD, [7])]) == [7]
    else:
        with pytest.raises(Closed):
            stage.play(try_enqueue(stage, handler), [])
