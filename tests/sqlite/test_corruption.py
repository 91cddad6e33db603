"""Rows that somebody else has broken: they end with a reason, the others run, and no worker dies of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.place import FAST
from tests.sqlite.planting import MOVED, PLANTINGS, STARTS, Fate, Planting, Plot, listening, plot
from tests.support.waiting import eventually
from ulak import Outcome

WITHIN_S = 10.0
LEASED = 2


@pytest.fixture
def field() -> Iterator[Plot]:
    """A queue in a new file, with two good jobs."""
    with tempfile.TemporaryDirectory(prefix="ulak-", dir=FAST) as name, plot(Path(name)) as made:
        made.add_good(2)
        yield made


@pytest.mark.parametrize("planting", PLANTINGS, ids=lambda planting: planting.name)
def test_a_broken_row_ends_with_a_reason_and_the_good_ones_run(field: Plot, planting: Planting) -> None:
    field.plant(field.begin("ready"), "ready", planting)
    field.add_good(2)
    field.work(WITHIN_S)
    assert field.judge() == []
    field.look_at_all()
    field.act_on_all()


@pytest.mark.parametrize("start", STARTS)
def test_broken_rows_of_every_kind_together_harm_no_good_one(field: Plot, start: str) -> None:
    jobs = [field.begin(start) for _ in PLANTINGS]
    for job_id, planting in zip(jobs, PLANTINGS, strict=True):
        field.plant(job_id, start, planting)
        field.add_good()
    field.work(WITHIN_S)
    assert field.judge() == []
    field.look_at_all()


@pytest.mark.parametrize("planting", MOVED, ids=lambda planting: planting.name)
def test_rows_moved_behind_the_stores_back_are_found_and_counted(field: Plot, planting: Planting) -> None:
    jobs = {start: field.begin(start) for start in STARTS}
    for start, job_id in jobs.items():
        field.plant(job_id, start, planting)
    field.add_good(2)
    field.work(WITHIN_S)
    assert field.judge() == []
    field.act_on_all()


@pytest.mark.parametrize("call", ["ack", "nack", "extend", "release"])
def test_whoever_holds_a_job_whose_row_is_broken_meanwhile_gets_an_answer(field: Plot, call: str) -> None:
    problems = []
    for planting in PLANTINGS:
        job_id = field.q.enqueue("held by the test", priority=9)
        lease = field.q.deliver()
        assert lease is not None
        assert lease.id == job_id
        field.plant(job_id, "leased", planting)
        try:
            outcome = field.q.extend(lease, 0.2) if call == "extend" else getattr(field.q, call)(lease)
        except Exception as error:  # noqa: BLE001 - all of them are wrong here
            problems.append(f"{planting.name}: {error!r}")
        else:
            if outcome is Outcome.STALE and planting.columns.keys().isdisjoint({"state", "delivery"}):
                problems.append(f"{planting.name}: STALE, though the lease is current")
        field.plain.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    assert problems == []


def test_rows_broken_while_their_handlers_run_stop_no_worker(field: Plot) -> None:
    left = {field.begin("ready"): planting for planting in PLANTINGS if planting.fate is not Fate.WAITS}

    def handler(payload: object) -> None:
        for job_id in list(left):
            if field.state(job_id) == LEASED:
                field.plant(job_id, "leased", left.pop(job_id))
        raise RuntimeError("fails, so that its row is read again")

    with listening() as seen, field.q.workers(handler, count=1) as pool:
        eventually(lambda: not left)
        assert pool.size == 1
    assert seen.lines == []


def test_the_plain_client_is_no_part_of_what_is_tested(field: Plot) -> None:
    """Without a planting nothing is found: the judge is not what ends jobs."""
    job_id = field.begin("ready")
    field.plant(job_id, "ready", Planting("nothing", {"priority": 5}, Fate.RUNS))
    field.work(WITHIN_S)
    assert field.judge() == []
    field.plain.execute("UPDATE jobs SET payload = x'00' WHERE id = ?", (job_id,))
    assert field.judge() == ["ready job with nothing: its payload was changed"]
