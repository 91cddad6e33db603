"""Histories are written by several processes, outlive them, and can be read back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.sim.defects import NoFence
from tests.support.history import History, Pen, Recorded, encoded, judge, merged, stored_lines
from tests.support.history.lines import Asked, Told, decoded
from ulak.core import rules
from ulak.core.job import Done, Draft
from ulak.errors import StorageBusy, StorageUnavailable
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock

LEASE_S = 30.0


class Desk:
    """A store whose calls are recorded, by a clock that goes on by itself."""

    def __init__(self, history: History, store: object, who: str = "ada") -> None:
        self._moment = 0.0
        self.bare = store
        self.store = Recorded(store, Pen(history, self._clock), lambda: who)

    def _clock(self) -> float:
        self._moment += 1.0
        return self._moment


def run_jobs(store, jobs: int = 3) -> None:
    """Some are acked, one fails once."""
    store.add("q", [Draft(b"job-%d" % number, "bytes") for number in range(jobs)])
    (first,) = store.claim(["q"], 1, worker="w", lease_s=LEASE_S)
    store.extend([first], LEASE_S)
    store.settle([(first, rules.give_back())])
    settlements, answer = [], True
    while answer:
        _, answer = store.turn(settlements, ["q"], 2, worker="w", lease_s=LEASE_S)
        settlements = [(lease, Done()) for lease in answer]
    store.get([1, 2])
    store.counts(["q"])


def test_what_a_correct_store_did_has_no_problems():
    history, bare = History(), MemoryStore(ManualClock())
    run_jobs(Desk(history, bare).store)
    verdict = judge([*history.lines, *stored_lines(bare, ["q"])])
    assert verdict.problems == []
    assert (verdict.jobs, verdict.deliveries, verdict.acked) == (3, 4, 3)
    assert verdict.again == {"after release": 1}


def test_what_a_store_without_a_fence_did_has():
    history, bare = History(), MemoryStore(ManualClock())
    store = Desk(history, NoFence(bare)).store
    store.add("q", [Draft(b"job", "bytes")])
    (old,) = store.claim(["q"], 1, worker="a", lease_s=LEASE_S)
    store.settle([(old, rules.give_back())])
    store.claim(["q"], 1, worker="b", lease_s=LEASE_S)
    store.settle([(old, Done())])
    assert "stale accepted" in judge([*history.lines, *stored_lines(bare, ["q"])]).kinds


@pytest.mark.parametrize(("error", "answer"), [(StorageUnavailable, "unknown"), (StorageBusy, "refused")])
def test_an_error_is_an_unknown_answer_unless_it_says_that_nothing_was_done(error, answer):
    class Away(MemoryStore):
        def add(self, *_, **__):
            raise error("away")

    history = History()
    with pytest.raises(error):
        Desk(history, Away(ManualClock())).store.add("q", [Draft(b"job", "bytes")])
    asked, told = history.lines
    assert isinstance(asked, Asked)
    assert isinstance(told, Told)
    assert (asked.puts[0].mark, told.answer) == ("job", answer)


def test_lines_come_back_from_their_bytes_as_they_were():
    history, bare = History(), MemoryStore(ManualClock())
    run_jobs(Desk(history, bare).store)
    lines = [*history.lines, *stored_lines(bare, ["q"])]
    assert list(decoded(encoded(lines))) == lines


def test_several_files_are_one_history_and_a_line_that_was_cut_off_is_left_out(tmp_path):
    bare = MemoryStore(ManualClock())
    for name in ("ada", "ben"):
        history = History(tmp_path / name)
        run_jobs(Desk(history, bare, who=name).store)
        history.close()
    with (tmp_path / "ben").open("ab") as file:
        file.write(b'{"type":"asked","who":"ben"')
    lines = merged(sorted(tmp_path.iterdir()))
    verdict = judge([*lines, *stored_lines(bare, ["q"])], slack_s=100.0)
    assert {line.who for line in lines if isinstance(line, Asked)} == {"ada", "ben"}
    assert (verdict.jobs, verdict.acked) == (6, 6)


DYING = """
import os, signal, sys
from pathlib import Path
from tests.sim.test_history import Desk
from tests.support.history import History
from ulak.core.job import Draft
from ulak.storage.memory import MemoryStore

class Deadly(MemoryStore):
    def claim(self, *_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

store = Desk(History(Path(sys.argv[1])), Deadly()).store
store.add("q", [Draft(b"job", "bytes")])
store.claim(["q"], 1, worker="w", lease_s=1.0)
"""


def test_a_killed_process_leaves_what_it_was_told_and_what_it_had_asked(tmp_path):
    path = tmp_path / "history"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", DYING, str(path)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    verdict = judge(merged([path]), at_rest=False)
    assert (verdict.jobs, verdict.calls, verdict.unknown) == (1, 2, 1)


def test_a_long_history_is_judged_in_time_that_grows_with_its_length():
    def seconds(jobs: int) -> float:
        history, bare = History(), MemoryStore(ManualClock())
        store = Desk(history, bare).store
        for _ in range(jobs // 10):
            run_jobs(store, 10)
        lines = [*history.lines, *stored_lines(bare, ["q"])]
        start = time.process_time()
        assert judge(lines).problems == []
        return time.process_time() - start

    # Ten times as long may take ten times as long, and be measured badly; not a hundred times.
    seconds(200)
    short, long = (min(seconds(jobs) for _ in range(3)) for jobs in (200, 2_000))
    assert long < 40 * max(short, 0.001)
