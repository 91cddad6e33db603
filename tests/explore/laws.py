"""What every step must obey: the promises of the queue, one function each."""

from __future__ import annotations

from collections.abc import Callable

from tests.explore.answers import (
    ack_is_traceable,
    answer_is_state,
    bound,
    close,
    counted_apart,
    expiry,
    fence,
    horizon,
    leases_tell_the_truth,
    not_early,
    one_holder,
    operators,
    order,
    promotion,
    reapers_see_all,
    refused_changes_nothing,
    sweeps_count,
)
from tests.explore.changes import (
    acked_once,
    attempts,
    conservation,
    landing,
    monotone,
    no_loss,
    no_phantom,
    retention,
    terminal_is_final,
    totals,
)
from tests.explore.oracle import foresee
from tests.explore.step import Step

Law = Callable[[Step], str | None]

# Laws of what was answered, by what a step is about, and laws of what changed.
ANSWERS: dict[str, tuple[Law, ...]] = {
    "ends": (fence, refused_changes_nothing, ack_is_traceable, answer_is_state, counted_apart),
    "extended": (fence, refused_changes_nothing, counted_apart),
    "acted": (operators, refused_changes_nothing),
    "claimed": (one_holder, not_early, order, leases_tell_the_truth),
    "put": (bound, close, counted_apart),
    "leaver": (close,),
    "leased": (reapers_see_all, leases_tell_the_truth),
    "ended": (reapers_see_all, leases_tell_the_truth),
    "reclaimed": (sweeps_count,),
    "pruned": (expiry,),
    "promoted": (promotion,),
    "horizon_s": (horizon,),
}
CHANGES: tuple[Law, ...] = (
    acked_once,
    terminal_is_final,
    no_loss,
    no_phantom,
    bound,
    attempts,
    landing,
    monotone,
    conservation,
    totals,
    retention,
)


def broken_law(step: Step) -> tuple[str, str] | None:
    """The first law that this step breaks, by name, and how."""
    before, after = step.before, step.after
    foresee(step)
    if after is before:
        step.changed = []
    else:
        pairs = zip((*before.jobs, *(None,) * (len(after.jobs) - len(before.jobs))), after.jobs, strict=True)
        step.changed = [(number, a, b) for number, (a, b) in enumerate(pairs, 1) if a != b]
    for part in step.parts:
        for law in ANSWERS.get(part, ()):
            if (text := law(step)) is not None:
                return _name(law), text
    if after is not before or step.wanted or step.gains:
        for law in CHANGES:
            if (text := law(step)) is not None:
                return _name(law), text
    return None


def _name(law: Law) -> str:
    return law.__name__.replace("_", " ")
