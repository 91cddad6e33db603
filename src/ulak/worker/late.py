"""What the end of its worker makes of a job that goes on though its time is over."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core import flows
from ulak.core.flows import Flow, Note
from ulak.core.job import Cause, Failure
from ulak.core.store import Settlement
from ulak.worker.execute import Failed
from ulak.worker.seat import Seat

_TOO_LATE = Failed(
    Cause.TIMEOUT,
    Failure("TimeoutError", "its task's timeout was over, and its worker ended before it did"),
)


def fail_late(seats: Sequence[Seat], note: Note) -> Flow[None]:
    """Settle as timed out what still runs though its time is over, since its worker is about to end.

    Handed back unspent it would come again for ever. What its thread returns later is stale.
    """
    settlements: list[Settlement] = []
    for lease, context in [held for seat in seats if (held := seat.running) is not None]:
        if context.timed_out and not context.ended:
            verdict = _TOO_LATE.verdict(lease, (yield from flows.draw()))
            settlements.append((lease, verdict))
    if settlements:
        yield from flows.settle_for_others(settlements, note)
