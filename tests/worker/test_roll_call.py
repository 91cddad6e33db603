"""The store's list of workers: who is there, and that nobody stays on it who has gone."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from tests.support.pools import KINDS, of_kind, threads_of
from tests.support.stores import refuse
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak.testing import ManualClock
from ulak.worker.report import SINCE, about_process


def on_the_list(q) -> list[str]:
    return [info.worker for info in q._edge.store.workers()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["drain", "shutdown", "leave"])
def test_pools_that_have_ended_are_not_on_the_list(make, kind, end):
    q = make()
    with q.workers(of_kind(kind, lambda _: None), count=2) as pool, q.workers(print, count=1):
        eventually(lambda: len(on_the_list(q)) == 2)
        if end == "drain":
            assert pool.drain(timeout=WAIT_S).drained
        elif end == "shutdown":
            pool.shutdown()
    eventually(lambda: not threads_of(q))
    assert on_the_list(q) == []


def test_a_pool_that_ends_while_it_says_that_it_is_there_is_not_on_the_list(make):
    q, beats, go_on = make(), threading.Semaphore(0), threading.Event()

    def decide(name, _args):
        if name == "beat":
            beats.release()
            assert go_on.wait(WAIT_S)

    refuse(q, decide)
    pool = q.workers(print, count=1)
    pool.start()
    assert beats.acquire(timeout=WAIT_S)
    # The end may wait for the word that is under way, or not; that word must not be the last one.
    ending = Running(pool.shutdown)
    eventually(lambda: pool.size == 0)
    go_on.set()
    ending.result()
    eventually(lambda: not threads_of(q))
    assert on_the_list(q) == []


def test_no_pool_is_listed_as_begun_after_it_was_seen():
    for microseconds in (0, 400, 600, 999_999):
        clock = ManualClock(datetime(2026, 1, 1, 9, 0, 0, microseconds, tzinfo=UTC))
        began = float(about_process(clock)[SINCE])
        assert clock.calendar() - 0.0011 < began <= clock.calendar()
