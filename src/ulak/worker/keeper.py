"""The duties of a pool beside running jobs: renew its leases, reclaim ended ones, promote, prune."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from ulak.context import Context
from ulak.core import flows
from ulak.core.flows import LOOK_AGAIN_S, Flow, ask, least
from ulak.core.job import Lease, Outcome, State
from ulak.core.store import Line, Store, Until, info_of_pool
from ulak.errors import StorageBusy, StorageFull, StorageUnavailable
from ulak.seldom import again, in_a_line
from ulak.worker import spare
from ulak.worker.runtime import Crew

_log = logging.getLogger("ulak")

RENEWALS_PER_LEASE = 3
PRUNE_MAX = 1000
QUIET_S = 2.0
"""For how long a store must not have failed that is taken to answer again though it has settled nothing."""

REST, REST_MAX_S = 9.0, 0.25
"""The next round is put off by so many times what one takes: at most by so much, and no duty that is due."""

ATTENDED_MAX = 100
"""Of how many running jobs a cancel is looked for each second; of others when their leases are renewed."""

NOTHING: Mapping[str, str] = MappingProxyType({})

Running: TypeAlias = tuple[Lease, Context]

Duty: TypeAlias = Callable[[], Flow[float | None]]
"""A duty of a user of the pool: it answers in how many seconds it is due again (None: whenever)."""


class Keeper:
    """Does the duties from one thread of its own, so that no handler can starve them.

    more: duties beside its own. about: what the pool says of itself, beside its queues and its size. last:
    what is still to be done once the crew has stopped. rests: it may put off its next round.
    """

    def __init__(
        self,
        crew: Crew,
        replace_lost: Callable[[], Flow[None]],
        more: Sequence[Duty] = (),
        about: Mapping[str, str] = NOTHING,
        last: Callable[[], Flow[None]] | None = None,
        *,
        rests: bool = False,
    ) -> None:
        self._crew = crew
        self._rests = rests
        self._last = last
        self._about = about
        self._due_at = dict.fromkeys(more, 0.0)
        self._duties: tuple[Callable[[], Flow[None]], ...] = (
            self._renew,
            self._attend,
            self._reclaim,
            self._promote,
            replace_lost,
            self._upkeep,
            self._look_ahead,
            *(partial(self._do, duty) for duty in more),
        )
        self._renew_at = self._upkeep_at = self._attend_at = 0.0
        # What ran at the last look, with the progress that is stored of it.
        self._attended: dict[tuple[int, int], str | None] = {}
        self._horizon_s: float | None = None

    def keep(self) -> Flow[None]:
        """Do each duty when it is due, until the crew has stopped.

        An error in one is logged; the others go on, and the next round tries again.
        """
        crew = self._crew
        signal = yield from flows.new_signal()
        lines: list[Line] = []
        for queue in crew.queues:
            lines += yield from flows.lines_of(queue, Until.DUE)
        for line in lines:
            line.join(signal)
        try:
            while not crew.stopped:
                signal.clear()
                began = (yield from flows.now()) if self._rests else 0.0
                self._horizon_s = None
                went_well, had_looked = True, crew.has_looked()
                for duty in self._duties:
                    went_well &= yield from self._guard(duty)
                if crew.has_looked() and not had_looked:
                    # A drain waits for that.
                    crew.wake_all()
                ended = yield from flows.now()
                due_s = min((self._renew_at, *self._due_at.values())) - ended
                # What failed is not tried again at once, also where a lease that has ended says "now".
                horizon_s = self._horizon_s if went_well else None
                if not crew.stopped:
                    yield from flows.sleep(signal, max(0.0, least(horizon_s, due_s, LOOK_AGAIN_S) or 0.0))
                    if self._rests:
                        rest_s = min(REST_MAX_S, (ended - began) * REST, due_s)
                        yield from self._rest(until=ended + rest_s)
        finally:
            for line in lines:
                line.leave(signal)
        # From here and not from who ends the pool, so that no beat of a round that still ran comes after it.
        yield from self._guard(self._depart)
        if self._last is not None:
            yield from self._guard(self._last)

    def _rest(self, until: float) -> Flow[None]:
        """Let pass what is left until then, whoever calls: in a busy queue something is due all the time."""
        crew = self._crew
        signal = yield from flows.new_signal()
        crew.gone.join(signal)
        try:
            while (left_s := until - (yield from flows.now())) > 0:
                signal.clear()
                if crew.stopped:
                    return
                yield from flows.sleep(signal, left_s)
        finally:
            crew.gone.leave(signal)

    def _depart(self) -> Flow[None]:
        yield from ask(Store.depart, self._crew.worker)

    def _renew(self) -> Flow[None]:
        """Extend every lease of the pool, at a third of its length, before anything reclaims."""
        crew = self._crew
        now = yield from flows.now()
        if now < self._renew_at:
            return
        self._renew_at = now + crew.lease_s / RENEWALS_PER_LEASE
        seats = [seat.running for seat in crew.seats]
        running = [held for held in seats if held is not None]
        if not running:
            return
        yield from self._extend(running)

    def _attend(self) -> Flow[None]:
        """Of jobs that have run for a look already: store progress, see whether a cancel was requested."""
        crew = self._crew
        now = yield from flows.now()
        if now < self._attend_at:
            return
        self._attend_at = now + LOOK_AGAIN_S
        before, self._attended = self._attended, {}
        told: list[Running] = []
        silent: list[Running] = []
        for held in [seat.running for seat in crew.seats]:
            if held is None:
                continue
            lease, context = held
            key = lease.id, lease.delivery
            self._attended[key] = before.get(key)
            if key not in before:
                continue
            if context.progress_text != before[key]:
                self._attended[key] = context.progress_text
                told.append(held)
            elif not context.cancelled:
                silent.append(held)
        if told:
            yield from self._extend(told)
        if silent:
            yield from self._look_for_cancels(silent[:ATTENDED_MAX])

    def _look_for_cancels(self, running: Sequence[Running]) -> Flow[None]:
        jobs = yield from ask(Store.get, [lease.id for lease, _ in running])
        for (lease, context), job in zip(running, jobs, strict=True):
            is_current = job is not None and (job.state, job.delivery) == (State.LEASED, lease.delivery)
            if (job is None or job.cancel_requested or not is_current) and not context.ended:
                context.ask_to_stop()

    def _extend(self, running: Sequence[Running]) -> Flow[None]:
        leases = [lease for lease, _ in running]
        progress = {
            lease.id: context.progress_text for lease, context in running if context.progress_text is not None
        }
        answers = yield from ask(Store.extend, leases, self._crew.lease_s, progress=progress)
        for (_, context), answer in zip(running, answers, strict=True):
            # A handler that has returned meanwhile has lost nothing: its job may be settled already.
            if (answer is Outcome.STALE or answer is True) and not context.ended:
                context.ask_to_stop()

    def _reclaim(self) -> Flow[None]:
        yield from flows.reclaim(self._crew.queues, self._crew.tell_settled)

    def _promote(self) -> Flow[None]:
        yield from ask(Store.promote, self._crew.queues)

    def _upkeep(self) -> Flow[None]:
        """Say that the pool is there, and forget what is old; not more often than waiters look."""
        crew = self._crew
        now = yield from flows.now()
        if now < self._upkeep_at:
            return
        self._upkeep_at = now + LOOK_AGAIN_S
        info = info_of_pool(crew.queues, crew.size, runs_tasks=crew.runs_tasks)
        yield from ask(Store.beat, crew.worker, {**info, **self._about})
        # A beat is not fsynced, so it may come through where nothing else does.
        yield from crew.store_answered(QUIET_S)
        yield from ask(Store.prune, limit=PRUNE_MAX)

    def _look_ahead(self) -> Flow[None]:
        self._horizon_s = yield from ask(Store.horizon, self._crew.queues)

    def _do(self, duty: Duty) -> Flow[None]:
        """Do one of the other duties, if it is due; one that fails is due again at the next look."""
        now = yield from flows.now()
        if now < self._due_at[duty]:
            return
        self._due_at[duty] = now + LOOK_AGAIN_S
        again_s = yield from duty()
        self._due_at[duty] = now + (LOOK_AGAIN_S if again_s is None else max(0.0, again_s))

    def _guard(self, duty: Callable[[], Flow[None]]) -> Flow[bool]:
        """Do a duty; whether it went well."""
        try:
            yield from duty()
        except (StorageUnavailable, StorageBusy, StorageFull) as error:
            yield from self._crew.store_failed(error, "a duty of the workers")
            return False
        except Exception as error:  # noqa: BLE001 - a store fails in its own way; the other duties must go on
            if is_short := isinstance(error, MemoryError):
                spare.MEMORY.was_short = True
            kind = f"{getattr(duty, '__name__', duty)} {type(error).__name__}"
            kept_back = self._crew.seldom.may_say(kind, (yield from flows.now()))
            if kept_back is not None:
                _log.warning(
                    "a duty of the workers of queue %s failed, and is tried again: %s: %s%s",
                    self._crew.label,
                    type(error).__name__,
                    in_a_line(error),
                    again(kept_back),
                    exc_info=not is_short,
                )
            return False
        return True
