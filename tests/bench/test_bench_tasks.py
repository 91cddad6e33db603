"""The benchmark of tasks measures what it says, and writes it down."""

from __future__ import annotations

import json
import threading

import pytest

from bench import tasks
from bench.kit import report
from bench.kit.rounds import Spread
from bench.tasking import probe, targets
from bench.tasking.plan import CASES, PEERS


def run(path, *arguments):
    """A small run of ours alone; its status, and what it has written."""
    status = tasks.main(["--quick", "--rounds", "1", "--no-peers", "--json", str(path), *arguments])
    return status, json.loads(path.read_text())


def medians(written, case, side):
    return {figure: found["median"] for figure, found in written["cases"][case][side].items()}


def test_tasks_benchmark_writes_what_it_measured(tmp_path, capsys):
    status, written = run(tmp_path / "figures.json", "--only", "T1")
    assert status == written["status"]
    assert status in {0, report.SHORT}
    assert list(written["cases"]["T1"]) == ["ulak", "bare pool", "raw pool"]
    assert medians(written, "T1", "ulak")["rate"] > 0
    assert [row["is_ok"] is None for row in written["targets"][:2]] == [False, True]
    out = capsys.readouterr().out
    assert "rate at least 0.15 x bare pool" in out


def test_tasks_of_both_kinds_are_done_by_the_command_itself(tmp_path):
    _, written = run(tmp_path / "figures.json", "--only", "sqlite-8,sqlite-far", "--folder", str(tmp_path))
    for side in ("ulak", "ulak, async"):
        drained = medians(written, "sqlite-8", side)
        assert drained["rate"] > 0
        assert drained["peak_mb"] > 10
        assert 0 < medians(written, "sqlite-far", side)["p50_us"] < 1e6


def test_command_that_is_killed_ends_every_job_once(tmp_path):
    status, written = run(tmp_path / "figures.json", "--only", "kills-8", "--folder", str(tmp_path))
    assert status == 0
    for side, jobs in CASES["kills-8"].sides.items():
        found = medians(written, "kills-8", side)
        assert (found["once"], found["problems"]) == (jobs // 8, 0)


def test_count_tells_once_all_jobs_have_run_whichever_thread_ran_them(tmp_path, monkeypatch):
    jobs, threads = 200, 4
    monkeypatch.setenv(probe.FOLDER, str(tmp_path))
    monkeypatch.setenv(probe.JOBS, str(jobs))
    count = probe.Count()

    def some():
        for _ in range(jobs // threads):
            count()

    running = [threading.Thread(target=some) for _ in range(threads)]
    for thread in running[1:]:
        thread.start()
    for thread in running[1:]:
        thread.join()
    assert not (tmp_path / probe.DRAINED).exists()
    running[0].start()
    running[0].join()
    told = json.loads((tmp_path / probe.DRAINED).read_text())
    assert told["took_s"] > 0
    assert told["peak_mb"] == pytest.approx(probe.peak_mb(), rel=0.2)


def peaks(**found):
    return {side: {"peak_mb": Spread(runs)} for side, runs in found.items()}


def test_peak_memory_is_compared_with_the_peer_in_the_middle_round_by_round():
    sides = peaks(ulak=[50.0, 50.0], huey=[40.0, 60.0], dramatiq=[55.0, 55.0], celery=[90.0, 20.0])
    middle = targets.with_median_peer(sides)[targets.MEDIAN_PEER]["peak_mb"]
    assert middle.runs == [55.0, 55.0]


def test_each_kind_of_task_is_judged_by_itself_against_the_peers_that_were_measured():
    rates = {"ulak": 90.0, "ulak, async": 20.0, "huey": 30.0, "dramatiq": 10.0}
    results = {"memory-8": {side: {"rate": Spread([rate])} for side, rate in rates.items()}}
    found = [row for row in targets.judge_all(results) if row.case == "memory-8"]
    assert [(row.is_ok, row.reached) for row in found] == [(True, 3.0), (False, pytest.approx(2 / 3))]


def test_every_side_of_a_case_can_be_measured():
    from bench.tasking.measure import ON_FILE, SIDES, YARDSTICKS
    from bench.tasking.onfile.worker import SIDES as COMMANDS

    for name, case in CASES.items():
        known = COMMANDS if name in ON_FILE else SIDES
        assert case.sides.keys() <= known.keys() | YARDSTICKS.keys()
        assert next(iter(case.sides)) == "ulak"
    assert {side for case in CASES.values() for side in case.sides} >= set(PEERS)
