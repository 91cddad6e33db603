"""The benchmark of killed workers tells what is lost from what is stuck and what runs again."""

from __future__ import annotations

import json

import pytest

from bench import killed
from bench.killing.measure import judged
from bench.killing.plan import CONCURRENCY, JOBS, SETTINGS, SIDES

AT_WORK = {"0", "1", "2", "3"}


def events(*noted):
    return [{"what": what, "job": job, "at": at} for what, job, at in noted]


def ended(*jobs):
    return [("ended", job, 109.0) for job in jobs]


def test_jobs_that_ran_again_are_neither_lost_nor_stuck():
    begun = [("begun", str(job), 99.0) for job in range(4)]
    again = [("begun", str(job), 100.5 + job) for job in range(6)]
    found = judged(events(*begun, *again, *ended(*map(str, range(6)))), AT_WORK, 100.0, stored=0)
    assert found == {
        "killed": 4,
        "again": 4,
        "again_s": [0.5, 1.5, 2.5, 3.5],
        "others_s": 4.5,
        "done": 6,
        "twice": 0,
        "stuck": 0,
        "lost": 0,
    }


def test_what_is_not_done_is_stuck_if_it_is_stored_and_else_lost():
    noted = events(("begun", "4", 101.0), ("begun", "5", 101.0), *ended("4", "5"))
    found = [judged(noted, AT_WORK, 100.0, stored) for stored in (4, 0, 1, 9)]
    assert [(row["stuck"], row["lost"], row["again"]) for row in found] == [
        (4, 0, 0),
        (0, 4, 0),
        (1, 3, 0),
        (4, 0, 0),
    ]


def test_a_job_that_was_done_twice_is_told():
    found = judged(events(*ended("0", "0", "1", "2", "3", "4", "5")), AT_WORK, 100.0, stored=0)
    assert (found["done"], found["twice"]) == (6, 1)


def test_killed_worker_of_ours_costs_no_job_and_its_jobs_run_again_soon(tmp_path, capsys):
    path = tmp_path / "figures.json"
    status = killed.main(["--no-peers", "--wait", "40", "--folder", str(tmp_path), "--json", str(path)])
    row = json.loads(path.read_text())["sides"]["ulak"]
    assert status == 0
    assert (row["killed"], row["again"], row["done"]) == (CONCURRENCY, CONCURRENCY, JOBS)
    assert (row["lost"], row["stuck"]) == (0, 0)
    assert "again" in capsys.readouterr().out


def test_every_side_says_how_it_is_set_up():
    assert SETTINGS.keys() == SIDES.keys()


def test_unknown_side_is_refused(capsys):
    with pytest.raises(SystemExit):
        killed.main(["--only", "nobody"])
    assert "no side is called 'nobody'" in capsys.readouterr().err
