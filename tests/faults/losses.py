"""Power losses of the SQLite store: a life recorded, cut anywhere, and what is found after it judged."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

from tests.faults.chronicle import Chronicle, find
from tests.faults.disk import Disk, Event, Files, Loss, Tape, write_files
from tests.faults.place import FAST
from tests.faults.story import Story, make_queue
from tests.support.threads import Running
from ulak import JobInfo, Queue, UlakError
from ulak.core.job import Counts, State
from ulak.storage.sqlite import link, schema

DATABASE = "jobs.db"
STEPS = 450
"""Enough for several checkpoints on the way."""
CROWD = 4
AGAIN_EACH = 8
"""One image in so many is also cut while it recovers."""
AGAIN = 4
"""How often such a recovery is cut."""
USED_EACH = 10
"""One image in so many is worked on until nothing is left."""
SHOWN_MAX = 5
FEW_PAGES = 120
SLOW_SYNC_S = 0.001


class Way(NamedTuple):
    """How a life is recorded.

    crowd: threads that share the queue, so that their commits are grouped. pages: how many are written to the
    log before it is written back; with few, the log starts anew over old frames many times.
    """

    name: str
    options: str
    crowd: int = 1
    pages: int = link.CHECKPOINT_PAGES


WAYS = (
    Way("alone", ""),
    Way("alone, short log", "", 1, FEW_PAGES),
    Way("crowd", "", CROWD),
    Way("crowd, short log", "", CROWD, FEW_PAGES),
    Way("truncate", "?journal=truncate"),
    Way("truncate crowd", "?journal=truncate", CROWD),
)
CONTROL = Way("relaxed", "?durability=relaxed")


class Life(NamedTuple):
    """What was recorded."""

    start: Files
    events: list[Event]
    chronicle: Chronicle


class Tally(msgspec.Struct):
    """What came of some images. failed: way, seed, and the first problems, of those that failed."""

    images: int = 0
    during_recovery: int = 0
    used_up: int = 0
    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    failed: list[str] = msgspec.field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.images += other.images
        self.during_recovery += other.during_recovery
        self.used_up += other.used_up
        self.kinds += other.kinds
        self.failed += other.failed


@contextlib.contextmanager
def checkpoints(pages: int) -> Iterator[None]:
    """Let the log be written back after so many pages."""
    with mock.patch.object(link, "CHECKPOINT_PAGES", pages):
        yield


@contextlib.contextmanager
def rebooted(boot: str) -> Iterator[None]:
    """Let the machine have been started anew, as it has after a power loss."""
    with mock.patch.object(schema, "boot_id", return_value=boot):
        yield


def url_of(directory: Path, way: Way) -> str:
    return f"sqlite:///{directory / DATABASE}{way.options}"


def record(directory: Path, way: Way, seed: int, steps: int = STEPS) -> Life:
    """Live in two sittings, so that a close and a later open are recorded too."""
    directory.mkdir()
    chronicle = Chronicle()
    with Tape(directory, sync_s=SLOW_SYNC_S if way.crowd > 1 else 0.0) as tape, checkpoints(way.pages):
        for sitting in range(2):
            with make_queue(url_of(directory, way)) as q:
                stories = [
                    Story(
                        q,
                        f"{sitting}-{n}",
                        chronicle,
                        lambda: tape.now,
                        random.Random(f"{seed} {sitting} {n}"),
                    )
                    for n in range(way.crowd)
                ]
                _tell_all(stories, steps // 2 // way.crowd)
                leftover = [lease for story in stories for lease in story.leave()]
                stories[0].take_over(leftover)
                stories[0].give_up()
    return Life({}, tape.events, chronicle)


def _tell_all(stories: list[Story], steps: int) -> None:
    if len(stories) == 1:
        stories[0].go_on(steps)
        return
    running = [Running(lambda story=story: story.go_on(steps)) for story in stories]  # type: ignore[misc]
    for one in running:
        one.result()


def cut(life: Life, wanted: int, draw: random.Random) -> Iterator[tuple[int, Loss, dict[str, bytes]]]:
    """Images at moments spread over the whole life; all there are if so many are wanted.

    Yields the moment, the loss, and the files.
    """
    every = [(moment, loss) for moment in range(len(life.events) + 1) for loss in Loss]
    chosen = sorted(draw.sample(range(len(every)), min(wanted, len(every))))
    disk = Disk(life.start)
    done = 0
    for index in chosen:
        moment, loss = every[index]
        for event in life.events[done:moment]:
            disk.apply(event)
        done = moment
        yield moment, loss, disk.image(loss, draw)


def run_way(way: Way, seed: int, wanted: int, steps: int = STEPS) -> Tally:
    """Record one life, cut it so often, and judge what is found."""
    draw = random.Random(f"{way.name} {seed}")
    with tempfile.TemporaryDirectory(prefix="ulak-power-", dir=FAST) as name:
        place = Path(name)
        life = record(place / "live", way, seed, steps)
        judge = _Judge(place, way, life.chronicle, draw)
        first = -(-wanted * AGAIN_EACH // (AGAIN_EACH + AGAIN))
        for n, (moment, loss, files) in enumerate(cut(life, first, draw)):
            told = f"{way.name}, seed {seed}, cut at {moment}, {loss.value}"
            events = judge.judge(files, moment, told)
            if n % AGAIN_EACH == 0:
                for at, other, again in cut(Life(files, events, life.chronicle), AGAIN, draw):
                    judge.judge(again, moment, f"{told}; its recovery cut at {at}, {other.value}")
                    judge.tally.during_recovery += 1
    return judge.tally


class _Judge:
    """Opens the real store on images of one life, and tallies what is wrong with them."""

    def __init__(self, place: Path, way: Way, chronicle: Chronicle, draw: random.Random) -> None:
        self.tally = Tally()
        self._place = place / "image"
        self._way = way
        self._chronicle = chronicle
        self._draw = draw
        self._boots = 0

    def judge(self, files: Files, moment: int, told: str) -> list[Event]:
        """Judge one image; what was done to the files meanwhile."""
        place, url = self._place, url_of(self._place, self._way)
        write_files(place, files)
        self._boots += 1
        # A process that was killed leaves such an image too, with the machine still up.
        is_rebooted = self._draw.random() < 0.5
        with rebooted(f"boot {self._boots}") if is_rebooted else contextlib.nullcontext():
            with Tape(place, files) as tape:
                problems = look(url, self._chronicle, moment)
            events = list(tape.events)
            if not problems and self.tally.images % USED_EACH == 0:
                problems = use_up(url, is_rebooted=is_rebooted)
                self.tally.used_up += 1
        problems += check_file(place / DATABASE)
        self.tally.images += 1
        self.tally.kinds[self._way.name] += 1
        if problems:
            shown = "\n".join(f"    {problem}" for problem in problems[:SHOWN_MAX])
            self.tally.failed.append(f"{told}:\n{shown}")
        shutil.rmtree(place)
        return events


def look(url: str, chronicle: Chronicle, moment: int) -> list[str]:
    """What is wrong with the store after a power loss at this moment."""
    try:
        with make_queue(url) as q:
            jobs = all_jobs(q)
            counts = q.counts()
    except UlakError as error:
        return [f"cannot be opened: {error!r}"]
    return chronicle.judge(moment, find(jobs)) + recount(jobs, counts)


def recount(jobs: list[JobInfo], counts: Counts) -> list[str]:
    """What is wrong with the counts, by the jobs that are stored."""
    stored = Counter(job.state for job in jobs)
    told = Counter({state: getattr(counts, _COUNTED.get(state, state.value)) for state in State})
    same = +stored == +told and counts.total == len(jobs)
    return [] if same else [f"counts() answers {counts}, but stored are {dict(stored)}"]


_COUNTED = {State.SUCCEEDED: "acked"}


def all_jobs(q: Queue) -> list[JobInfo]:
    """Every stored job."""
    jobs: list[JobInfo] = []
    while page := q.jobs(after=jobs[-1].id if jobs else 0, limit=1000):
        jobs += page
    return jobs


def use_up(url: str, *, is_rebooted: bool) -> list[str]:
    """Work until nothing can be delivered; what hinders it.

    is_rebooted: since the leases were taken, so that they have ended by themselves.
    """
    try:
        with make_queue(url) as q:
            before = q.counts()
            fresh = q.enqueue("the newest")
            reclaimed = q.tick_timeouts() if is_rebooted else q.crash()
            done = 0
            while leases := q.deliver_many(100):
                done += len([outcome for outcome in q.ack_many(leases) if outcome.value == "ok"])
            counts = q.counts()
            newest = q.get(fresh)
    except UlakError as error:
        return [f"cannot be used: {error!r}"]
    problems = [] if reclaimed == before.leased else [f"{reclaimed} of {before.leased} leases reclaimed"]
    if newest is None or newest.payload != "the newest" or newest.state is not State.SUCCEEDED:
        problems.append(f"a job enqueued after it did not run: {newest}")
    ended = done + counts.dead - before.dead + counts.cancelled - before.cancelled
    if counts.leased or counts.ready or before.open + 1 != ended + counts.open:
        problems.append(f"{done} jobs were acknowledged, but counts went from {before} to {counts}")
    return problems


def check_file(path: Path) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    plain = sqlite3.connect(path)
    try:
        found = [text for (text,) in plain.execute("PRAGMA integrity_check")]
    except sqlite3.DatabaseError as error:
        return [f"integrity_check: {error}"]
    finally:
        plain.close()
    return [] if found == ["ok"] else [f"integrity_check: {found[:3]}"]
