"""The page about monitoring, the alerts and the dashboard name metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import ulak
from ulak import App

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/monitor.md").read_text()
ALERTS = (DOCS / "monitoring/alerts.yml").read_text()
DASHBOARD = (DOCS / "monitoring/grafana.json").read_text()

NAME = re.compile(r"\bulak_\w+")
# Whatever stands in a queue's own figures, or comes from Prometheus.
LABELS = {"queue", "state", "task", "le", "instance"}


def metrics() -> dict[str, str]:
    """The types of all metrics, by the names under which a page has them."""
    registry = CollectorRegistry()
    told = ulak.metrics_of(App(), registry)
    suffixes = {"counter": "_total", "info": "_info"}
    return {metric.name + suffixes.get(metric.type, ""): metric.type for metric in told.describe()}


def series() -> set[str]:
    """The names under which they can be asked for."""
    parts = ("_bucket", "_sum", "_count")
    return {
        name + part for name, kind in metrics().items() for part in (parts if kind == "histogram" else ("",))
    }


def rules() -> Iterator[tuple[str, str]]:
    """Each alert and what it asks; the file is plain enough to be read so."""
    for rule in ALERTS.split("- alert: ")[1:]:
        name, _, rest = rule.partition("\n")
        found = re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rest, re.DOTALL)
        assert found is not None, name
        yield name, found[1]


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD)["panels"]  # type: ignore[no-any-return]


def test_the_page_has_each_metric_with_its_type_and_no_other() -> None:
    rows = re.findall(r"^\| (`ulak_[^|]*) \| (\w+) \|", PAGE, re.MULTILINE)
    listed = {name: kind for names, kind in rows for name in NAME.findall(names)}
    assert listed == metrics()


@pytest.mark.parametrize(("alert", "asks"), [*rules()])
def test_an_alert_asks_for_what_there_is(alert: str, asks: str) -> None:
    assert NAME.findall(asks)
    assert set(NAME.findall(asks)) <= series()


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = NAME.findall(target["expr"])
        assert named
        assert set(named) <= series()


def test_all_that_is_asked_for_is_grouped_by_labels_that_there_are() -> None:
    asked = [asks for _, asks in rules()] + [one["expr"] for panel in panels() for one in panel["targets"]]
    for text in asked:
        for group in re.findall(r"by \(([^)]*)\)", text):
            assert set(group.split(", ")) <= LABELS, text
        for label in re.findall(r"[{,] ?(\w+)[=!]", text):
            assert label in LABELS, text
        # A store's figures are told by each of its processes: summed, they would be as many times too many.
        for name in re.findall(r"sum by \([^)]*\) \((?:rate\()?(ulak_\w+)", text):
            assert name in {"ulak_queue_full_total", "ulak_acks_stale_total"} or name.endswith("_bucket"), (
                text
            )


def test_the_dashboard_asks_the_source_that_was_chosen_and_shows_each_panel_once() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels()) > 8
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    assert set(NAME.findall(DASHBOARD)) - {"ulak_queue_jobs"} <= series()
