"""Brings back held jobs whose arguments did not fit their task, once they do: after a deploy, say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ulak.core.flows import Flow, ask
from ulak.core.job import Job, State
from ulak.core.store import Filter, Redrive, Store

_log = logging.getLogger("ulak")

LOOK_S = 60.0
"""How often a pool looks at them."""

PAGE = 100
"""How many held jobs one look takes up, so that it does not keep the other duties waiting."""

PAGE_S = 1.0
"""How long it is to the next page, unless all of this one fitted: there may be many that stay held."""

_HELD = frozenset({State.HELD})

FIRST_PAGE_S = 0.01
"""Likewise the first time, which a drain waits for."""


class Refused:
    """A duty of a pool. fits: whether a held job's arguments fit its task here.

    has_looked: all that were held when it began were looked at once.
    """

    def __init__(self, queues: Sequence[str], fits: Callable[[Job], bool]) -> None:
        self._queues = tuple(queues)
        self._fits = fits
        self._number = self._after = 0
        self.has_looked = False

    def duty(self) -> Flow[float | None]:
        """Look at the next page; in how many seconds to do so again."""
        while self._number < len(self._queues):
            queue = self._queues[self._number]
            which = Filter(queue=queue, refused=True)
            jobs = yield from ask(Store.scan, which, after=self._after, limit=PAGE)
            if len(jobs) == PAGE:
                self._after = jobs[-1].id
            else:
                self._after = 0
                self._number += 1
            fitting = [job.id for job in jobs if self._fits(job)]
            if fitting:
                yield from self._bring_back(fitting, queue)
            if jobs and self._number < len(self._queues):
                if len(fitting) == len(jobs):
                    return 0.0
                return PAGE_S if self.has_looked else FIRST_PAGE_S
        self._number = 0
        self.has_looked = True
        return LOOK_S

    def _bring_back(self, fitting: Sequence[int], queue: str) -> Flow[None]:
        # One that was cancelled since the look stays so.
        changed = yield from ask(Store.amend, fitting, Redrive(), queue=queue, states=_HELD)
        if changed:
            _log.info("queue %s: %d held jobs fit their tasks now", queue, len(changed.done))
