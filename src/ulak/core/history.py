"""The past of queues, for views: how a queue's counts stood in each minute, and how long its jobs took then.

A store keeps rows of bytes by queue, grain and time; they are made and read here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from ulak.core.job import Counts, Totals
from ulak.metrics import Buckets, coarse

Grain: TypeAlias = Literal[60, 3600]
"""How long a row is of, in seconds."""

MINUTE_S: Literal[60] = 60
HOUR_S: Literal[3600] = 3600

GRAINS: tuple[Grain, ...] = (MINUTE_S, HOUR_S)

KEPT_S: Mapping[Grain, float] = MappingProxyType({MINUTE_S: 48 * 3600.0, HOUR_S: 90 * 86_400.0})
"""How long rows are kept."""

PRUNE_MAX = 1_000
"""How many rows of a grain one `record` removes at most."""


class Took(msgspec.Struct, frozen=True):
    """How long jobs of a queue took, for a `metrics.Histogram` to `add`.

    wait: from the enqueue to the first start. run: an attempt.
    """

    wait: Buckets = {}
    run: Buckets = {}


class Moment(msgspec.Struct, frozen=True):
    """One row of a queue's history.

    at: when its minute, or hour, began. seen_at: when it was recorded last; `counts` are of then. took: of
    all that was recorded within it, so of what has happened since the row before. first, first_at: the totals
    when it was recorded first, which tell what happened since where there is no row before.
    """

    at: float
    seen_at: float
    counts: Counts
    took: Took = Took()
    first: Totals = msgspec.field(default_factory=Totals)
    first_at: float = 0.0


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """As it is stored. What is added later goes to the end, with a default."""

    seen_at: float
    states: tuple[int, ...]
    totals: tuple[int, ...]
    wait: dict[int, int]
    run: dict[int, int]
    first: tuple[int, ...] = ()
    first_at: float = 0.0


_decoder = msgspec.msgpack.Decoder(_Row)
_STATES = tuple(name for name in Counts.__struct_fields__ if name != "totals")
_TOTALS = Totals.__struct_fields__


def began_at(now_at: float, grain: Grain) -> int:
    """When the minute, or hour, of an instant began: by UTC."""
    return int(now_at // grain) * grain


def noted(stored: bytes | None, counts: Counts, took: Took, now_at: float) -> bytes:
    """A row after a record. stored: as it was, if it was there; what nobody can read is lost."""
    totals = tuple(getattr(counts.totals, name) for name in _TOTALS)
    before = None if stored is None else _row_of(stored)
    first, first_at = (totals, now_at) if before is None else (before.first, before.first_at)
    row = _Row(
        now_at,
        tuple(getattr(counts, name) for name in _STATES),
        totals,
        coarse(took.wait),
        coarse(took.run),
        first,
        first_at,
    )
    if before is not None:
        for earlier, buckets in ((before.wait, row.wait), (before.run, row.run)):
            for bucket, count in earlier.items():
                buckets[bucket] = buckets.get(bucket, 0) + count
    return msgspec.msgpack.encode(row)


def moment_of(at: float, stored: bytes) -> Moment | None:
    """A stored row; None if nobody can read it."""
    if (row := _row_of(stored)) is None:
        return None
    # Rows of an older version have fewer numbers.
    states = dict(zip(_STATES, row.states, strict=False))
    counts = Counts(**states, totals=Totals(*row.totals[: len(_TOTALS)]))
    first = Totals(*row.first[: len(_TOTALS)])
    return Moment(at, row.seen_at, counts, Took(row.wait, row.run), first, row.first_at)


def _row_of(stored: bytes) -> _Row | None:
    try:
        return _decoder.decode(stored)
    except msgspec.MsgspecError:
        return None
