"""A small store in which every operation finds something to do, beside a model that says the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tests.contract.model import TOTALS, Model, plain_lease
from tests.contract.steps import OTHER, Q, draft
from ulak.core.job import (
    Cancelled,
    Cause,
    Counts,
    Dead,
    Done,
    Duplicate,
    Full,
    Hold,
    Lease,
    Outcome,
    State,
    Verdict,
)
from ulak.core.store import Cancel, Change, Filter, Fired, Keep, Retention, Settings, Store
from ulak.storage.memory import MemoryStore
from ulak.testing import ManualClock

LEASE_S = 30.0
NO_TASK = frozenset({None})
STATES = {"acked": "succeeded"}
"""Where `Counts` has another word than the states."""


class Stage:
    """One fresh store, brought to where a scene begins. ids, leases: of the scene's jobs, by their names."""

    def __init__(self, scene: Callable[[Stage], None], *, model: Model | None = None) -> None:
        self.clock = ManualClock()
        self.store = self.new_store(self.clock)
        self.model = model
        self.ids: dict[str, int] = {}
        self.leases: dict[str, Lease] = {}
        self.lines: list[Any] = []
        for queue in (Q, OTHER):
            self.store.declare(queue, Settings())
        scene(self)

    def new_store(self, clock: ManualClock) -> Store:
        """An empty one."""
        return MemoryStore(clock)

    # What scenes do, to the store and to the model if it is still to be made

    def add(self, name: str, queue: str = Q, **options: Any) -> None:
        """One job more, of this name."""
        new = draft(name.encode(), **options)
        (self.ids[name],) = self.store.add(queue, [new])
        if self.model is not None:
            self.model.add(queue, [new])

    def take(self, name: str, *, worker: str = "w1", lease_s: float = LEASE_S) -> None:
        """Lease the job of this name, which must be next."""
        lease = self.claim(worker, lease_s)
        assert lease.id == self.ids[name]
        self.leases[name] = lease
        if self.model is not None:
            self.model.claim([Q], 1, worker=worker, lease_s=lease_s, tasks=NO_TASK)

    def claim(self, worker: str, lease_s: float) -> Lease:
        """Lease the next job."""
        (lease,) = self.store.claim([Q], 1, worker=worker, lease_s=lease_s, tasks=NO_TASK)
        return lease

    def end(self, name: str, verdict: Verdict) -> None:
        """Settle its lease."""
        self.store.settle([(self.leases[name], verdict)])
        if self.model is not None:
            self.model.settle(self.leases[name], verdict)

    def put(self, name: str, verdict: Verdict, **options: Any) -> None:
        """One job more, that was settled so. It must be the next that is claimed."""
        self.add(name, priority=99, **options)
        self.take(name)
        self.end(name, verdict)

    def cancel(self, name: str) -> None:
        """Cancel it."""
        self.store.amend([self.ids[name]], Cancel())
        if self.model is not None:
            self.model.amend([self.ids[name]], Cancel(), queue=None, force=False)

    def change(self, **change: Any) -> None:
        """Change the settings of the queue."""
        self.store.configure(Q, Change(**change))
        if self.model is not None:
            self.model.settings[Q] |= change

    def beat(self, worker: str) -> None:
        """A worker is there."""
        self.store.beat(worker, {})
        if self.model is not None:
            self.model.workers[worker] = (worker, {}, self.model.now_at)

    def wait(self, duration_s: float) -> None:
        """Let time pass."""
        self.clock.advance(duration_s)
        if self.model is not None:
            self.model._clock.advance(duration_s)

    # The end

    def fits(self, model: Model) -> None:
        """Raise AssertionError unless the model has all that is stored, and nothing else."""
        store = self.store
        model.follow(store.scan(Filter(), limit=1_000))
        for queue, counts in store.counts([Q, OTHER]).items():
            assert figures(counts) == expected_figures(model, queue), queue
        assert plain_settings(store) == model.settings
        assert store.schedules() == model.ticks
        seen = [(known.worker, dict(known.info), known.seen_at) for known in store.workers()]
        assert seen == sorted(model.workers.values(), key=lambda known: known[0])
        assert len({id(line) for line in self.lines}) <= 1, "one queue has two lines for one thing"


def new_model(scene: Callable[[Stage], None]) -> Model:
    """The model of a scene."""
    model = Model(ManualClock(), (Q, OTHER), durable=False)
    Stage(scene, model=model)
    return model


def twin(model: Model) -> Model:
    """A copy that goes its own way; time is the same for both."""
    other = copy.copy(model)
    other.jobs = {job_id: dict(job) for job_id, job in model.jobs.items()}
    other.settings = {queue: dict(kept) for queue, kept in model.settings.items()}
    other.totals = {queue: dict(totals) for queue, totals in model.totals.items()}
    other.names = {queue: dict(names) for queue, names in model.names.items()}
    other.ticks, other.workers = dict(model.ticks), dict(model.workers)
    other._may_expire, other._may_promote = set(model._may_expire), set(model._may_promote)
    return other


# Scenes


def busy(stage: Stage) -> None:
    """Jobs in every state, leases of two workers, one of them past its end; room without bound."""
    stage.put("dead", Dead())
    stage.put("done", Done(b"1"))
    stage.put("gone", Cancelled(), unique_key="u2")
    stage.add("late", priority=9)
    stage.take("late", lease_s=5.0)
    stage.add("mine", priority=9)
    stage.take("mine")
    stage.add("theirs", priority=9, max_attempts=1)
    stage.take("theirs", worker="w2")
    stage.put("held", Hold(), task="send")
    stage.wait(5.0)
    stage.add("low")
    stage.add("keyed", unique_key="u1", idempotency_key="i1")
    stage.add("high", priority=1)
    stage.add("later", delay_s=60.0)
    stage.add("other", queue=OTHER)
    stage.beat("w1")


def calm(stage: Stage) -> None:
    """Plain jobs and nothing else, two of them leased."""
    stage.put("dead", Dead())
    stage.put("done", Done())
    stage.add("mine", priority=9)
    stage.add("second", priority=9)
    stage.take("mine")
    stage.take("second")
    stage.add("low")
    stage.add("high", priority=1)
    stage.add("last")


def set_aside(stage: Stage) -> None:
    """Held jobs, some of them refused, before all others."""
    stage.put("refused", Hold(Cause.UNDECODABLE), task="send", unique_key="u2")
    stage.put("held", Hold(), task="send")
    stage.put("dead", Dead())
    stage.add("mine", priority=9)
    stage.take("mine")
    stage.add("low")
    stage.change(capacity=4)


def tidy(stage: Stage) -> None:
    """The same, where no more than one succeeded job is kept."""
    stage.change(retention=Retention(succeeded=Keep(1, 3600.0)))
    calm(stage)


def full(stage: Stage) -> None:
    """Three open jobs, and room for no more."""
    stage.put("dead", Dead())
    stage.put("gone", Cancelled(), unique_key="u1")
    stage.add("mine")
    stage.take("mine")
    stage.add("theirs", max_attempts=1)
    stage.take("theirs", worker="w2")
    stage.add("keyed", unique_key="u1")
    stage.change(capacity=3)


def timed(stage: Stage) -> None:
    """Due jobs that nobody has promoted, one whose time is over, a lease past its end, ended jobs too old."""
    keep = Keep(100, 20.0)
    stage.change(retention=Retention(keep, keep, keep, keep))
    stage.put("old", Done())
    stage.put("rotten", Dead())
    stage.add("late", priority=9, max_attempts=2)
    stage.take("late", lease_s=5.0)
    stage.add("mine", priority=9)
    stage.take("mine", lease_s=60.0)
    stage.add("overdue", expires_s=10.0)
    stage.add("due", delay_s=5.0)
    stage.add("high", priority=1, delay_s=10.0)
    stage.add("later", delay_s=60.0)
    stage.wait(20.0)


# Plain answers


def plain(answer: Any) -> Any:
    """An answer as the model gives it."""
    match answer:
        case list() | tuple():
            return [plain(one) for one in answer]
        case Lease():
            return plain_lease(answer)
        case Duplicate():
            return "duplicate", int(answer)
        case Outcome() | State() | Fired() | Full():
            return answer.value
        case _:
            return answer


def plain_settings(store: Store) -> dict[str, dict[str, Any]]:
    """What is stored with the queues, but for one that some call has only looked at."""
    return {
        queue: {name: getattr(kept, name) for name in kept.__struct_fields__}
        for queue, kept in store.queues().items()
        if queue != UNSEEN
    }


UNSEEN = "unseen"
"""A queue that nobody declares."""


def figures(counts: Counts) -> dict[str, int]:
    """All figures of a queue, by the names of the model."""
    names = [name for name in counts.__struct_fields__ if name != "totals"]
    states = {STATES.get(name, name): getattr(counts, name) for name in names}
    return states | {f"total {name}": getattr(counts.totals, name) for name in TOTALS}


def expected_figures(model: Model, queue: str) -> dict[str, int]:
    """All figures of a queue of the model."""
    totals: Mapping[str, int] = model.totals[queue]
    return model.numbers(queue) | {f"total {name}": totals[name] for name in TOTALS}
