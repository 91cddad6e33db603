"""The flow of an enqueue, driven by hand: the order of its asks, and what it does at each answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.stage import Script, Stage, call
from ulak.core import flows
from ulak.core.flows import Call, Flow, Handling, NewSignal, Now, Sleep
from ulak.core.job import FULL, Draft, Duplicate
from ulak.core.store import Settings, Signal, Until
from ulak.errors import Closed, QueueFull, StorageBusy, WouldDeadlock

QUEUE = "mail"
DRAFTS = [Draft(payload=b"hello", codec="bytes")]
TIMEOUT_S = 5.0
FIRST_ADD = call("add", QUEUE, DRAFTS, known_only=False)
KNOWN_ADD = call("add", QUEUE, DRAFTS, known_only=True)
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
        (FIRST_ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), stage.signal),
        "join room",
        "clear",
        "first in room",
        (ADD, FULL),
    ]


def is_behind_others(stage: Stage) -> Script:
    """An enqueue finds others in line, asks for duplicates only, and stands behind them at time 100."""
    return [
        (ROOM, stage.lines[Until.ROOM]),
        (KNOWN_ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), stage.signal),
        "join room",
        "clear",
        "not first in room",
    ]


@pytest.mark.parametrize("timeout_s", [None, 0.0, 5.0])
@pytest.mark.parametrize("handler", Handling)
def test_enqueue_with_room_neither_joins_nor_waits(handler: Handling, timeout_s: float | None) -> None:
    stage = Stage()
    flow = enqueue(stage, timeout_s=timeout_s, handler=handler)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (FIRST_ADD, [7])]) == [7]
    assert stage.rejected == 0


def test_enqueue_of_a_duplicate_is_answered_though_nothing_is_stored() -> None:
    stage = Stage()
    assert stage.play(enqueue(stage), [(ROOM, stage.lines[Until.ROOM]), (FIRST_ADD, [Duplicate(3)])]) == [3]


def test_enqueue_that_finds_no_room_joins_the_line_then_looks_again_then_sleeps() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.5),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, FULL),
        (Now(), 103.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]
    assert stage.rejected == 0


def test_room_made_between_the_first_look_and_joining_is_taken_without_a_sleep() -> None:
    stage = Stage()
    script: Script = [*finds_no_room(stage)[:-1], (ADD, [7]), (Now(), 100.0), "leave room"]
    assert stage.play(enqueue(stage), script) == [7]


def test_enqueue_without_a_limit_asks_for_no_time_and_looks_again_each_second() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage, timeout_s=None), script) == [7]


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
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, FULL),
        (Now(), 105.0),
        "leave room",
        "count rejected",
        (QUEUES, settings),
    ]
    with pytest.raises(QueueFull) as caught:
        stage.play(enqueue(stage), script)
    assert str(caught.value) == (
        f"{text} nothing was stored\n"
        "  wait longer, work faster, or raise it with q.configure(capacity=...) [U101]"
    )


def test_room_that_comes_with_the_end_of_time_is_still_taken() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 104.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
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
    with pytest.raises(Closed) as caught:
        stage.play(enqueue(stage, handler=handler), [])
    assert str(caught.value) == (
        "queue 'mail' takes no more jobs: every registered producer has finished\n"
        "  register another with queue.producer() to reopen it [U102]"
    )


def test_a_handlers_enqueue_into_its_own_queue_is_not_refused_by_a_drain() -> None:
    stage = Stage(finished=True)
    flow = enqueue(stage, handler=Handling.THIS_QUEUE)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (FIRST_ADD, [7])]) == [7]


def test_a_handler_that_waits_for_room_in_its_own_queue_is_not_refused_by_a_drain() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 1.0), stage.finish),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage, handler=Handling.THIS_QUEUE), script) == [7]


@pytest.mark.parametrize("handler", [Handling.NOTHING, Handling.OTHER_QUEUE])
def test_a_waiting_enqueue_is_woken_with_closed_when_the_last_producer_finishes(handler: Handling) -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 1.0), stage.finish),
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
        (FIRST_ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), last_producer_finishes),
        "join room",
        "clear",
        "leave room",
    ]
    with pytest.raises(Closed):
        stage.play(enqueue(stage), script)


HANDLERS = [Handling.THIS_QUEUE, Handling.OTHER_QUEUE]


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_without_a_limit_looks_then_raises_instead_of_waiting(
    handler: Handling, others: int
) -> None:
    stage = Stage(others=others)
    script: Script = [(ROOM, stage.lines[Until.ROOM]), (FIRST_ADD, FULL), "count rejected"]
    with pytest.raises(WouldDeadlock) as caught:
        stage.play(enqueue(stage, timeout_s=None, handler=handler), script)
    assert stage.rejected == 1
    assert str(caught.value) == (
        "queue 'mail' is full, and a handler must not wait without a limit for room that only "
        "handlers can make\n  give enqueue(timeout=...), use try_enqueue, or raise the capacity [U103]"
    )


@pytest.mark.parametrize("answer", [[Duplicate(3)], [7]], ids=["duplicate", "there is room"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_without_a_limit_is_served_at_once_also_when_others_wait(
    handler: Handling, answer: list[int]
) -> None:
    # It cannot stand in line, so its only look is a full one.
    stage = Stage(others=2)
    flow = enqueue(stage, timeout_s=None, handler=handler)
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (FIRST_ADD, answer)]) == answer
    assert stage.rejected == 0


def test_a_handler_with_a_limit_waits_like_anybody() -> None:
    stage = Stage()
    script: Script = [
        *finds_no_room(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage, handler=Handling.OTHER_QUEUE), script) == [7]


@pytest.mark.parametrize("error", [StorageBusy("held"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", ["add", "now", "sleep", "add again", "now behind", "sleep behind"])
def test_whatever_ends_a_waiting_enqueue_takes_it_out_of_the_line(where: str, error: BaseException) -> None:
    stage = Stage(others=2 if "behind" in where else 0)
    waits: dict[str, Script] = {
        "add": [*finds_no_room(stage)[:-1], (ADD, error)],
        "now": [*finds_no_room(stage), (Now(), error)],
        "sleep": [*finds_no_room(stage), (Now(), 100.0), (Sleep(stage.signal, 1.0), error)],
        "add again": [
            *finds_no_room(stage),
            (Now(), 100.0),
            (Sleep(stage.signal, 1.0), None),
            "clear",
            "first in room",
            (ADD, error),
        ],
        "now behind": [*is_behind_others(stage), (Now(), error)],
        "sleep behind": [*is_behind_others(stage), (Now(), 100.0), (Sleep(stage.signal, 5.0), error)],
    }
    with pytest.raises(type(error)):
        stage.play(enqueue(stage), [*waits[where], "leave room"])
    assert stage.rejected == 0


@pytest.mark.parametrize(("others", "look"), [(0, FIRST_ADD), (2, KNOWN_ADD)])
def test_an_error_before_the_line_leaves_nothing_behind(others: int, look: Call) -> None:
    stage = Stage(others=others)
    with pytest.raises(StorageBusy):
        stage.play(enqueue(stage), [(ROOM, stage.lines[Until.ROOM]), (look, StorageBusy("held"))])
    assert stage.rejected == 0


def test_dropping_a_waiting_enqueue_takes_it_out_of_the_line() -> None:
    stage = Stage()
    flow = enqueue(stage, timeout_s=None)
    assert next(flow) == ROOM
    for answer in (stage.lines[Until.ROOM], FULL, 100.0, stage.signal, FULL):
        last = flow.send(answer)
    assert last == Sleep(stage.signal, 1.0)
    flow.close()
    assert stage.noted == ["join room", "clear", "first in room", "leave room"]


# Behind others


@pytest.mark.parametrize(
    ("timeout_s", "handler"),
    [
        (timeout_s, handler)
        for timeout_s in (None, 0.0, 5.0)
        for handler in Handling
        if handler is Handling.NOTHING or timeout_s is not None
    ],
)
def test_a_duplicate_is_answered_at_once_although_others_wait(
    timeout_s: float | None, handler: Handling
) -> None:
    stage = Stage(others=2)
    flow = enqueue(stage, timeout_s=timeout_s, handler=handler)
    answer = [Duplicate(3)]
    assert stage.play(flow, [(ROOM, stage.lines[Until.ROOM]), (KNOWN_ADD, answer)]) == answer
    assert stage.rejected == 0


@pytest.mark.parametrize("handler", Handling)
def test_a_newcomer_sleeps_without_a_look_until_those_before_it_have_left(handler: Handling) -> None:
    # Room may have been made already, for one who has been woken but has not looked yet.
    stage = Stage(others=2)
    script: Script = [
        *is_behind_others(stage),
        (Now(), 100.5),
        (Sleep(stage.signal, 4.5), None),
        "clear",
        "not first in room",
        (Now(), 102.0),
        (Sleep(stage.signal, 3.0), stage.others_leave),
        "clear",
        "first in room",
        (ADD, FULL),
        (Now(), 103.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage, handler=handler), script) == [7]
    assert stage.rejected == 0


def test_a_newcomer_without_a_limit_asks_for_no_time_and_sleeps_without_one() -> None:
    stage = Stage(others=2)
    script: Script = [
        *is_behind_others(stage),
        (Sleep(stage.signal, None), None),
        "clear",
        "not first in room",
        (Sleep(stage.signal, None), stage.others_leave),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage, timeout_s=None), script) == [7]


def test_a_newcomer_who_is_first_by_the_time_it_joins_looks_without_a_sleep() -> None:
    stage = Stage(others=2)

    def those_before_leave() -> Signal:
        stage.others_leave()
        return stage.signal

    script: Script = [
        (ROOM, stage.lines[Until.ROOM]),
        (KNOWN_ADD, FULL),
        (Now(), 100.0),
        (NewSignal(), those_before_leave),
        "join room",
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]


def test_who_becomes_first_at_the_end_of_its_time_still_looks() -> None:
    stage = Stage(others=1)
    script: Script = [
        *is_behind_others(stage),
        (Now(), 104.0),
        (Sleep(stage.signal, 1.0), stage.others_leave),
        "clear",
        "first in room",
        (ADD, [7]),
        (Now(), 106.5),
        "leave room",
    ]
    assert stage.play(enqueue(stage), script) == [7]


@pytest.mark.parametrize("handler", Handling)
def test_who_is_still_behind_others_when_time_is_over_gives_up_without_a_look(handler: Handling) -> None:
    stage = Stage(others=1)
    script: Script = [
        *is_behind_others(stage),
        (Now(), 104.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        "not first in room",
        (Now(), 105.0),
        "leave room",
        "count rejected",
        (QUEUES, {QUEUE: Settings(capacity=1)}),
    ]
    with pytest.raises(QueueFull, match="stayed at its capacity of 1 open jobs for 5 s; nothing was stored"):
        stage.play(enqueue(stage, handler=handler), script)
    assert stage.rejected == 1


@pytest.mark.parametrize("handler", Handling)
def test_a_newcomer_with_a_timeout_of_zero_neither_looks_nor_sleeps(handler: Handling) -> None:
    stage = Stage(others=1)
    script: Script = [
        *is_behind_others(stage),
        (Now(), 100.0),
        "leave room",
        "count rejected",
        (QUEUES, {QUEUE: Settings(capacity=1)}),
    ]
    with pytest.raises(QueueFull, match="stayed at its capacity of 1 open jobs; nothing was stored"):
        stage.play(enqueue(stage, timeout_s=0.0, handler=handler), script)
    assert stage.rejected == 1


@pytest.mark.parametrize("handler", [Handling.NOTHING, Handling.OTHER_QUEUE])
def test_who_still_stands_behind_others_is_woken_with_closed(handler: Handling) -> None:
    stage = Stage(others=1)
    script: Script = [
        *is_behind_others(stage),
        (Now(), 100.0),
        (Sleep(stage.signal, 5.0), stage.finish),
        "clear",
        "leave room",
    ]
    with pytest.raises(Closed):
        stage.play(enqueue(stage, handler=handler), script)
    assert stage.rejected == 0


# Try to enqueue


def try_enqueue(stage: Stage, handler: Handling = Handling.NOTHING) -> Flow[Any]:
    return flows.try_enqueue(stage, QUEUE, DRAFTS, handler=handler)


def test_how_long_an_enqueue_was_blocked_is_counted_found_room_or_not() -> None:
    found, gave_up, at_once = Stage(), Stage(), Stage()
    found.play(
        enqueue(found),
        [
            *finds_no_room(found),
            (Now(), 100.5),
            (Sleep(found.signal, 1.0), None),
            "clear",
            "first in room",
            (ADD, [7]),
            (Now(), 101.5),
            "leave room",
        ],
    )
    with pytest.raises(QueueFull):
        gave_up.play(
            enqueue(gave_up, timeout_s=2.0),
            [
                *finds_no_room(gave_up),
                (Now(), 102.25),
                "leave room",
                "count rejected",
                (QUEUES, {}),
            ],
        )
    at_once.play(enqueue(at_once), [(ROOM, at_once.lines[Until.ROOM]), (FIRST_ADD, [7])])
    assert (found.blocked_s, gave_up.blocked_s, at_once.blocked_s) == ([1.5], [2.25], [])


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
