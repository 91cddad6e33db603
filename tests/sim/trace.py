"""How a simulation tells what was asked and answered, in a line that can be read."""

from __future__ import annotations

from typing import Any

from tests.support.history.recorder import mark_of
from ulak.core.flows import Call
from ulak.core.job import Cancelled, Counts, Dead, Done, Draft, Full, Hold, Job, Lease, Retry

_STATES = ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired")


def told(ask: Call, answer: Any) -> str:
    """A call and its answer."""
    given = [brief(argument) for argument in ask.args]
    given += [f"{name}={brief(value)}" for name, value in ask.kwargs.items()]
    return f"{ask.name}({', '.join(given)}) -> {brief(answer)}"


def brief(value: Any) -> str:
    """A value by what tells it from others."""
    match value:
        case str():
            return str(value)
        case float():
            return f"{value:.4f}"
        case dict():
            return "{" + ", ".join(f"{name}: {brief(one)}" for name, one in value.items()) + "}"
        case list() | tuple() | frozenset():
            return "[" + ", ".join(map(brief, value)) + "]"
        case _:
            return _of_ours(value)


def _of_ours(value: Any) -> str:
    """A lease as job.delivery, a job as id:state, a draft as its mark, a verdict as what it does."""
    match value:
        case Lease():
            return f"{value.id}.{value.delivery} (attempt {value.attempt} of {value.max_attempts})"
        case Job():
            return f"{value.id}:{value.state}"
        case Draft():
            return mark_of(value.payload)
        case Retry():
            more = ", refund" * value.refund + ", crashed" * value.crashed
            return f"retry in {value.delay_s:.3f} s ({value.cause}{more})"
        case Done() | Dead() | Hold() | Cancelled():
            return f"{type(value).__name__.lower()} ({value.cause})"
        case Counts():
            return (
                " ".join(f"{name} {getattr(value, name)}" for name in _STATES if getattr(value, name)) or "0"
            )
        case Full():
            return "full"
        case _:
            return repr(value)
