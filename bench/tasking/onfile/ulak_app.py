"""ulak: Apps on a file with their defaults, and `ulak work`; one has `def` tasks, the other `async def` ones.

Where histories are asked for, each call of the store is written down before it is made and once it is told.
"""

from __future__ import annotations

import itertools
import os
import threading
import time

from bench.tasking import probe
from bench.tasking.loop import arguments
from ulak import App

BATCH = 1000

url = f"sqlite:///{probe.folder() / 'jobs.db'}"
plain, looped = App(url), App(url)
count, ring = probe.Count(), probe.Bell()


@plain.task(name="no_op")
def plain_no_op(argument: str) -> None:
    count()


@plain.task(name="ping")
def plain_ping(argument: str) -> None:
    ring()


@plain.task(name="slow")
def plain_slow(argument: str) -> None:
    probe.slow(argument)


@looped.task(name="no_op")
async def looped_no_op(argument: str) -> None:
    count()


@looped.task(name="ping")
async def looped_ping(argument: str) -> None:
    ring()


class Side:
    """The App of this name, as the process sees it that enqueues."""

    def __init__(self, name):
        self.name = name
        self.app = globals()[name]
        self.no_op, self.ping_task = self.app.find("no_op"), self.app.find("ping")

    def fill(self, jobs):
        self.fill_with(arguments(jobs))

    def fill_with(self, made):
        while calls := [self.no_op.call(each) for each in itertools.islice(made, BATCH)]:
            self.no_op.enqueue_many(calls)

    def ping(self, argument):
        self.ping_task.enqueue(argument)

    def slow(self, argument):
        self.app.find("slow").enqueue(argument)

    def command(self, concurrency):
        return ["ulak", "work", f"{__name__}:{self.name}", "--concurrency", str(concurrency)]

    def open_jobs(self):
        return self.app.queue("default").counts().open

    def finished(self):
        return self.app.queue("default").counts().acked


def record():
    """Put a writer of histories before the store of this process."""
    from tests.support.history import History, Pen
    from tests.support.processes.roles import RecordedBoth
    from tests.support.stores import stand_before

    pen = Pen(History(probe.folder() / f"{os.getpid()}.history"), time.monotonic)

    def who():
        return f"{os.getpid()}/{threading.current_thread().name}"

    # Both Apps are on one URL, so they have one store in this process.
    stand_before(plain.queue("default"), lambda store: RecordedBoth(store, pen, who))


if os.environ.get(probe.HISTORIES):
    record()
