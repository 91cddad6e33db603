"""All benchmarks in one go: what they found becomes a page, whose figures are theirs and no others."""

from __future__ import annotations

import copy
import json
import re

import pytest

from bench import all as program
from bench import load
from bench.comparing.headline import BEGIN, END, ROWS, headline, put_into
from bench.comparing.page import COMPARED, page
from bench.comparing.tables import case_table, exponent, is_noisy, kills, number, short, table
from bench.kit.cases import LATENCY, RATE, Case

SPREAD = {"low": 1.0, "high": 3000.0}


def found(median):
    return {"median": median, **SPREAD}


def of_part(cases, status=0, targets=()):
    run = {
        "machine": "2 cores",
        "python": "3.11",
        "took_s": 90.0,
        "peers": {"huey": "3.5"},
        "settings": {"huey": "so"},
    }
    return {"run": run, "cases": cases, "targets": list(targets), "status": status}


MEMORY = of_part(
    {
        "W5-4": {
            "ulak": {"rate": found(2000.0)},
            "pool": {"rate": found(4000.0)},
            "huey": {"rate": found(500.0)},
        }
    }
)
KILLED = {
    "run": {"wait_s": 60.0, "took_s": 9.0, "settings": {"huey": "at most once"}, "peers": {}},
    "sides": {
        "ulak": {"killed": 4, "again": 4, "again_s": [0.41, 0.44, 0.62], "lost": 0, "stuck": 0, "twice": 0},
        "huey": {"killed": 4, "again": 0, "again_s": [], "lost": 4, "stuck": 0, "twice": 0},
    },
    "status": 0,
}
GROWTH = {
    "run": {"took_s": 9.0, "titles": {"waiting": "jobs that wait"}},
    "stores": {
        "memory": {
            "waiting": {
                "sizes": {"1000": {}, "10000": {}},
                "growth": {
                    "rate": {"exponent": 0.3, "limit": 0.1},
                    "p50_us": {"exponent": -0.001, "limit": 0.1},
                    "p99_us": {"exponent": 0.5, "limit": None},
                    "memory_mb": {"exponent": None, "limit": None},
                },
            }
        }
    },
    "status": 1,
}


def test_page_has_every_figure_with_its_range_and_ratio():
    written = page({"memory": MEMORY, "killed": KILLED, "growth": GROWTH}, {}, date="1 May 2027")
    assert "1 May 2027; 2 cores; CPython 3.11." in written
    assert "| `memory` | all targets reached | 1.5 min |" in written
    assert "| ulak | 2,000 (1 to 3,000) |  |" in written
    assert "| huey | 500 (1 to 3,000) | 4.00 |" in written
    assert "| ulak | 4 | 4 | 0.4 to 0.6 s | 0 | 0 | 0 |  |" in written
    assert "| huey | 4 | 0 | never | 4 | 0 | 0 | at most once |" in written
    assert "| waiting | 1,000 to 10,000 | **0.30** | 0.00 | 0.50 | - |" in written
    assert "![how costs grow, memory](comparison/growth-memory.svg)" in written
    assert "**memory**: huey 3.5" in written
    assert not re.search(r"\n\n\n", written)
    assert written.count("One run: a second") == 1


def test_targets_that_were_missed_and_runs_that_do_not_count_are_told():
    missed = {"case": "W5-4", "text": "rate at least 9 x huey", "is_ok": False, "reached": 4.0}
    bad = of_part(MEMORY["cases"], status=3, targets=[missed])
    written = page({"memory": bad}, {}, date="today")
    assert "- `W5-4` rate at least 9 x huey: 4" in written
    assert "**not valid**: run it again on a quiet machine" in written


def test_a_figure_is_noisy_if_the_run_before_says_otherwise():
    before = copy.deepcopy(MEMORY)
    before["cases"]["W5-4"]["huey"]["rate"]["median"] = 400.0
    written = page({"memory": MEMORY}, {"memory": before}, date="today")
    assert "| huey | 500 (1 to 3,000), noisy | 4.00 |" in written
    assert "| ulak | 2,000 (1 to 3,000) |  |" in written


@pytest.mark.parametrize(
    ("before", "noisy"),
    [(100.0, False), (87.0, False), (117.0, False), (86.0, True), (118.0, True), (0.0, False)],
)
def test_medians_may_differ_by_15_percent(before, noisy):
    assert is_noisy(found(100.0), found(before)) is noisy
    assert is_noisy(found(100.0), None) is False


def test_sides_without_a_figure_have_no_cell_and_counts_no_ratio():
    sides = {
        "ulak": {"p50_us": found(10.0)},
        "huey": {"p99_us": found(20.0)},
        "ulak, async": {"p50_us": found(5.0)},
    }
    assert case_table(Case("", LATENCY, {}), sides, None).splitlines()[2:] == [
        "| ulak | 10 (1 to 3,000) |  |  |  |",
        "| huey |  |  | 20 (1 to 3,000) |  |",
        "| ulak, async | 5 (1 to 3,000) |  |  |  |",
    ]
    (*_, row) = case_table(
        Case("", RATE, {}), {"ulak": {"rate": found(7.0)}}, None, has_ratios=False
    ).splitlines()
    assert row == "| ulak | 7 (1 to 3,000) |"


def test_numbers_are_short_and_a_bar_does_not_end_a_cell():
    assert [number(value) for value in (0, 0.123456, 12.345, 99.96, 123.4, 1234567.8)] == [
        *("0", "0.123", "12.3", "100", "123", "1,234,568"),
    ]
    assert [short(value) for value in (5e-6, 0.0042, 0.0123, 1.5)] == [
        "5 µs",
        "4,200 µs",
        "12.3 ms",
        "1,500 ms",
    ]
    assert table(("a|b",), [("c",)]) == "| a/b |\n| --- |\n| c |"
    assert exponent({"exponent": 0.05, "limit": 0.1}) == "0.05"


def test_kills_tell_one_moment_where_all_came_at_once():
    row = {"killed": 1, "again": 1, "again_s": [0.5], "lost": 0, "stuck": 0, "twice": 0}
    assert "| x | 1 | 1 | 0.5 s |" in kills({"x": row}, {})


def test_first_page_gets_ulaks_figures_beside_the_best_peers_but_no_yardsticks():
    figures = headline({"memory": MEMORY}, date="today", peers={"memory": ("huey", "celery")})
    assert (
        "| in memory: enqueue, run, settle; 4 workers | 2,000 jobs/s | huey 500 jobs/s (4.00 x) |" in figures
    )
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = put_into(text, figures)
    assert "old" not in new
    assert new.startswith(f"before\n{BEGIN}\n")
    assert new.endswith(f"{END}\nafter\n")
    assert put_into(new, figures) == new
    assert put_into("no marks", figures) is None


def test_every_figure_of_the_first_page_is_one_that_is_measured():
    for _, part, case, figure, unit in ROWS:
        cases = COMPARED[part][1]
        assert unit in cases[case].figures[figure]
        assert set(program.PEERS[part]) & set(cases[case].sides)


def test_last_results_make_a_page_without_a_run(tmp_path, capsys):
    results = tmp_path / "results"
    results.mkdir()
    (results / "memory.json").write_text(json.dumps(MEMORY))
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    assert program.main(["--page", "--results", str(results), "--to", str(tmp_path)]) == 0
    assert "## In memory" in (tmp_path / "docs/comparison.md").read_text()
    assert "## How fast" in (tmp_path / "README.md").read_text()
    assert "written" in capsys.readouterr().out


def test_no_results_are_no_page(tmp_path, capsys):
    assert program.main(["--page", "--results", str(tmp_path), "--to", str(tmp_path)]) == program.FAILED
    assert not (tmp_path / "docs/comparison.md").exists()


def test_load_is_measured_kept_and_drawn(tmp_path, capfd):
    results = tmp_path / "results"
    results.mkdir()
    (results / "load.json").write_text('{"earlier": true}')
    line = [
        "--quick",
        "--only",
        "load",
        "--stores",
        "memory,sqlite",
        "--results",
        str(results),
        "--to",
        str(tmp_path),
    ]
    assert program.main(line) in {0, 1, program.VOID}
    assert json.loads((results / "load.before.json").read_text()) == {"earlier": True}
    stores = json.loads((results / "load.json").read_text())["stores"]
    assert list(stores) == ["memory", "sqlite"]
    for store in stores:
        assert (tmp_path / f"docs/comparison/load-{store}.svg").read_text().startswith("<svg")
    written = (tmp_path / "docs/comparison.md").read_text()
    assert "**sqlite**, " in written
    assert "10% of attempts fail | call to settled, with retries |" in written


def test_what_says_most_is_the_status():
    assert [program.worst(each) for each in ([0, 0], [0, 1], [1, 3], [3, 2, 0], [])] == [0, 1, 3, 2, 0]


def test_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["--only", "nothing"])
    assert "no part is called 'nothing'" in capsys.readouterr().err


def run_of(behind_s=0.0, lag_p99_s=0.0, due_span_s=2.0):
    run = {"behind_s": behind_s, "lag_p99_s": lag_p99_s, "due_span_s": due_span_s}
    return {"series": {load.CLEAN: {"runs": [run]}}}


def test_a_rate_is_sustained_while_calls_come_when_they_are_due():
    assert load.sustained(run_of())
    assert load.sustained(run_of(behind_s=0.039))
    assert not load.sustained(run_of(behind_s=0.041))
    assert not load.sustained(run_of(lag_p99_s=0.011))
    assert load.highest({100: True, 200: True, 500: False}) == 200
    assert load.highest({100: False}) == 100
