"""Ctrl-C, or any exception out of the blue, in the midst of calls that others wait with."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.strikes import CLAIMS, struck_at
from tests.support.waiting import WAIT_S
from ulak import AsyncQueue, Queue, UlakError
from ulak.storage import group

STRIKES = 150
AGAIN_S = 0.02


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


class Others:
    """Threads, and perhaps a loop, that call all the while; what they were told."""

    def __init__(self, url: str, q: Queue, *, with_loop: bool) -> None:
        self.url = url
        self.errors: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(q,)) for _ in range(4)]
        if with_loop:
            self.threads.append(threading.Thread(target=lambda: asyncio.run(self.go_round())))

    def work(self, q: Queue) -> None:
        while not self.over.is_set():
            try:
                take_a_turn(q)
            except UlakError as error:
                self.errors.append(str(error))

    async def go_round(self) -> None:
        async with AsyncQueue(self.url, "mail") as q:
            while not self.over.is_set():
                try:
                    await asyncio.wait_for(q.enqueue("from a loop"), WAIT_S)
                except UlakError as error:
                    self.errors.append(str(error))


def be_struck(q: Queue, after_s: float) -> None:
    """Call until the signal comes, wherever it comes."""
    with contextlib.suppress(Struck), contextlib.suppress(Struck):
        try:
            # Again and again, since one that falls into a callback of the interpreter's is only printed.
            signal.setitimer(signal.ITIMER_REAL, after_s, AGAIN_S)
            while True:
                take_a_turn(q)
        except (Struck, UlakError):
            signal.setitimer(signal.ITIMER_REAL, 0)


# The signal is the one that a time limit in the main thread would use.
@pytest.mark.timeout(60, method="thread")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("striking")
@pytest.mark.parametrize("with_loop", [False, True], ids=["threads", "threads and a loop"])
def test_strikes_leave_no_caller_asleep_and_no_transaction_open(tmp_path, with_loop):
    url, rng = f"sqlite:///{tmp_path}/jobs.db?durability=relaxed", random.Random(1)
    with Queue(url, "mail") as q:
        others = Others(url, q, with_loop=with_loop)
        for thread in others.threads:
            thread.start()
        for _ in range(STRIKES):
            be_struck(q, rng.uniform(2e-4, 4e-3))
        others.over.set()
        for thread in others.threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in others.threads)
        # Also those which went into one transaction with a call that was struck.
        assert not others.errors
        take_a_turn(q)
        counts = q.counts()
        assert recount(q) == {"ready": counts.ready, "leased": counts.leased, "succeeded": counts.acked}


def test_calls_of_a_loop_end_though_nobody_tells_them(tmp_path, monkeypatch):
    # As if each time a strike fell into the telling.
    monkeypatch.setattr(group, "_tell", lambda _: None)

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), AsyncQueue(f"sqlite:///{tmp_path}/jobs.db", "q") as q:
            assert len(set(await asyncio.gather(*(q.enqueue(b"") for _ in range(20))))) == 20
            # So long that nobody looks any more.
            await asyncio.sleep(3 * group.LOOK_AGAIN_S)
            assert await q.enqueue(b"")

    asyncio.run(main())


SPARED = ("try:", "self._lead.open = None")
"""Lines where the interpreter itself lets no signal in."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_strike_at_any_line_before_the_return_leaves_no_lease_and_no_attempt_spent(tmp_path, name):
    with Queue(f"sqlite:///{tmp_path}/jobs.db", "mail") as q:
        store = q._open().edge.store
        job_id = q.enqueue("once", max_attempts=1)
        for line_number in range(1, 1000):
            with struck_at(Struck, line_number, after="turn_together", spared=SPARED):
                CLAIMS[name](store)
                break
            assert (q.counts().leased, q.get(job_id).attempt) == (0, 0), line_number
        assert line_number > 10
        assert q.counts().leased == 1
