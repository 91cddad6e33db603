"""Public bug reports of other queues on what arguments become on their way; the id of each is in its name."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from tests.support.waiting import WAIT_S
from ulak import App, ArgumentError, PayloadError


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Order:
    id: int
    placed_at: datetime


class Point(msgspec.Struct, frozen=True):
    x: float


class Pair(NamedTuple):
    left: int
    right: str


NOON = datetime(2026, 10, 25, 12, 0, 0, 123456, UTC)
KEY = UUID("12345678-1234-5678-1234-567812345678")

ARRIVE: list[tuple[Any, Any]] = [
    (None, None),
    (bool, False),
    (int, 0),
    (int, -(2**63)),
    (int, 2**64 - 1),
    (float, 0.1 + 0.2),
    (str, ""),
    (str, "a\x00b\u2028ü"),
    (bytes, b""),
    (bytes, bytes(range(256))),
    (datetime, NOON),
    (date, NOON.date()),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (UUID, KEY),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Order, Order(1, NOON)),
    (Point, Point(1.0)),
    (Pair, Pair(1, "x")),
    (list[int], []),
    (tuple[int, ...], (1, 2)),
    (set[str], {"a"}),
    (frozenset[UUID], frozenset({KEY})),
    (dict[int, bytes], {1: b"x"}),
    (dict[UUID, Order | None], {KEY: Order(1, NOON), UUID(int=0): None}),
    (Any, {"a": [1, 2.0, None, True, {"b": ""}]}),
]


def test_y1_every_type_arrives_in_the_task_and_as_its_result_as_it_was(app: App) -> None:
    seen: dict[str, Any] = {}
    jobs = []
    for number, (hint, value) in enumerate(ARRIVE):

        def f(name: str, value: Any) -> Any:
            seen[name] = value
            return value

        f.__annotations__ |= {"value": hint, "return": hint}
        jobs.append(app.task(name=f"t{number}")(f).enqueue(f"t{number}", value))
    with app.workers(2):
        back = [job.result(WAIT_S) for job in jobs]
    for number, (_, value) in enumerate(ARRIVE):
        for came in (seen[f"t{number}"], back[number]):
            assert came == value
            assert type(came) is type(value)
            assert repr(came) == repr(value)


REFUSED: list[tuple[Any, Any]] = [
    (Any, (1, 2)),
    (Any, {1: "x"}),
    (Any, NOON),
    (Any, b"x"),
    (Any, KEY),
    (Any, Colour.RED),
    (Any, object()),
    (Any, math.nan),
    (Any, "\ud800"),
    (float, math.inf),
    (int, True),
    (int, 1.0),
    (str, 1),
    (datetime, NOON.date()),
    (Decimal, 1.5),
    (UUID, str(KEY)),
    (list[int], (1, 2)),
    (Order, {"id": 1, "placed_at": NOON}),
]


def named(value: object) -> str:
    """The same in every process: no address."""
    return "object" if type(value) is object else repr(value)


@pytest.mark.parametrize(("hint", "value"), REFUSED, ids=named)
def test_y1_what_would_arrive_otherwise_is_refused_in_the_caller_and_nothing_is_stored(
    app: App, hint: Any, value: Any
) -> None:
    def f(value: Any) -> None: ...

    f.__annotations__ |= {"value": hint}
    task = app.task(name="f")(f)
    with pytest.raises(ArgumentError, match="argument 'value"):
        task.enqueue(value)
    assert app.queue("default").counts().total == 0


def test_y1_of_a_plain_payload_that_is_a_type_error(app: App) -> None:
    for _, value in REFUSED[:9]:
        if isinstance(value, bytes):
            continue
        with pytest.raises(PayloadError) as caught:
            app.queue("default").enqueue({"value": value})
        assert isinstance(caught.value, TypeError)
    assert app.queue("default").counts().total == 0
