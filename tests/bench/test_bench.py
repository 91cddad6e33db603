"""The benchmarks judge as they say: yardsticks keep leases, targets can be missed, slowness is noticed."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from bench import guard, memory
from bench.inmemory import speed
from bench.inmemory.pool import Pool
from bench.inmemory.yardsticks import DequeQueue, HeapQueue, LocklessQueue
from bench.kit import report
from bench.kit.rounds import FAILED, Spread, interleaved, run_apart
from bench.kit.targets import Target, judge, judge_yardstick

QUEUES = pytest.mark.parametrize("kind", [HeapQueue, DequeQueue, LocklessQueue])
CHECK = ("W2", "rate", "heap", 200, "huey", 100)
LATENCY_CHECK = ("W7", "p50_us", "condition", 10, "huey", 100)


def spreads(case, figure, **medians):
    return {case: {side: {figure: Spread([median])} for side, median in medians.items()}}


@QUEUES
def test_yardsticks_deliver_higher_priorities_first_then_in_order(kind):
    q = kind()
    for payload, priority in ((b"a", 1), (b"b", 9), (b"c", 1), (b"d", 9)):
        q.enqueue(payload, priority)
    assert [q.deliver()[2] for _ in range(4)] == [b"b", b"d", b"a", b"c"]
    assert q.deliver() is None


@QUEUES
def test_yardsticks_finish_a_lease_once(kind):
    q = kind()
    q.enqueue(b"a", 0)
    lease = q.deliver()
    assert [q.ack(lease), q.ack(lease)] == [True, False]
    assert (q.deliver(), q.leases) == (None, {})


@QUEUES
def test_yardsticks_deliver_again_what_was_not_finished_in_time(kind):
    q = kind(lease_s=0.0)
    q.enqueue(b"a", 3)
    first = q.deliver()
    second = q.deliver()
    assert second[0] == first[0]
    assert second[2] == b"a"
    assert [q.ack(first), q.ack(second)] == [False, True]


def test_raw_pool_runs_a_failed_job_again_and_counts_both():
    calls = []

    def handler(payload):
        calls.append(payload)
        if len(calls) == 1:
            raise ValueError

    pool = Pool(handler, workers=1, capacity=2)
    for number in range(10):
        pool.enqueue(number)
    pool.drain()
    assert calls == [0, *range(10)]
    assert pool.metrics() == {"open": 0, "succeeded": 10, "failed": 1}


def test_raw_pool_never_holds_more_than_its_capacity():
    go_on, most = threading.Event(), []

    def handler(payload):
        go_on.wait()
        most.append(pool.metrics()["open"])

    pool = Pool(handler, workers=2, capacity=3)
    producer = threading.Thread(target=lambda: [pool.enqueue(n) for n in range(20)])
    producer.start()
    go_on.set()
    producer.join()
    pool.drain()
    assert len(most) == 20
    assert max(most) <= 3


def test_sides_take_turns_forwards_and_backwards():
    order = []
    interleaved(lambda side: order.append(side) or {"rate": 1}, ["a", "b", "c"], rounds=3)
    assert "".join(order) == "abccbaabc"


@pytest.mark.parametrize(
    ("target", "ours", "is_ok", "reached"),
    [
        (Target("W1", "rate", 2.0, ("heap", "pool")), 599, False, 1.9967),
        (Target("W1", "rate", 2.0, ("heap", "pool")), 600, True, 2.0),
        (Target("W1", "rate", 0.5, ("heap", "pool"), is_upper=True), 101, False, 0.505),
        (Target("W1", "rate", 0.5, ("heap", "pool"), is_upper=True), 100, True, 0.5),
        (Target("W1", "rate", 500, is_upper=True), 501, False, 501),
    ],
)
def test_target_is_held_against_the_side_that_is_hardest_to_beat(target, ours, is_ok, reached):
    found = judge(target, spreads("W1", "rate", ulak=ours, heap=300, pool=200))
    assert (found.is_ok, found.reached) == (is_ok, pytest.approx(reached, abs=1e-4))


def test_what_was_not_measured_is_neither_reached_nor_short():
    found = judge(Target("W1", "rate", 2.0, ("heap", "huey")), spreads("W1", "rate", ulak=1, heap=1))
    assert found.is_ok is None
    assert judge_yardstick(CHECK, spreads("W2", "rate", heap=1)).is_ok is None


@pytest.mark.parametrize(("heap", "is_ok"), [(160, True), (159, False)])
def test_yardstick_that_lost_its_lead_over_a_peer_is_noticed(heap, is_ok):
    assert judge_yardstick(CHECK, spreads("W2", "rate", heap=heap, huey=100)).is_ok is is_ok


@pytest.mark.parametrize(("condition", "is_ok"), [(12.5, True), (12.6, False)])
def test_latency_yardstick_that_became_slow_is_noticed(condition, is_ok):
    results = spreads("W7", "p50_us", condition=condition, huey=100)
    assert judge_yardstick(LATENCY_CHECK, results).is_ok is is_ok


def test_void_run_says_so_whatever_the_targets_say():
    target = judge(Target("W2", "rate", 2.0, ("heap",)), spreads("W2", "rate", ulak=9, heap=1))
    slow = judge_yardstick(CHECK, spreads("W2", "rate", heap=1, huey=100))
    fine = judge_yardstick(CHECK, spreads("W2", "rate", heap=200, huey=100))
    assert report.verdict([target], [slow]) == report.VOID
    assert report.verdict([target], [fine]) == 0
    assert report.verdict([replace(target, is_ok=False)], [fine]) == report.SHORT


def test_measurement_that_fails_ends_the_run(capsys):
    with pytest.raises(SystemExit) as ended:
        run_apart(memory.sys.executable, "bench.inmemory.measure", "heap", "no such case", 1)
    assert ended.value.code == FAILED
    assert "no such case" in capsys.readouterr().err


def test_memory_benchmark_writes_what_it_measured(tmp_path):
    path = tmp_path / "figures.json"
    status = memory.main(["--only", "W4", "--quick", "--rounds", "1", "--no-peers", "--json", str(path)])
    written = json.loads(path.read_text())
    assert status == written["status"]
    assert status in {0, report.SHORT}
    assert list(written["cases"]) == ["W4", "W4-prefilled"]
    assert written["cases"]["W4"]["heap"]["rate"]["median"] > 0
    assert [row["is_ok"] for row in written["targets"] if row["case"] == "W1"] == [None]


def test_guard_fails_when_speed_is_lost(monkeypatch, capsys):
    monkeypatch.setattr(guard, "guard_promises", lambda: 0)
    monkeypatch.setattr(speed, "LIMITS", {"W1": speed.Limit("heap", 1000.0, 2000)})
    monkeypatch.setattr(speed, "ROUNDS", 1)
    assert guard.main([]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_guard_fails_when_its_limit_would_let_a_slowed_queue_pass(monkeypatch, capsys):
    monkeypatch.setattr(guard, "guard_promises", lambda: 0)
    monkeypatch.setattr(speed, "LIMITS", {"W1": speed.Limit("heap", 0.0, 2000)})
    assert guard.main([]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_control_notices_a_slowed_queue(monkeypatch):
    small = {case: replace(limit, jobs=limit.jobs // 10) for case, limit in speed.LIMITS.items()}
    monkeypatch.setattr(speed, "LIMITS", small)
    assert guard.main(["--control"]) == 1
    assert speed.control() == 0
