"""Ctrl-C, or any exception out of the blue, in the midst of calls that others wait with."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import WAIT_S
from ulak import AsyncQueue, Queue, UlakError

STRIKES = 150


class Struck(BaseException):
    """What the signal's handler raises."""


@pytest.fixture
def striking() -> Iterator[None]:
    """A timer's signal raises in the main thread, wherever that is."""

    def strike(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def recount(q: Queue) -> dict[str, int]:
    return {state: len(q.jobs(state, limit=100_000)) for state in ("ready", "leased", "succeeded")}


def take_a_turn(q: Queue) -> None:
    q.enqueue("payload")
    lease = q.deliver()
    if lease is not None:
        q.ack(lease)


@pytest.mark.usefixtures("striking")
@pytest.mark.parametrize("with_loop", [False, True], ids=["threads", "threads and a loop"])
def test_strikes_leave_no_caller_asleep_and_no_transaction_open(tmp_path, with_loop):
    url = f"sqlite:///{tmp_path}/jobs.db?durability=relaxed"
    over, rng = threading.Event(), random.Random(1)

    def work(q: Queue) -> None:
        while not over.is_set():
            try:
                take_a_turn(q)
            except UlakError as error:
                # It went into one transaction with a call that was struck.
                assert "was struck" in str(error)

    async def go_round() -> None:
        async with AsyncQueue(url, "mail") as q:
            while not over.is_set():
                try:
                    await asyncio.wait_for(q.enqueue("from a loop"), WAIT_S)
                except UlakError as error:
                    assert "was struck" in str(error)

    with Queue(url, "mail") as q:
        threads = [threading.Thread(target=work, args=(q,)) for _ in range(4)]
        if with_loop:
            threads.append(threading.Thread(target=asyncio.run, args=(go_round(),)))
        for thread in threads:
            thread.start()
        for _ in range(STRIKES):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-4, 4e-3))
                while True:
                    take_a_turn(q)
            except (Struck, UlakError):
                signal.setitimer(signal.ITIMER_REAL, 0)
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in threads)
        take_a_turn(q)
        counts = q.counts()
        assert recount(q) == {"ready": counts.ready, "leased": counts.leased, "succeeded": counts.acked}
