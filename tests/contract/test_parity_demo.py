"""The command line of the second system: its options, its books, and latencies that hide nothing."""

import json
import subprocess
import sys

import pytest

WHOLE_RUN_S = 30

FAST = ("--base", "1ms", "--cap", "4ms")
METRICS = ("enqueued", "processed", "succeeded", "failed", "retries", "dead_lettered")


def demo(*options):
    """Run the demo in a process of its own."""
    command = [sys.executable, "-m", "ulak", "demo", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WHOLE_RUN_S)


def result_of(*options):
    """Run it to its end and read its JSON; its books must balance."""
    answer = demo(*options, "--json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    result = json.loads(answer.stdout)
    enqueued, processed, succeeded, failed, retries, dead_lettered = (result[name] for name in METRICS)
    assert processed == succeeded + failed
    assert failed == retries + dead_lettered
    assert enqueued == succeeded + dead_lettered + result["open"]
    assert result["open"] == 0
    return result


def test_T14_every_option_is_there_and_the_books_balance():
    options = [
        "--jobs",
        300,
        "--workers",
        3,
        "--capacity",
        16,
        "--max-attempts",
        2,
        *FAST,
        "--fail-rate",
        0.4,
    ]
    more = ["--rate", 5000, "--seed", 11, "--priorities", 3, "--keep-dead", 5, "--url", "memory://demo"]
    result = result_of(*options, *more, "--log-format", "json")
    assert result["enqueued"] == 300
    assert result["succeeded"] > 0
    assert result["dead_lettered"] > 5
    assert (result["dead_kept"], result["dead_pruned"]) == (5, result["dead_lettered"] - 5)
    assert result["seed"] == 11
    assert 0 < result["peak_open"] <= 16


def test_T14_the_same_seed_has_the_same_outcome():
    # Two workers and eight interleave differently, yet the same attempts of the same jobs must fail.
    options = ["--jobs", 200, "--max-attempts", 3, "--fail-rate", 0.5, *FAST, "--seed", 3]
    first, second = (result_of(*options, "--workers", workers) for workers in (2, 8))
    assert [first[name] for name in METRICS] == [second[name] for name in METRICS]
    other = result_of("--jobs", 200, "--max-attempts", 3, "--fail-rate", 0.5, *FAST, "--seed", 4)
    assert [first[name] for name in METRICS] != [other[name] for name in METRICS]


def test_T14_a_full_queue_of_one_with_every_attempt_failing_comes_to_its_end():
    options = ["--jobs", 100, "--workers", 2, "--capacity", 1, "--max-attempts", 3, "--fail-rate", 1]
    result = result_of(*options, *FAST)
    assert [result[name] for name in METRICS] == [100, 300, 0, 300, 200, 100]
    assert result["peak_open"] <= 1


def test_T14_failing_work_is_bounded_by_the_capacity():
    result = result_of("--jobs", 400, "--capacity", 64, "--fail-rate", 0.9, "--max-attempts", 3, *FAST)
    assert 0 < result["peak_open"] <= 64


def test_T14_the_summary_for_people_names_every_metric():
    answer = demo("--jobs", 50, "--seed", 1, *FAST)
    assert answer.returncode == 0
    for name in METRICS:
        assert name.replace("_", "-") in answer.stdout


@pytest.mark.parametrize(
    "options", [["--jobs", "-1"], ["--fail-rate", "2"], ["--capacity", "0"], ["--nonsense"]]
)
def test_T14_what_cannot_be_understood_is_wrong_usage(options):
    answer = demo(*options)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert options[0] in answer.stderr


def assert_ordered(latency, jobs):
    assert latency["count"] == jobs
    assert 0 <= latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]


def test_T15_latency_has_both_measures():
    # A job's call begins before it is accepted, so the one measure is never below the other.
    jobs = 300
    latency_s = result_of("--jobs", jobs, "--fail-rate", 0.3, "--rate", 2000, *FAST)["latency_s"]
    due, accepted = latency_s["due_to_settled"], latency_s["accepted_to_settled"]
    assert_ordered(due, jobs)
    assert_ordered(accepted, jobs)
    histogram_error = 1.02
    for percentile in ("p50", "p95", "p99", "max"):
        assert accepted[percentile] <= due[percentile] * histogram_error


def test_T15_an_open_loop_does_not_hide_the_wait_for_room():
    # Jobs are due at 2,000 a second, but there is room for one, and half the attempts fail and back off: the
    # last job was due long before it could be enqueued, and only the measure from its due time may show it.
    jobs, rate = 60, 2000
    options = ["--jobs", jobs, "--rate", rate, "--capacity", 1, "--priorities", 1, "--seed", 5]
    result = result_of(*options, "--fail-rate", 0.5, "--base", "10ms", "--cap", "20ms")
    due, accepted = result["latency_s"]["due_to_settled"], result["latency_s"]["accepted_to_settled"]
    assert due["max"] >= result["elapsed_s"] - jobs / rate
    assert due["p50"] > 2 * accepted["p50"]
    assert result["producer_blocked_s"] > 0


def test_T15_without_failures_the_backoff_is_not_in_the_tail():
    options = ["--jobs", 100, "--seed", 2, "--rate", 1000, "--base", "150ms", "--cap", "150ms"]
    calm = result_of(*options, "--fail-rate", 0)["latency_s"]["due_to_settled"]
    failing = result_of(*options, "--fail-rate", 0.3)["latency_s"]["due_to_settled"]
    assert calm["p95"] < failing["p95"]
