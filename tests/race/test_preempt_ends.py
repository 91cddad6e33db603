"""The table of who waits for which job, under controlled preemption."""

from __future__ import annotations

import threading
from functools import partial

from tests.race.controlled import controlled
from tests.race.preempt import Plan
from tests.race.races import seeds
from ulak.core.store import Line
from ulak.storage.ends import Ends

LENGTHS = ((60, 4), (30, 2))


def come_and_go(line: Line) -> None:
    signal = threading.Event()
    line.join(signal)
    line.leave(signal)


def test_whoever_joins_while_the_last_one_leaves_stays_in_line() -> None:
    with controlled() as world:
        for seed in seeds(300):
            ends, stays = Ends(), threading.Event()
            run = world.run(
                [partial(come_and_go, ends.line(1)), partial(ends.line(1).join, stays)], Plan(seed, LENGTHS)
            )
            run.check()
            assert list(ends.waiting.get(1, ())) == [stays], run.told()
            ends.ring([1])
            assert stays.is_set()
