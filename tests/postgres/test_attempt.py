"""What a step asks of the server, by what it says of its statements."""

from __future__ import annotations

import pytest

from ulak.storage.postgres.asks import Execute, Rows, Step
from ulak.storage.postgres.attempt import Attempt


def step() -> Step[list[Rows]]:
    first = yield Execute("first", alone=True)
    second = yield Execute("second", alone=True, only_alone=True)
    third = yield Execute("third")
    return [first, second, third, (yield Execute("fourth", alone=True, only_alone=True))]


@pytest.mark.parametrize(
    ("is_proxied", "sent"),
    [
        (False, ["first", "second", "BEGIN", "third", "COMMIT"]),
        (True, ["BEGIN", "first", "third", "COMMIT"]),
    ],
)
def test_what_is_to_commit_by_itself_is_left_out_of_a_transaction(is_proxied: bool, sent: list[str]) -> None:
    work = Attempt(step(), "BEGIN", is_proxied=is_proxied).work()
    found = [next(work).text]
    try:
        while True:
            found.append(work.send([(found[-1],)]).text)
    except StopIteration as stop:
        answer = stop.value
    assert found == sent
    assert answer == [[(name,)] if name in sent else [] for name in ("first", "second", "third", "fourth")]
