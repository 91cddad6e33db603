"""What tells two states apart: all that matters for what may happen next, and nothing else.

Time is relative, workers of one kind may change places and so may reapers, and what happened is forgotten
but for what bounds or judges the future. All numbers are below 256 and each part says how long it is, so a
key is exact: two states have the same one only if all of this is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.explore.world import Fact, Hand, Seen, World, is_refused
from ulak.core.job import ENDED, Job, Lease, State

_CODES: dict[State, int] = {state: code for code, state in enumerate(State)}
_REFUSED = len(State)
_GONE = 255


class Keys:
    """Makes the keys of a world's states. What did not change since `start` is not worked out again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = world.names if world.scope.shutdowns else ()
        self._strangers = world.scope.strangers
        self.start()

    def start(self) -> None:
        """The steps that come now go out from this state."""
        world = self._world
        self._times = world.clock.calendar(), world.clock.interval()
        self._seen, self._facts, self._rest = world.seen, world.facts, world.rest
        self._hands, self._reapers = world.hands, world.reapers
        self._jobs_key = self._key_of_jobs()
        self._hands_key = self._key_of_hands(world.hands, world.seen)
        self._reapers_key = _key_of_reapers(world.reapers, world.seen)

    def key(self) -> bytes:
        """The key of the state that the world is in now."""
        world = self._world
        is_same = world.seen is self._seen
        hands_key, reapers_key = self._hands_key, self._reapers_key
        if world.hands is not self._hands or (self._names and not is_same):
            hands_key = self._key_of_hands(world.hands, world.seen)
        if world.reapers is not self._reapers or not is_same:
            reapers_key = _key_of_reapers(world.reapers, world.seen)
        if (
            is_same
            and world.facts is self._facts
            and world.rest is self._rest
            and self._times == (world.clock.calendar(), world.clock.interval())
        ):
            return self._jobs_key + hands_key + reapers_key
        return self._key_of_jobs() + hands_key + reapers_key

    def _key_of_jobs(self) -> bytes:
        world = self._world
        at, now = world.clock.calendar(), world.clock.interval()
        numbers = [len(world.facts), world.rest.is_paused, world.rest.producers, *world.rest.keys]
        for job, fact in zip(world.seen.jobs, world.facts, strict=False):
            numbers += _key_of_job(job, fact, at, now)
        return bytes(numbers)

    def _key_of_hands(self, hands: tuple[Hand, ...], seen: Seen) -> bytes:
        keys = []
        for worker, hand in enumerate(hands):
            numbers = [worker < self._strangers, _GONE if hand is None else len(hand)]
            for lease, extends, knows, is_short in hand or ():
                numbers += (lease.id, lease.delivery, lease.attempt, extends, knows, is_short)
            if self._names:
                name = self._names[worker]
                numbers += [job is not None and job.worker == name for job in seen.jobs]
            keys.append(bytes(numbers))
        keys.sort()
        return b"".join(keys)


def _key_of_reapers(reapers: tuple[Lease | None, ...], seen: Seen) -> bytes:
    return b"".join(sorted(_key_of_reaper(lease, seen) for lease in reapers))


def _key_of_reaper(lease: Lease | None, seen: Seen) -> bytes:
    if lease is None:
        return b"\0"
    job = seen.jobs[lease.id - 1]
    is_current = job is not None and job.state is State.LEASED and job.delivery == lease.delivery
    has_moved = is_current and job is not None and job.lease_end != lease.lease_end
    return bytes((1, lease.id, lease.delivery, lease.attempt, lease.crashes, is_current, has_moved))


def _key_of_job(job: Job | None, fact: Fact, at: float, now: float) -> Sequence[int]:
    if job is None:
        return (_GONE,)
    due_s = job.run_at - at if job.state is State.SCHEDULED else 0.0
    left_s = job.lease_end - now if job.state is State.LEASED else 0.0
    expiry_s = job.expires_at - at if job.expires_at is not None and job.state not in ENDED else -1.0
    return (
        _REFUSED if is_refused(job) else _CODES[job.state],
        job.attempt,
        job.delivery,
        job.crashes,
        job.cancel_requested,
        job.priority,
        fact.refunds,
        fact.redrives,
        int(due_s) if due_s > 0 else 0,
        int(left_s) if left_s > 0 else 0,
        int(expiry_s) if expiry_s > 0 else 0,
    )
