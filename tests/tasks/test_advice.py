"""A backoff function that takes its time: on the test's clock."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually, let_time_pass
from ulak.testing import ManualClock
from ulak.worker import advice
from ulak.worker.advice import Advice


def refuse_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class Slow:
    """A policy that answers the first question only when it is let."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may = threading.Event()

    def __call__(self, attempt: int, error: BaseException) -> float:
        self.asked.append(attempt)
        if len(self.asked) == 1:
            self.may.wait(WAIT_S)
        return 7.0


def test_a_slow_answer_is_waited_for_one_second_and_nobody_else_asks_meanwhile(caplog) -> None:
    clock, policy = ManualClock(), Slow()
    asking = Advice("t", policy, clock)
    first = Running(lambda: asking.ask(1, ValueError()))
    let_time_pass(clock, advice.ADVICE_S, sleepers=1)
    assert first.result() is None
    # Nothing sleeps on the clock for these.
    assert [asking.ask(2, ValueError()) for _ in range(3)] == [None] * 3
    assert policy.asked == [1]
    policy.may.set()
    eventually(lambda: asking.ask(3, ValueError()) == 7.0)
    (said,) = [record.getMessage() for record in caplog.records]
    assert (
        said
        == "task t: its backoff function took longer than a second; the stored backoff is used (said once)"
    )


def test_a_slow_answer_keeps_no_event_loop(monkeypatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")
    monkeypatch.setattr(advice, "ADVICE_S", 0.01)
    policy = Slow()
    asking = Advice("t", policy, ManualClock())

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(tick())
        assert await asking.aask(1, ValueError()) is None
        assert await asking.aask(2, ValueError()) is None
        assert ticks > 1
        other.cancel()
        policy.may.set()
        eventually(lambda: asking._late == 0)
        assert await asking.aask(3, ValueError()) == 7.0

    asyncio.run(main())
    assert policy.asked == [1, 3]


@pytest.mark.parametrize("style", ["def", "async def"])
def test_a_question_that_no_thread_can_be_started_for_has_no_answer(style: str, monkeypatch, caplog) -> None:
    asking = Advice("t", lambda attempt, error: 7.0, ManualClock())

    def ask() -> float | None:
        if style == "def":
            return asking.ask(1, ValueError())
        return asyncio.run(asking.aask(1, ValueError()))

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse_to_start)
        assert [ask(), ask()] == [None, None]
    (said,) = [record.getMessage() for record in caplog.records]
    assert (
        "could not be asked, since no thread can be started; the stored backoff is used (said once)" in said
    )
    assert ask() == 7.0


def test_an_answer_for_a_loop_that_is_gone_harms_nobody(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")
    policy = Slow()
    asking = Advice("t", policy, ManualClock())

    async def main() -> None:
        question = asyncio.create_task(asking.aask(1, ValueError()))
        while not policy.asked:  # noqa: ASYNC110 - it is asked in a thread
            await asyncio.sleep(0)
        question.cancel()

    asyncio.run(main())
    policy.may.set()
    eventually(lambda: not [x for x in threading.enumerate() if x.name == "ulak-backoff-t"])
    assert asking.ask(2, ValueError()) == 7.0
