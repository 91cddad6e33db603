"""Durations counted into log-linear buckets: a percentile of any number of them in a fixed 17 KB."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from math import frexp
from typing import TypeAlias

from ulak.errors import ArgumentError

# Each power of two is cut into 64 equal buckets, so a bucket is at most 1/64 (1.6 %) of its own values wide.
_BUCKETS_PER_OCTAVE = 64
# math.frexp gives value = mantissa * 2**exponent with 0.5 <= mantissa < 1, so these are the exponents of
# the octaves from 2**-20 s (0.95 µs) up to 2**14 s (4.5 hours).
_EXPONENT_MIN = -19
_EXPONENT_MAX = 14
_STEPS = 2 * _BUCKETS_PER_OCTAVE
_FIRST = 1 - _EXPONENT_MIN * _BUCKETS_PER_OCTAVE - _BUCKETS_PER_OCTAVE
_BELOW = 0
_ABOVE = (_EXPONENT_MAX - _EXPONENT_MIN + 1) * _BUCKETS_PER_OCTAVE + 1
# Where they are stored, so many neighbours are one: 16 to a power of two.
_AS_ONE = 4


Buckets: TypeAlias = Mapping[int, int]
"""How many durations fell into each bucket of a histogram; empty ones are left out."""


class Histogram:
    """Counts durations in seconds and answers percentiles within 1.6 %, in bounded memory.

    From 0.95 µs to 4.5 hours a percentile is within 1.6 % of a recorded duration of that rank; below that
    range the answer is `min_s`, above it `max_s`. `count`, `min_s`, `max_s` and `mean_s` are exact (floats).
    Not thread-safe: keep one per thread and `merge` them where they are read.

    >>> latency = Histogram()
    >>> latency.record(0.041)
    >>> latency.percentile(95)
    0.041
    """

    __slots__ = ("_buckets", "_count", "_max_s", "_min_s", "_sum_s")

    def __init__(self) -> None:
        self._buckets = [0] * (_ABOVE + 1)
        self._count = 0
        self._sum_s = 0.0
        self._min_s = math.inf
        self._max_s = -math.inf

    @property
    def count(self) -> int:
        """How many durations were recorded."""
        return self._count

    @property
    def min_s(self) -> float:
        """The shortest recorded duration, in seconds; 0.0 when empty."""
        return self._min_s if self._count else 0.0

    @property
    def max_s(self) -> float:
        """The longest recorded duration, in seconds; 0.0 when empty."""
        return self._max_s if self._count else 0.0

    @property
    def sum_s(self) -> float:
        """All durations together, in seconds."""
        return self._sum_s

    @property
    def mean_s(self) -> float:
        """The mean, in seconds, never outside [min_s, max_s]; 0.0 when empty."""
        return self._clamped(self._sum_s / self._count) if self._count else 0.0

    def record(self, value_s: float) -> None:
        """Count one duration, in seconds.

        A negative one, which two clocks that disagree can produce, counts as 0.
        Raises ArgumentError for NaN and infinity.
        """
        if not math.isfinite(value_s):
            raise ArgumentError("Histogram.record() needs a finite number of seconds")
        value_s = max(value_s, 0.0)
        self._buckets[bucket_of(value_s)] += 1
        self._count += 1
        self._sum_s += value_s
        self._min_s = min(self._min_s, value_s)
        self._max_s = max(self._max_s, value_s)

    def count_to(self, value_s: float) -> int:
        """How many were as long or shorter; those within 1.6 % of it may be among them or not."""
        return sum(self._buckets[: bucket_of(value_s) + 1])

    def merge(self, other: Histogram) -> None:
        """Add everything `other` has recorded to this histogram; `other` is not changed."""
        self._buckets = [mine + its for mine, its in zip(self._buckets, other._buckets, strict=True)]
        self._count += other._count
        self._sum_s += other._sum_s
        self._min_s = min(self._min_s, other._min_s)
        self._max_s = max(self._max_s, other._max_s)

    def add(self, buckets: Buckets) -> None:
        """Add what `bucket_of` counted, each at the middle of its bucket, but for one that there is not."""
        for bucket, count in buckets.items():
            if _BELOW <= bucket <= _ABOVE and count > 0:
                value_s = _middle_of(bucket)
                self._buckets[bucket] += count
                self._count += count
                self._sum_s += value_s * count
                self._min_s = min(self._min_s, value_s)
                self._max_s = max(self._max_s, value_s)

    def percentile(self, p: float) -> float:
        """The duration, in seconds, that p percent of the recorded ones do not exceed (nearest rank).

        p: 0 to 100; 0 gives `min_s` and 100 gives `max_s`, exactly. 0.0 when empty.
        Raises ArgumentError for any other p.
        """
        if not 0 <= p <= 100:
            raise ArgumentError("Histogram.percentile(p) needs 0 <= p <= 100")
        rank = math.ceil(p * self._count / 100)
        if rank <= 1:
            return self.min_s
        if rank >= self._count:
            return self.max_s
        return self._clamped(self._value_at(rank))

    def _value_at(self, rank: int) -> float:
        bucket = _BELOW
        seen = self._buckets[bucket]
        while seen < rank:
            bucket += 1
            seen += self._buckets[bucket]
        if bucket == _BELOW:
            return self._min_s
        if bucket == _ABOVE:
            return self._max_s
        return _middle_of(bucket)

    def _clamped(self, value_s: float) -> float:
        return min(max(value_s, self._min_s), self._max_s)


class RunTimes:
    """How long the last `RUNS_MAX` runs took, by task, of the first `TASKS_MAX` tasks.

    Any thread may record; each job does, so that is one step without a lock.
    """

    TASKS_MAX = 1_000
    RUNS_MAX = 1_000

    def __init__(self) -> None:
        self._by_task: dict[str | None, deque[float]] = {}

    def record(self, task: str | None, run_s: float) -> None:
        """Count one run."""
        found = self._by_task.get(task)
        if found is None:
            if len(self._by_task) >= self.TASKS_MAX:
                return
            found = self._by_task.setdefault(task, deque(maxlen=self.RUNS_MAX))
        found.append(run_s)

    def p99_s(self, task: str | None, runs_min: int) -> float | None:
        """What 99 of 100 runs did not exceed; None of fewer than `runs_min`."""
        # As a list first, which is one step: others record meanwhile.
        found = sorted(list(self._by_task.get(task, ())))  # noqa: C414 - as said
        return found[math.ceil(0.99 * len(found)) - 1] if len(found) >= runs_min else None


def bucket_of(value_s: float) -> int:
    """The bucket of a duration. Those below all buckets, also negative ones, have one, and those above."""
    mantissa, exponent = frexp(value_s)
    if exponent > _EXPONENT_MAX:
        return _ABOVE if value_s > 0.0 else _BELOW
    if exponent < _EXPONENT_MIN or value_s <= 0.0:
        return _BELOW
    # Of 64 steps from a mantissa of 0.5 on, the first is number 1.
    return exponent * _BUCKETS_PER_OCTAVE + int(mantissa * _STEPS) + _FIRST


def coarse(buckets: Buckets) -> dict[int, int]:
    """The same, with a quarter of the buckets: small enough to be stored, with percentiles within 4 %."""
    fewer: dict[int, int] = {}
    for bucket, count in buckets.items():
        if _BELOW < bucket < _ABOVE:
            bucket = (bucket - 1) // _AS_ONE * _AS_ONE + 1 + _AS_ONE // 2  # noqa: PLW2901 - it stands for four
        fewer[bucket] = fewer.get(bucket, 0) + count
    return fewer


def _middle_of(bucket: int) -> float:
    if bucket == _BELOW:
        return 0.0
    if bucket == _ABOVE:
        return math.ldexp(1.0, _EXPONENT_MAX)
    octave, step = divmod(bucket - 1, _BUCKETS_PER_OCTAVE)
    mantissa = 0.5 + (step + 0.5) / (2 * _BUCKETS_PER_OCTAVE)
    return math.ldexp(mantissa, octave + _EXPONENT_MIN)
