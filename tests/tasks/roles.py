"""What processes of their own do in tests of tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.children import Parent
from tests.support.pools import AT_ONCE
from tests.support.waiting import WAIT_S, eventually
from ulak import App, Context, Queue, State
from ulak.clock import SYSTEM
from ulak.home import Home
from ulak.local import clock_for, local_store
from ulak.testing import ManualClock
from ulak.unserved import Unserved


class Refused(Exception):
    """Cannot be made again from its text alone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


def define(app: App) -> Any:
    """The task of these tests: what an App of another process has too."""

    @app.task(name="work", max_attempts=1)
    def work(how: str) -> int:
        if how == "refused":
            raise Refused(550, "mailbox unavailable")
        return os.getpid()

    return work


def works(parent: Parent, url: str) -> None:
    """Runs jobs until it is told to end."""
    app = App(url)
    define(app)
    with app, app.workers(1):
        parent.say("works", os.getpid())
        parent.wait_for("end")


def runs_what_kills_it(parent: Parent, url: str, attempts: int, ran: str) -> None:
    """Runs a job that notes its attempt in the file `ran` and then kills its process."""
    app = App(url)

    def die(attempt: int) -> None:
        with Path(ran).open("a") as file:
            file.write(f"{attempt}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    define_killer(app, attempts, die)
    with app.workers(1):
        parent.say("works")
        parent.wait_for("end")


def define_killer(app: App, attempts: int, die: Callable[[int], None]) -> Any:
    """The task that ends its worker."""

    @app.task(name="die", max_attempts=attempts, backoff=AT_ONCE)
    def killer(ctx: Context) -> None:
        die(ctx.attempt)

    return killer


def fires_ticks(parent: Parent, url: str) -> None:
    """Fires a schedule ten times a second, and runs its jobs, until it is told to end."""
    app = App(url)
    app.every(0.1, catch_up="all")(app.task(name="tick")(lambda: None))
    with app.workers(1):
        parent.say("works")
        parent.wait_for("end")


def forks_beside_a_watcher(parent: Parent) -> None:
    """Forks while the parent waits for a job of its own to be taken."""
    clock = ManualClock()
    unserved = Unserved(lambda queue, job_id: True, clock)
    unserved.note("mail", 1)
    eventually(lambda: clock.sleepers == 1)

    def watchers() -> int:
        return sum(thread.name == "ulak-unserved" for thread in threading.enumerate())

    def look() -> None:
        before = watchers()
        unserved.note("mail", 2)
        parent.say("watchers in the child", [before, watchers()])

    _in_a_fork(look)


def forks_while_it_opens(parent: Parent, url: str) -> None:
    """Forks while a thread is in the midst of opening an App and a queue; uses both in the child."""
    app, inside = App(url), threading.Semaphore(0)
    work = define(app)
    queue = Queue(url, "plain")
    pid, find = os.getpid(), queue._find_store

    def slow(make: Callable[..., Any], *args: Any) -> Any:
        if os.getpid() == pid:
            inside.release()
            threading.Event().wait()
        return make(*args)

    Home.stand_in = lambda host: slow(local_store, host.url, clock_for(url, SYSTEM))
    queue.found_by(lambda: slow(find))
    for use in (lambda: work.enqueue("x"), lambda: queue.enqueue(b"x")):
        threading.Thread(target=use, daemon=True).start()
        inside.acquire()

    def look() -> None:
        parent.say("ids", [work.enqueue("x").id, queue.enqueue(b"x"), len(app.queue("default").jobs())])

    _in_a_fork(look)


def forks_with_an_app(parent: Parent, url: str) -> None:
    """Uses one App in a process, in a child that it forks, and in itself again."""
    app = App(url)
    work = define(app)
    mine = [work.enqueue("x"), asyncio.run(_enqueue(work))]

    def run() -> None:
        theirs = work.enqueue("y")
        with app.workers(1):
            parent.say(
                "ran in the child", [theirs.result(WAIT_S), asyncio.run(_enqueue(work)).result(WAIT_S)]
            )
        parent.say("child", [os.getpid(), [job.status() for job in mine]])

    _in_a_fork(run)
    with app.workers(1):
        mine.append(work.enqueue("z"))
        eventually(lambda: mine[-1].status() is State.SUCCEEDED)
    parent.say("parent", [os.getpid(), [job.result(WAIT_S) for job in mine]])
    app.close()


async def _enqueue(work: Any) -> Any:
    return await work.aenqueue("x")


def _in_a_fork(act: Any) -> None:
    """Do something in a forked child, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
