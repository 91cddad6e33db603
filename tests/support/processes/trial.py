"""A trial: processes work on one store and are struck; in the end what all were told is judged."""

from __future__ import annotations

import importlib
import logging
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from tests.support.history import History, Verdict, judge, merged, stored_lines
from tests.support.history.lines import Happened, Line
from tests.support.history.story import Story
from tests.support.processes.board import ALLOWED, ASKED, DONE, STOP, TOLD, Board
from tests.support.processes.deaths import condemned, ends_of, restarts
from tests.support.processes.roles import QUEUE, Plan, produce, work_by_hand, work_in_pool, work_on_loop

ROLES: dict[str, Callable[[Plan, str, int], None]] = {
    "pool0": work_in_pool,
    "loop0": work_on_loop,
    "hand0": work_by_hand,
    "hand1": work_by_hand,
    "producer0": produce,
    "producer1": produce,
}
"""Each slot's role: four workers and two producers."""
_SLOTS = {name: slot for slot, name in enumerate(ROLES)}
_WORKERS = ("pool", "loop", "hand")
PRODUCERS = sum(role is produce for role in ROLES.values())
CAPACITY = 150
_FROZEN_MAX = 2
_LOOK_S = 0.005
_BEHIND_S = 2.0
"""An event waits at most so long for the jobs to come along."""
_IN_CALL_S = 0.2
_CALL_S = 0.003
"""About how long a call takes."""
_BATCHES = 20
_SLACK_S = 0.02


class Sizes(msgspec.Struct, frozen=True):
    """How large a trial is.

    lease_s: the visibility timeout. slow_s: how long the slowest handlers take. mean_gap_s: between events.
    rest_s: how long all may take to come to rest once the events are over.
    """

    kills: int
    pauses: int
    jobs: int
    lease_s: float
    slow_s: float
    mean_gap_s: float = 0.02
    rest_s: float = 90.0


class Outcome(msgspec.Struct):
    """What came of a trial. restarts_s: from each kill to the next delivery of each job that was held."""

    verdict: Verdict
    kills: int
    pauses: int
    took_s: float
    problems: list[str]
    struck: Counter[str]
    restarts_s: list[float]
    left_files: int

    @property
    def failed(self) -> int:
        """How many problems were found."""
        return len(self.problems) + len(self.verdict.problems)


class Process:
    """A process of a trial, as its parent knows it. thaw_at: when it is to go on, where it was frozen."""

    def __init__(self, name: str, slot: int, born: int, pid: int) -> None:
        self.name = name
        self.slot = slot
        self.born = born
        self.pid = pid
        self.thaw_at: float | None = None
        self.killed = False

    @property
    def full_name(self) -> str:
        """Its name among all of its slot."""
        return f"{self.name}.{self.born}"


class Trial:
    """Runs one. The process that runs it must have no threads, since it forks."""

    def __init__(
        self,
        place: Path,
        sizes: Sizes,
        *,
        seed: int,
        before: Callable[[], None] | None = None,
        options: str = "",
        url: str = "",
    ) -> None:
        self.sizes = sizes
        self._place = place
        self._draw = random.Random(seed)
        self._board = Board(len(ROLES))
        self._plan = Plan(
            place,
            self._board,
            seed=seed,
            lease_s=sizes.lease_s,
            slow_s=sizes.slow_s,
            capacity=CAPACITY,
            jobs_each=sizes.jobs // PRODUCERS,
            before=before,
            options=options,
            url=url,
        )
        self._alive: dict[int, Process] = {}
        self._names: list[str] = []
        self._finished: set[str] = set()
        self._problems: list[str] = []
        self._struck: Counter[str] = Counter()
        self._events = History(place / "events.history")

    def run(self) -> Outcome:
        """Run it to its end."""
        assert threading.active_count() == 1, "a process with threads must not fork"
        # Here, so that no child has to: it is born ready, and dies at its work.
        scheme = self._plan.url.partition(":")[0]
        importlib.import_module(f"ulak.storage.{'sqlite' if scheme == 'sqlite' else 'postgres'}.store")
        start = time.monotonic()
        try:
            for name in ROLES:
                self._spawn(name, 0)
            self._strike_all()
            self._await_rest()
            verdict = self._leave_and_judge()
        finally:
            for process in self._alive.values():
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
            self._events.close()
        if scheme == "sqlite":
            self._check_file()
        self._problems += self._errors()
        lines = self._told()
        story, ends = Story(lines, slack_s=_SLACK_S), ends_of(lines)
        self._problems += condemned(story, ends)
        return Outcome(
            verdict=verdict,
            kills=sum(n for what, n in self._struck.items() if what.startswith("killed")),
            pauses=sum(n for what, n in self._struck.items() if what.startswith("froze")),
            took_s=time.monotonic() - start,
            problems=self._problems,
            struck=self._struck,
            restarts_s=restarts(story, ends),
            left_files=len(list(self._place.glob("*-workers/*"))),
        )

    # Processes

    def _spawn(self, name: str, born: int) -> None:
        slot = _SLOTS[name]
        pid = os.fork()
        if pid == 0:
            self._be(f"{name}.{born}", name, slot)
        process = Process(name, slot, born, pid)
        self._alive[pid] = process
        self._names.append(process.full_name)

    def _be(self, full_name: str, name: str, slot: int) -> None:
        """In the child: play the role, and never return."""
        status = 1
        try:
            errors = (self._place / f"{full_name}.errors").open("a")
            handler = logging.StreamHandler(errors)
            handler.setLevel(logging.ERROR)
            # A job that ends dead is an error too; these are planned.
            handler.addFilter(lambda record: "died (Reject" not in record.getMessage())
            logging.getLogger("ulak").addHandler(handler)
            try:
                ROLES[name](self._plan, full_name, slot)
                status = 0
            except BaseException:  # noqa: BLE001 - whatever it is, the parent hears of it
                traceback.print_exc(file=errors)
            errors.flush()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Note who has ended; one that was killed is born again."""
        for process in list(self._alive.values()):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                self._ended(process, status)

    def _ended(self, process: Process, status: int) -> None:
        del self._alive[process.pid]
        if not process.killed:
            self._note(process, "left")
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            if process.name.startswith("producer"):
                self._finished.add(process.name)
                return
            if self._board[STOP]:
                return
            self._problems.append(f"{process.full_name} left before it was told to")
        elif process.killed and os.WIFSIGNALED(status):
            self._struck[f"killed {process.name[:-1]}"] += 1
        else:
            self._problems.append(f"{process.full_name} ended with status {status}")
        if not self._board[STOP]:
            self._spawn(process.name, process.born + 1)

    # Strikes

    def _strike_all(self) -> None:
        sizes = self.sizes
        events = ["kill"] * sizes.kills + ["pause"] * sizes.pauses
        self._draw.shuffle(events)
        for number, event in enumerate(events):
            self._board[ALLOWED] = self._plan.jobs_each * (number + 1) // len(events) + 1
            self._let_come_along(sizes.jobs * number // len(events))
            self._pass_time(self._draw.expovariate(1.0 / sizes.mean_gap_s))
            if event == "kill":
                self._kill()
            else:
                self._freeze()
        self._board[ALLOWED] = self._plan.jobs_each + 1

    def _let_come_along(self, jobs: int) -> None:
        """Wait until most of so many jobs were done, so that there is work to strike at."""
        until = time.monotonic() + _BEHIND_S
        while self._board.total(DONE) < jobs - CAPACITY // 2 and time.monotonic() < until:
            self._pass_time(_LOOK_S)

    def _pass_time(self, duration_s: float) -> None:
        until = time.monotonic() + duration_s
        while True:
            now = time.monotonic()
            self._reap()
            for process in self._alive.values():
                if process.thaw_at is not None and process.thaw_at <= now:
                    process.thaw_at = None
                    self._note(process, "thawed")
                    os.kill(process.pid, signal.SIGCONT)
            if now >= until:
                return
            time.sleep(min(_LOOK_S, until - now))

    def _victim(self, kinds: tuple[str, ...], *, frozen: bool) -> Process | None:
        """One of these; frozen: one that is frozen already will do."""
        there = [
            process
            for process in self._alive.values()
            if process.name.startswith(kinds) and (frozen or process.thaw_at is None)
        ]
        return self._draw.choice(there) if there else None

    def _kill(self) -> None:
        kinds = ("producer",) if self._draw.random() < 0.25 else _WORKERS
        process = self._victim(kinds, frozen=True) or self._victim(_WORKERS, frozen=True)
        if process is None:
            return
        if process.name.startswith("producer"):
            self._board[ALLOWED] += _BATCHES
            self._await_call(process)
        process.killed = True
        self._note(process, "killed")
        os.kill(process.pid, signal.SIGKILL)
        self._ended(process, os.waitpid(process.pid, 0)[1])

    def _await_call(self, producer: Process) -> None:
        """Wait until a producer is inside a call, since between calls its death is no event."""
        until = time.monotonic() + _IN_CALL_S
        while time.monotonic() < until:
            if self._board.of(producer.slot, ASKED) > self._board.of(producer.slot, TOLD):
                time.sleep(self._draw.uniform(0.0, _CALL_S))
                return
            time.sleep(_CALL_S / 10)

    def _freeze(self) -> None:
        while sum(process.thaw_at is not None for process in self._alive.values()) >= _FROZEN_MAX:
            self._pass_time(_LOOK_S)
        process = self._victim(_WORKERS, frozen=False)
        if process is None:
            return
        self._struck[f"froze {process.name[:-1]}"] += 1
        self._note(process, "frozen")
        os.kill(process.pid, signal.SIGSTOP)
        process.thaw_at = time.monotonic() + self.sizes.lease_s + self._draw.uniform(0.02, 0.3)

    def _note(self, process: Process, what: str) -> None:
        self._events.add(Happened(process.full_name, time.monotonic(), what))

    # The end

    def _await_rest(self) -> None:
        """Wait until every producer has finished."""
        until = time.monotonic() + self.sizes.rest_s
        while len(self._finished) < PRODUCERS or any(p.thaw_at is not None for p in self._alive.values()):
            self._pass_time(_LOOK_S)
            if time.monotonic() > until:
                self._problems.append(f"the producers did not finish within {self.sizes.rest_s:g} s")
                return

    def _leave_and_judge(self) -> Verdict:
        """Wait until nothing is open, tell the workers to leave, and judge. From here on nobody forks."""
        with self._plan.queue() as queue:
            until = time.monotonic() + self.sizes.rest_s
            while queue.counts().open and time.monotonic() < until:
                self._pass_time(_LOOK_S * 10)
            self._board[STOP] = 1
            until = time.monotonic() + self.sizes.rest_s
            while self._alive and time.monotonic() < until:
                self._pass_time(_LOOK_S)
            self._problems += [f"{process.full_name} did not leave" for process in self._alive.values()]
            stored = list(stored_lines(queue._open().edge.store, [QUEUE]))
        return judge([*self._told(), *stored], capacity={QUEUE: CAPACITY}, slack_s=_SLACK_S)

    def _told(self) -> list[Line]:
        names = ["events", *self._names]
        paths = [self._place / f"{name}.history" for name in names]
        return merged(path for path in paths if path.exists())

    def _check_file(self) -> None:
        with closing(sqlite3.connect(self._place / "jobs.db")) as db:
            found = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
        if found != ["ok"]:
            self._problems += [f"integrity_check: {text}" for text in found]

    def _errors(self) -> Iterator[str]:
        for path in sorted(self._place.glob("*.errors")):
            if text := path.read_text().strip():
                yield f"{path.name}: {text[-2000:]}"


def run_trial(
    sizes: Sizes,
    *,
    seed: int,
    before: Callable[[], None] | None = None,
    options: str = "",
    url: str = "",
    keeps: bool = True,
) -> Outcome:
    """Run a trial, on a new file if there is no URL.

    keeps: where it failed, what it left stays, and its problems say where.
    """
    place = Path(tempfile.mkdtemp(prefix="ulak-trial-"))
    failed = True
    try:
        outcome = Trial(place, sizes, seed=seed, before=before, options=options, url=url).run()
        failed = outcome.failed > 0
        if failed and keeps:
            outcome.problems.append(f"histories and file: {place}")
    finally:
        if not (failed and keeps):
            shutil.rmtree(place)
    return outcome
