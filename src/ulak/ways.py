"""The short way of a handle's or a pool's calls, where its store has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

import msgspec

from ulak import codec
from ulak.core.job import PRIORITY_MAX, PRIORITY_MIN, Done, Draft, Full, Grant, Lease, Outcome, Spec
from ulak.core.store import BATCH_MAX, Store, Until
from ulak.errors import Closed, PayloadError
from ulak.local import LocalQueue, View
from ulak.newjob import NewJob
from ulak.storage import direct
from ulak.storage.direct import Ways
from ulak.storage.line import WaitLine
from ulak.storage.memory import MemoryStore
from ulak.storage.row import Row

_DONE = Done()


def quick_ways(
    store: Store,
    view: View,
    general: Ways,
    *,
    worker: str,
    lease_s: float,
    max_attempts: int,
    may_block: bool = False,
) -> Ways:
    """The calls of a handle by the short way, which itself hands over to the general ones; else those.

    may_block: the caller is a thread, and not an event loop.
    """
    if may_block and not store.capabilities.immediate:
        return _thread_ways(store, view, general, max_attempts=max_attempts)
    # What stands before a store, or is derived from one, has ways of its own.
    if type(store) is not MemoryStore:
        return general
    local = view.local
    shelf = store.shelf(local.name)
    grant = Grant(store.uid, store.epoch, worker, lease_s)
    specs = {tag: Spec(local.name, tag, max_attempts) for tag in get_args(codec.Codec)}

    def spec_of(payload: object) -> tuple[bytes, Spec]:
        body, tag = codec.encode(payload)
        return body, specs[tag]

    def plain(jobs: list[Any], now_at: float) -> list[Row] | None:
        return _rows(jobs, specs, now_at)

    return Ways(
        enqueue=direct.enqueue_way(store, shelf, spec_of, local, view, general.enqueue),
        enqueue_many=direct.enqueue_many_way(store, shelf, plain, local, view, general.enqueue_many),
        deliver=direct.deliver_way(store, shelf, grant, view, general.deliver),
        deliver_many=direct.deliver_many_way(store, shelf, grant, view, general.deliver_many),
        ack=direct.ack_way(store, shelf, grant, general.ack),
        ack_many=direct.ack_many_way(store, shelf, grant, general.ack_many),
    )


def task_way(
    store: Store, view: View, spec: Spec, general: Callable[..., Any], *, may_block: bool
) -> Callable[..., Any]:
    """Enqueue plain jobs of one task, `way(body, priority)`, by the short way where there is one.

    spec: what all these jobs share. general: as `Queue.enqueue`. may_block: as in `quick_ways`.
    """
    if type(store) is MemoryStore:
        shelf = store.shelf(view.local.name)
        return direct.enqueue_way(
            store, shelf, lambda body: (cast("bytes", body), spec), view.local, view, general
        )
    if may_block and not store.capabilities.immediate:

        def draft_of(body: Any, priority: int) -> Draft:  # noqa: ANN401 - bytes
            return Draft(body, spec.codec, priority, spec.max_attempts, spec.task, backoff=spec.backoff)

        return _thread_enqueue(store, view, draft_of, general)
    return general


def _thread_enqueue(
    store: Store, view: View, draft_of: Callable[[Any, int], Draft], general: Callable[..., Any]
) -> Callable[..., Any]:
    """`Queue.enqueue` of a thread that may wait for the disk: straight to the store, if that is all."""
    local, queue = view.local, view.local.name

    def enqueue(
        payload: object,
        priority: int = 0,
        *,
        timeout: Any = None,  # noqa: ANN401 - as Queue.enqueue
        connection: object | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        is_plain = not options and timeout is None and connection is None
        # Asked for at each call: after a fork the child's lines are others.
        room = cast("WaitLine", store.line(Until.ROOM, queue))
        if not is_plain or local.finished or view.closed or room.waiting:
            return general(payload, priority, timeout=timeout, connection=connection, **options)
        if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
            return general(payload, priority)
        draft = draft_of(payload, priority)
        try:
            answer = store.add(queue, [draft])
        except Closed:
            # By another thread, since it was looked at; the general way says what that means.
            return general(payload, priority)
        # Full: the general way waits for room, or says that there is none.
        return general(payload, priority) if isinstance(answer, Full) else answer[0]

    return enqueue


def _thread_ways(store: Store, view: View, general: Ways, *, max_attempts: int) -> Ways:
    """The calls of a thread that may wait for the disk: straight to the store, if there is no more to do."""
    local, queue, uid = view.local, view.local.name, store.uid

    def draft_of(payload: object, priority: int) -> Draft:
        body, tag = codec.encode(payload)
        return Draft(body, tag, priority, max_attempts)

    def ack(lease: Lease, *, connection: object | None = None) -> Any:  # noqa: ANN401 - as Queue.ack
        if (
            type(lease) is not Lease
            or connection is not None
            or lease.grant.store != uid
            or lease.work.spec.queue != queue
        ):
            return general.ack(lease, connection=connection)
        (settled,) = store.settle([(lease, _DONE)])
        if settled is Outcome.STALE:
            local.count_stale(1)
            return Outcome.STALE
        return Outcome.OK

    enqueue = _thread_enqueue(store, view, draft_of, general.enqueue)
    return msgspec.structs.replace(general, enqueue=enqueue, ack=ack)


def _rows(jobs: list[Any], specs: dict[str, Spec], now_at: float) -> list[Row] | None:
    """A row for each job, without its id; None if one is not plain or not right, or there are too many."""
    if len(jobs) > BATCH_MAX:
        return None
    rows: list[Row] = []
    bytes_spec, bytes_max = specs["bytes"], codec.PAYLOAD_BYTES_MAX
    for job in jobs:
        payload, priority = job, 0
        if type(job) is NewJob:
            payload, priority = job.payload, job.priority
            if not job.is_plain or type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
                return None
        if type(payload) is bytes and len(payload) <= bytes_max:
            rows.append(Row(0, bytes_spec, payload, priority, now_at))
            continue
        try:
            body, tag = codec.encode(payload)
        except PayloadError:
            return None
        rows.append(Row(0, specs[tag], body, priority, now_at))
    return rows


class Quick(msgspec.Struct, frozen=True):
    """Take a job, finish one, and put off one that has failed: each answers None, and has done nothing, where
    that does not go.

    is_empty: whether no other way would find a job either. ready: where those wait for whom that is so.
    """

    take: direct.Take
    finish: direct.Finish
    fail: direct.Fail
    is_empty: Callable[[], bool]
    ready: WaitLine


def quick_hands(store: Store, local: LocalQueue, *, worker: str, lease_s: float) -> Quick | None:
    """The short way of a pool's workers; None where the store has none."""
    if type(store) is not MemoryStore:
        return None
    shelf = store.shelf(local.name)
    grant = Grant(store.uid, store.epoch, worker, lease_s)
    return Quick(
        take=direct.deliver_way(store, shelf, grant, local, _nothing),
        finish=direct.ack_way(store, shelf, grant, _nothing),
        fail=direct.fail_way(store, shelf, grant),
        is_empty=direct.empty_way(store, shelf),
        ready=shelf.lines[Until.READY],
    )


def _nothing(_: float | Lease) -> None:
    return None
