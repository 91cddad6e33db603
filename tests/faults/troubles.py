"""I/O faults under a queue on SQLite: one point is one fault, at one call, once or from then on."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

from tests.faults.chronicle import Shown, find
from tests.faults.disk import Loss, play, write_files
from tests.faults.doubt import Doubt, go_through
from tests.faults.losses import DATABASE, all_jobs, check_file, checkpoints, recount
from tests.faults.place import FAST
from tests.faults.story import make_queue
from tests.faults.strikes import FAULTS, Fault, Striker
from tests.faults.vfs import Kind
from ulak import Queue, StorageBusy, StorageFull, StorageUnavailable, UlakError
from ulak.storage.sqlite import link

JOURNALS = ("wal", "truncate")
SHOWN_MAX = 5
# The log is written back within the few calls there are, or not at all; and nobody waits for long.
PAGES = 40, 400
BUSY_S = 0.02
IMAGES = 4

REFUSALS = StorageBusy, StorageFull, StorageUnavailable


class Manner(Enum):
    """What becomes of the handle after the trouble."""

    GOES_ON = "goes on"
    CLOSES = "closes"
    CLOSES_IN_TROUBLE = "closes in trouble"


class Point(NamedTuple):
    """Where a fault strikes. nth: of the calls that it concerns, counted from before the open."""

    journal: str
    fault: Fault
    nth: int
    persistent: bool
    manner: Manner

    def __str__(self) -> str:
        until = "and each later" if self.persistent else "only"
        return (
            f"journal={self.journal}, {self.fault.name}, call {self.nth} {until}; handle {self.manner.value}"
        )


class Tally(msgspec.Struct):
    """What came of some points. unstruck: their call never came. reopened: a new handle was needed."""

    points: int = 0
    unstruck: int = 0
    reopened: int = 0
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    failed: list[str] = msgspec.field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.points += other.points
        self.unstruck += other.unstruck
        self.reopened += other.reopened
        self.answers += other.answers
        self.faults += other.faults
        self.failed += other.failed


@contextlib.contextmanager
def hasty(pages: int) -> Iterator[None]:
    """Let whoever waits for others give up soon, and the log be written back after so many pages."""
    with mock.patch.object(link, "BUSY_S", BUSY_S), checkpoints(pages):
        yield


def points() -> list[Point]:
    """Every point there is: each fault at each call that a life without faults makes; manners in turn."""
    found = []
    manners = list(Manner)
    for journal in JOURNALS:
        calls = _calls_of(journal)
        for fault in FAULTS:
            most = sum(calls[kind] for kind in fault.kinds)
            found += [
                Point(journal, fault, nth, persistent, manners[(nth + persistent) % len(manners)])
                for nth in range(1, most + 1)
                for persistent in (False, True)
            ]
    return found


def _calls_of(journal: str) -> dict[Kind, int]:
    with tempfile.TemporaryDirectory(prefix="ulak-faults-", dir=FAST) as name:
        live = Path(name).resolve() / "live"
        live.mkdir()
        with hasty(min(PAGES)), Striker(live) as striker:
            trial = _Trial(live, striker, journal, Manner.GOES_ON)
            trial.live()
            assert not trial.problems, trial.problems
        return striker.calls


def chosen(wanted: int, seed: int) -> list[Point]:
    """So many points, spread over all faults alike; all if so many are wanted."""
    every = points()
    if wanted >= len(every):
        return every
    draw = random.Random(seed)
    of_kind: dict[tuple[object, ...], list[Point]] = {}
    for point in every:
        of_kind.setdefault(point[:2] + point[3:], []).append(point)
    kinds = list(of_kind.values())
    for kind in kinds:
        draw.shuffle(kind)
    draw.shuffle(kinds)
    taken: list[Point] = []
    while len(taken) < wanted:
        taken += [kind.pop() for kind in kinds if kind][: wanted - len(taken)]
    return taken


def strike(point: Point) -> Tally:
    """Live through one fault, and say what is wrong afterwards."""
    with tempfile.TemporaryDirectory(prefix="ulak-faults-", dir=FAST) as name:
        live = Path(name).resolve() / "live"
        live.mkdir()
        draw = random.Random(str(point))
        with hasty(draw.choice(PAGES)), Striker(live) as striker:
            trial = _Trial(live, striker, point.journal, point.manner)
            striker.arm(point.fault, point.nth, persistent=point.persistent)
            trial.live()
            moments = trial.moments
        if not trial.problems:
            # The power may go after all that, too: a sync that failed has lost what it was for.
            for n in range(IMAGES if moments else 0):
                moment = between(moments, draw)
                image = live.parent / f"image-{n}"
                write_files(image, play({}, striker.events[: moment.at]).image(Loss.ALL, draw))
                trial.look_at_image(image, moment)
        tally = Tally(
            1,
            int(not striker.struck),
            int(trial.is_reopened),
            trial.doubt.answers,
            Counter({point.fault.name: 1}),
        )
        if trial.problems:
            shown = "\n".join(f"    {problem}" for problem in trial.problems[:SHOWN_MAX])
            tally.failed.append(f"{point}:\n{shown}")
        return tally


class Moment(NamedTuple):
    """What must be there if the power goes at this moment of the tape."""

    at: int
    kept: dict[str, set[Shown | None]]


def between(moments: list[Moment], draw: random.Random) -> Moment:
    """Any moment between the first and the last: what may be there before or after the call under way."""
    at = draw.randint(moments[0].at, moments[-1].at)
    before = next(moment for moment in reversed(moments) if moment.at <= at)
    after = next(moment for moment in moments if moment.at >= at)
    labels = before.kept.keys() | after.kept.keys()
    nothing: set[Shown | None] = {None}
    return Moment(
        at,
        {label: before.kept.get(label, nothing) | after.kept.get(label, nothing) for label in labels},
    )


class _Trial:
    """One life of a queue: in trouble until the faults end, then as if nothing had been."""

    def __init__(self, directory: Path, striker: Striker, journal: str, manner: Manner) -> None:
        self._url = f"sqlite:///{directory / DATABASE}?journal={journal}"
        self._path = directory / DATABASE
        self._journal = journal
        self._manner = manner
        self._striker = striker
        self.doubt = Doubt()
        self.problems: list[str] = []
        self.is_reopened = False
        self.moments: list[Moment] = []

    def live(self) -> None:
        """All of it."""
        q = self._in_trouble()
        if q is not None and self._manner is Manner.CLOSES_IN_TROUBLE:
            self._close(q)
            q = None
        self._striker.disarm()
        if q is not None and self._manner is Manner.CLOSES:
            self._close(q)
            q = None
        q = self._works_again(q)
        if q is None:
            return
        with q:
            self.doubt.ask_again(q)
            go_through(self.doubt, q, self._note)
            self._check(q)
            if not self.problems:
                self._use_up(q)
        self.problems += check_file(self._path)

    def _note(self) -> None:
        if self._striker.struck:
            kept = {label: set(states) for label, states in self.doubt.kept.items()}
            self.moments.append(Moment(self._striker.now, kept))

    def _close(self, q: Queue) -> None:
        self.doubt.close(q)
        self._note()

    def _in_trouble(self) -> Queue | None:
        """Call what can be called, though calls fail. None: it could not even be opened."""
        q = make_queue(self._url)
        try:
            q.counts()
        except REFUSALS as error:
            self.doubt.answers[type(error).__name__] += 1
            return None
        except Exception as error:  # noqa: BLE001 - none of it may reach a user
            self.problems.append(f"open let through {error!r}")
            return None
        go_through(self.doubt, q, self._note)
        return q

    def _works_again(self, q: Queue | None) -> Queue | None:
        """The queue, or another handle if that one does not work any more."""
        if q is not None:
            try:
                q.counts()
                q.pause()
                q.resume()
            except REFUSALS:
                self.is_reopened = True
                with contextlib.suppress(*REFUSALS):
                    q.close()
            else:
                return q
        again = make_queue(self._url)
        try:
            again.counts()
        except UlakError as error:
            self.problems.append(f"cannot be opened when the fault is over: {error!r}")
            return None
        return again

    def _check(self, q: Queue) -> None:
        jobs = all_jobs(q)
        self.problems += self.doubt.judge(find(jobs), self.doubt.possible)
        self.problems += recount(jobs, q.counts())

    def _use_up(self, q: Queue) -> None:
        """Everything that is open can be brought to its end."""
        q.crash()
        while leases := q.deliver_many(100):
            q.ack_many(leases)
        left = q.counts()
        if left.ready or left.leased:
            self.problems.append(f"open jobs are left: {left}")

    def look_at_image(self, image: Path, moment: Moment) -> None:
        """What a power loss after all that would have left."""
        try:
            with make_queue(f"sqlite:///{image / DATABASE}?journal={self._journal}") as q:
                jobs = all_jobs(q)
        except UlakError as error:
            self.problems.append(f"after a power loss: cannot be opened: {error!r}")
            return
        found = self.doubt.judge(find(jobs), moment.kept) + check_file(image / DATABASE)
        self.problems += [f"after a power loss: {problem}" for problem in found]
