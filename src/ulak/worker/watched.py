"""A pool that says when each of its deliveries is settled, for measuring: it goes as any other does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ulak.core.job import Lease, Outcome
from ulak.core.store import Settled, Settlement
from ulak.worker.pool import Pool
from ulak.worker.runtime import Crew

Seen = Callable[[Lease], object]


class _Crew(Crew):
    """seen: called in the worker's thread or loop, right after the settle of a delivery has returned."""

    seen: Seen

    def watch(self, seen: Seen) -> None:
        """Have `seen` called from now on. Not the general way of events: who listens to those is slower."""
        self.seen = seen
        if self.quick is None:
            return
        finish = self.quick.finish

        def finish_and_tell(lease: Lease, *, _result: bytes | None = None) -> Outcome | None:
            outcome = finish(lease, _result=_result)
            if outcome is not None:
                seen(lease)
            return outcome

        self.quick = msgspec.structs.replace(self.quick, finish=finish_and_tell)

    def _note(self, settlements: Sequence[Settlement], settled: Sequence[Settled], run_s: float) -> None:
        for lease, _ in settlements:
            self.seen(lease)
        super()._note(settlements, settled, run_s)


class WatchedPool(Pool):
    """As `Pool`. seen: as above; it must be quick, and not raise."""

    _crew: _Crew
    _crew_type = _Crew

    def __init__(self, *args: Any, seen: Seen, **options: Any) -> None:  # noqa: ANN401 - as Pool's
        super().__init__(*args, **options)
        self._crew.watch(seen)
