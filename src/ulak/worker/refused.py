"""Brings back held jobs whose arguments did not fit their task, once they do: after a deploy, say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ulak.core import rules
from ulak.core.flows import Flow, ask
from ulak.core.job import Job, State
from ulak.core.store import Filter, Redrive, Store

_log = logging.getLogger("ulak")

LOOK_S = 60.0
"""How often a pool looks at them."""

PAGE = 100
"""How many held jobs one look takes up, so that it does not keep the other duties waiting."""


class Refused:
    """A duty of a pool. fits: whether a held job's arguments fit its task here."""

    def __init__(self, queues: Sequence[str], fits: Callable[[Job], bool]) -> None:
        self._queues = tuple(queues)
        self._fits = fits
        self._number = self._after = 0

    def duty(self) -> Flow[float | None]:
        """Look at the next page; in how many seconds to do so again."""
        if not self._queues:
            return LOOK_S
        queue = self._queues[self._number]
        jobs = yield from ask(
            Store.scan, Filter(queue=queue, states=State.HELD), after=self._after, limit=PAGE
        )
        fitting = [job.id for job in jobs if rules.is_refused(job.history) and self._fits(job)]
        if fitting:
            changed = yield from ask(Store.amend, fitting, Redrive(), queue=queue)
            if changed:
                _log.info("queue %s: %d held jobs fit their tasks now", queue, len(changed.done))
        if len(jobs) == PAGE:
            self._after = jobs[-1].id
            return 0.0
        self._after = 0
        self._number = (self._number + 1) % len(self._queues)
        return 0.0 if self._number else LOOK_S
