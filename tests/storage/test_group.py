"""Who leads a transaction, and who goes with it."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak.storage import group
from ulak.storage.group import Asked, Group


@pytest.fixture
def led():
    """Who led each transaction, and how many it took."""
    return []


@pytest.fixture
def calls(led):
    """A group whose transactions do nothing."""

    def run_all(batch):
        led.append((threading.current_thread(), len(batch)))
        for asked in batch:
            asked.is_done = True

    made = Group(run_all, lambda _: False)
    yield made
    made.close()


def asked():
    return Asked(lambda _: None, soft=True)


def test_who_comes_when_another_is_about_to_lead_goes_with_it_and_does_not_overtake(calls, led, monkeypatch):
    # As between the end of a transaction and the first step of whoever it wakes.
    monkeypatch.setattr(group, "LOOK_AGAIN_S", WAIT_S)
    del calls._lead.open
    first, second = asked(), asked()
    waits = Running(partial(calls.call, first))
    eventually(lambda: first.is_asleep)
    calls._lead.open = None
    comes = Running(partial(calls.call, second))
    eventually(lambda: second.is_asleep)
    assert led == []
    calls._wake_next()
    waits.result()
    comes.result()
    assert [size for _, size in led] == [2]


def test_who_waits_for_one_that_never_leads_goes_by_itself(calls, led):
    gone = asked()
    gone.is_dropped = True
    gone._parked = threading.Lock()
    calls._line.append(gone)
    calls.call(asked())
    assert led == [(threading.current_thread(), 1)]


def test_a_lone_call_lets_others_come_first_only_after_a_transaction_of_many(calls, monkeypatch):
    paused: list[float] = []
    monkeypatch.setattr(group, "pause", paused.append)
    calls.call(asked())
    assert paused == []
    calls._size = 8
    calls.call(asked())
    calls.call(asked())
    assert paused == [0.0]
