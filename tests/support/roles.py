"""What the child processes of these tests do, and the clock that they and the tests share."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.support.children import Parent, end_with
from tests.support.stores import is_write, refuse
from tests.support.waiting import WAIT_S
from ulak import Context, Queue
from ulak.clock import MACHINE, Wakeable
from ulak.core import flows
from ulak.core.flows import Call, Draw, Now

QUEUE = "mail"
LONG_S = 3600.0
"""A lease, or a wait, that no test outlasts: what comes sooner does not come because it has passed."""


class Ahead:
    """The machine's clocks, so many seconds ahead: what is to come, without waiting for it."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def interval(self) -> float:
        return MACHINE.interval() + self.ahead_s

    def calendar(self) -> float:
        return MACHINE.calendar() + self.ahead_s

    def wait(self, event: Wakeable, timeout_s: float | None) -> None:
        MACHINE.wait(event, timeout_s)


def die() -> NoReturn:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a SIGKILL cannot be survived")


_INSTRUCTIONS = 25
_MORE_JOBS = 10


def in_a_fork(call: Callable[..., None], *arguments: Any) -> int:
    """Run this in a forked child, and wait for its end: 0, or the signal that ended it.

    That is much quicker than a new interpreter. Only for a child that has no store open.
    """
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with(parent_pid)
            call(*arguments)
        except BaseException:  # noqa: BLE001 - it is this process's, and goes no further
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return status


# Workers


def work(parent: Parent, url: str, lease_s: float, kind: str) -> None:
    """A pool whose handlers do what their payload says, until it is told to leave.

    Those that wait return once it is told anything else.
    """

    may_return = threading.Event()

    def handler(payload: dict[str, Any], context: Context) -> None:
        parent.say("started", [payload["name"], context.attempt, context.delivery, time.time()])
        if context.delivery <= payload.get("dies", 0):
            if payload.get("has child"):
                parent.say("child", _surviving_child())
            die()
        if context.attempt <= payload.get("fails", 0):
            raise RuntimeError("as planned")
        if payload.get("waits"):
            may_return.wait()
        time.sleep(payload.get("takes_s", 0.0))

    async def ahandler(payload: dict[str, Any], context: Context) -> None:
        handler(payload, context)

    with Queue(url, QUEUE, visibility_timeout=lease_s) as q:
        pool = q.workers(ahandler if kind == "async def" else handler, count=2)
        parent.say("ready")
        pool.start()
        while parent.next_word() != "leave":
            may_return.set()
        pool.shutdown()
        parent.say("left", pool.metrics().stale)


def _surviving_child() -> int:
    """Fork a child that outlives this process, with all that a fork inherits, and ends with the test."""
    test = os.getppid()
    pid = os.fork()
    if pid == 0:
        while _lives(test):
            time.sleep(0.05)
        os._exit(0)
    return pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def hold(parent: Parent, url: str, lease_s: float, jobs: int, worker: str | None) -> None:
    """Take jobs by plain calls, hold them, and ack them when told."""
    with Queue(url, QUEUE, visibility_timeout=lease_s) as q:
        if worker is not None:
            q._worker = worker
        leases = q.deliver_many(jobs, timeout=WAIT_S)
        parent.say("held", [[lease.id, lease.attempt, lease.delivery] for lease in leases])
        parent.wait_for("ack")
        parent.say("acked", [outcome.value for outcome in q.ack_many(leases)])
        parent.wait_for("leave")


def work_till_drained(parent: Parent, url: str) -> None:
    """Run no-op jobs until none is left, and tell which."""
    ran: list[int] = []
    with Queue(url, QUEUE) as q:
        q.mark_producer_finished()
        parent.say("ready")
        parent.wait_for("go")
        with q.workers(ran.append):
            pass
    parent.say("ran", ran)


def serve_shortly(parent: Parent, url: str, lives: list[tuple[int, float]]) -> None:
    """Work in one process after the other; each is killed so many seconds after so many jobs have begun."""
    for jobs, delay_s in lives:
        assert in_a_fork(_serve, url, jobs, delay_s) == signal.SIGKILL
        parent.say("killed")


def _serve(url: str, jobs: int, delay_s: float) -> None:
    begun = itertools.count(1)
    enough = threading.Event()

    def handler(payload: int) -> None:
        number = next(begun)
        if number == jobs:
            enough.set()
        elif number > jobs + _MORE_JOBS:
            # However late the kill comes, it leaves jobs for the other processes.
            threading.Event().wait()

    q = Queue(url, QUEUE, visibility_timeout=LONG_S)
    q.workers(handler, count=4).start()
    enough.wait()
    time.sleep(delay_s)
    die()


# Reapers


def reap_in_two_steps(parent: Parent, url: str, ahead_s: float) -> None:
    """Read which leases have ended, on a clock that is ahead, and settle them when told."""
    with Queue(url, QUEUE, clock=Ahead(ahead_s)) as q:
        settle_when_told(parent, q)


def settle_when_told(parent: Parent, q: Queue) -> None:
    """Reclaim what has ended, with a word from the parent between the look and the write."""
    tick, edge = flows.reclaim([q.name]), q._open().edge
    ask = next(tick)
    try:
        while True:
            assert isinstance(ask, Call | Now | Draw)
            if isinstance(ask, Call) and ask.name == "settle":
                parent.say("read")
                parent.wait_for("write")
            ask = tick.send(edge.answer(ask))
    except StopIteration as stop:
        parent.say("reclaimed", stop.value)


def reap(parent: Parent, url: str, ahead_s: float) -> None:
    """Reclaim what has ended, on a clock that is ahead, and say how many jobs each write is to settle."""

    def decide(name: str, args: tuple[Any, ...]) -> None:
        if is_write(name, args):
            parent.say("writes", len(args[0]))

    with Queue(url, QUEUE, clock=Ahead(ahead_s)) as q:
        refuse(q, decide)
        parent.say("reclaimed", q.tick_timeouts())


# Producers


def enqueue_same_keys(parent: Parent, url: str, keys: int) -> None:
    """Enqueue one job for each key, and tell each answer: the id, and whether it was a duplicate."""
    with Queue(url, QUEUE) as q:
        q.counts()
        parent.say("ready")
        parent.wait_for("go")
        answers = [q.enqueue(key, unique_key=f"K{key}") for key in range(keys)]
        parent.say("told", [[int(answer), type(answer).__name__] for answer in answers])
        parent.wait_for("leave")


# Promotion, cut short


def die_in_each_place(parent: Parent, template: str, way: str, place: str) -> None:
    """Act on a copy of the file and be killed at the first place; so for each place, till one is not reached.

    way: promote or deliver. place: at a statement, or at every so many instructions of the library.
    """
    for number in itertools.count(1):
        path = Path(template).with_name(f"{way}-{place}-{number}.db")
        shutil.copy(template, path)
        status = in_a_fork(_act, f"sqlite:///{path}", way, place, number)
        assert status in (0, signal.SIGKILL)
        parent.say("killed" if status else "survived", str(path))
        if status == 0:
            return


def _act(url: str, way: str, place: str, number: int) -> None:
    q = Queue(url, QUEUE, visibility_timeout=LONG_S)
    q.counts()
    reached = itertools.count(1)

    def on_reached(*_: object) -> None:
        if next(reached) == number:
            die()

    writer: sqlite3.Connection = q._open().edge.store.link.writer  # type: ignore[attr-defined]
    if place == "statement":
        writer.set_trace_callback(on_reached)
    else:
        writer.set_progress_handler(on_reached, _INSTRUCTIONS)
    if way == "promote":
        assert q._open().edge.store.promote([QUEUE]) == 1
    else:
        assert q.deliver() is not None
