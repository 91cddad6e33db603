"""Rows of a queue's history: what goes in comes out, whoever wrote it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.core.history import HOUR_S, MINUTE_S, Took, began_at, moment_of, noted
from ulak.core.job import Counts, Totals
from ulak.metrics import bucket_of, coarse

durations_s = st.lists(st.floats(0, 1e5), max_size=20)
numbers = st.integers(0, 2**53)


def buckets_of(values_s: list[float]) -> dict[int, int]:
    return dict(Counter(map(bucket_of, values_s)))


@given(st.tuples(*[numbers] * 8), st.tuples(*[numbers] * 13), durations_s, durations_s)
def test_a_row_gives_back_what_was_noted_and_adds_up_durations(
    states: tuple[int, ...], totals: tuple[int, ...], first_s: list[float], second_s: list[float]
) -> None:
    counts = Counts(*states, totals=Totals(*totals))  # type: ignore[misc, arg-type]
    row = noted(None, Counts(), Took(buckets_of(first_s), buckets_of(second_s)), 61.0)
    row = noted(row, counts, Took(buckets_of(second_s), buckets_of(first_s)), 119.5)
    moment = moment_of(60, row)
    assert moment is not None
    assert (moment.at, moment.seen_at, moment.counts) == (60, 119.5, counts)
    assert moment.took == Took(*[coarse(buckets_of(first_s + second_s))] * 2)


@pytest.mark.parametrize("stored", [b"", b"\x00", b"garbage", msgspec.msgpack.encode(["x"]), b"\x93\x01"])
def test_a_row_that_nobody_can_read_is_left_out_and_made_anew(stored: bytes) -> None:
    assert moment_of(60, stored) is None
    moment = moment_of(60, noted(stored, Counts(ready=3), Took(), 90.0))
    assert moment is not None
    assert moment.counts.ready == 3


def test_a_row_of_a_version_that_counted_less_has_noughts_for_the_rest() -> None:
    empty = msgspec.msgpack.decode(noted(None, Counts(), Took(), 0.0))[3]
    moment = moment_of(60, msgspec.msgpack.encode([90.0, [1, 2], [7], empty, empty]))
    assert moment is not None
    assert (moment.counts.ready, moment.counts.scheduled, moment.counts.leased) == (1, 2, 0)
    assert (moment.counts.totals.enqueued, moment.counts.totals.pruned) == (7, 0)


def test_a_row_tells_the_totals_of_its_first_record() -> None:
    row = None
    for seen_at, enqueued in ((61.0, 3), (70.0, 5), (119.0, 8)):
        row = noted(row, Counts(totals=Totals(enqueued=enqueued)), Took(), seen_at)
    assert row is not None
    moment = moment_of(60, row)
    assert moment is not None
    assert (moment.first_at, moment.first.enqueued) == (61.0, 3)
    assert (moment.seen_at, moment.counts.totals.enqueued) == (119.0, 8)


def test_a_busy_row_takes_little_room() -> None:
    took = buckets_of([10.0 ** (number / 1_000) for number in range(-3_000, 2_000)])
    assert len(noted(None, Counts(), Took(took, took), 1.8e9)) < 4_000


def test_minutes_and_hours_begin_by_utc() -> None:
    assert began_at(7_322.9, MINUTE_S) == 7_320
    assert began_at(7_322.9, HOUR_S) == 7_200
    assert began_at(-1.0, MINUTE_S) == -60
