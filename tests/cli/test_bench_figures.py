"""From moments to figures, and whether these count."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cli.test_bench_load import plan
from ulak import ConfigError
from ulak.cli.bench_figures import MEASURES, figures, peak_open, percentile, summary
from ulak.cli.bench_plan import Figures, Latency, Plan
from ulak.cli.bench_records import COLUMNS, Records
from ulak.cli.bench_result import Result, Series, Spread

Moments = Mapping[str, float]


def measured(load: Plan, rows: Sequence[Moments]) -> Figures:
    """The figures of jobs with these moments; what is not named is when its enqueue call returned."""
    with Records(load.jobs_all) as records:
        for ordinal, row in enumerate(rows):
            for column in COLUMNS:
                value = row.get(column, 0.0 if column == "blocked" else row["returned"])
                getattr(records, column)[ordinal] = value
        return figures(load, records)


def evenly(jobs: int, **durations: float) -> list[Moments]:
    """Jobs that are due a millisecond apart, from second 10 on; the moments follow by so many seconds."""
    order = ("called", "returned", "started", "first_settled", "settled")
    rows = []
    for number in range(jobs):
        at = 10 + number / 1000
        row = {"due": at, "blocked": durations.get("blocked", 0.0)}
        for name in order:
            at += durations.get(name, 0.0)
            row[name] = at
        rows.append(row)
    return rows


def test_each_latency_is_counted_from_when_it_was_due_from_the_call_and_from_its_return() -> None:
    rows = evenly(10, called=1, returned=2, started=4, first_settled=8, settled=16)
    found = measured(plan(jobs=10), rows)
    p50 = {name: latency.at["p50"] for name, latency in found.latency.items()}
    assert p50 == pytest.approx(
        {
            "late": 1,
            "call": 2,
            "start_due": 7,
            "start_call": 6,
            "start_return": 4,
            "first_due": 15,
            "first_call": 14,
            "first_return": 12,
            "settled_due": 31,
            "settled_call": 30,
            "settled_return": 28,
            "blocked": 0,
        }
    )


def test_a_job_that_began_before_its_enqueue_call_had_returned_waited_for_no_time() -> None:
    row = {"due": 1.0, "called": 1.0, "started": 1.1, "returned": 1.5, "first_settled": 1.2, "settled": 1.2}
    found = measured(plan(jobs=1), [row])
    assert found.latency["start_return"].at["max"] == 0
    assert found.latency["start_call"].at["max"] == pytest.approx(0.1)


def test_a_queue_that_stands_still_does_not_hide_behind_its_waiting_producer() -> None:
    # Ten jobs a millisecond apart; the first call takes 20 ms, and the others come one after the other then.
    rows = [{"due": 10 + n / 1000, "called": 10.0 if n == 0 else 10.02, "returned": 10.02} for n in range(10)]
    found = measured(plan(jobs=10), rows)
    assert found.latency["start_call"].at["p50"] == pytest.approx(0.0)
    assert found.latency["start_due"].at["p50"] == pytest.approx(0.015)
    assert found.behind_s == pytest.approx(0.011)
    # The generator was free to call only then: it is not to blame.
    assert found.lag_p99_s == 0


def test_a_generator_that_oversleeps_is_to_blame_itself() -> None:
    rows = evenly(100, called=0.0)
    rows[50] = {**rows[50], "called": rows[50]["due"] + 0.5, "returned": rows[50]["due"] + 0.5}
    late = [{**row, "called": row["due"] + 0.02, "returned": row["due"] + 0.02} for row in evenly(100)]
    assert measured(plan(), rows).lag_p99_s == 0
    # Each call returned before the next job was due, so nothing held it up.
    apart = [
        {**row, **{key: value + number for key, value in row.items()}} for number, row in enumerate(late)
    ]
    assert measured(plan(), apart).lag_p99_s == pytest.approx(0.02)


def test_only_jobs_after_the_warm_up_count() -> None:
    rows = [*evenly(20, started=9.0), *evenly(80, started=0.001)]
    found = measured(plan(jobs=80, warm_up=20), rows)
    assert (found.jobs, found.latency["start_call"].count) == (80, 80)
    assert found.latency["start_call"].at["max"] == pytest.approx(0.001)


def test_a_saturated_run_of_some_time_leaves_out_its_first_tenth() -> None:
    load = plan(jobs=1000, rate=0.0, duration_s=0.1)
    found = measured(load, evenly(100))
    assert found.jobs == 90
    assert found.behind_s == found.lag_p99_s == 0


def test_a_run_in_which_nothing_counts_has_no_figures() -> None:
    with pytest.raises(ConfigError, match="give a longer --duration"):
        measured(plan(jobs=10, rate=0.0, duration_s=1.0), [])


def test_throughput_is_until_the_last_job_has_ended() -> None:
    found = measured(plan(jobs=100), evenly(100, settled=0.901))
    assert found.elapsed_s == pytest.approx(1.0)
    assert found.jobs_per_s == pytest.approx(100)
    assert found.due_span_s == pytest.approx(0.099)


def test_blocked_time_is_told_by_call_and_as_a_share_of_the_producers_time() -> None:
    rows = [
        {"due": n, "called": n, "returned": n + 1.0, "blocked": 0.5 if n % 2 else 0.0} for n in range(1, 11)
    ]
    found = measured(plan(jobs=10), rows)
    assert found.blocked_s == pytest.approx(2.5)
    assert found.blocked_share == pytest.approx(0.25)
    assert measured(plan(jobs=10, producers=2), rows).blocked_share == pytest.approx(0.125)
    assert (found.latency["blocked"].at["p50"], found.latency["blocked"].at["max"]) == (0, 0.5)


def test_the_time_line_has_what_was_due_in_each_part_and_what_was_open_then() -> None:
    found = measured(plan(jobs=600), evenly(600, settled=0.1))
    assert sum(part.due for part in found.slices) == 600
    assert len(found.slices) == 60
    assert found.slices[30].at_s == pytest.approx(0.2995)
    assert [part.open for part in found.slices[20:25]] == [100] * 5


def test_the_time_line_begins_with_the_first_call_whoever_made_it() -> None:
    rows = evenly(10)[::-1]
    found = measured(plan(jobs=10, rate=0.0, producers=2), rows)
    assert [part.due for part in found.slices if part.due] == [1] * 10
    assert found.due_span_s == pytest.approx(0.009)


def open_by_a_scan(comings: Sequence[float], goings: Sequence[float]) -> int:
    """The same as `peak_open`, in the plainest way."""
    return max(sum(came <= at < went for came, went in zip(comings, goings, strict=True)) for at in comings)


def test_the_peak_of_open_jobs_is_what_a_scan_finds() -> None:
    draw = random.Random(7)
    for _ in range(200):
        comings = [draw.randrange(50) for _ in range(20)]
        goings = [came + draw.randrange(1, 10) for came in comings]
        assert peak_open(comings, goings) == open_by_a_scan(comings, goings)


def test_no_more_are_open_than_there_is_room_for() -> None:
    assert measured(plan(jobs=10, capacity=None), evenly(10, settled=1.0)).peak_open == 10
    assert measured(plan(jobs=10, capacity=4), evenly(10, settled=1.0)).peak_open == 4


def test_a_job_that_waits_for_room_is_not_open_yet() -> None:
    rows = [
        {"due": 1.0, "called": 1.0, "returned": 1.0, "started": 1.0, "first_settled": 2.0, "settled": 2.0},
        {"due": 1.1, "called": 1.1, "returned": 2.0, "started": 2.0, "first_settled": 3.0, "settled": 3.0},
    ]
    assert measured(plan(jobs=2), rows).peak_open == 1


@pytest.mark.parametrize(
    ("count", "p", "expected"),
    [(1, 50, 1), (2, 50, 1), (100, 99, 99), (1000, 99.9, 999), (1000, 100, 1000), (10, 0, 1), (3, 99.9, 3)],
)
def test_a_percentile_is_the_nearest_rank(count: int, p: float, expected: int) -> None:
    assert percentile(range(1, count + 1), p) == expected


def test_a_curve_goes_as_far_as_there_are_jobs() -> None:
    curve = summary(range(1, 1001), with_curve=True).curve
    assert curve[0] == (0, 1)
    assert curve[-1] == (pytest.approx(99.9), 999)
    assert [value for _, value in curve] == sorted(value for _, value in curve)
    assert summary([]).at["p50"] == 0
    assert summary([], with_curve=True).curve == [(0.0, 0.0)]


# Whether the runs count


def run(**changes: Any) -> Figures:
    latency = {name: summary([0.001]) for name in (*MEASURES, "blocked")}
    values: dict[str, Any] = {
        "jobs": 1,
        "jobs_per_s": 1000.0,
        "elapsed_s": 1.0,
        "due_span_s": 1.0,
        "latency": latency | {"first_call": summary([0.001], with_curve=True)},
        "blocked_s": 0.0,
        "blocked_share": 0.0,
        "lag_p99_s": 0.0001,
        "behind_s": 0.0001,
        "peak_open": 3,
        "slices": [],
        "others_cpus": 0.05,
    }
    return Figures(**values | changes)


def with_start(run: Figures, p50_s: float) -> Figures:
    start = Latency(1, dict.fromkeys(run.latency["call"].at, p50_s))
    return dataclasses.replace(run, latency=run.latency | {"start_call": start})


def problems(*runs: Figures, processors: int = 2) -> list[str]:
    return Result(plan(), {"processors": processors}, (Series(0.0, runs),)).problems


def test_good_runs_have_no_problems() -> None:
    assert problems(run()) == []
    assert problems(run(), run(jobs_per_s=1100.0), with_start(run(), 0.0012)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"lag_p99_s": 0.0101},
            "the generator fell behind its schedule by itself: p99 10ms late",
        ),
        ({"behind_s": 0.021}, "were not taken: the last calls came 21ms late, most of the time in enqueue"),
        ({"behind_s": 0.021, "blocked_share": 0.6}, "late, most of the time waiting for room"),
        ({"others_cpus": 0.21}, "the machine was busy: others took 0.21 of 2 processors"),
        ({"lost": 1}, "1 worker process ended before their time"),
        ({"is_as_drawn": False}, "which is not what seed 7 has drawn"),
    ],
)
def test_a_run_that_does_not_count_is_told_with_the_reason(changes: dict[str, Any], told: str) -> None:
    (problem,) = problems(run(**changes))
    assert told in problem


def test_a_schedule_may_be_late_by_a_share_of_its_length_or_by_a_moment() -> None:
    assert problems(run(behind_s=0.019)) == []
    assert problems(run(behind_s=0.019, due_span_s=0.1)) != []
    assert problems(run(behind_s=0.009, due_span_s=0.1)) == []


def test_what_others_may_take_grows_with_the_machine_and_unknown_is_no_problem() -> None:
    assert problems(run(others_cpus=0.21), processors=4) == []
    assert problems(run(others_cpus=None)) == []


def test_runs_that_lie_apart_are_too_noisy() -> None:
    (problem,) = problems(run(jobs_per_s=1000.0), run(jobs_per_s=1000.0), run(jobs_per_s=1300.0))
    assert problem == "no failures: too noisy: jobs/s of the runs lie 30% apart, 25% allowed"
    (problem,) = problems(run(), run(), with_start(run(), 0.002))
    assert "p50 from enqueue to start of the runs lie 100% apart" in problem


def test_the_run_that_is_named_is_the_one_that_failed() -> None:
    (problem,) = problems(run(), run(lost=2))
    assert problem.startswith("no failures, run 2: 2 worker processes")


def test_figures_of_several_runs_are_their_median_and_range() -> None:
    series = Series(0.0, (run(jobs_per_s=3.0), run(jobs_per_s=1.0), run(jobs_per_s=2.0)))
    found = series.spread(lambda one: one.jobs_per_s)
    assert found == Spread(2.0, 1.0, 3.0)
    assert found.share == 1.0
    assert series.spread(lambda one: one.memory_bytes) is None
