"""The benchmark as a command: what it measures, on what, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from tests.cli.command import COMMAND, TIMEOUT_S, environment, on_terminal, ulak
from tests.cli.test_bench_load import plan
from tests.support import postgres
from tests.support.waiting import eventually
from ulak import ConfigError, Queue
from ulak.cli import bench_run, main
from ulak.cli.bench_figures import MEASURES
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_work import QUEUE
from ulak.failures import predict

QUICK = "--repeat 1 --base 1ms --cap 2ms --json"


def here(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    """Run `ulak bench LINE` in this process; its result. Whether that counts is up to the machine."""
    assert main(["bench", *split(QUICK), *split(line)]) in {0, 1}
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result


def only(result: dict[str, Any], name: str) -> dict[str, Any]:
    (run,) = result["series"][name]["runs"]
    return dict(run)


def test_an_open_loop_measures_every_job_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    result = here(capsys, "--rate 2000 --jobs 200 --warm-up 50 --capacity 64 --workers 2")
    run = only(result, "no failures")
    assert (run["jobs"], run["succeeded"], run["dead_lettered"]) == (200, 250, 0)
    assert set(run["latency"]) == {*MEASURES, "blocked"}
    assert {latency["count"] for latency in run["latency"].values()} == {200}
    for latency in run["latency"].values():
        ordered = list(latency["at"].values())
        assert 0 <= ordered[0] <= ordered[-1] == max(ordered)
    # 250 jobs of which the last is due an eighth of a second after the first.
    assert run["elapsed_s"] >= run["due_span_s"] > 0.05
    assert 1 <= run["peak_open"] <= 64
    assert run["is_as_drawn"] is True
    assert run["latency"]["start_due"]["at"]["p50"] >= run["latency"]["start_call"]["at"]["p50"]
    assert sum(part["due"] for part in run["slices"]) == 200


def test_failures_are_those_of_the_seed_and_have_runs_without_them_beside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = here(capsys, "--jobs 300 --warm-up 0 --fail-rate 0.4 --max-attempts 2 --seed 7 --capacity 50")
    assert list(result["series"]) == ["no failures", "40% of attempts fail"]
    clean, failing = (only(result, name) for name in result["series"])
    assert (clean["succeeded"], clean["dead_lettered"]) == (300, 0)
    assert (failing["succeeded"], failing["dead_lettered"]) == predict(7, 300, 2, 0.4)
    assert clean["is_as_drawn"] is failing["is_as_drawn"] is True
    first, settled = (failing["latency"][name]["at"]["max"] for name in ("first_call", "settled_call"))
    assert settled >= first
    assert clean["latency"]["settled_call"]["at"] == clean["latency"]["first_call"]["at"]


def test_a_first_attempt_is_the_first_whatever_comes_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--jobs 60 --fail-rate 1 --max-attempts 2 --base 60ms --cap 60ms"
    run = only(here(capsys, line), "100% of attempts fail")
    start, first, settled = (
        run["latency"][name]["at"]["p50"] for name in ("start_call", "first_call", "settled_call")
    )
    assert start < first < settled


def test_a_full_queue_blocks_and_the_time_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--jobs 100 --warm-up 0 --capacity 1 --workers 1 --fail-rate 1 --max-attempts 2"
    run = only(here(capsys, line), "100% of attempts fail")
    assert (run["peak_open"], run["dead_lettered"]) == (1, 100)
    assert run["blocked_s"] > 0
    assert run["latency"]["blocked"]["at"]["max"] <= run["latency"]["call"]["at"]["max"]


@pytest.mark.parametrize("executor", ["thread", "async"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_each_store_and_executor_is_measured(
    executor: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    load = "--jobs 60 --warm-up 5 --fail-rate 0.3 --payload 8 --producers 2"
    result = here(capsys, f"{load} --url {url} --executor {executor}")
    for run in (only(result, name) for name in ("no failures", "30% of attempts fail")):
        assert run["is_as_drawn"] is True
        assert run["jobs"] == 60
        assert run["latency"]["first_call"]["at"]["p50"] > 0


def test_the_work_of_a_server_is_not_taken_for_that_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    postgres.need()
    line = f"--url {postgres.fresh_url()} --rate 200 --jobs 150 --warm-up 0"
    assert only(here(capsys, line), "no failures")["others_cpus"] is None
    assert main(["bench", *split("--repeat 1"), *split(line)]) in {0, 1}
    out = capsys.readouterr().out
    assert "others took" not in out
    assert "NOT VALID" in out or "what a server does counts as others' work too" in out


def test_a_saturated_run_ends_when_its_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    result = here(capsys, "--duration 300ms")
    run = only(result, "no failures")
    assert result["settings"]["duration_s"] == 0.3
    assert run["succeeded"] > run["jobs"] > 0


def test_a_duration_at_a_rate_is_a_number_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    settings = here(capsys, "--duration 100ms --rate 500 --arrivals fixed")["settings"]
    assert (settings["jobs"], settings["warm_up"], settings["is_poisson"]) == (50, 5, False)


def test_workers_can_be_processes(tmp_path: Path) -> None:
    line = f"--processes 2 --workers 2 --jobs 60 --fail-rate 0.3 --seed 3 --url sqlite:///{tmp_path / 'j.db'}"
    done = ulak("bench", *split(QUICK), *split(line))
    assert done.returncode in {0, 1}, done.stderr
    result = json.loads(done.stdout)
    failing = only(result, "30% of attempts fail")
    assert failing["is_as_drawn"] is True
    assert failing["lost"] == 0
    assert failing["latency"]["start_call"]["at"]["p50"] > 0


def test_a_summary_and_a_picture_for_people(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    done = ulak("bench", "--jobs", 50, "--repeat", 2, "--plot", picture)
    assert done.returncode in {0, 1}
    assert done.stdout.startswith("ulak ")
    assert "\nno failures: " in done.stdout
    assert ("\nvalid" in done.stdout) == (done.returncode == 0)
    assert done.stderr.splitlines()[-1] == f"drawn in {picture}"
    assert picture.read_text().startswith("<svg")


def test_a_terminal_shows_how_far_a_run_is_and_nothing_of_it_afterwards() -> None:
    status, shown, printed = on_terminal(
        "bench", "--jobs", 600, "--rate", 1500, "--repeat", 1, stderr_only=True
    )
    assert status in {0, 1}
    assert "run 1 of 1, no failures: " in shown
    assert " of 660 jobs enqueued" in shown
    assert shown.endswith("\r\x1b[2K")
    assert "\x1b" not in printed


def test_a_rate_that_no_store_takes_makes_a_run_that_does_not_count() -> None:
    # A millisecond's worth of jobs at a rate beyond any machine's: the last calls come late.
    done = ulak("bench", "--jobs", 30_000, "--rate", 10_000_000, "--repeat", 1)
    assert done.returncode == 1
    assert "NOT VALID" in done.stdout
    assert "10,000,000 jobs/s were not taken" in done.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--jobs 5 --duration 1s", "give one of them"),
        ("--duration 0", "--duration must be more than 0"),
        ("--duration 1s --warm-up 5", "--warm-up counts jobs"),
        ("--base 2s --cap 1s", "--base must be more than 0 and at most --cap: --base is 2s and --cap is 1s"),
        ("--processes 2", "needs a store that processes share"),
        ("--payload 7", "--payload is from 8 to 262,144 bytes"),
        ("--payload 1M", "--payload is from 8 to 262,144 bytes"),
        ("--payload x", "cannot read 'x' as a size"),
        ("--jobs 2 --producers 3", "more --producers than --jobs"),
        ("--jobs 5000000", "a run has at most 5,000,000 jobs, and this would be 5,010,000"),
        ("--duration 1h --rate 10000", "a run has at most 5,000,000 jobs"),
        ("--plot a.png", "--plot draws SVG, which browsers show: name it a.svg"),
        ("--plot none/a.svg", "there is no folder none"),
        ("--executor process", "unknown value 'process'"),
        ("--fail-rate 2", "is not a share"),
        ("--rate -1", "is not a number per second"),
        ("--url nosuch://x", "nosuch"),
        ("compare a.json", "after"),
        ("compare a.json b.json c.json", "c.json"),
        ("nonsense", "unknown command 'nonsense'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *split(line)]) == 2
    printed = capsys.readouterr()
    assert told in printed.err.replace("B.json", "after")
    assert printed.out == ""
    assert printed.err.count("\n") <= 3


def on_file(tmp_path: Path, **changes: Any) -> Plan:
    return plan(url=f"sqlite:///{tmp_path / 'jobs.db'}", **{"jobs": 20, "rate": 0.0} | changes)


def test_somebody_elses_open_jobs_are_left_alone(tmp_path: Path) -> None:
    load = on_file(tmp_path)
    with Queue(load.url, QUEUE) as q:
        q.enqueue(b"theirs")
    with pytest.raises(ConfigError, match=r"has 1 open jobs.*\n.*ulak rm -q ulak-bench --state ready"):
        bench_run.measure(load, lambda _: None)
    with Queue(load.url, QUEUE) as q:
        assert q.counts().open == 1


def test_other_queues_of_the_store_stay_as_they_are(tmp_path: Path) -> None:
    load = on_file(tmp_path, capacity=7)
    with Queue(load.url, "mail", capacity=3) as q:
        q.enqueue("theirs")
    bench_run.measure(load, lambda _: None)
    with Queue(load.url, "mail") as q, Queue(load.url, QUEUE) as bench:
        assert (q.counts().ready, q.settings().capacity) == (1, 3)
        assert bench.settings().capacity == 7


def test_a_run_that_is_broken_off_leaves_no_job_open(tmp_path: Path) -> None:
    load = on_file(tmp_path, jobs=1000, rate=50.0)
    threads = threading.active_count()

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_run.measure(load, interrupt)
    assert threading.active_count() <= threads + 1
    with Queue(load.url, QUEUE) as q:
        assert q.counts().open == 0
        assert q.counts().totals.enqueued < 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_all_its_processes_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    line = f"bench --jobs 5000 --rate 100 --workers 1 --processes 1 --url {url}"
    with subprocess.Popen(
        [*COMMAND, *split(line)],
        env=environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # a run has begun
        with Queue(url, QUEUE) as q:
            eventually(lambda: q.counts().totals.enqueued > 0)
            process.send_signal(number)
            assert process.wait(TIMEOUT_S) == 128 + number
            assert process.stderr.read() == ""
            assert q.counts().open == 0
            assert q.counts().totals.enqueued < 5000


def test_what_goes_wrong_in_an_enqueue_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Callable[[int], bytes]:
        raise OSError("no more bytes")

    monkeypatch.setattr("ulak.cli.bench_produce.payloads", broken)
    with pytest.raises(OSError, match="no more bytes"):
        bench_run.measure(on_file(tmp_path), lambda _: None)


def test_injected_failures_are_not_logged_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    here(capsys, "--jobs 20 --fail-rate 1 --max-attempts 1")
    assert main(["bench", *split(QUICK), *split("--jobs 20 --fail-rate 1 --max-attempts 1")]) in {0, 1}
    assert capsys.readouterr().err == "run 1 of 1, no failures\nrun 1 of 1, 100% of attempts fail\n"
