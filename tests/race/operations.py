"""Every operation of a storage as a call that a thread can make and that the model can judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.contract.model import TOTALS, Model, plain_record, shown
from tests.contract.steps import FAIL, LOST, OTHER, RELEASE, Q, draft
from tests.race.orders import History
from tests.race.stage import (
    UNSEEN,
    Stage,
    busy,
    calm,
    expected_figures,
    figures,
    full,
    plain,
    set_aside,
    tidy,
    timed,
    twin,
)
from ulak.core.backoff import Backoff
from ulak.core.job import Cancelled, Cause, Counts, Dead, Done, Draft, Hold, Retry, Verdict
from ulak.core.store import (
    Act,
    Cancel,
    Change,
    Delete,
    Edit,
    Filter,
    Redrive,
    Reprioritise,
    Settings,
    Tasks,
    Until,
)
from ulak.errors import ArgumentError

Scene = Callable[[Stage], None]
SCENES: tuple[Scene, ...] = (busy, full, timed, calm, tidy, set_aside)
# Where it does not show which ended jobs are still kept.
SHOWN: tuple[Scene, ...] = (busy, full, calm)


@dataclass(frozen=True)
class Operation:
    """One call. do: make it, and give its plain answer. allows: whether the model answers so, having done it.

    jobs: how many it may move. scenes: where it has something to do and its answer is fixed by the contract.
    """

    method: str
    shown: str
    do: Callable[[Stage], Any]
    allows: Callable[[Stage, Model, Any], bool]
    jobs: int = 1
    scenes: tuple[Scene, ...] = SCENES

    def make(self, stage: Stage, history: History[Model]) -> None:
        """Make the call in this thread, and note it."""

        def allows(model: Model, answer: Any) -> bool:
            return self.allows(stage, model, answer)

        history.note(self.shown, lambda: self.do(stage), allows, jobs=self.jobs)


def same(expect: Callable[[Stage, Model], Any]) -> Callable[[Stage, Model, Any], bool]:
    """The answer must be equal to the model's."""
    return lambda stage, model, answer: bool(expect(stage, model) == answer)


def said(expect: Callable[[Stage, Model], Any]) -> Callable[[Stage, Model, Any], bool]:
    """The model does it too; there is no answer to compare."""

    def allows(stage: Stage, model: Model, answer: Any) -> bool:
        expect(stage, model)
        return answer is None

    return allows


# Into the store


def add(
    shown: str, *drafts: Draft, known_only: bool = False, scenes: tuple[Scene, ...] = SCENES
) -> Operation:
    def do(stage: Stage) -> Any:
        try:
            return plain(stage.store.add(Q, drafts, known_only=known_only))
        except ArgumentError:
            return "never"

    def expect(_: Stage, model: Model) -> Any:
        return model.add(Q, drafts, known_only=known_only)

    return Operation("add", f"add {shown}", do, same(expect), len(drafts), scenes)


def fire(tick_at: float, *, is_bare: bool = False, **options: Any) -> Operation:
    new = None if is_bare else draft(b"fired", **options)
    return Operation(
        "fire",
        f"fire {tick_at} {options}{' without a job' * is_bare}",
        lambda stage: plain(stage.store.fire("daily", tick_at, Q, new)),
        same(lambda _, model: model.fire("daily", tick_at, Q, new)),
    )


# Under leases


def claim(limit: int, *queues: str, tasks: Tasks | None = None) -> Operation:
    names = queues or (Q,)

    def do(stage: Stage) -> Any:
        return plain(stage.store.claim(names, limit, worker="w3", lease_s=10.0, tasks=tasks))

    def expect(_: Stage, model: Model) -> Any:
        return model.claim(names, limit, worker="w3", lease_s=10.0, tasks=tasks)

    return Operation("claim", f"claim {limit} of {names} {tasks}", do, same(expect), limit)


def settle(*named: tuple[str, Verdict], method: str = "settle", limit: int = 0) -> Operation:
    """Settle these leases, by name; `turn` claims too."""

    def batch(stage: Stage) -> list[Any]:
        return [(stage.leases[name], verdict) for name, verdict in named]

    def do(stage: Stage) -> Any:
        if method == "settle":
            return plain(stage.store.settle(batch(stage)))
        return plain(stage.store.turn(batch(stage), [Q], limit, worker="w3", lease_s=10.0))

    def expect(stage: Stage, model: Model) -> Any:
        settled = [model.settle(lease, verdict) for lease, verdict in batch(stage)]
        if method == "settle":
            return settled
        return [settled, model.claim([Q], limit, worker="w3", lease_s=10.0, tasks=None)]

    scenes = tuple(scene for scene, names in _LEASES.items() if {name for name, _ in named} <= names)
    does = ", ".join(f"{name} {type(verdict).__name__} {verdict.cause}" for name, verdict in named)
    return Operation(method, f"{method} {does} {limit}", do, same(expect), len(named) + limit, scenes)


_LEASES: dict[Scene, set[str]] = {
    busy: {"mine", "theirs", "late"},
    full: {"mine", "theirs"},
    timed: {"mine", "late"},
    calm: {"mine", "second"},
    tidy: {"mine", "second"},
    set_aside: {"mine"},
}


def extend(lease_s: float, *names: str, progress: str | None = None) -> Operation:
    def of(stage: Stage) -> Any:
        leases = [stage.leases[name] for name in names]
        return leases, None if progress is None else {lease.id: progress for lease in leases}

    def do(stage: Stage) -> Any:
        leases, texts = of(stage)
        return plain(stage.store.extend(leases, lease_s, progress=texts))

    def expect(stage: Stage, model: Model) -> Any:
        leases, texts = of(stage)
        return model.extend(leases, lease_s, progress=texts)

    scenes = tuple(scene for scene, known in _LEASES.items() if set(names) <= known)
    return Operation("extend", f"extend {names} {lease_s} {progress}", do, same(expect), 0, scenes)


def ended(limit: int) -> Operation:
    def allows(_: Stage, model: Model, answer: Any) -> bool:
        past = model.ended([Q])
        return len(answer) == min(limit, len(past)) and all(
            past.get(lease["id"]) == lease for lease in answer
        )

    return Operation("ended", f"ended {limit}", lambda stage: plain(stage.store.ended([Q], limit)), allows, 0)


def leased(worker: str | None, after: int) -> Operation:
    return Operation(
        "leased",
        f"leased {worker} after {after}",
        lambda stage: plain(stage.store.leased(Q, worker=worker, after=after, limit=9)),
        same(lambda _, model: model.leased(Q, worker=worker, after=after, limit=9)),
        0,
    )


def _promote(_: Stage, model: Model, promoted: Any) -> bool:
    due = [job for job in model.jobs.values() if model.is_due(job) and not model.is_overdue(job)]
    has_none = model.settings[Q]["paused"]
    # A claim may have promoted more than it took.
    is_allowed = promoted <= len(due) if Q in model._may_promote else promoted == len(due)
    model.promote([Q])
    return promoted == 0 if has_none else is_allowed


def _horizon(_: Stage, model: Model, answer: Any) -> bool:
    promoted = twin(model)
    if Q in model._may_promote:
        promoted.promote([Q])
    return any(_is_horizon(known.horizon([Q]), answer) for known in (model, promoted))


def _is_horizon(known: tuple[float | None, float | None], answer: float | None) -> bool:
    """A sleep towards a due time may be cut to a second, one towards a lease's end may not."""
    lease_s, due_s = known
    latest = [max(0.0, wait_s) for wait_s in known if wait_s is not None]
    earliest = [max(0.0, wait_s) for wait_s in (lease_s, due_s and min(due_s, 1.0)) if wait_s is not None]
    return answer is None if not latest else answer is not None and min(earliest) <= answer <= min(latest)


# By an operator


def amend(act: Act, *names: str, force: bool = False, scenes: tuple[Scene, ...] = (busy,)) -> Operation:
    """An act on jobs of these names; without names, on all dead ones."""
    every = Filter(queue=Q, states="dead")

    def which(stage: Stage) -> Any:
        return [stage.ids[name] for name in names] or every

    def do(stage: Stage) -> Any:
        changed = stage.store.amend(which(stage), act, force=force)
        return list(changed.done), {reason.value: list(ids) for reason, ids in changed.refused.items()}

    def expect(stage: Stage, model: Model) -> Any:
        return model.amend(which(stage), act, queue=None, force=force)

    does = f"{type(act).__name__} {names} {'by force' if force else ''}"
    return Operation("amend", does, do, same(expect), len(names) or 2, scenes)


def configure(**change: Any) -> Operation:
    def do(stage: Stage) -> Any:
        kept = stage.store.configure(Q, Change(**change))
        return {name: getattr(kept, name) for name in kept.__struct_fields__}

    def expect(_: Stage, model: Model) -> Any:
        model.settings[Q] |= change
        return dict(model.settings[Q])

    return Operation("configure", f"configure {change}", do, same(expect), 0)


def declare(queue: str, capacity: int) -> Operation:
    def do(stage: Stage) -> Any:
        kept = stage.store.declare(queue, Settings(capacity=capacity))
        return {name: getattr(kept, name) for name in kept.__struct_fields__}

    def expect(_: Stage, model: Model) -> Any:
        new = {"capacity": capacity, "paused": False, "backoff": None, "retention": None}
        model.totals.setdefault(queue, dict.fromkeys(TOTALS, 0))
        model.names.setdefault(queue, {})
        return dict(model.settings.setdefault(queue, new))

    return Operation("declare", f"declare {queue} {capacity}", do, same(expect), 0)


def _prune(_: Stage, model: Model, answer: Any) -> bool:
    """End all whose time is over, forget all that is too old; both are all that `prune` may count here."""
    pruned: dict[str, int] = {}
    for job in list(model.jobs.values()):
        if model.is_overdue(job):
            model._expire(job)
            pruned["expired"] = pruned.get("expired", 0) + 1
        keep = model.settings[job["queue"]]["retention"]
        is_old = (
            job["ended_at"] is not None
            and keep is not None
            and job["ended_at"] <= model.now_at - keep.dead.age_s
        )
        if is_old:
            del model.jobs[job["id"]]
            model.totals[job["queue"]]["pruned"] += 1
            pruned[job["state"]] = pruned.get(job["state"], 0) + 1
    # Whether a job whose time was over is ended here, or was ended by whoever met it first, is left free.
    expired = pruned.pop("expired", 0), answer.pop("expired", 0)
    return pruned == answer and (expired[0] == expired[1] or Q in model._may_expire)


# Looks


def scan(which: Filter, after: int, limit: int) -> Operation:
    def expect(_: Stage, model: Model) -> Any:
        return [shown(job) for job in model.matching(which) if job["id"] > after][:limit]

    def do(stage: Stage) -> Any:
        return [plain_record(job) for job in stage.store.scan(which, after=after, limit=limit)]

    return Operation("scan", f"scan {which} {after} {limit}", do, same(expect), 0, SHOWN)


def get(*names: str, scenes: tuple[Scene, ...] = (busy,)) -> Operation:
    def do(stage: Stage) -> Any:
        jobs = stage.store.get([stage.ids[name] for name in names])
        return [None if job is None else plain_record(job) for job in jobs]

    def expect(stage: Stage, model: Model) -> Any:
        known = [model.jobs.get(stage.ids[name]) for name in names]
        return [None if job is None else shown(job) for job in known]

    return Operation("get", f"get {names}", do, same(expect), 0, scenes)


class Counting(Operation):
    """Counts: exact when no call is in flight, else off by no more than the jobs of those that are."""

    def make(self, stage: Stage, history: History[Model]) -> None:
        def allows(model: Model, answer: dict[str, int]) -> bool:
            off, expected = history.in_flight(answered), expected_figures(model, Q)
            return all(answer[name] >= 0 and abs(answer[name] - expected[name]) <= off for name in expected)

        answered = history.note(self.shown, lambda: self.do(stage), allows, jobs=0)


def counting(look: Callable[[Stage], Counts]) -> Counting:
    return Counting("counts", "counts", lambda stage: figures(look(stage)), lambda *_: True, 0, SHOWN)


def _queues(stage: Stage) -> Any:
    return {
        queue: {name: getattr(kept, name) for name in kept.__struct_fields__}
        for queue, kept in stage.store.queues().items()
        if queue != UNSEEN
    }


def _workers(stage: Stage) -> Any:
    return [(known.worker, dict(known.info), known.seen_at) for known in stage.store.workers()]


def beat(worker: str, **info: str) -> Operation:
    return Operation(
        "beat",
        f"beat {worker}",
        lambda stage: stage.store.beat(worker, info),
        said(lambda _, model: model.workers.update({worker: (worker, info, model.now_at)})),
        0,
    )


def depart(worker: str) -> Operation:
    return Operation(
        "depart",
        f"depart {worker}",
        lambda stage: stage.store.depart(worker),
        said(lambda _, model: model.workers.pop(worker, None)),
        0,
    )


def _line(stage: Stage) -> None:
    stage.lines.append(stage.store.line(Until.READY, UNSEEN))


PLAIN, URGENT = draft(b"plain"), draft(b"urgent", priority=5)
UNIQUE, NAMED = draft(b"unique", unique_key="u1"), draft(b"named", idempotency_key="i1")
NEW_NAME = draft(b"new name", idempotency_key="i9", unique_key="u9")
DELAYED = draft(b"delayed", delay_s=5.0)
HELD_TOO = frozenset({"send"})

OPERATIONS: Sequence[Operation] = (
    add("plain", PLAIN),
    add("urgent and plain", PLAIN, URGENT),
    add("unique", UNIQUE),
    add("named", NAMED),
    add("new name", NEW_NAME, PLAIN),
    add("known only", NAMED, known_only=True),
    add("delayed", DELAYED),
    add("four", *[PLAIN] * 4),
    fire(1.0),
    fire(2.0),
    fire(2.0, unique_key="u1"),
    fire(2.0, is_bare=True),
    claim(1),
    claim(2),
    claim(9, OTHER, Q),
    claim(2, tasks=HELD_TOO),
    claim(1, tasks=frozenset({None})),
    settle(("mine", Done())),
    settle(("mine", Done(b"2"))),
    settle(("second", FAIL), ("mine", Done())),
    settle(("mine", FAIL)),
    settle(("mine", Retry(5.0))),
    settle(("mine", RELEASE)),
    settle(("mine", Hold())),
    settle(("mine", Hold(Cause.UNDECODABLE))),
    settle(("mine", Cancelled())),
    settle(("theirs", Dead())),
    settle(("mine", Done()), ("theirs", Dead())),
    settle(("mine", Done()), ("mine", FAIL)),
    settle(("late", LOST)),
    settle(("late", Done())),
    settle(("late", LOST), ("mine", LOST)),
    settle(("mine", Done()), method="turn", limit=1),
    settle(("late", LOST), method="turn", limit=2),
    settle(("mine", FAIL), method="turn", limit=1),
    settle(method="turn", limit=1),
    extend(60.0, "mine"),
    extend(1.0, "mine", progress="half"),
    extend(30.0, "late", "mine"),
    extend(10.0, "theirs", progress="most"),
    ended(1),
    ended(9),
    leased(None, 0),
    leased("w1", 5),
    Operation("promote", "promote", lambda stage: stage.store.promote([Q]), _promote, 2),
    Operation("horizon", "horizon", lambda stage: stage.store.horizon([Q]), _horizon, 0),
    amend(Redrive(), "dead", scenes=(busy, full)),
    amend(Redrive(), "gone", scenes=(busy, full)),
    amend(Redrive()),
    amend(Redrive(), "held", "dead", scenes=(busy, set_aside)),
    amend(Redrive(), "refused", scenes=(set_aside,)),
    amend(Edit(b"edited", "bytes"), "refused", "held", scenes=(set_aside,)),
    amend(Cancel(), "refused", scenes=(set_aside,)),
    amend(Cancel(), "low", scenes=(busy, calm)),
    amend(Cancel(), "high", scenes=(busy, calm)),
    amend(Cancel(), "mine", scenes=SHOWN),
    amend(Cancel(), "keyed", scenes=(busy, full)),
    amend(Cancel(), "high", "later", "low", "held"),
    amend(Reprioritise(7), "low", "held", scenes=(busy, set_aside)),
    amend(Reprioritise(-1), "mine", force=True, scenes=SHOWN),
    amend(Reprioritise(-1), "mine", "high", scenes=(busy, calm)),
    amend(Delete(), "low", scenes=(busy, calm)),
    amend(Delete(), "keyed", scenes=(busy, full)),
    amend(Delete(), "mine", "dead", force=True, scenes=SHOWN),
    amend(Edit(b"edited", "bytes"), "low", "dead", scenes=(busy, calm)),
    amend(Edit(b"edited", "bytes"), "dead", "mine", scenes=(busy, full)),
    configure(capacity=1),
    configure(capacity=None),
    configure(paused=True),
    configure(backoff=Backoff(base=0.5, cap=10.0)),
    declare("fresh", 1),
    declare("fresh", 2),
    declare(Q, 9),
    Operation(
        "prune",
        "prune",
        lambda stage: {state.value: gone for state, gone in stage.store.prune(limit=100).items()},
        _prune,
        4,
        (timed,),
    ),
    get("low", "mine", "dead", scenes=(busy, calm)),
    get("mine", "second", "high", scenes=(calm,)),
    get("keyed", "held"),
    get("low", "held", "high", "later"),
    get("refused", "held", "mine", scenes=(set_aside,)),
    scan(Filter(queue=Q), 0, 100),
    scan(Filter(states=("ready", "leased")), 5, 4),
    counting(lambda stage: stage.store.counts([Q])[Q]),
    Operation("queues", "queues", _queues, same(lambda _, model: dict(model.settings)), 0),
    Operation(
        "schedules",
        "schedules",
        lambda stage: stage.store.schedules(),
        same(lambda _, model: dict(model.ticks)),
        0,
    ),
    beat("w1", since="now"),
    beat("w0"),
    depart("w1"),
    depart("w2"),
    Operation(
        "workers", "workers", _workers, same(lambda _, m: sorted(m.workers.values(), key=lambda w: w[0])), 0
    ),
    Operation("line", "line", _line, said(lambda *_: None), 0),
)
METHODS = tuple(dict.fromkeys(operation.method for operation in OPERATIONS))

# Made one after the other when all threads have ended: what is stored must still come in order.
ENDING = (ended(9), *(op for op in OPERATIONS if op.method == "horizon"), claim(100))
