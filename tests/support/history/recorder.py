"""Writes what callers ask a store and are told: the one place that knows how a call becomes lines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.support.history.lines import (
    Asked,
    Counted,
    End,
    Handed,
    History,
    Line,
    Put,
    Ran,
    Stored,
    Told,
)
from ulak.core.job import (
    Cancelled,
    Counts,
    Dead,
    Done,
    Draft,
    Duplicate,
    Full,
    Hold,
    Job,
    Lease,
    Outcome,
    Retry,
    State,
    Totals,
    Verdict,
)
from ulak.core.store import Act, Changed, Edit, Filter, Fired, Settled, Settlement, Store
from ulak.errors import StorageUnavailable, UlakError

_MARK_MAX = 64
_HOW = {Done: "done", Retry: "retry", Hold: "hold", Dead: "dead", Cancelled: "cancelled"}
_PAGE = 1_000
_TOTAL_NAMES = {"cancelled": "cancelled_ever", "expired": "expired_ever"}


def mark_of(payload: bytes) -> str:
    """The name of a payload: a short text itself, of anything else a digest."""
    if len(payload) <= _MARK_MAX and payload.isascii():
        return payload.decode()
    return hashlib.sha256(payload).hexdigest()[:_MARK_MAX]


def _put(draft: Draft) -> Put:
    return Put(
        mark=mark_of(draft.payload),
        max_attempts=draft.max_attempts,
        delay_s=draft.delay_s,
        run_at=draft.run_at,
        may_expire=draft.expires_s is not None or draft.expires_at is not None,
        unique_key=draft.unique_key,
        idempotency_key=draft.idempotency_key,
    )


def _end(settlement: Settlement) -> End:
    lease, verdict = settlement
    how = _HOW[type(verdict)]
    if isinstance(verdict, Retry):
        return End(
            lease.id,
            lease.delivery,
            how,
            verdict.cause.value,
            delay_s=verdict.delay_s,
            refund=verdict.refund,
            crashed=verdict.crashed,
        )
    return End(lease.id, lease.delivery, how, verdict.cause.value, crashed=_crashed(verdict))


def _crashed(verdict: Verdict) -> bool:
    return isinstance(verdict, Dead) and verdict.crashed


def _handed(lease: Lease) -> Handed:
    return Handed(
        lease.id, lease.delivery, lease.attempt, lease.max_attempts, lease.lease_s, mark_of(lease.body)
    )


# What each call asks, with the arguments of the store's operation of the same name.


def _add(queue: str, drafts: Sequence[Draft], *, known_only: bool = False) -> dict[str, Any]:
    # As if there were no room, so that FULL says nothing: not an `add` to whoever checks for room.
    op = "add known" if known_only else "add"
    return {"op": op, "queue": queue, "puts": tuple(map(_put, drafts))}


def _fire(_schedule: str, _tick_at: float, queue: str, draft: Draft | None = None) -> dict[str, Any]:
    return {"op": "fire", "queue": queue, "puts": () if draft is None else (_put(draft),)}


def _claim(queues: Sequence[str], limit: int, *, lease_s: float, **_: Any) -> dict[str, Any]:
    return {"op": "claim", "queue": ",".join(queues), "limit": limit, "lease_s": lease_s}


def _settle(settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {"op": "settle", "ends": tuple(map(_end, settlements))}


def _turn(
    settlements: Sequence[Settlement], queues: Sequence[str], limit: int, *, lease_s: float, **_: Any
) -> dict[str, Any]:
    claim = _claim(queues, limit, lease_s=lease_s)
    return {**claim, "op": "turn", "ends": tuple(map(_end, settlements))}


def _extend(
    leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
) -> dict[str, Any]:
    named = tuple((lease.id, lease.delivery) for lease in leases)
    return {"op": "extend", "leases": named, "lease_s": lease_s}


def _amend(
    which: Sequence[int] | Filter,
    act: Act,
    *,
    queue: str | None = None,
    states: frozenset[State] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    return {
        "op": "amend",
        "queue": queue or "",
        "act": type(act).__name__,
        "ids": None if isinstance(which, Filter) else tuple(which),
        "mark": mark_of(act.payload) if isinstance(act, Edit) else "",
    }


_ASKED: dict[str, Callable[..., dict[str, Any]]] = {
    "add": _add,
    "fire": _fire,
    "claim": _claim,
    "settle": _settle,
    "turn": _turn,
    "extend": _extend,
    "amend": _amend,
    "get": lambda _ids: {"op": "get"},
    "counts": lambda _queues: {"op": "counts"},
}


# What each call is told.


def _added(answer: list[int] | Full) -> dict[str, Any]:
    if isinstance(answer, Full):
        return {"answer": "full"}
    return {"ids": tuple((int(job_id), isinstance(job_id, Duplicate)) for job_id in answer)}


def _fired(answer: int | Fired | Full) -> dict[str, Any]:
    return _added([answer]) if isinstance(answer, int) else {"answer": "refused"}


def _claimed(leases: list[Lease]) -> dict[str, Any]:
    return {"handed": tuple(map(_handed, leases))}


def _settled(answers: list[Settled]) -> dict[str, Any]:
    return {"settled": tuple(answer.value for answer in answers)}


def _turned(answer: tuple[list[Settled], list[Lease]]) -> dict[str, Any]:
    return _settled(answer[0]) | _claimed(answer[1])


def _extended(answers: list[bool | Outcome]) -> dict[str, Any]:
    return {"extended": tuple("stale" if answer is Outcome.STALE else "ok" for answer in answers)}


def _amended(changed: Changed) -> dict[str, Any]:
    return {"done": changed.done}


def _counted(counts: Mapping[str, Counts]) -> dict[str, Any]:
    return {"counts": {queue: numbers_of(of_queue) for queue, of_queue in counts.items()}}


_TOLD: dict[str, Callable[..., dict[str, Any]]] = {
    "add": _added,
    "fire": _fired,
    "claim": _claimed,
    "settle": _settled,
    "turn": _turned,
    "extend": _extended,
    "amend": _amended,
    "get": lambda jobs: {"seen": tuple((job.id, job.state.value) for job in jobs if job is not None)},
    "counts": _counted,
}


def is_recorded(name: str) -> bool:
    """Whether calls of this operation are written."""
    return name in _ASKED


class Pen:
    """Writes calls into a history. clock: seconds, the same for all writers."""

    def __init__(self, history: History, clock: Callable[[], float]) -> None:
        self._history = history
        self._clock = clock

    def asked(self, who: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Write a call of one thread of one process; its number."""
        number = self._history.number(who)
        self._history.add(Asked(who=who, n=number, t=self._clock(), **_ASKED[name](*args, **kwargs)))
        return number

    def told(self, who: str, number: int, name: str, answer: Any, **more: Any) -> None:
        """Write its answer: what it returned, or the error it raised. more: what else the writer knows."""
        if isinstance(answer, BaseException):
            is_sure = isinstance(answer, UlakError) and not isinstance(answer, StorageUnavailable)
            more["answer"] = "refused" if is_sure else "unknown"
        else:
            more |= _TOLD[name](answer)
        self._history.add(Told(who=who, n=number, t=self._clock(), **more))


class Recorded:
    """Stands before a store and writes what its callers ask and are told. who: names the caller."""

    def __init__(self, store: Any, pen: Pen, who: Callable[[], str]) -> None:
        self._store = store
        self._pen = pen
        self._who = who

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not is_recorded(name):
            return operation

        def call(*args: Any, **kwargs: Any) -> Any:
            who = self._who()
            number = self._pen.asked(who, name, args, kwargs)
            try:
                answer = operation(*args, **kwargs)
            except BaseException as error:
                self._pen.told(who, number, name, error)
                raise
            self._pen.told(who, number, name, answer, **self.known_of(name, args, answer))
            return answer

        return call

    def known_of(self, name: str, args: Sequence[Any], answer: Any) -> dict[str, Any]:
        """What a writer that stands close to the store knows of a call's effect, beside its answer."""
        return {}


# What is stored in the end


def numbers_of(counts: Counts) -> dict[str, int]:
    """A queue's numbers under one name each; a total whose name is a state's too is called `..._ever`."""
    numbers = {
        name: getattr(counts, name)
        for name in ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired")
    }
    totals = ((_TOTAL_NAMES.get(name, name), name) for name in Totals.__struct_fields__)
    return numbers | {shown: getattr(counts.totals, name) for shown, name in totals}


def stored_lines(store: Store, queues: Sequence[str]) -> Iterator[Line]:
    """What is stored in the end, as lines."""
    for queue in queues:
        after = 0
        while jobs := store.scan(Filter(queue=queue), after=after, limit=_PAGE):
            yield from map(_stored, jobs)
            after = jobs[-1].id
        yield Counted(queue, numbers_of(store.counts([queue])[queue]))


def _stored(job: Job) -> Stored:
    ran = tuple(
        Ran(entry.delivery, entry.attempt, entry.cause.value, entry.started_at, entry.ended_at)
        for entry in job.history
    )
    return Stored(
        id=job.id,
        queue=job.queue,
        mark=mark_of(job.payload),
        state=State(job.state).value,
        delivery=job.delivery,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        created_at=job.created_at,
        ran=ran,
    )
