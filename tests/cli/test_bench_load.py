"""The load of a benchmark: the schedule, what fails, and a generator that keeps to it, in virtual time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from ulak.cli.bench_load import arrivals, failures, ordinal_of, payloads
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_produce import SLEEP_MAX_S, Generator
from ulak.cli.bench_records import Records, shared
from ulak.failures import fails


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "url": "memory://",
        "rate": 1000.0,
        "is_poisson": True,
        "jobs": 100,
        "warm_up": 0,
        "duration_s": None,
        "capacity": 64,
        "fail_rate": 0.0,
        "max_attempts": 5,
        "base_s": 0.01,
        "cap_s": 1.0,
        "workers": 4,
        "executor": "thread",
        "processes": None,
        "producers": 1,
        "payload_bytes": 100,
        "priorities": 3,
        "repeat": 1,
        "seed": 7,
    }
    return Plan(**settings | changes)


def test_the_same_seed_makes_the_same_load_and_another_one_does_not() -> None:
    first, again, other = (list(arrivals(plan(seed=seed))) for seed in (7, 7, 8))
    assert first == again != other
    assert failures(plan(fail_rate=0.5)) == failures(plan(fail_rate=0.5))
    assert failures(plan(fail_rate=0.5)) != failures(plan(fail_rate=0.5, seed=8))


def test_poisson_arrivals_come_at_the_rate_and_at_random() -> None:
    due = list(arrivals(plan(jobs=20_000)))
    gaps = [after - before for before, after in itertools.pairwise(due)]
    assert due[0] == 0
    assert min(gaps) >= 0
    # Of an exponential distribution the mean is the standard deviation; 20,000 draws tell it within 3 %.
    assert statistics.mean(gaps) == pytest.approx(0.001, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.001, rel=0.05)


def test_fixed_arrivals_come_at_equal_gaps_also_after_a_million() -> None:
    due = list(arrivals(plan(is_poisson=False, jobs=1_000_001, rate=3.0)))
    assert due[:3] == [0, 1 / 3, 2 / 3]
    assert due[-1] == 1_000_000 / 3


def test_jobs_to_warm_up_come_before_those_that_count() -> None:
    assert len(list(arrivals(plan(jobs=10, warm_up=5)))) == len(failures(plan(jobs=10, warm_up=5))) == 15


def test_drawn_failures_are_those_of_the_seed_attempt_by_attempt() -> None:
    drawn = failures(plan(fail_rate=0.5, max_attempts=3))
    assert set(drawn) == {0, 1, 2, 3}
    for ordinal, count in enumerate(drawn):
        outcomes = [fails(7, ordinal + 1, attempt, 0.5) for attempt in (1, 2, 3)]
        assert outcomes[:count] == [True] * count
        assert count == 3 or not outcomes[count]
    assert set(failures(plan())) == {0}
    assert set(failures(plan(fail_rate=1.0))) == {5}


@pytest.mark.parametrize("size", [8, 9, 100])
def test_a_payload_has_its_size_and_tells_whose_it_is(size: int) -> None:
    for ordinal in (0, 1, 4_999_999):
        payload = payloads(size)(ordinal)
        assert (len(payload), ordinal_of(payload)) == (size, ordinal)


# The generator


class Virtual:
    """A clock that passes only as it is slept on, or as an enqueue call takes time."""

    def __init__(self) -> None:
        self.at = 100.0
        self.blocked_s = 0.0
        self.put: list[tuple[int, int]] = []
        self.takes: Iterator[tuple[float, float]] = itertools.repeat((0.0, 0.0))

    def now(self) -> float:
        return self.at

    def sleep(self, duration_s: float) -> None:
        assert 0 < duration_s <= SLEEP_MAX_S
        self.at += duration_s

    def slept(self) -> float:
        return self.blocked_s

    def enqueue(self, payload: bytes, priority: int) -> None:
        works_s, blocked_s = next(self.takes)
        self.at += works_s + blocked_s
        self.blocked_s += blocked_s
        self.put.append((ordinal_of(payload), priority))


def produced(clock: Virtual, load: Plan) -> list[dict[str, float]]:
    """What the generator has written down, in seconds since its start."""
    with Records(load.jobs_all) as records:
        for ordinal, due_s in enumerate(arrivals(load) if load.rate else []):
            records.due[ordinal] = due_s
        generator = Generator(load, records, clock.enqueue, now=clock.now, sleep=clock.sleep)
        generator.begin()
        for number in range(load.producers):
            generator.produce(number, clock.slept)
        return [
            {
                "due": round(records.due[each] - 100, 9),
                "called": round(records.called[each] - 100, 9),
                "returned": round(records.returned[each] - 100, 9),
                "blocked": round(records.blocked[each], 9),
            }
            for each in range(load.jobs_all)
        ]


def test_a_generator_calls_when_jobs_are_due() -> None:
    clock = Virtual()
    rows = produced(clock, plan(rate=10.0, is_poisson=False, jobs=4))
    assert [row["called"] for row in rows] == [0.0, 0.1, 0.2, 0.3]
    assert [row["due"] for row in rows] == [row["called"] for row in rows]
    assert clock.put == [(0, 0), (1, 1), (2, 2), (3, 0)]


def test_a_schedule_goes_on_while_a_call_waits_for_room() -> None:
    clock = Virtual()
    clock.takes = iter([(0.01, 0.24), (0.01, 0.0), (0.01, 0.0), (0.01, 0.0), (0.01, 0.0)])
    rows = produced(clock, plan(rate=10.0, is_poisson=False, jobs=5))
    assert [row["due"] for row in rows] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert [row["called"] for row in rows] == [0.0, 0.25, 0.26, 0.3, 0.4]
    assert [row["returned"] for row in rows] == [0.25, 0.26, 0.27, 0.31, 0.41]
    assert [row["blocked"] for row in rows] == [0.24, 0, 0, 0, 0]


def test_a_saturated_generator_calls_as_soon_as_it_can_which_is_when_jobs_are_due() -> None:
    clock = Virtual()
    clock.takes = itertools.repeat((0.5, 0.0))
    rows = produced(clock, plan(rate=0.0, jobs=3))
    assert [(row["due"], row["called"]) for row in rows] == [(0, 0), (0.5, 0.5), (1, 1)]


def test_a_saturated_generator_ends_when_its_time_is_over() -> None:
    clock = Virtual()
    clock.takes = itertools.repeat((0.4, 0.0))
    produced(clock, plan(rate=0.0, jobs=1000, duration_s=1.0))
    assert [ordinal for ordinal, _ in clock.put] == [0, 1, 2]


def test_several_producers_share_the_schedule_by_turns() -> None:
    clock = Virtual()
    produced(clock, plan(jobs=5, producers=2))
    assert [ordinal for ordinal, _ in clock.put] == [0, 2, 4, 1, 3]


def test_a_generator_that_is_stopped_enqueues_no_more() -> None:
    clock, load = Virtual(), plan(jobs=10, rate=1.0)
    with Records(load.jobs_all) as records:
        for ordinal, due_s in enumerate(arrivals(load)):
            records.due[ordinal] = due_s
        generator = Generator(load, records, clock.enqueue, now=clock.now, sleep=clock.sleep)
        generator.begin()
        generator.is_stopped = True
        generator.produce(0, clock.slept)
    assert clock.put == []


def test_records_can_be_shared_by_processes_through_a_file() -> None:
    path = shared(10)
    try:
        with Records(10, path) as here, Records(10, path) as there:
            here.called[9] = 1.5
            there.settled[0] = 2.5
            assert (there.called[9], here.settled[0]) == (1.5, 2.5)
            assert (here.due[0], here.started[0]) == (0, 0)
    finally:
        path.unlink()
