"""What a benchmark prints and draws, to the letter, and how two of them are compared."""

from __future__ import annotations

import io
import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Terminal
from tests.cli.test_bench_figures import run
from tests.cli.test_bench_load import plan
from ulak import __version__
from ulak.cli import bench_plot, main
from ulak.cli.bench_compare import compared
from ulak.cli.bench_figures import MEASURES
from ulak.cli.bench_plan import Figures, Latency, Slice
from ulak.cli.bench_progress import Progress
from ulak.cli.bench_report import as_text, header
from ulak.cli.bench_result import Result, Series
from ulak.cli.chart import Axis, Line, Panel, svg

BACKOFF = "max attempts 5  backoff 10ms to 1.00s"
TAIL = (
    "with failures the tail is the backoff, which is up to 10ms after a first failure, and up to 1.00s at "
    "most: it says nothing about the queue"
)
SVG = "{http://www.w3.org/2000/svg}"


def latency(value_s: float) -> Latency:
    at = {"p50": value_s, "p90": 2 * value_s, "p99": 4 * value_s, "p99.9": 8 * value_s, "max": 16 * value_s}
    return Latency(100, at, [(0.0, value_s), (50.0, 2 * value_s), (90.0, 4 * value_s)])


def figures(value_s: float = 0.0001, **changes: Any) -> Figures:
    found = {name: latency(value_s) for name in (*MEASURES, "blocked")}
    found |= {"call": latency(4.1e-6), "blocked": latency(0.0), "settled_due": latency(3 * value_s)}
    slices = [Slice(number / 10, 10, value_s, 2 * value_s, number) for number in range(10)]
    values: dict[str, Any] = {
        "latency": found,
        "slices": slices,
        "memory_bytes": 3 * 2**20,
        "cpu_a_job_s": 24.1e-6,
    }
    return run(**values | changes)


def result(**changes: Any) -> Result:
    clean = Series(0.0, (figures(), figures(jobs_per_s=1010.0)))
    failing = Series(0.1, (figures(0.0002), figures(0.0002)))
    load = plan(repeat=2, fail_rate=0.1, jobs=1000, warm_up=100, **changes)
    return Result(load, {"processors": 2}, (clean, failing))


def test_a_header_says_all_that_matters() -> None:
    assert header(result().plan) == [
        f"ulak {__version__}  memory://  4 workers (threads)  capacity 64  {BACKOFF}",
        "  open loop, 1,000 jobs/s from 1 producer, Poisson arrivals   1,000 jobs after 100 to warm up",
        "  payload 100 B   3 priorities   seed 7   2 runs; medians",
    ]
    fleet = plan(
        url="sqlite:///a.db",
        rate=0.0,
        duration_s=2.0,
        processes=2,
        workers=1,
        executor="async",
        capacity=None,
        producers=8,
        priorities=1,
    )
    assert header(fleet) == [
        f"ulak {__version__}  sqlite:///a.db  2 processes of 1 worker (one loop)  capacity none  {BACKOFF}",
        "  saturated by 8 producers   for 2.00s, of which a tenth is to warm up",
        "  payload 100 B   1 priority   seed 7   1 run",
    ]
    assert "open loop, 2,000,000 jobs/s" in header(plan(rate=2e6))[1]
    assert "open loop, 0.5 jobs/s" in header(plan(rate=0.5))[1]
    assert "equal gaps" in header(plan(is_poisson=False))[1]


def test_the_figures_of_runs_without_failures_stand_before_those_with_them() -> None:
    assert as_text(result()) == [
        "",
        "no failures: 1,005 jobs/s   peak open 3 of 64   blocked 0.0%   cpu 24µs a job   memory +3M",
        "                                         p50      p90      p99    p99.9      max",
        "  enqueue call                         4.1µs    8.2µs     16µs     33µs     66µs",
        "    of it blocked, for want of room       0s       0s       0s       0s       0s",
        "  due to call                          100µs    200µs    400µs    800µs    1.6ms",
        "  due to start                         100µs    200µs    400µs    800µs    1.6ms",
        "  call to start                        100µs    200µs    400µs    800µs    1.6ms",
        "  return to start                      100µs    200µs    400µs    800µs    1.6ms",
        "  due to settled, first attempt        100µs    200µs    400µs    800µs    1.6ms",
        "  call to settled, first attempt       100µs    200µs    400µs    800µs    1.6ms",
        "  return to settled, first attempt     100µs    200µs    400µs    800µs    1.6ms",
        "  the runs lie apart by: jobs/s 1%, call to start p50 0% and p99 0%",
        "",
        "10% of attempts fail: 1,000 jobs/s   peak open 3 of 64   blocked 0.0%   cpu 24µs a job   memory +3M",
        "                                         p50      p90      p99    p99.9      max",
        "  enqueue call                         4.1µs    8.2µs     16µs     33µs     66µs",
        "    of it blocked, for want of room       0s       0s       0s       0s       0s",
        "  due to call                          200µs    400µs    800µs    1.6ms    3.2ms",
        "  due to start                         200µs    400µs    800µs    1.6ms    3.2ms",
        "  call to start                        200µs    400µs    800µs    1.6ms    3.2ms",
        "  return to start                      200µs    400µs    800µs    1.6ms    3.2ms",
        "  due to settled, first attempt        200µs    400µs    800µs    1.6ms    3.2ms",
        "  call to settled, first attempt       200µs    400µs    800µs    1.6ms    3.2ms",
        "  return to settled, first attempt     200µs    400µs    800µs    1.6ms    3.2ms",
        "  due to settled, with retries         600µs    1.2ms    2.4ms    4.8ms    9.6ms",
        "  call to settled, with retries        200µs    400µs    800µs    1.6ms    3.2ms",
        "  return to settled, with retries      200µs    400µs    800µs    1.6ms    3.2ms",
        "  the runs lie apart by: jobs/s 0%, call to start p50 0% and p99 0%",
        "",
        "first attempts, against no failures: p50 x2.00, p99 x2.00",
        TAIL,
        "",
        "valid: the schedule was kept, and the runs agree",
    ]


def test_a_saturated_run_has_no_schedule_to_count_from() -> None:
    alone = Result(plan(rate=0.0), {}, (Series(0.0, (figures(others_cpus=None, memory_bytes=None),)),))
    lines = as_text(alone)
    assert not [line for line in lines if line.startswith("  due")]
    assert lines[1].endswith("cpu 24µs a job")
    assert lines[-3:] == [
        "valid",
        "  one run: how far runs lie apart is not known; --repeat 5 tells",
        "  how busy the machine was is not known: a run was too short, or it does not tell",
    ]


def test_runs_that_do_not_count_are_called_so() -> None:
    bad = Result(plan(), {"processors": 2}, (Series(0.0, (figures(lag_p99_s=0.5),)),))
    assert as_text(bad)[-2:] == [
        "NOT VALID: no figure above counts",
        "  no failures: the generator fell behind its schedule by itself: p99 500ms late, 10ms allowed",
    ]
    assert bad.as_json["valid"] is False


# Two results


def write(path: Path, found: Result) -> Path:
    path.write_text(json.dumps(found.as_json))
    return path


def test_a_comparison_says_what_differs_beyond_what_runs_do() -> None:
    before = json.loads(json.dumps(result().as_json))
    slower = Series(0.0, (figures(0.0003, jobs_per_s=500.0), figures(0.0003, jobs_per_s=505.0)))
    after_result = Result(plan(repeat=2, seed=8, jobs=1000, warm_up=100), {"processors": 2}, (slower,))
    lines = compared(before, json.loads(json.dumps(after_result.as_json)))
    assert lines[:8] == [
        "fail_rate: A 0.1, B 0.0",
        "seed: A 7, B 8",
        "                                            A          B     B/A",
        "no failures",
        "  jobs/s                                1,005        502    0.50  worse",
        "  cpu a job                              24µs       24µs    1.00",
        "  memory                                   3M         3M    1.00",
        "  enqueue call, p50                     4.1µs      4.1µs    1.00",
    ]
    assert "  call to start, p50                    100µs      300µs    3.00  worse" in lines
    assert not [line for line in lines if "fail:" in line or line.startswith("10%")]


def test_a_gain_is_called_better_and_a_small_difference_nothing() -> None:
    one = {"median": 100.0, "low": 99.0, "high": 101.0}
    before, after = (json.loads(json.dumps(result().as_json)) for _ in range(2))
    before["series"]["no failures"]["jobs_per_s"] = one
    for rate, meaning in ((200.0, "better"), (104.0, ""), (50.0, "worse")):
        after["series"]["no failures"]["jobs_per_s"] = {"median": rate, "low": rate, "high": rate}
        (line,) = [line for line in compared(before, after)[:3] if "jobs/s" in line]
        assert line.split()[4:] == meaning.split()


def test_runs_that_overlap_may_differ_by_chance() -> None:
    before, after = (json.loads(json.dumps(result().as_json)) for _ in range(2))
    before["series"]["no failures"]["jobs_per_s"] = {"median": 100.0, "low": 90.0, "high": 180.0}
    after["series"]["no failures"]["jobs_per_s"] = {"median": 200.0, "low": 170.0, "high": 210.0}
    (line,) = [line for line in compared(before, after)[:3] if "jobs/s" in line]
    assert line.split() == ["jobs/s", "100", "200", "2.00"]


def test_the_comparison_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "a.json", result()), tmp_path / "b.json"
    assert main(["bench", "compare", str(good), str(good)]) == 0
    assert "1.00" in capsys.readouterr().out
    write(bad, Result(plan(), {"processors": 2}, (Series(0.0, (figures(lost=1),)),)))
    assert main(["bench", "compare", str(good), str(bad)]) == 1
    assert "b.json is not valid" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "ulak bench"}', "nonsense", None])
def test_what_is_no_result_is_refused(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(tmp_path / "a.json", result()), tmp_path / "b.json"
    if text is not None:
        bad.write_text(text)
    assert main(["bench", "compare", str(good), str(bad)]) == 2
    assert "b.json" in capsys.readouterr().err


# Pictures


def texts(picture: str) -> list[str]:
    return [found.text or "" for found in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_plot_has_the_percentiles_the_time_and_why_it_may_not_count() -> None:
    bad = Result(
        plan(fail_rate=0.1),
        {"processors": 2},
        (Series(0.0, (figures(lost=1),)), Series(0.1, (figures(0.0002),))),
    )
    found = texts(bench_plot.drawn(bad))
    assert {"0", "90", "100µs", "first attempt, no failures", "with retries, 10% fail"} <= set(found)
    assert {"Open jobs", "First attempts in the course of the run"} <= set(found)
    assert "with failures, the tail until a job is settled with its retries is the backoff" in found
    assert found[-1] == "not valid: no failures: 1 worker process ended before their time"
    picture = ET.fromstring(bench_plot.drawn(bad))
    curves = list(picture.iter(f"{SVG}polyline"))
    assert len(curves) == 3 + 4 + 2
    # The curve ends with its 90th percentile, above the mark that says so.
    (mark,) = [element for element in picture.iter(f"{SVG}text") if element.text == "90"]
    assert curves[0].attrib["points"].split()[-1].partition(",")[0] == mark.attrib["x"]


def drawn(panel: Panel) -> ET.Element:
    return ET.fromstring(svg("a <title> & more", [panel]))


def points_of(picture: ET.Element) -> list[tuple[float, float]]:
    (curve,) = picture.iter(f"{SVG}polyline")
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in curve.attrib["points"].split())]


def test_a_logarithmic_axis_gives_each_decade_the_same_room() -> None:
    x, y = Axis("x", is_log=True), Axis("y", is_log=True)
    panel = Panel("p", x, y, [Line("l", [(1, 1000), (10, 100), (100, 10), (1000, 1)])])
    points = points_of(drawn(panel))
    (right, down), *others = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(points)]
    assert right > 0
    assert down > 0  # what is less lies lower
    for step in others:
        assert step == pytest.approx((right, down), abs=0.2)


def test_what_cannot_be_drawn_is_left_out() -> None:
    panel = Panel(
        "p",
        Axis("x"),
        Axis("y", is_log=True),
        [Line("l", [(0, 0.0), (1, float("nan")), (2, 1.0), (3, 2.0)])],
    )
    assert len(points_of(drawn(panel))) == 2
    empty = drawn(Panel("p", Axis("x"), Axis("y"), [Line("l", [])]))
    assert "nothing to show" in [found.text for found in empty.iter(f"{SVG}text")]


def test_names_are_text_whatever_they_hold() -> None:
    picture = drawn(Panel("<b>", Axis("a&b"), Axis("y"), [Line("<l>", [(0, 1), (1, 2)])]))
    found = [element.text for element in picture.iter(f"{SVG}text")]
    assert {"a <title> & more", "<b>", "a&b", "<l>"} <= set(found)


def test_a_flat_line_and_a_single_point_can_be_drawn() -> None:
    flat = drawn(Panel("p", Axis("x"), Axis("y"), [Line("l", [(0, 0), (1, 0)])]))
    assert len(points_of(flat)) == 2
    point = drawn(Panel("p", Axis("x", is_log=True), Axis("y", is_log=True), [Line("l", [(1, 1)])]))
    assert len(list(point.iter(f"{SVG}circle"))) == 1


# Progress


def test_progress_is_a_live_line_on_a_terminal_and_a_line_a_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        progress = Progress(stream)
        progress.begin("run 1 of 2")
        progress.watch("5 of 10")
        progress.end()
        shown[type(stream)] = stream.getvalue()
    assert shown[Terminal] == "\r\x1b[2Krun 1 of 2: 5 of 10\r\x1b[2K"
    assert shown[io.StringIO] == "run 1 of 2\n"
    Progress(None).begin("nobody reads it")
