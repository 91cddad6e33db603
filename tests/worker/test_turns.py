"""In which order a worker looks at several queues."""

from __future__ import annotations

from collections import Counter

from ulak import Queue
from ulak.worker.execute import Handler
from ulak.worker.pool import Pool
from ulak.worker.turns import Turns


def test_listed_queues_keep_their_order() -> None:
    turns = Turns(["a", "b", "c"])
    assert [turns.next() for _ in range(3)] == [("a", "b", "c")] * 3


def test_weights_say_how_often_each_comes_first_evenly_spread() -> None:
    turns = Turns(["a", "b", "c"], {"a": 3, "b": 1})
    firsts = [turns.next()[0] for _ in range(10)]
    assert Counter(firsts) == {"a": 6, "b": 2, "c": 2}
    assert all(firsts[n : n + 3] != ["a"] * 3 for n in range(8))


def test_the_others_follow_as_they_are_listed() -> None:
    turns = Turns(["a", "b", "c"], {"c": 2})
    assert {turns.next() for _ in range(4)} == {("a", "b", "c"), ("b", "a", "c"), ("c", "a", "b")}


def _pool(mail: Queue, names: list[str], ran: list[str], **options: object) -> Pool:
    opened = mail._open()
    for name in names:
        opened.edge.store.declare(name, mail._settings)
    options = {"worker": "w", "lease_s": 30.0, "count": 1, "grace": 30.0, **options}
    return Pool(opened, names, Handler(ran.append), **options)  # type: ignore[arg-type]


def test_a_pool_empties_the_first_of_its_queues_before_the_next(queue_url: str) -> None:
    ran: list[str] = []
    with Queue(queue_url, "low") as low, Queue(queue_url, "high") as high:
        for number in range(5):
            low.enqueue(f"low {number}")
            high.enqueue(f"high {number}")
        low.mark_producer_finished()
        with _pool(low, ["high", "low"], ran) as pool:
            report = pool.drain()
        assert ran == [f"high {n}" for n in range(5)] + [f"low {n}" for n in range(5)]
        assert (report.drained, report.open) == (True, 0)
        assert pool.metrics().succeeded == 10
