"""The benchmark of the SQLite store judges as it says: its yardsticks are durable, its disk is real."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest

from bench import sqlite as program
from bench.kit import report
from bench.kit.rounds import Spread
from bench.onefile import disk, loops, peers, plan, targets, ulak_side, yardstick_side
from bench.onefile.measure import SIDES
from bench.onefile.yardsticks import GroupCommitter, RawQueue

KINDS = pytest.mark.parametrize("kind", [RawQueue, GroupCommitter])


@pytest.fixture
def opened(tmp_path):
    """Makes yardsticks on a file of this test's own, and closes them."""
    made = []

    def open_one(kind):
        made.append(kind(tmp_path / "jobs.db"))
        return made[-1]

    yield open_one
    for q in made:
        q.close()


def stored(path):
    """What another connection reads: (id, state) in order."""
    other = sqlite3.connect(path)
    try:
        return other.execute("SELECT id, state FROM jobs ORDER BY id").fetchall()
    finally:
        other.close()


@KINDS
def test_raw_yardsticks_commit_by_wal_and_full_before_a_call_returns(kind, opened, tmp_path):
    q = opened(kind)
    loops.check_synchronous(q.connection, yardstick_side.FULL)
    first = q.enqueue(b"a")
    rest = q.enqueue_many([b"b", b"c"])
    assert stored(tmp_path / "jobs.db") == [(first, 0), (rest[0], 0), (rest[1], 0)]


@KINDS
def test_raw_yardsticks_write_into_ulaks_own_table_with_its_indexes(kind, opened, tmp_path):
    opened(kind)
    with ulak_side.Queue(f"sqlite:///{tmp_path / 'ulak.db'}") as q:
        q.enqueue(b"a")
    other, own = sqlite3.connect(tmp_path / "jobs.db"), sqlite3.connect(tmp_path / "ulak.db")
    try:
        of_jobs = "SELECT sql FROM sqlite_schema WHERE tbl_name = 'jobs' AND sql IS NOT NULL ORDER BY name"
        found = other.execute(of_jobs).fetchall()
        assert len(found) > 1
        assert found == own.execute(of_jobs).fetchall()
    finally:
        other.close()
        own.close()


def test_raw_yardstick_claims_in_order_and_finishes_a_lease_once(opened, tmp_path):
    q = opened(RawQueue)
    q.enqueue_many([b"a", b"b", b"c"])
    leases = q.claim(2)
    assert [payload for _, _, payload in leases] == [b"a", b"b"]
    assert [q.ack_and_keep(leases[:1]), q.ack_and_keep(leases[:1])] == [1, 0]
    assert [q.ack(leases), q.ack(leases)] == [1, 0]
    assert stored(tmp_path / "jobs.db") == [(leases[0][0], 4), (leases[1][0] + 1, 0)]


def test_group_committer_answers_every_thread_with_an_id_of_its_own(opened, tmp_path):
    q = opened(GroupCommitter)
    threads, each = 8, 50
    ids, together = [], Barrier(threads)

    def run():
        together.wait()
        for _ in range(each):
            job_id = q.enqueue(b"a")
            ids.append(job_id)

    running = [Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(ids) == [job_id for job_id, _ in stored(tmp_path / "jobs.db")]
    assert len(set(ids)) == threads * each
    assert not q.has_leader
    assert q.waiting == []


def test_log_is_warm_once_it_was_begun_anew(opened, tmp_path):
    q, database = opened(RawQueue), tmp_path / "jobs.db"
    assert disk.log_restarts(database) == 0
    warmed = disk.warm(lambda: q.enqueue_many([b"." * 100] * 50), database)
    assert disk.log_restarts(database) == 1
    assert q.count() == warmed * 50


def test_log_that_is_never_begun_anew_ends_the_measurement(opened, tmp_path, monkeypatch):
    q = opened(RawQueue)
    q.connection.execute("PRAGMA wal_autocheckpoint = 0")
    monkeypatch.setattr(disk, "WARM_UP_MAX_JOBS", disk.WARM_UP_STEP_JOBS)
    with pytest.raises(SystemExit, match="never begun anew"):
        disk.warm(lambda: q.enqueue_many([b"."]), tmp_path / "jobs.db")


def test_durability_other_than_shown_ends_the_measurement(tmp_path):
    connection = sqlite3.connect(tmp_path / "jobs.db")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        loops.check_synchronous(connection, 2)
        connection.execute("PRAGMA synchronous = NORMAL")
        with pytest.raises(SystemExit, match="synchronous=1"):
            loops.check_synchronous(connection, 2)
    finally:
        connection.close()


def test_jobs_that_are_missing_end_the_measurement():
    loops.check(3, 3)
    with pytest.raises(SystemExit, match="3 jobs were put in; 2 are there"):
        loops.check(2, 3)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no file system in memory")
def test_files_in_memory_are_passed_over_for_a_disk(tmp_path, monkeypatch):
    in_memory = Path("/dev/shm")
    assert disk.file_system(in_memory) in disk.MEMORY_FILE_SYSTEMS
    monkeypatch.setattr(disk.tempfile, "gettempdir", lambda: str(in_memory))
    assert disk.real_folder(tmp_path) != in_memory


def test_fsyncs_are_timed_and_their_file_is_gone(tmp_path):
    took = disk.fsync_times(tmp_path, 5)
    assert len(took) == 5
    assert min(took) > 0
    assert list(tmp_path.iterdir()) == []


def test_every_side_of_every_case_can_be_measured_and_says_how_it_is_set_up():
    sides = {side for case in plan.CASES.values() for side in case.sides}
    assert sides == set(SIDES) == set(plan.SETTINGS)
    assert sides >= set(plan.PEERS)
    for target in targets.TARGETS:
        case = plan.CASES[target.case]
        assert target.figure in case.figures
        assert {"ulak", *target.against} <= set(case.sides)
    for case, figure, yardstick, _, peer, _ in targets.YARDSTICKS:
        assert figure in plan.CASES[case].figures
        assert {yardstick, peer} <= set(plan.CASES[case].sides)


def results(case, **rates):
    return {case: {side.replace("_", " "): {"rate": Spread([rate])} for side, rate in rates.items()}}


def verdict_of(found, text):
    return next(item for item in found if text in item.text).is_ok


@pytest.mark.parametrize(("ulak", "is_ok"), [(800, True), (799, False)])
def test_target_is_held_against_the_yardstick_of_its_case(ulak, is_ok):
    found = targets.judge_all(results("enqueue", ulak=ulak, raw=1000))
    assert verdict_of(found, "0.8 x raw") is is_ok


def test_peer_that_cannot_be_installed_leaves_the_target_to_the_others():
    with_both = targets.judge_all(results("enqueue-many", ulak=600, honker=300, flexiq=200))
    with_one = targets.judge_all(results("enqueue-many", ulak=600, flexiq=200))
    with_none = targets.judge_all(results("enqueue-many", ulak=600))
    assert verdict_of(with_both, "3 x the best of honker, flexiq") is False
    assert verdict_of(with_one, "3 x flexiq") is True
    assert verdict_of(with_none, "3 x the best of honker, flexiq") is None


@pytest.mark.parametrize(("raw", "is_ok"), [(1003, True), (1002, False)])
def test_slow_yardstick_voids_the_run(raw, is_ok):
    found = targets.judge_yardsticks(results("enqueue", raw=raw, huey=1000))
    assert found[0].is_ok is is_ok
    assert report.verdict([], found) == (0 if is_ok else 3)


def test_peer_without_its_package_is_told_with_the_reason(monkeypatch):
    assert peers.failing(sys.executable, "litequeue") == "ModuleNotFoundError: No module named 'litequeue'"
    monkeypatch.setitem(peers.MODULES, "litequeue", "sqlite3")
    assert peers.failing(sys.executable, "litequeue") == ""


@pytest.mark.timeout(120)
def test_benchmark_writes_what_it_measured(tmp_path, capsys):
    path = tmp_path / "figures.json"
    arguments = ["--only", "enqueue-many,flat", "--quick", "--rounds", "1", "--depth", "3000", "--no-peers"]
    status = program.main([*arguments, "--folder", str(tmp_path), "--json", str(path)])
    written = json.loads(path.read_text())
    assert status == written["status"]
    assert status in {0, 1}
    assert list(written["cases"]) == ["enqueue-many", "flat"]
    assert list(written["cases"]["enqueue-many"]) == ["ulak", "raw", "raw, lean"]
    assert written["cases"]["enqueue-many"]["raw"]["rate"]["median"] > 0
    assert written["cases"]["flat"]["ulak"]["claim"]["median"] > 0
    assert written["run"]["file_system"] == disk.file_system(tmp_path)
    assert [row["is_ok"] for row in written["targets"] if row["case"] == "enqueue"] == [None, None]
    assert "FULL" in capsys.readouterr().out


def test_latency_says_what_is_left_of_two_fsyncs(tmp_path):
    found = ulak_side.latency(20, tmp_path)
    assert set(found) == {"p50_us", "p99_us", "p99_of_p50", "beyond_us"}
    assert found["p99_of_p50"] == found["p99_us"] / found["p50_us"]
    assert found["beyond_us"] < found["p50_us"]


@pytest.mark.parametrize("case", ["drain-100", "drain-8", "enqueue-8"])
def test_ulak_side_measures_each_case(case, tmp_path):
    assert ulak_side.CASES[case](400, tmp_path)["rate"] > 0
