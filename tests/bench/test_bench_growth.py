"""The benchmark of growth tells what bends from what is flat, and measures what it says."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from bench import growth
from bench.growing.fit import costs, exponent
from bench.growing.measure import MEASURED
from bench.growing.plan import DIMENSIONS, FIGURES
from bench.kit.rounds import Spread

SIZES = (1_000, 10_000, 100_000)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_exponent_of_a_power_is_that_power(power):
    assert exponent([(size, 3.0 * size**power) for size in SIZES]) == pytest.approx(power)


def test_exponent_of_what_wobbles_lies_between():
    wobbling = [(size, cost) for size, cost in zip(SIZES, (1.0, 1.3, 1.0), strict=True)]
    assert exponent(wobbling) == pytest.approx(0.0)
    assert exponent([(1000, 5.0)]) is None
    assert exponent([]) is None


def test_rate_costs_the_time_of_a_job():
    assert costs("rate", {1: 100.0, 10: 50.0}) == [(1, 0.01), (10, 0.02)]
    assert costs("p50_us", {1: 100.0, 10: 50.0}) == [(1, 100.0), (10, 50.0)]


def by_size(rate_power, p50_power):
    return {
        size: {
            "rate": Spread([1e6 / size**rate_power]),
            "p50_us": Spread([3.0 * size**p50_power]),
            "p99_us": Spread([9.0 * size]),
            "memory_mb": Spread([1.0 * size]),
        }
        for size in SIZES
    }


@pytest.mark.parametrize(
    ("rate_power", "p50_power", "bent"),
    [(0.0, 0.0, []), (0.3, 0.0, ["rate"]), (0.09, 0.2, ["p50_us"]), (-0.5, 0.0, [])],
)
def test_what_should_be_flat_and_is_not_bends_and_nothing_else(rate_power, p50_power, bent):
    found = growth.judged("waiting", by_size(rate_power, p50_power))
    assert [figure for figure, judgement in found.items() if growth.bends(judgement)] == bent
    assert found["memory_mb"]["exponent"] == pytest.approx(1.0)


def test_payloads_may_cost_what_they_weigh():
    found = growth.judged("payload", by_size(1.0, 1.0))
    assert not any(map(growth.bends, found.values()))


def test_every_dimension_can_be_measured():
    assert MEASURED.keys() == DIMENSIONS.keys()
    assert {figure for dimension in DIMENSIONS.values() for figure in dimension.flat} <= FIGURES.keys()


def test_picture_has_a_line_for_each_dimension_and_what_is_flat_looks_flat():
    picture = ET.fromstring(growth.picture("memory", {"waiting": by_size(0.0, 0.0)}))
    curves = [
        curve.attrib["points"].split() for curve in picture.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    assert len(curves) == len(FIGURES)
    heights = [{point.partition(",")[2] for point in curve} for curve in curves]
    assert [len(found) for found in heights] == [1, 1, 3, 3]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_growth_writes_what_it_measured(store, tmp_path, capsys):
    path = tmp_path / "figures.json"
    places = ["--folder", str(tmp_path), "--plot", str(tmp_path), "--json", str(path)]
    status = growth.main(["--quick", "--stores", store, "--only", "workers,queues", *places])
    written = json.loads(path.read_text())
    assert status == written["status"] == int(bool(written["bent"]))
    for name in ("workers", "queues"):
        sizes = written["stores"][store][name]["sizes"]
        assert [int(size) for size in sizes] == list(DIMENSIONS[name].sizes[:2])
        assert all(figures["rate"]["median"] > 0 for figures in sizes.values())
    assert (tmp_path / f"growth-{store}.svg").read_text().startswith("<svg")
    assert "cost grows" in capsys.readouterr().out


@pytest.mark.parametrize("line", [["--only", "nothing"], ["--stores", "paper"], ["--plot", "/no/such"]])
def test_what_cannot_be_measured_is_refused(line, capsys):
    with pytest.raises(SystemExit) as caught:
        growth.main(line)
    assert caught.value.code == 2
    assert line[1] in capsys.readouterr().err
