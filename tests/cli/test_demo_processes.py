"""The demo in several processes on one file: kills, redeliveries, what an earlier run has left, stops."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from shlex import split
from typing import Any

import pytest

from tests.cli.command import COMMAND, demo, environment, ulak
from tests.cli.test_demo import plan
from tests.cli.test_report import result
from tests.support.waiting import eventually
from tests.worker.test_supervisor import is_alive
from ulak import Queue
from ulak.cli import demo_fleet, main
from ulak.cli.demo_child import crashes
from ulak.cli.demo_fleet import FleetRun
from ulak.cli.demo_plan import Fleet
from ulak.cli.demo_report import as_json, as_text, header
from ulak.core.job import OPEN
from ulak.failures import fails, predict

QUICK = ("--base", "1ms", "--cap", "20ms")


def url_of(directory: Path) -> str:
    return f"sqlite:///{directory / 'jobs.db'}"


def check_of(directory: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(directory / "jobs.db")) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_threaded(pid: int) -> bool:
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


@contextmanager
def started(*args: object) -> Iterator[subprocess.Popen[str]]:
    """`ulak demo ARGS` with children, which end with it."""
    with subprocess.Popen(
        [*COMMAND, "demo", *map(str, args)],
        text=True,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def fleet(**changes: Any) -> Fleet:
    values: dict[str, Any] = {
        "started": 21,
        "kills": 17,
        "other_ends": 0,
        "left": 0,
        "left_s": 0.0,
        "dead_by_crash": 0,
        "redriven": 0,
        "cut": 0,
        "cancelled": 0,
        "expired": 0,
        "deleted": 0,
    }
    return Fleet(**values | changes)


@pytest.mark.parametrize("args", ["--processes 2", "--crash-rate 1%", "--processes 2 --url memory://named"])
def test_memory_is_refused_in_one_line(args: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *split(args)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error U302: --processes and --crash-rate need a store that processes share: "
        "memory:// is one process's own; add --url sqlite:///jobs.db\n"
    )


def test_a_crash_is_drawn_by_seed_job_and_delivery_apart_from_failures() -> None:
    half = plan(crash_rate=0.5)
    draws = [(ordinal, delivery) for ordinal in range(1, 1001) for delivery in (1, 2)]
    drawn = [crashes(half, *draw) for draw in draws]
    assert drawn == [crashes(half, *draw) for draw in draws]
    assert 900 < sum(drawn) < 1100
    assert 400 < sum(one != two for one, two in zip(drawn[::2], drawn[1::2], strict=True)) < 600
    assert (
        900
        < sum(crash != fails(half.seed, *draw, 0.5) for crash, draw in zip(drawn, draws, strict=True))
        < 1100
    )
    assert not any(crashes(plan(), *draw) for draw in draws)


def test_killed_processes_cost_no_job(tmp_path: Path) -> None:
    line = f"--url {url_of(tmp_path)} --processes 2 --workers 4 --jobs 400 --crash-rate 0.02 --fail-rate 0.1"
    made = demo(*split(line), *QUICK, "--max-attempts", 9, "--seed", 7)
    assert made["kills"] >= 3
    assert made["redeliveries"] >= made["kills"]
    assert made["processes"]["started"] == 2 + made["kills"]
    assert made["processes"]["other_ends"] == 0
    assert (made["enqueued"], made["open"]) == (400, 0)
    assert made["succeeded"] + made["dead_lettered"] == 400
    assert made["processed"] == made["succeeded"] + made["failed"]
    assert made["failed"] == made["retries"] + made["dead_lettered"] + made["processes"]["cut"]
    assert made["identities_hold"] is True
    assert (made["as_predicted"], made["latency_s"]) == (None, None)
    assert 0 < made["peak_open"] <= 256
    assert check_of(tmp_path) == [("ok",)]
    with Queue(url_of(tmp_path), "demo") as queue:
        totals = queue.counts().totals
        assert queue.settings().capacity == 256
    assert [totals.enqueued, totals.succeeded, totals.reclaimed] == [
        400,
        made["succeeded"],
        made["redeliveries"],
    ]


def test_without_kills_the_counts_are_those_of_the_seed(tmp_path: Path) -> None:
    line = f"--url {url_of(tmp_path)} --processes 2 --workers 2 --jobs 150 --capacity 16 --fail-rate 0.5"
    args = (*split(line), "--max-attempts", 3, "--seed", 3, *QUICK)
    made = demo(*args)
    assert (made["succeeded"], made["dead_lettered"]) == predict(3, 150, 3, 0.5)
    assert made["as_predicted"] is True
    assert (made["kills"], made["processes"]["started"]) == (0, 2)
    assert made["peak_open"] <= 16
    # Into the same file again: its totals go on, the figures are this run's.
    again = demo(*args)
    assert [again[name] for name in ("enqueued", "succeeded", "dead_lettered", "processed")] == [
        made[name] for name in ("enqueued", "succeeded", "dead_lettered", "processed")
    ]
    assert again["as_predicted"] is True
    assert again["dead_kept"] == made["dead_kept"]


def test_jobs_that_kill_every_process_end_as_dead_letters_of_that(tmp_path: Path) -> None:
    line = f"--url {url_of(tmp_path)} --processes 1 --workers 1 --jobs 2 --crash-rate 1 --max-attempts 2"
    done = ulak("demo", *split(line), *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  kills 4   redeliveries 4   processes started 5\n" in done.stdout
    assert "  2 dead letters, 2 of them lost with their process at the last attempt\n" in done.stdout
    assert "    #1, 2 attempts, WorkerLost: its worker's process is gone\n" in done.stdout
    assert "        ok      jobs lost 0, ended twice 0\n" in done.stdout


def test_what_a_killed_run_has_left_is_finished_first(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    line = f"--url {url} --processes 2 --workers 2 --capacity 40 --fail-rate 0.3 --max-attempts 20 --seed 5"
    with started(*split(line), *QUICK, "--jobs", 1_000_000) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ulak ")
        with Queue(url, "demo") as queue:
            eventually(lambda: queue.counts().acked > 50 and len(children_of(process.pid)) == 2)
            children = children_of(process.pid)
            process.kill()
            process.wait()
            eventually(lambda: not any(map(is_alive, children)))
            left, before = queue.counts().open, queue.counts().totals
            ids = [job.id for job in queue.jobs(OPEN)]
    assert len(ids) == left > 0
    made = demo(*split(line), *QUICK, "--jobs", 50)
    assert (made["processes"]["left"], made["enqueued"], made["open"]) == (left, 50, 0)
    assert made["succeeded"] + made["dead_lettered"] == left + 50
    assert made["identities_hold"] is True
    assert made["identities"][2]["identity"] == "left + enqueued = succeeded + dead-lettered + open"
    assert made["predicted"] is None
    with Queue(url, "demo") as queue:
        assert queue.counts().totals.enqueued == before.enqueued + 50
        done, new = [queue.get(job_id) for job_id in ids], queue.jobs(after=before.enqueued)
    assert len(new) == 50
    assert max(job.ended_at for job in done if job and job.ended_at) <= min(job.created_at for job in new)
    assert check_of(tmp_path) == [("ok",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_processes_with_a_true_summary(number: signal.Signals, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    args = ("--url", url, "--processes", 2, "--jobs", 1_000_000, "--seed", 7)
    with started(*args) as process, Queue(url, "demo") as queue:
        eventually(lambda: (tmp_path / "jobs.db").exists() and queue.counts().acked > 20)
        children = children_of(process.pid)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert queue.counts().leased == 0
    assert (process.returncode, err) == (128 + number, "")
    assert "stopped in " in out
    assert out.count("  ok      ") + out.count(" check ok ") == 4
    assert "FAILED" not in out
    assert len(children) == 2
    assert not any(map(is_alive, children))


def test_a_stop_lets_running_jobs_finish_and_leaves_the_rest_unspent(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    with Queue(url, "demo") as queue:
        queue.enqueue_many([{"ordinal": ordinal, "due_at": 0.0} for ordinal in range(1, 5001)])
        with started("--url", url, "--processes", 1, "--fail-rate", 0) as process:
            eventually(lambda: queue.counts().acked > 20)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        counts = queue.counts()
        assert (process.returncode, err) == (128 + signal.SIGTERM, "")
        assert (counts.leased, counts.totals.failed) == (0, 0)
        assert {job.attempt for job in queue.jobs(OPEN, limit=1000)} == {0}
    assert "  5000 jobs left open by an earlier run, not finished\n" in out
    assert f"  check ok      processed {counts.acked} = succeeded {counts.acked} + failed 0\n" in out
    assert f"left + enqueued 5000 = succeeded {counts.acked} + dead-lettered 0 + open {counts.open}\n" in out


def test_a_process_that_had_settled_a_job_is_replaced_at_once(tmp_path: Path) -> None:
    line = f"--url {url_of(tmp_path)} --processes 1 --workers 1 --jobs 40 --crash-rate 0.05 --seed 7 -v"
    done = ulak("demo", *split(line), *QUICK)
    assert done.returncode == 0
    assert " ended by SIGKILL; the next one starts at once\n" in done.stderr
    assert "warning ulak: job " in done.stderr


def test_a_second_signal_ends_the_children_too(tmp_path: Path) -> None:
    with started("--url", url_of(tmp_path), "--processes", 2, "--jobs", 1_000_000) as process:
        # A child that has threads is tied to its parent.
        eventually(lambda: [is_threaded(child) for child in children_of(process.pid)] == [True, True])
        children = children_of(process.pid)
        for child in children:
            os.kill(child, signal.SIGSTOP)  # so that the first signal waits for them
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in {128 + signal.SIGINT, 128 + signal.SIGTERM}
    eventually(lambda: not any(map(is_alive, children)))


def test_children_that_cannot_work_end_the_run_with_a_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    monkeypatch.setattr(demo_fleet, "child_command", lambda *_: command)
    assert main(["demo", "--url", url_of(tmp_path), "--processes", "1", "--jobs", "5"]) == 1
    err = capfd.readouterr().err
    assert "no such thing\n" in err
    assert err.endswith(
        "error: 5 processes in a row ended with status 1 before they had settled a job; "
        "what they wrote to stderr says why\n"
    )


def test_a_producer_that_dies_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> list[int]:
        raise AssertionError("no")

    monkeypatch.setattr(Queue, "enqueue_many", broken)
    assert main(["demo", "--url", url_of(tmp_path), "--processes", "1"]) == 1
    assert capsys.readouterr().err == "error: AssertionError: no\n  this is a bug in ulak; -v shows where\n"


def test_an_open_loop_keeps_its_schedule(tmp_path: Path) -> None:
    run = FleetRun(
        plan(url=url_of(tmp_path), processes=1, jobs=30, rate=100.0, fail_rate=0.0),
        SimpleQueue(),
        log_format="console",
    )
    made = run.go(lambda _: None)
    assert made.passes
    assert made.producing_s >= 29 / 100


def test_one_process_on_a_file_finishes_what_was_left_too(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    with Queue(url, "demo", max_attempts=5) as queue:
        queue.enqueue_many([{"ordinal": ordinal, "due_at": 0.0} for ordinal in range(1, 21)])
    made = demo("--url", url, "--jobs", 30, "--workers", 2, "--fail-rate", 0.1, "--seed", 3, *QUICK)
    assert (made["enqueued"], made["succeeded"] + made["dead_lettered"]) == (30, 50)
    assert [part["count"] for part in made["latency_s"].values()] == [30] * 3
    assert made["latency_s"]["due_to_settled"]["max"] < 60
    again = demo("--url", url, "--jobs", 30, "--workers", 2, "--fail-rate", 0.1, "--seed", 3, *QUICK)
    assert again["as_predicted"] is True


def test_the_header_of_several_processes() -> None:
    lines = header(plan(processes=4, workers=2, crash_rate=0.015))
    assert lines[2:] == ["  4 processes of 2 workers each   crash-rate 1.5%"]
    assert header(plan(processes=1, workers=1))[2:] == ["  1 process of 1 worker each   crash-rate 0%"]


def test_the_summary_of_several_processes() -> None:
    made = result(fleet=fleet(dead_by_crash=1), latency=None, predicted=None, reclaimed=20)
    lines = as_text(made)
    assert made.passes
    assert lines[1:4] == [
        "  enqueued 2000   processed 2489   succeeded 1999   failed 490",
        "  retries 489   dead-lettered 1",
        "  kills 17   redeliveries 20   processes started 21",
    ]
    assert lines[5:10] == [
        "  check ok      processed 2489 = succeeded 1999 + failed 490",
        "        ok      failed 490 = retries 489 + dead-lettered 1 + cut 0",
        "        ok      enqueued 2000 = succeeded 1999 + dead-lettered 1 + open 0",
        "        ok      jobs lost 0, ended twice 0",
        "  1 dead letter, 1 of them lost with their process at the last attempt",
    ]


def test_the_summary_says_what_was_left_lost_or_ended_twice() -> None:
    usual = {"latency": None, "predicted": None}
    lines = as_text(result(fleet=fleet(left=3, left_s=1.5, other_ends=2), succeeded=2001, **usual))
    assert "  3 jobs left open by an earlier run, finished first, in 1.50s" in lines
    assert "  kills 17   redeliveries 0   processes started 21   ended otherwise 2" in lines
    assert "        FAILED  left + enqueued 2003 = succeeded 2001 + dead-lettered 1 + open 0" in lines
    assert "        FAILED  jobs lost 1, ended twice 0" in lines
    assert "        FAILED  jobs lost 0, ended twice 2" in as_text(
        result(fleet=fleet(), succeeded=2001, **usual)
    )
    stuck = result(fleet=fleet(), enqueued=2004, open=4, **usual)
    assert stuck.holds
    assert not stuck.passes
    assert "        FAILED  jobs lost 0, ended twice 0, left open 4" in as_text(stuck)
    stopped = result(fleet=fleet(), enqueued=2004, open=4, stopped=True, **usual)
    assert stopped.passes
    assert "        ok      jobs lost 0, ended twice 0, left open 4" in as_text(stopped)


def test_the_sums_show_what_an_operator_did() -> None:
    changes = fleet(redriven=1, cancelled=2, deleted=1, cut=2)
    made = result(fleet=changes, latency=None, predicted=None, enqueued=2002, failed=492, processed=2491)
    assert [identity.holds for identity in made.identities] == [True, True, True]
    text = "\n".join(as_text(made))
    assert "failed 492 = retries 489 + dead-lettered 1 + cut 2" in text
    assert (
        "enqueued + redriven 2003 = succeeded 1999 + dead-lettered 1 + cancelled 2 + deleted 1 + open 0"
        in text
    )


def test_the_json_has_the_processes_only_where_there_are_any() -> None:
    assert '"kills"' not in as_json(result())
    text = as_json(result(plan=plan(processes=4, crash_rate=0.01), fleet=fleet(), latency=None, reclaimed=20))
    assert '"processes": 4, "crash_rate": 0.01}' in text
    assert '"kills": 17, "redeliveries": 20, "processes": {"started": 21, ' in text
