"""The benchmark of the PostgreSQL store judges as it says: yardsticks keep leases, its server is durable."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from bench import postgres as program
from bench.kit.rounds import Spread
from bench.onserver import targets, yardsticks
from bench.onserver.measure import SIDES
from bench.onserver.plan import CASES, PEERS, SETTINGS
from tests.support import postgres


@pytest.fixture
def cursor() -> Iterator[psycopg.Cursor]:
    """Of a database with the yardsticks' table."""
    postgres.need()
    connection = yardsticks.connected(postgres.fresh_database())
    with connection, connection.cursor(binary=True) as cursor:
        yield cursor


def spreads(case, figure, **medians):
    return {case: {side.replace("_", ", "): {figure: Spread([m])} for side, m in medians.items()}}


def test_each_side_has_a_module_and_a_setting():
    sides = {side for case in CASES.values() for side in case.sides}
    assert sides == set(SIDES) == set(SETTINGS)
    assert set(PEERS) < sides


def test_yardsticks_finish_a_lease_once_and_deliver_in_order(cursor):
    ids = yardsticks.put_many(cursor, [b"a", b"b", b"c"])
    first = yardsticks.in_batches(cursor, [])
    assert [(row[0], row[2]) for row in first] == list(zip(ids, (b"a", b"b", b"c"), strict=True))
    stale = [(row[0], row[1] + 1, row[2]) for row in first]
    assert yardsticks.fused(cursor, stale) == []
    assert yardsticks.counted(cursor.connection) == 3
    assert yardsticks.fused(cursor, first) == []
    assert yardsticks.counted(cursor.connection) == 0


def test_a_bounded_queue_is_judged_by_a_limit_of_its_own():
    found = spreads("enqueue", "rate", ulak=100, ulak_bounded=60, raw=100)
    verdicts = {item.text: item.is_ok for item in targets.judge_all(found) if item.is_ok is not None}
    assert verdicts == {
        "rate at least 0.75 x raw": True,
        "with a capacity, rate at least 0.65 x raw": False,
    }


def test_a_slow_yardstick_makes_the_run_void():
    found = spreads("enqueue", "rate", ulak=100, raw=100, pgqueuer=100)
    assert [item.is_ok for item in targets.judge_yardsticks(found)] == [False, None, None, None]


def test_a_run_without_peers_writes_down_what_it_measured(tmp_path):
    postgres.need()
    path = tmp_path / "found.json"
    arguments = ["--quick", "--rounds", "1", "--no-peers", "--only", "enqueue", "--json", str(path)]
    assert program.main(arguments) in {0, 1}
    written = json.loads(path.read_text())
    assert set(written["cases"]["enqueue"]) == {"ulak", "ulak, bounded", "raw"}
    assert written["run"]["server"]["fsync"] == "on"
    assert written["run"]["server"]["synchronous_commit"] == "on"
