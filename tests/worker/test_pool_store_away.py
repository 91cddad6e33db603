"""A store that refuses for a while: the worker waits and settles the same delivery again; or one for good."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.pools import AT_ONCE, KINDS, of_kind
from tests.support.stores import is_write, nth_write, refuse
from tests.support.waiting import WAIT_S, eventually
from ulak import Queue, StorageBusy, StorageFull, StorageGone, StorageUnavailable, Terminal


def said(caplog) -> list[str]:
    """What the log has said so far."""
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [StorageUnavailable("away"), StorageBusy("busy"), StorageFull("full")])
def test_a_verdict_that_the_store_refused_is_settled_again_and_the_job_runs_once(make, kind, error):
    q, ran = make(), []
    refuse(q, nth_write(1, error))
    with q.workers(of_kind(kind, ran.append), count=1, backoff=AT_ONCE) as pool:
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        metrics = pool.metrics()
    assert ran == ["payload"]
    assert (metrics.processed, metrics.succeeded, metrics.stale) == (1, 1, 0)


def test_an_outage_is_said_once_though_looks_and_beats_are_answered_meanwhile(make, caplog):
    q, is_away, refused = make(), threading.Event(), []

    def decide(name, args):
        if is_away.is_set() and is_write(name, args):
            refused.append(name)
            return StorageFull("the disk is full\n  make room")
        return None

    refuse(q, decide)
    goes_on = threading.Event()
    with q.workers(lambda _: goes_on.wait(WAIT_S), count=2):
        q.enqueue("x")
        eventually(lambda: q.counts().leased == 1)
        is_away.set()
        goes_on.set()
        # One worker tries again and again; the other one looks for jobs, and the keeper beats.
        eventually(lambda: len(refused) >= 3)
        (line,) = said(caplog)
        assert line.endswith(" waits for its store: the disk is full; make room [U203]")
        is_away.clear()
        eventually(lambda: q.counts().acked == 1)
        eventually(lambda: len(said(caplog)) == 2)
    assert "answers again, after " in said(caplog)[1]


def test_a_store_is_taken_to_answer_again_once_beats_alone_came_through(make, caplog, monkeypatch):
    monkeypatch.setattr("ulak.worker.keeper.QUIET_S", 0.1)
    q, is_away = make(), threading.Event()
    refuse(q, lambda name, _: StorageUnavailable("away") if is_away.is_set() and name == "beat" else None)
    with q.workers(print, count=1):
        is_away.set()
        eventually(lambda: len(said(caplog)) == 1)
        is_away.clear()
        eventually(lambda: len(said(caplog)) == 2)
    assert "a duty of the workers of queue " in said(caplog)[0]
    assert "answers again, after " in said(caplog)[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_workers_of_a_file_that_was_removed_end_by_themselves(tmp_path: Path, caplog, kind, count):
    file = tmp_path / "jobs.db"
    q, ran = Queue(f"sqlite:///{file}"), []
    pool = q.workers(of_kind(kind, ran.append), count=count)
    pool.start()
    q.enqueue("x")
    eventually(lambda: q.counts().acked == len(ran) == 1)
    assert pool.store_gone is None
    for each in tmp_path.glob("jobs.db*"):
        if each.is_file():
            each.unlink()
    assert pool.join(WAIT_S)
    assert isinstance(pool.store_gone, StorageGone)
    for call in (lambda: q.enqueue("y"), lambda: pool.shutdown(0), q.close):
        with pytest.raises(StorageGone, match="removed or replaced"):
            call()
    (line,) = said(caplog)
    assert f'end: "{file}" was removed or replaced while it was open' in line
    assert "\n" not in line
    with Queue(f"sqlite:///{file}") as anew:
        assert anew.enqueue("z") == 1
