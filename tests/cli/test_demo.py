"""The demo's run: the same counts for the same seed, the books, the figures, the memory."""

from __future__ import annotations

import json
import math
import threading
from queue import SimpleQueue
from shlex import split
from typing import Any

import pytest

from tests.cli.command import demo, ulak
from ulak import Pool, Queue
from ulak.cli import main
from ulak.cli.demo_plan import Plan, Snapshot
from ulak.cli.demo_run import Run, peak_rss_bytes
from ulak.failures import fails, predict

QUICK = ("--base", "1ms", "--cap", "5ms")


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "jobs": 100,
        "workers": 2,
        "capacity": 10,
        "max_attempts": 3,
        "base_s": 0.001,
        "cap_s": 0.002,
        "fail_rate": 0.5,
        "rate": 0.0,
        "seed": 7,
        "priorities": 3,
        "keep_dead": None,
        "url": "memory://",
    }
    return Plan(**settings | changes)


def here(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    """Run `ulak demo --json ARGS` in this process; its result."""
    assert main(["demo", "--json", *map(str, args)]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_capacity_1_and_retries_that_all_fail_end_by_themselves() -> None:
    line = "--jobs 500 --workers 1 --capacity 1 --fail-rate 1 --max-attempts 3 --base 1ms --cap 5ms"
    done = ulak("demo", *split(line))
    assert (done.returncode, done.stderr) == (0, "")
    assert "  enqueued 500   processed 1500   succeeded 0   failed 1500\n" in done.stdout
    assert "  retries 1000   dead-lettered 500   reclaimed 0   stale 0   rejected 0\n" in done.stdout
    assert "peak open 1 of 1\n" in done.stdout


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_the_counts_are_those_of_the_seed_whatever_the_threads_do(
    seed: int, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--jobs", 1000, "--capacity", 64, "--fail-rate", 0.4, "--max-attempts", 4, *QUICK)
    result = here(capsys, *args, "--seed", seed, "--workers", workers)
    succeeded, dead_lettered = predict(seed, 1000, 4, 0.4)
    assert dead_lettered > 5
    assert (result["succeeded"], result["dead_lettered"]) == (succeeded, dead_lettered)
    assert result["predicted"] == {"succeeded": succeeded, "dead_lettered": dead_lettered}
    assert result["as_predicted"] is True
    assert result["identities_hold"] is True
    assert 0 < result["peak_open"] <= 64
    attempts = range(1, 5)
    first_success = (
        next((a for a in attempts if not fails(seed, ordinal, a, 0.4)), 4) for ordinal in range(1, 1001)
    )
    assert result["processed"] == sum(first_success)


def test_a_run_of_the_acceptance_size_in_a_process_of_its_own() -> None:
    line = "--jobs 20000 --workers 8 --capacity 256 --fail-rate 0.2 --max-attempts 5 --seed 7"
    result = demo(*split(line))
    assert (result["succeeded"], result["dead_lettered"]) == predict(7, 20_000, 5, 0.2)
    assert [identity["holds"] for identity in result["identities"]] == [True, True, True]
    assert result["peak_open"] <= 256
    assert [part["count"] for part in result["latency_s"].values()] == [20_000] * 3


def test_the_share_of_failures_lies_within_four_sigma_of_the_rate_for_20_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seed in range(20):
        result = here(capsys, "--jobs", 300, "--seed", seed, *QUICK)
        processed = result["processed"]
        assert abs(result["failed"] / processed - 0.2) <= 4 * math.sqrt(0.2 * 0.8 / processed), seed


def test_memory_does_not_grow_with_the_number_of_jobs() -> None:
    args = split(
        "--capacity 64 --fail-rate 0.9 --max-attempts 2 --base 1ms --cap 2ms --keep-dead 100 --seed 7"
    )
    small, large = demo("--jobs", 1_500, *args), demo("--jobs", 9_000, *args)
    # 4 MB for 7,500 jobs more: a stored job alone, with its two failed attempts, is larger than that allows.
    assert abs(large["peak_rss_bytes"] - small["peak_rss_bytes"]) < 4_000_000
    assert large["producer_blocked_s"] > 0
    assert 0 < large["producer_blocked_share"] <= 1
    assert large["dead_kept"] == 100
    assert large["dead_pruned"] == large["dead_lettered"] - 100 > 1000


def test_a_seed_is_drawn_and_printed_if_none_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = {here(capsys, "--jobs", 0)["seed"] for _ in range(4)}
    assert len(seeds) > 1
    assert main(["demo", "--jobs", "0"]) == 0
    header, summary = capsys.readouterr().out.split("done in")
    seed = header.split()[-1]
    assert f"foretold by seed {seed}:" in summary


def test_an_open_loop_keeps_its_schedule_and_counts_from_when_an_enqueue_was_due(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 100 jobs are due within 0.05 s, but one at a time is open, half of them wait: the producer is late.
    load = "--jobs 100 --rate 2000 --workers 1 --capacity 1 --seed 1"
    work = "--fail-rate 0.5 --max-attempts 2 --base 10ms --cap 10ms"
    result = here(capsys, *split(load), *split(work))
    assert result["elapsed_s"] > 0.05
    due, accepted = result["latency_s"]["due_to_settled"], result["latency_s"]["accepted_to_settled"]
    assert due["max"] > result["elapsed_s"] - 0.06
    assert due["p50"] > 2 * accepted["p50"]
    slow = here(capsys, "--jobs", 20, "--rate", 400, "--fail-rate", 0)
    assert slow["elapsed_s"] >= 19 / 400
    assert slow["producer_blocked_s"] == 0


def test_the_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    result = here(
        capsys, "--jobs", 40, "--fail-rate", "100%", "--max-attempts", 1, "--seed", -5, "--keep-dead", 7
    )
    assert result["settings"] == {
        "jobs": 40,
        "workers": 8,
        "capacity": 256,
        "max_attempts": 1,
        "base_s": 0.05,
        "cap_s": 2.0,
        "fail_rate": 1.0,
        "rate": 0.0,
        "seed": -5,
        "priorities": 10,
        "keep_dead": 7,
        "url": "memory://",
    }
    numbers = (
        "enqueued processed succeeded failed retries dead_lettered reclaimed stale rejected open dead_kept"
    )
    assert [result[name] for name in numbers.split()] == [40, 40, 0, 40, 0, 40, 0, 0, 0, 0, 7]
    assert result["dead_pruned"] == 33
    assert [letter["attempts"] for letter in result["dead_letters"]] == [1] * 5
    assert result["dead_letters"][0]["error"].startswith("InjectedFailure: seed -5 fails attempt 1 of job ")
    assert result["identities"][1] == {
        "identity": "failed = retries + dead-lettered",
        "values": "40 = 0 + 40",
        "holds": True,
    }
    for latency in result["latency_s"].values():
        assert list(latency) == ["count", "p50", "p95", "p99", "max", "mean"]
        assert latency["count"] == 40
        assert 0 <= latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert result["stopped"] is False
    assert result["elapsed_s"] > 0
    assert result["jobs_per_s"] > 0
    assert result["peak_rss_bytes"] > 1_000_000
    assert set(result["versions"]) == {"ulak", "python", "system"}


def test_a_named_store_and_a_single_priority_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    result = here(capsys, "--jobs", 30, "--priorities", 1, "--url", "memory://named")
    assert result["succeeded"] + result["dead_lettered"] == 30


def test_what_was_stored_before_is_not_in_the_figures() -> None:
    run = Run(plan(url="memory://before", max_attempts=1), SimpleQueue())
    with Queue("memory://before", "demo", max_attempts=1, clock=run._clock) as q:
        dead = q.enqueue_many([1, 2, 3])
        for lease in q.deliver_many(3):
            q.nack(lease)
        result = run.go(lambda _: None)
    assert result.passes
    assert result.as_predicted is True
    assert (result.open, result.dead_kept) == (0, result.dead_lettered)
    assert min(letter.id for letter in result.dead_letters) > max(dead)


def test_nothing_is_foretold_where_jobs_were_waiting() -> None:
    run = Run(plan(url="memory://waiting"), SimpleQueue())
    with Queue("memory://waiting", "demo", max_attempts=1, clock=run._clock) as q:
        q.enqueue_many([{"ordinal": ordinal, "due_at": 0.0} for ordinal in (1, 2, 3)])
        result = run.go(lambda _: None)
        assert q.counts().open == 0
    assert (result.enqueued, result.open, result.as_predicted) == (100, -3, None)
    assert result.passes


def test_a_run_that_ends_otherwise_than_its_seed_foretold_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ulak.cli.demo_run.predict", lambda *_: (4, 1))
    assert main(["demo", "--jobs", "5", "--fail-rate", "0"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  foretold by seed " in out
    assert out.count("FAILED") == 1


def test_a_hint_repeats_the_options_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "--jobs 5 --fail-rate 0% --base 20ms --cap 1m --seed 3 --url memory://here"
    assert main(["demo", *split(argv)]) == 0
    assert capsys.readouterr().out.endswith(
        "    ulak demo --seed 3 --jobs 5 --base 0.02s --cap 60s --fail-rate 0.9 \\\n"
        "      --url memory://here --max-attempts 3\n"
    )


def test_the_text_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *split("--jobs 600 --fail-rate 0.5 --max-attempts 2 --seed 3"), *QUICK]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-3].startswith("  next: ")
    assert lines[-2].startswith("    ulak demo --seed 3 ")
    assert printed.err == ""


def test_books_that_do_not_balance_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A job that somebody deletes while it is open is in none of the three sums.
    enqueue = Queue.enqueue

    def lossy(queue: Queue, *args: Any, **options: Any) -> int:
        lost = enqueue(queue, *args, **options, delay=3600)
        queue.delete(lost)
        return enqueue(queue, *args, **options)

    monkeypatch.setattr(Queue, "enqueue", lossy)
    assert main(["demo", "--jobs", "5", "--fail-rate", "0"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  enqueued 10 = succeeded 5 + dead-lettered 0 + open 0\n" in out


def test_what_the_watcher_raises_ends_the_run() -> None:
    def watch(_: Snapshot) -> None:
        raise BrokenPipeError

    before = threading.active_count()
    run = Run(plan(jobs=1_000_000), SimpleQueue())
    with pytest.raises(BrokenPipeError):
        run.go(watch)
    assert threading.active_count() <= before + 1  # the pool's keeper may still be on its way out


def test_a_producer_that_dies_ends_the_run_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise MemoryError

    monkeypatch.setattr(Queue, "enqueue", broken)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: this process has no memory left\n  the machine has none"
    )


def test_a_pool_that_cannot_start_ends_the_run_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Pool) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Pool, "start", broken)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err.startswith("error: can't start new thread: the system gives no more\n")


def test_the_watcher_sees_how_far_the_run_is() -> None:
    seen: list[Snapshot] = []
    result = Run(plan(), SimpleQueue()).go(seen.append)
    assert seen[-1].ended == 100
    assert seen[-1].open == 0
    assert all(snapshot.open <= 10 for snapshot in seen)
    assert result.as_predicted


def test_peak_memory_where_there_is_no_proc_and_where_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    assert (peak_rss_bytes(tmp_path / "none") or 0) > 1_000_000
    (tmp_path / "other").write_text("Name: python\n")
    assert (peak_rss_bytes(tmp_path / "other") or 0) > 1_000_000
    monkeypatch.setitem(__import__("sys").modules, "resource", None)
    assert peak_rss_bytes(tmp_path / "none") is None
    assert (peak_rss_bytes() or 0) > 1_000_000
