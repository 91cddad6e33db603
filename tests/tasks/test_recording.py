"""What a pool of an App leaves in the store's history: how its queues' counts stood, how long jobs took."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import StorageKind, chosen_kinds
from tests.support.stores import Refusing
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Snooze, StorageFull, StorageUnavailable
from ulak.core.history import HOUR_S, MINUTE_S, Moment, Took
from ulak.core.job import Cause, Dead, Done, Grant, Hold, Lease, Outcome, Retry, Spec, State, Verdict, Work
from ulak.core.rules import give_back
from ulak.core.store import Settings
from ulak.metrics import Histogram
from ulak.storage.drive import Edge, run
from ulak.storage.memory import MemoryStore
from ulak.storage.sqlite.store import SqliteStore
from ulak.testing import ManualClock
from ulak.worker.record import Recorder


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


on_durable_ones = pytest.mark.parametrize(
    "kind",
    [kind for kind in chosen_kinds() if kind.capabilities.durable],
    ids=lambda kind: kind.name,
    indirect=True,
)


def past(app: App, queue: str = "default", grain: Any = MINUTE_S) -> list[Moment]:
    return app._store().history([queue], 0.0, grain=grain)[queue]


def durations(moments: list[Moment], kind: str) -> Histogram:
    found = Histogram()
    for moment in moments:
        found.add(getattr(moment.took, kind))
    return found


@on_durable_ones
@pytest.mark.parametrize("style", ["def", "async def", "in a loop of the caller's"])
def test_what_a_pool_has_run_is_in_the_history_when_it_has_ended(app: App, style: str) -> None:
    def work(fails: bool) -> None:
        time.sleep(0.02)
        assert not fails

    async def awork(fails: bool) -> None:
        await asyncio.sleep(0.02)
        assert not fails

    task = app.task(name="t", max_attempts=2)(work if style == "def" else awork)
    task.enqueue_many([task.call(fails=number == 0) for number in range(4)])

    async def main() -> None:
        async with app.aworkers(2) as pool:
            assert (await pool.drain(timeout=WAIT_S)).drained

    if style == "in a loop of the caller's":
        asyncio.run(main())
    else:
        with app.workers(2) as pool:
            assert pool.drain(timeout=WAIT_S).drained
    for grain in (MINUTE_S, HOUR_S):
        moments = past(app, grain=grain)
        assert moments[-1].counts == app._store().counts(["default"])["default"]
        assert (durations(moments, "wait").count, durations(moments, "run").count) == (4, 5)
        assert 0.018 <= durations(moments, "run").percentile(50) < 1.0


@on_durable_ones
def test_a_pool_writes_when_it_begins_and_once_a_minute(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(queues=["default", "idle"])
    task = app.task(name="t")(lambda: None)
    with app.workers(1):
        eventually(lambda: len(past(app)) == 1)
        assert past(app)[0].counts.totals.enqueued == 0
        for number in range(1, 4):
            task.enqueue().result(WAIT_S)
            clock.advance(30.0)
            clock.advance(30.0)
            eventually(lambda number=number: len(past(app)) == number + 1)  # type: ignore[misc]
        assert [moment.counts.totals.succeeded for moment in past(app)] == [0, 1, 2, 3]
        assert [durations([moment], "run").count for moment in past(app)] == [0, 1, 1, 1]
        assert len(past(app, "idle")) == 4


def test_a_pool_on_memory_notes_nothing(make_app: MakeApp, kind: StorageKind) -> None:
    app = make_app()
    task = app.task(name="t")(lambda: None)
    task.enqueue()
    with app.workers(1) as pool:
        pool.drain(timeout=WAIT_S)
        assert (pool._last is not None) == kind.capabilities.durable
    assert bool(past(app)) == kind.capabilities.durable


@on_durable_ones
def test_a_job_that_its_handler_finishes_and_one_that_snoozes_count_as_what_they_are(app: App) -> None:
    left = [Snooze(0)]

    @app.task(name="t")
    def work() -> None:
        if left:
            raise left.pop()

    work.enqueue()
    with app.workers(1) as pool:
        pool.drain(timeout=WAIT_S)
    # The delivery that was handed back was no attempt, and the second one no first start.
    assert (durations(past(app), "wait").count, durations(past(app), "run").count) == (0, 1)


def lease(delivery: int = 1, waited_s: float = 0.5) -> Lease:
    work = Work(1, Spec("q", "json", 5, "t"), b"", 0, 100.0)
    return Lease(Grant("u", 1, "w", 30.0), work, delivery, 1, 1.0, 100.0 + waited_s, 0, None)


COUNTED: list[tuple[Verdict, Any, bool]] = [
    (Done(), State.SUCCEEDED, True),
    (Retry(), State.READY, True),
    (Dead(), State.DEAD, True),
    (Done(), Outcome.STALE, False),
    (Hold(), State.HELD, False),
    (give_back(), State.READY, False),
    (Retry(cause=Cause.LOST), State.READY, False),
]


@pytest.mark.parametrize(("verdict", "answer", "counts"), COUNTED)
def test_only_attempts_that_ended_and_count_are_noted(verdict: Verdict, answer: Any, counts: bool) -> None:
    recorder = Recorder(["q"])
    recorder.note([(lease(), verdict)], [answer], 2.0)
    assert (len(recorder._run["q"]), len(recorder._wait["q"])) == (counts, counts)


def test_waiting_is_until_the_first_start() -> None:
    recorder = Recorder(["q"])
    for delivery in (1, 2, 3):
        recorder.note([(lease(delivery), Done())], [State.SUCCEEDED], 2.0)
    assert (sum(recorder._run["q"].values()), sum(recorder._wait["q"].values())) == (3, 1)


def test_what_the_store_did_not_take_is_taken_with_the_next(kind: StorageKind, clock: ManualClock) -> None:
    store = kind.make(clock)
    store.open()
    is_away = True
    refusing = Refusing(
        store, lambda name, _: StorageUnavailable("away") if is_away and name == "record" else None
    )
    edge, recorder = Edge(refusing, clock), Recorder(["q"])  # type: ignore[arg-type]
    store.declare("q", Settings())
    for _ in range(2):
        recorder.note([(lease(), Done())], [State.SUCCEEDED], 2.0)
        with pytest.raises(StorageUnavailable):
            run(edge, recorder.record())
    is_away = False
    run(edge, recorder.record())
    (moment,) = store.history(["q"], 0.0, grain=MINUTE_S)["q"]
    assert (durations([moment], "run").count, durations([moment], "wait").count) == (2, 2)
    run(edge, recorder.record())
    (moment,) = store.history(["q"], 0.0, grain=MINUTE_S)["q"]
    assert durations([moment], "run").count == 2
    store.close()


@pytest.mark.parametrize("error", [StorageFull("full"), StorageUnavailable("away")])
def test_a_full_store_is_asked_again_in_a_minute_and_one_that_is_away_at_once(
    clock: ManualClock, error: Exception
) -> None:
    recorder = Recorder(["q"])
    recorder.note([(lease(), Done())], [State.SUCCEEDED], 2.0)
    edge = Edge(Refusing(MemoryStore(clock), lambda *_: error), clock)  # type: ignore[arg-type]
    if isinstance(error, StorageFull):
        assert run(edge, recorder.duty()) == 60.0
    else:
        with pytest.raises(StorageUnavailable):
            run(edge, recorder.duty())
    assert sum(recorder._run["q"].values()) == 1


def test_the_past_takes_nothing_of_what_is_set_aside_on_a_disk(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise StorageFull("little space is left")

    store = SqliteStore(str(tmp_path / "jobs.db"), clock)
    store.open()
    store.declare("q", Settings())
    monkeypatch.setattr(store, "find_room", no_room)
    with pytest.raises(StorageFull):
        store.record({"q": Took()})
    assert store.history(["q"], 0.0, grain=MINUTE_S) == {"q": []}
    store.close()
