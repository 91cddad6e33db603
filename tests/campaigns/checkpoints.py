"""Commits against checkpoints: `checkpoints [COMMITS] [--processes P] [--seed N]`.

Many processes commit to one SQLite file as fast as it goes, and write its log back far more often than usual,
beside readers that keep a snapshot for a moment. Each notes in a file of its own what it asked and was told.
In the end every acknowledged commit must be there, the history clean, the file whole; and its log may never
have grown beyond 16 MB. A large campaign runs in rounds, each on a new file; in every fourth the log is
written back as seldom as usual. The control takes one acknowledged job away, and must be seen.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.place import FAST
from tests.sqlite.committing import QUEUE, commit, open_recorded, read_on
from tests.support.children import Child, child
from tests.support.history import judge, merged, stored_lines
from ulak import Queue
from ulak.storage.sqlite.link import CHECKPOINT_PAGES

COMMITS = 20_000
A_ROUND = 20_000
CONTROL = 400
PROCESSES = 6
READERS = 2
PAGES = 20
LOG_BYTES_MAX = 16 * 1024 * 1024
SHOWN = 20
_ROUND_S = 600.0
_LOOK_S = 0.002
_SLACK_S = 0.02


@dataclass
class Round:
    """What one file came to."""

    commits: int = 0
    checkpoints: int = 0
    jobs: int = 0
    log_bytes: int = 0
    problems: list[str] = field(default_factory=list)


class Watch:
    """Looks all the time how large a log is."""

    def __init__(self, log: Path) -> None:
        self.bytes_max = 0
        self._log = log
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        while not self._ends.wait(_LOOK_S):
            with contextlib.suppress(FileNotFoundError):
                self.bytes_max = max(self.bytes_max, self._log.stat().st_size)

    def close(self) -> None:
        """Look no more."""
        self._ends.set()
        self._thread.join()


@dataclass(frozen=True)
class Size:
    """How large a round is. pages: after how many written ones the log is written back."""

    commits: int
    processes: int
    pages: int


def run_round(size: Size, seed: int, *, loses: bool = False) -> Round:
    """Commit to a new file, then judge it. loses: one acknowledged job is taken away before that."""
    done = Round()
    with tempfile.TemporaryDirectory(prefix="ulak-checkpoints-", dir=FAST) as name:
        place = Path(name)
        path = place / "jobs.db"
        url = f"sqlite:///{path}"
        with open_recorded(url, str(place / "parent.history")) as q:
            q.counts()
            watch = Watch(place / "jobs.db-wal")
            _commit_all(place, done, size, seed)
            watch.close()
            while leases := q.deliver_many(1_000):
                q.ack_many(leases)
            done.problems += _whole(path)
            if loses:
                with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
                    db.execute("DELETE FROM jobs WHERE id = (SELECT max(id) FROM jobs)")
            lines = merged(sorted(place.glob("*.history")))
            verdict = judge([*lines, *stored_lines(q._open().edge.store, [QUEUE])], slack_s=_SLACK_S)
        done.jobs, done.log_bytes = verdict.jobs, watch.bytes_max
        done.problems += [f"{kind}: job {job}: {text}" for kind, job, text in verdict.problems]
        done.problems += _reopened(path, url, verdict.acked)
        if watch.bytes_max > LOG_BYTES_MAX:
            done.problems.append(f"the log grew to {watch.bytes_max / 2**20:.1f} MiB")
    return done


def _commit_all(place: Path, done: Round, size: Size, seed: int) -> None:
    path = place / "jobs.db"
    each = -(-size.commits // size.processes)
    # What a writer does is drawn by its history's name.
    histories = [str(place / f"writer{seed}-{n}.history") for n in range(size.processes)]
    with contextlib.ExitStack() as stack:
        writers: list[Child] = [
            stack.enter_context(child(commit, f"sqlite:///{path}", history, each, size.pages))
            for history in histories
        ]
        readers = [stack.enter_context(child(read_on, str(path), seed + n)) for n in range(READERS)]
        for writer in writers:
            writer.hear("ready", _ROUND_S)
        for writer in writers:
            writer.tell("go")
        for writer in writers:
            made, checkpoints = writer.hear("made", _ROUND_S)
            done.commits += made
            done.checkpoints += checkpoints
        for reader in readers:
            reader.tell("leave")
            reader.hear("left")


def _whole(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
    return [] if found == ["ok"] else [f"integrity_check: {text}" for text in found]


def _reopened(path: Path, url: str, acked: int) -> list[str]:
    """What is wrong once all have closed it, so that the log is gone, and it is opened anew."""
    problems = _whole(path)
    with Queue(url, QUEUE) as q:
        if (there := q.counts().acked) < acked:
            problems.append(f"{acked} jobs were acknowledged, and after a close there are {there}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="checkpoints", description=__doc__)
    parser.add_argument("commits", nargs="?", type=int, default=COMMITS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    print(
        f"checkpoints: {chosen.commits:,} commits, {chosen.processes} processes, SQLite "
        f"{sqlite3.sqlite_version}, seed {chosen.seed}",
        flush=True,
    )
    start = time.monotonic()
    problems: list[str] = []
    if not run_round(Size(CONTROL, 2, PAGES), chosen.seed, loses=True).problems:
        problems.append("the control passed: it was not seen that an acknowledged job was gone")
    rounds = max(2, -(-chosen.commits // A_ROUND))
    total = Round()
    for number in range(rounds):
        pages = CHECKPOINT_PAGES if number % 4 == 1 else PAGES
        size = Size(-(-chosen.commits // rounds), chosen.processes, pages)
        one = run_round(size, chosen.seed + number)
        print(
            f"  {one.commits:,} commits, {one.checkpoints:,} checkpoints (after {pages:,} pages), "
            f"{one.jobs:,} jobs, log at most {one.log_bytes / 2**20:.1f} MiB, {len(one.problems)} problems",
            flush=True,
        )
        for problem in one.problems[:SHOWN]:
            print(f"    {problem}", flush=True)
        total.commits += one.commits
        total.checkpoints += one.checkpoints
        problems += one.problems
    took_s = time.monotonic() - start
    print(f"{total.commits:,} commits against {total.checkpoints:,} checkpoints in {took_s:.0f} s")
    print(f"{total.commits} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
