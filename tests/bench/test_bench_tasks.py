"""The benchmark of tasks measures what it says, and writes it down."""

from __future__ import annotations

import json

from bench import tasks
from bench.kit import report


def test_tasks_benchmark_writes_what_it_measured(tmp_path, capsys):
    path = tmp_path / "figures.json"
    status = tasks.main(["--quick", "--rounds", "1", "--no-peers", "--json", str(path)])
    written = json.loads(path.read_text())
    assert status == written["status"]
    assert status in {0, report.SHORT}
    assert list(written["cases"]["T1"]) == ["ulak", "bare pool"]
    assert written["cases"]["T1"]["ulak"]["rate"]["median"] > 0
    assert [row["is_ok"] is None for row in written["targets"]] == [False, True]
    out = capsys.readouterr().out
    assert "rate at least 0.15 x bare pool" in out
    assert "not measured   T1            rate at least 3 x huey" in out
