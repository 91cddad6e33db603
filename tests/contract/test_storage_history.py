"""What a store keeps of the past, for views: rows a minute and an hour, bounded, that add up."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.contract.conftest import StorageKind
from tests.contract.steps import FAIL, OTHER, Q, draft, end, everything, put, take_one
from ulak.core import history
from ulak.core.history import HOUR_S, MINUTE_S, Moment, Took
from ulak.core.job import Done
from ulak.core.store import Settings, Store
from ulak.metrics import bucket_of, coarse
from ulak.testing import ManualClock

DAY_S = 86_400.0
NOTHING = Took()


def took(*durations_s: float) -> Took:
    run_s = [2 * duration_s for duration_s in durations_s]
    return Took(*(coarse(dict(Counter(map(bucket_of, values_s)))) for values_s in (durations_s, run_s)))


def minutes(store: Store, since_at: float = 0.0, queue: str = Q) -> list[Moment]:
    return store.history([queue], since_at, grain=MINUTE_S)[queue]


def hours(store: Store, since_at: float = 0.0, queue: str = Q) -> list[Moment]:
    return store.history([queue], since_at, grain=HOUR_S)[queue]


@pytest.fixture(autouse=True)
def at_the_start_of_an_hour(clock: ManualClock) -> None:
    clock.advance(HOUR_S - clock.calendar() % HOUR_S)


def test_a_record_tells_how_the_counts_stand_and_how_long_jobs_took(store: Store, clock: ManualClock) -> None:
    put(store, draft(), draft())
    end(store, take_one(store), Done())
    clock.advance(7.0)
    store.record({Q: took(0.5, 1.5)})
    for moment, began_ago_s in ((minutes(store)[0], 7.0), (hours(store)[0], 7.0)):
        assert (moment.at, moment.seen_at) == (clock.calendar() - began_ago_s, clock.calendar())
        assert moment.counts == store.counts([Q])[Q]
        assert moment.took == took(0.5, 1.5)


def test_records_within_a_minute_are_one_row_with_the_latest_counts_and_all_durations(
    store: Store, clock: ManualClock
) -> None:
    put(store, draft())
    store.record({Q: took(0.5)})
    clock.advance(59.0)
    end(store, take_one(store), FAIL)
    store.record({Q: took(1.0, 4.0)})
    (moment,) = minutes(store)
    assert moment.took == took(0.5, 1.0, 4.0)
    assert (moment.counts.totals.retries, moment.seen_at) == (1, clock.calendar())


def test_each_minute_has_a_row_and_the_hour_has_all_of_them(store: Store, clock: ManualClock) -> None:
    put(store, draft())
    for number in range(1, 4):
        store.record({Q: took(float(number))})
        put(store, draft())
        clock.advance(60.0)
    assert [moment.counts.totals.enqueued for moment in minutes(store)] == [1, 2, 3]
    assert [moment.took for moment in minutes(store)] == [took(1.0), took(2.0), took(3.0)]
    (hour,) = hours(store)
    assert (hour.took, hour.counts.totals.enqueued) == (took(1.0, 2.0, 3.0), 3)
    first_at = minutes(store)[0].at
    assert [moment.at - first_at for moment in minutes(store)] == [0.0, 60.0, 120.0]


def test_what_is_read_begins_with_the_last_row_that_began_by_then(store: Store, clock: ManualClock) -> None:
    store.declare(Q, Settings())
    began_at = clock.calendar()
    for _ in range(4):
        store.record({Q: NOTHING})
        clock.advance(120.0)
    starts = [began_at + 120.0 * number for number in range(4)]
    assert [moment.at for moment in minutes(store, starts[2])] == starts[2:]
    assert [moment.at for moment in minutes(store, starts[2] - 1.0)] == starts[1:]
    assert [moment.at for moment in minutes(store, starts[0] - 1.0)] == starts
    assert [moment.at for moment in minutes(store, starts[3] + DAY_S)] == starts[3:]


def test_queues_have_histories_of_their_own_and_looking_makes_none(store: Store) -> None:
    put(store, draft())
    put(store, draft(), draft(), queue=OTHER)
    store.record({Q: took(1.0), OTHER: NOTHING, "absent": took(5.0)})
    both = store.history([Q, OTHER, "absent"], 0.0, grain=MINUTE_S)
    assert [moment.counts.ready for moment in both[Q]] == [1]
    assert [moment.counts.ready for moment in both[OTHER]] == [2]
    assert both["absent"] == []
    assert sorted(store.queues()) == sorted([Q, OTHER])


@pytest.mark.parametrize("grain", history.GRAINS)
def test_rows_are_kept_for_their_time_and_no_longer_also_of_queues_that_nobody_records(
    store: Store, clock: ManualClock, grain: history.Grain
) -> None:
    store.declare(Q, Settings())
    store.declare(OTHER, Settings())
    store.record({Q: NOTHING, OTHER: NOTHING})
    began_at = clock.calendar()
    clock.advance(history.KEPT_S[grain])
    store.record({Q: NOTHING})
    kept = [began_at, clock.calendar()]
    assert [moment.at for moment in store.history([Q], 0.0, grain=grain)[Q]] == kept
    clock.advance(grain)
    store.record({Q: NOTHING})
    assert [moment.at for moment in store.history([Q], 0.0, grain=grain)[Q]] == [kept[1], clock.calendar()]
    assert store.history([OTHER], 0.0, grain=grain)[OTHER] == []


def test_old_rows_go_some_at_a_time(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PRUNE_MAX", 2)
    store.declare(Q, Settings())
    for _ in range(5):
        store.record({Q: NOTHING})
        clock.advance(60.0)
    clock.advance(history.KEPT_S[MINUTE_S])
    left = []
    for _ in range(3):
        store.record({Q: NOTHING})
        left.append(len(minutes(store)))
    assert left == [4, 2, 1]


def test_a_calendar_that_is_set_back_loses_nothing(store: Store, clock: ManualClock) -> None:
    store.declare(Q, Settings())
    store.record({Q: took(1.0)})
    clock.advance(60.0)
    store.record({Q: took(2.0)})
    clock.set_calendar(datetime.fromtimestamp(clock.calendar() - 60.0, UTC))
    put(store, draft())
    store.record({Q: took(3.0)})
    first, second = minutes(store)
    assert (first.took, second.took) == (took(1.0, 3.0), took(2.0))
    assert first.counts.ready == 1


def test_a_history_is_all_that_a_record_changes(store: Store) -> None:
    put(store, draft(), draft())
    take_one(store)
    before = everything(store)
    store.record({Q: took(1.0)})
    assert everything(store) == before


def test_a_store_that_is_opened_again_has_it_if_it_is_durable(kind: StorageKind, clock: ManualClock) -> None:
    made = kind.make(clock)
    made.open()
    if not made.capabilities.durable:
        made.close()
        return
    made.declare(Q, Settings())
    made.record({Q: took(1.0)})
    made.close()
    made.open()
    assert [moment.took for moment in minutes(made)] == [took(1.0)]
    made.close()
