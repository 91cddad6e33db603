"""The memory store's short way for plain calls: one section of the gate each, and nothing else on the way.

A plain job has no options but a priority and waits for nothing but a worker. Each function here does for it
exactly what the general operation does, and hands the call to the general way (`otherwise`) whenever anything
is out of the ordinary: no room, nothing ready, a time has come, a queue is paused, jobs are held. The
contract holds for both, and the race suite runs both against each other.

In the general way a call costs some 15 µs, here 0.3. So these are closures and not methods, take and settle
are said once for a single job and once for many, and what must not be interrupted is written in the order in
which `ulak.storage.mend` expects it: an exception may strike after any call.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from ulak.codec import PAYLOAD_BYTES_MAX
from ulak.core.job import PRIORITY_MAX, PRIORITY_MIN, Attempt, Grant, Lease, Outcome, Retry, Spec, State
from ulak.core.rules import remember
from ulak.core.store import BATCH_MAX, Until
from ulak.durations import SECONDS_MAX
from ulak.storage.row import More, Row
from ulak.storage.shelf import Shelf

if TYPE_CHECKING:
    from ulak.storage.memory import MemoryStore

_READY, _LEASED, _SUCCEEDED = State.READY, State.LEASED, State.SUCCEEDED
_OK = Outcome.OK
_NUMBERS = frozenset({int, float})


class Here(Protocol):
    """What a process says of a handle of its own: is it closed, have the queue's producers finished."""

    closed: bool

    @property
    def finished(self) -> bool:
        """Whether every registered producer has finished."""


Take: TypeAlias = Callable[[float], Lease | None]


class Finish(Protocol):
    """What finishes a job by the short way."""

    def __call__(self, lease: Lease, *, _result: bytes | None = None) -> Outcome | None:
        """Finish it, with its encoded result; None, and nothing was done, where that does not go."""


Fail: TypeAlias = Callable[[Lease, Retry], State | None]
"""What puts a failed job off; its new state. None, and nothing was done, where that does not go."""


class Ways(msgspec.Struct, frozen=True):
    """The calls that every job goes through, of one handle."""

    enqueue: Callable[..., Any]
    enqueue_many: Callable[..., Any]
    deliver: Callable[..., Any]
    deliver_many: Callable[..., Any]
    ack: Callable[..., Any]
    ack_many: Callable[..., Any]


def enqueue_way(
    store: MemoryStore,
    shelf: Shelf,
    spec_of: Callable[[object], tuple[bytes, Spec]],
    local: Here,
    view: Here,
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """`Queue.enqueue` for one handle. spec_of: the encoded payload and what else its job is asked to be."""
    gate, jobs, calendar, mend = store.gate, store.jobs, store.clock.calendar, store.mend
    room, ready = shelf.lines[Until.ROOM], shelf.lines[Until.READY]
    room_waiting, ready_waiting = room.waiting, ready.waiting
    bytes_max, bytes_spec = PAYLOAD_BYTES_MAX, spec_of(b"")[1]

    def enqueue(payload: object, priority: int = 0, *, timeout: Any = None, **options: Any) -> Any:  # noqa: ANN401 - as Queue.enqueue
        # A connection= is among the options.
        if options or timeout is not None or type(priority) is not int or local.finished or view.closed:
            return otherwise(payload, priority, timeout=timeout, **options)
        if type(payload) is bytes and len(payload) <= bytes_max:
            body, spec = payload, bytes_spec
        else:
            body, spec = spec_of(payload)
        job_id = 0
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            lanes = shelf.lanes
            lane = lanes.fresh.get(priority)
            if lane is None and PRIORITY_MIN <= priority <= PRIORITY_MAX:
                lane = lanes.lane(priority)
            capacity = shelf.capacity
            if lane is not None and (
                capacity is None or (shelf.entered - shelf.left < capacity and not room_waiting)
            ):
                job_id = jobs.last_id + 1
                row = Row(job_id, spec, body, priority, calendar())
                jobs.last_id = job_id
                jobs.rows[job_id] = row
                shelf.entered += 1
                # Ids only grow, so a new row is always the last of its lane.
                lane.append(row)
                if priority > lanes.top:
                    lanes.top = priority
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None
        if not job_id:
            return otherwise(payload, priority, timeout=timeout)
        if ready_waiting and not ready.roused:
            ready.ring(1)
        return job_id

    return enqueue


def deliver_way(
    store: MemoryStore, shelf: Shelf, grant: Grant, view: Here, otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """`Queue.deliver` for one handle, whose leases all share `grant`."""
    gate, mend = store.gate, store.mend
    interval, calendar = store.clock.interval, store.clock.calendar
    lease_s, leases = grant.lease_s, shelf.pin(grant.lease_s)
    # The default; small ints are one object each, and `is` is the cheapest question.
    zero = 0

    def deliver(timeout: Any = 0) -> Any:  # noqa: ANN401 - as Queue.deliver
        lease = is_due = None
        if timeout is zero or timeout is None or (type(timeout) in _NUMBERS and 0 <= timeout <= SECONDS_MAX):
            while True:
                try:
                    del gate.open
                    break
                except AttributeError:
                    sleep(0)
            try:
                now, now_at, lanes = interval(), calendar(), shelf.lanes
                if now < shelf.alarm and now_at < shelf.alarm_at and not view.closed:
                    lane = lanes.fresh.get(lanes.top) or lanes.climb_down()
                    if lane:
                        row = lane[0]
                        if row.state is _READY:
                            attempt = delivery = row.delivery + 1
                            end, crashes, more = now + lease_s, 0, row.more
                            if more is not None:
                                attempt, crashes = delivery - more.uncounted, more.crashes
                            lease = Lease(
                                grant,
                                row,
                                delivery,
                                attempt,
                                end,
                                now_at,
                                crashes,
                                row.spec.backoff or shelf.backoff,
                            )
                            lane.popleft()
                            leases[row.id] = lease
                            row.grant = grant
                            row.claimed_at = now_at
                            row.delivery = delivery
                            row.state = _LEASED
                            if end < shelf.alarm:
                                shelf.alarm = end
                elif now < shelf.alarm and not view.closed:
                    is_due = shelf.promote(now_at) > 0
                    shelf.set_alarm(now)
            except BaseException:
                mend()
                raise
            finally:
                gate.open = None
        if lease is not None:
            return lease
        if is_due:
            lease = deliver(timeout)
            # Whoever takes what has become due needs nobody woken for it.
            store.wake_for(shelf)
            return lease
        return otherwise(timeout)

    return deliver


def empty_way(store: MemoryStore, shelf: Shelf) -> Callable[[], bool]:
    """Whether no job of a queue could be taken now, by whatever way, nor needs any other look."""
    gate, mend = store.gate, store.mend
    interval, calendar = store.clock.interval, store.clock.calendar

    def is_empty() -> bool:
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            return (
                interval() < shelf.alarm
                and calendar() < shelf.alarm_at
                and not shelf.lanes.fresh.get(shelf.lanes.top)
                and shelf.lanes.climb_down() is None
            )
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None

    return is_empty


def ack_way(
    store: MemoryStore, shelf: Shelf, grant: Grant, otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """`Queue.ack` for one handle."""
    gate, jobs, calendar, mend = store.gate, store.jobs, store.clock.calendar, store.mend
    leases, succeeded = shelf.pin(grant.lease_s), shelf.ended[_SUCCEEDED]
    room, drained, awaited = shelf.lines[Until.ROOM], shelf.lines[Until.DRAINED], store.awaited
    room_waiting, drained_waiting, ends_waiting = room.waiting, drained.waiting, awaited.waiting

    def ack(lease: Lease, *, connection: object | None = None, _result: bytes | None = None) -> Any:  # noqa: ANN401 - as Queue.ack
        if connection is not None:
            return otherwise(lease, connection=connection)
        if type(lease) is not Lease:
            return otherwise(lease)
        held = lease.grant
        # Equal, if it was taken by the general way.
        if held is not grant and held != grant:
            return otherwise(lease)
        row: Any = lease.work
        outcome = None
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            more = row.more
            if (
                row.state is _LEASED
                and row.delivery == lease.delivery
                and (more is None or (not more.watched and row.spec.unique_key is None))
                and row.grant is held
            ):
                if _result is not None:
                    if more is None:
                        row.more = More(row.created_at, result=_result)
                    else:
                        more.result = _result
                row.ended_at = calendar()
                row.state = _SUCCEEDED
                leases.pop(row.id, None)
                shelf.left += 1
                succeeded.append(row)
                if len(succeeded) > shelf.succeeded_max:
                    old = succeeded[0]
                    if old.state is _SUCCEEDED and len(succeeded) == shelf.succeeded_max + 1:
                        del jobs.rows[old.id]
                        old.state = None
                        shelf.pruned += 1
                        succeeded.popleft()
                    else:
                        shelf.trim(_SUCCEEDED)
                outcome = _OK
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None
        if outcome is None:
            return otherwise(lease)
        if room_waiting and not room.roused:
            room.ring(1)
        if drained_waiting and (shelf.settings.paused or shelf.entered - shelf.left == shelf.held):
            drained.ring(1)
        if ends_waiting:
            awaited.ring((row.id,))
        return outcome

    return ack


def fail_way(store: MemoryStore, shelf: Shelf, grant: Grant) -> Fail:
    """Put a failed job off until its next attempt, as the general settle does."""
    gate, calendar, mend = store.gate, store.clock.calendar, store.mend
    leases, due = shelf.pin(grant.lease_s), shelf.lines[Until.DUE]

    def fail(lease: Lease, verdict: Retry) -> State | None:
        row: Any = lease.work
        if lease.grant != grant or verdict.refund or verdict.crashed or not verdict.delay_s > 0:
            return None
        is_put_off = is_first = False
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            more = row.more
            if (
                row.state is _LEASED
                and row.delivery == lease.delivery
                and row.grant is lease.grant
                and not shelf.settings.paused
                and (more is None or (more.expires_at is None and not more.cancel_requested))
            ):
                now_at = calendar()
                entry = Attempt(
                    lease.delivery,
                    lease.attempt,
                    grant.worker,
                    row.claimed_at,
                    now_at,
                    verdict.cause,
                    verdict.error,
                )
                if more is None:
                    more = row.more = More(row.created_at)
                more.history = remember(more.history, entry)
                more.run_at = now_at + verdict.delay_s
                leases.pop(row.id, None)
                is_first = shelf.put_off(row)
                shelf.totals.retries += 1
                is_put_off = True
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None
        if is_first:
            due.ring(1)
        return State.SCHEDULED if is_put_off else None

    return fail


def enqueue_many_way(
    store: MemoryStore,
    shelf: Shelf,
    plain: Callable[[list[Any], float], list[Row] | None],
    local: Here,
    view: Here,
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """`Queue.enqueue_many` for one handle.

    plain: the rows of these jobs, without their ids; None if one of them has options.
    """
    gate, registry, calendar, mend = store.gate, store.jobs, store.clock.calendar, store.mend
    room, ready = shelf.lines[Until.ROOM], shelf.lines[Until.READY]
    room_waiting, ready_waiting = room.waiting, ready.waiting

    def enqueue_many(jobs: Any, *, timeout: Any = None) -> Any:  # noqa: ANN401 - as Queue.enqueue_many
        if type(jobs) is not list or timeout is not None or local.finished or view.closed:
            return otherwise(jobs, timeout=timeout)
        rows = plain(jobs, calendar())
        if not rows:
            return otherwise(jobs, timeout=timeout)
        count, first = len(rows), 0
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            capacity = shelf.capacity
            if capacity is None or (shelf.entered - shelf.left + count <= capacity and not room_waiting):
                lanes, stored, first = shelf.lanes, registry.rows, registry.last_id + 1
                fresh, job_id = lanes.fresh, first
                registry.last_id += count
                for row in rows:
                    row.id = job_id
                    stored[job_id] = row
                    shelf.entered += 1
                    lane = fresh.get(row.priority)
                    if lane is None:
                        lane = lanes.lane(row.priority)
                    lane.append(row)
                    if row.priority > lanes.top:
                        lanes.top = row.priority
                    job_id += 1
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None
        if not first:
            return otherwise(jobs, timeout=timeout)
        if ready_waiting and not ready.roused:
            ready.ring(count)
        return list(range(first, first + count))

    return enqueue_many


def deliver_many_way(
    store: MemoryStore, shelf: Shelf, grant: Grant, view: Here, otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """`Queue.deliver_many` for one handle, whose leases all share `grant`."""
    gate, mend = store.gate, store.mend
    interval, calendar = store.clock.interval, store.clock.calendar
    lease_s, leases = grant.lease_s, shelf.pin(grant.lease_s)

    def deliver_many(limit: int, timeout: Any = 0) -> Any:  # noqa: ANN401 - as Queue.deliver_many
        taken: list[Lease] = []
        is_plain = True
        if type(limit) is int and 1 <= limit <= BATCH_MAX and type(timeout) is int and timeout == 0:
            while True:
                try:
                    del gate.open
                    break
                except AttributeError:
                    sleep(0)
            try:
                now, now_at, lanes = interval(), calendar(), shelf.lanes
                end, backoff, more = now + lease_s, shelf.backoff, limit
                if now < shelf.alarm and now_at < shelf.alarm_at and not view.closed:
                    shelf.alarm = min(shelf.alarm, end)
                    while is_plain and more and (lane := lanes.fresh.get(lanes.top) or lanes.climb_down()):
                        popleft = lane.popleft
                        for _ in range(min(more, len(lane))):
                            row = popleft()
                            if row.state is not _READY or row.more is not None:
                                lane.appendleft(row)
                                _put_back(shelf, leases, taken)
                                is_plain = False
                                break
                            delivery = row.delivery + 1
                            lease = Lease(
                                grant, row, delivery, delivery, end, now_at, 0, row.spec.backoff or backoff
                            )
                            taken.append(lease)
                            leases[row.id] = lease
                            row.grant = grant
                            row.claimed_at = now_at
                            row.delivery = delivery
                            row.state = _LEASED
                        more = limit - len(taken)
            except BaseException:
                mend()
                raise
            finally:
                gate.open = None
        return taken or otherwise(limit, timeout)

    return deliver_many


def _put_back(shelf: Shelf, leases: dict[int, Lease], taken: list[Lease]) -> None:
    """Undo what was taken, so that the whole batch is taken in one step, by the general way."""
    while taken:
        row: Any = taken.pop().work
        row.state = _READY
        row.delivery -= 1
        row.grant = None
        row.claimed_at = 0.0
        del leases[row.id]
        shelf.lanes.lane(row.priority).appendleft(row)


def ack_many_way(
    store: MemoryStore, shelf: Shelf, grant: Grant, otherwise: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """`Queue.ack_many` for one handle."""
    gate, calendar, mend = store.gate, store.clock.calendar, store.mend
    current, succeeded = shelf.pin(grant.lease_s), shelf.ended[_SUCCEEDED]
    room, drained, awaited = shelf.lines[Until.ROOM], shelf.lines[Until.DRAINED], store.awaited
    room_waiting, drained_waiting, ends_waiting = room.waiting, drained.waiting, awaited.waiting

    def ack_many(leases: Any) -> Any:  # noqa: ANN401 - as Queue.ack_many
        if type(leases) is not list:
            return otherwise(leases)
        for lease in leases:
            if type(lease) is not Lease or lease.grant is not grant:
                return otherwise(leases)
        outcomes: list[Any] = []
        while True:
            try:
                del gate.open
                break
            except AttributeError:
                sleep(0)
        try:
            rows: list[Any] = [lease.work for lease in leases]
            for lease, row in zip(leases, rows, strict=True):
                if row.delivery != lease.delivery or row.more is not None or row.grant is not grant:
                    break
            else:
                now_at = calendar()
                for row in rows:
                    if row.state is not _LEASED:
                        outcomes.append(None)
                        continue
                    row.ended_at = now_at
                    row.state = _SUCCEEDED
                    current.pop(row.id, None)
                    shelf.left += 1
                    succeeded.append(row)
                    outcomes.append(_OK)
            if len(succeeded) > shelf.succeeded_max:
                shelf.trim(_SUCCEEDED)
        except BaseException:
            mend()
            raise
        finally:
            gate.open = None
        if not outcomes:
            return otherwise(leases)
        acked = outcomes.count(_OK)
        if acked < len(outcomes):
            # What has no row here any more, or is twice in the batch, is asked for by its id.
            outcomes = [
                otherwise([lease])[0] if outcome is None else outcome
                for lease, outcome in zip(leases, outcomes, strict=True)
            ]
        if room_waiting and not room.roused:
            room.ring(acked)
        if drained_waiting and (shelf.settings.paused or shelf.entered - shelf.left == shelf.held):
            drained.ring(acked)
        if ends_waiting:
            awaited.ring([lease.work.id for lease in leases])
        return outcomes

    return ack_many
