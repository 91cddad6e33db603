"""The short ways of a memory store, each call written down like every other.

The only place that knows how those ways are had. A store that stands behind another has none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ulak.core.job import Done, Draft, Lease, Outcome, Retry, State
from ulak.local import View
from ulak.storage.direct import Ways
from ulak.ways import Quick, quick_ways
from ulak.worker.runtime import Crew

if TYPE_CHECKING:
    from tests.sim.stage import Stage

PLAIN_ATTEMPTS = 3
"""How often a plain job may be tried: it has no options of its own, so its handle says so."""


def is_plain(draft: Draft) -> bool:
    """Whether a job has nothing but a payload and a priority."""
    plain = Draft(draft.payload, draft.codec, draft.priority, PLAIN_ATTEMPTS)
    return draft == plain and draft.codec == "str"


class ShortWays:
    """A handle's calls by the short way; each answers None, and has done nothing, where that does not go."""

    def __init__(self, stage: Stage, view: View, queue: str, *, worker: str, lease_s: float) -> None:
        nothing = Ways(_nothing, _nothing, _nothing, _nothing, _nothing, _nothing)
        self._stage = stage
        self._queue = queue
        self._claim = {"worker": worker, "lease_s": lease_s}
        self._ways = quick_ways(
            stage.bare, view, nothing, worker=worker, lease_s=lease_s, max_attempts=PLAIN_ATTEMPTS
        )

    def enqueue(self, draft: Draft) -> int | None:
        """Enqueue a plain job."""
        job_id: int | None = self._ways.enqueue(draft.payload.decode(), draft.priority)
        if job_id is not None:
            self._stage.write("add", (self._queue, [draft]), {}, [job_id])
        return job_id

    def deliver(self) -> Lease | None:
        """Take the next job."""
        lease: Lease | None = self._ways.deliver(0)
        if lease is not None:
            self._stage.write("claim", ([self._queue], 1), self._claim, [lease])
        return lease

    def ack(self, lease: Lease) -> Outcome | None:
        """Finish a job."""
        outcome: Outcome | None = self._ways.ack(lease)
        if outcome is not None:
            self._stage.write("settle", ([(lease, Done())],), {}, [State.SUCCEEDED])
        return outcome


def _nothing(*_: Any, **__: Any) -> None:
    return None


def write_quick(stage: Stage, crew: Crew) -> None:
    """Write down what the workers of a crew do by its short way, if it has one."""
    quick, claim = crew.quick, {"worker": crew.worker, "lease_s": crew.lease_s}
    if quick is None:
        return

    def take(timeout: float) -> Lease | None:
        lease = quick.take(timeout)
        if lease is not None:
            stage.write("claim", ([crew.label], 1), claim, [lease])
        return lease

    def finish(lease: Lease, *, _result: bytes | None = None) -> Outcome | None:
        outcome = quick.finish(lease, _result=_result)
        if outcome is not None:
            stage.write("settle", ([(lease, Done(_result))],), {}, [State.SUCCEEDED])
        return outcome

    def fail(lease: Lease, verdict: Retry) -> State | None:
        state = quick.fail(lease, verdict)
        if state is not None:
            stage.seen["failed the short way"] += 1
            stage.write("settle", ([(lease, verdict)],), {}, [state])
        return state

    crew.quick = Quick(take, finish, fail, quick.is_empty, quick.ready)
