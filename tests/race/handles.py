"""What callers of `Queue` do, as calls that a thread can make and that the model can judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.contract.model import Model
from tests.contract.steps import LOST, RELEASE, Q, draft
from tests.race.operations import ENDING, OPERATIONS, Operation, Scene, counting, same
from tests.race.orders import History
from tests.race.stage import LEASE_S, Stage, busy, calm, full, plain, tidy
from ulak import NewJob, Queue
from ulak.core.job import Cause, Dead, Done, Draft, Lease, Retry, Verdict
from ulak.core.store import Act, Cancel, Delete, Redrive, Reprioritise, Store
from ulak.testing import ManualClock

FREE: tuple[Scene, ...] = (busy, calm, tidy)
BOTH: tuple[Scene, ...] = (busy, full)
ALL: tuple[Scene, ...] = (*FREE, full)
LEASES: dict[str, tuple[Scene, ...]] = {"mine": ALL, "second": (calm, tidy), "theirs": BOTH, "late": (busy,)}
DEAD_OF_LOSS = Dead(Cause.LOST)


class QueueStage(Stage):
    """A stage whose store is reached through a queue."""

    def new_store(self, clock: ManualClock) -> Store:
        self.queue = Queue("memory://", Q, visibility_timeout=LEASE_S, clock=clock)
        # Else each handle has another name, and each run would need a model of its own.
        self.queue._worker = "w1"
        return self.queue._edge.store

    def claim(self, worker: str, lease_s: float) -> Lease:
        """By a delivery where it is one of the queue's own."""
        if (worker, lease_s) != ("w1", LEASE_S):
            return super().claim(worker, lease_s)
        lease = self.queue.deliver()
        assert lease is not None
        return lease


class Call(Operation):
    """A call on a queue. One that reclaims does that as a step of its own, before."""

    reclaims = False

    def make(self, stage: Stage, history: History[Model]) -> None:
        def allows(model: Model, answer: Any) -> bool:
            return self.allows(stage, model, answer)

        parts = (_reclaim, allows) if self.reclaims else (allows,)
        history.note(self.shown, lambda: self.do(stage), *parts, jobs=self.jobs)


class Delivery(Call):
    """A call that reclaims first."""

    reclaims = True


def _reclaim(model: Model, _: Any) -> bool:
    _settle_lost(model)
    return True


def _settle_lost(model: Model) -> int:
    past = model.ended([Q]).values()
    for lease in past:
        verdict = DEAD_OF_LOSS if lease["attempt"] >= lease["max_attempts"] else LOST
        model.settle(SimpleNamespace(**lease), verdict)  # type: ignore[arg-type]
    return len(past)


def queue_of(stage: Stage) -> Queue:
    """The queue of a stage that has one."""
    assert isinstance(stage, QueueStage)
    return stage.queue


def on(call: Callable[[Queue], Any]) -> Callable[[Stage], Any]:
    """The plain answer of a call on the stage's queue."""
    return lambda stage: plain(call(queue_of(stage)))


def enqueue(
    shown: str, call: Callable[[Queue], Any], *drafts: Draft, scenes: tuple[Scene, ...] = FREE
) -> Call:
    """An enqueue of one job, or of several if it answers a list."""

    def expect(_: Stage, model: Model) -> Any:
        answers = model.add(Q, drafts)
        return answers[0] if isinstance(answers, list) and "many" not in shown else answers

    method = shown.partition(" ")[0]
    return Call(method, shown, on(call), same(expect), len(drafts), scenes)


def deliver(method: str, call: Callable[[Queue], Any], limit: int) -> Call:
    def do(stage: Stage) -> Any:
        answer = on(call)(stage)
        return answer if isinstance(answer, list) else [] if answer is None else [answer]

    def expect(_: Stage, model: Model) -> Any:
        return model.claim([Q], limit, worker="w1", lease_s=LEASE_S, tasks=None)

    return Delivery(method, f"{method} {limit}", do, same(expect), limit + 1, ALL)


def settle(
    method: str, call: Callable[[Queue, Any], Any], verdict: Callable[[Any], Verdict], *names: str
) -> Call:
    """A call that settles these leases, by name."""

    def do(stage: Stage) -> Any:
        leases = [stage.leases[name] for name in names]
        answer = on(lambda queue: call(queue, leases if method == "ack_many" else leases[0]))(stage)
        return answer if isinstance(answer, list) else [answer]

    def expect(stage: Stage, model: Model) -> Any:
        leases = [stage.leases[name] for name in names]
        return ["ok" if model.settle(lease, verdict(lease)) != "stale" else "stale" for lease in leases]

    scenes = tuple(scene for scene in ALL if all(scene in LEASES[name] for name in names))
    return Call(method, f"{method} {names} {verdict(_ANY)!r}", do, same(expect), len(names), scenes)


_ANY = SimpleNamespace(attempt=1, max_attempts=5)


def _done(_: Any) -> Verdict:
    return Done()


def _failed(lease: Any) -> Verdict:
    return Retry() if lease.attempt < lease.max_attempts else Dead()


def extend(duration_s: float, name: str) -> Call:
    def expect(stage: Stage, model: Model) -> Any:
        (answer,) = model.extend([stage.leases[name]], duration_s, progress=None)
        return "stale" if answer == "stale" else "ok"

    def do(stage: Stage) -> Any:
        return on(lambda queue: queue.extend(stage.leases[name], duration_s))(stage)

    return Call("extend", f"extend {name} {duration_s}", do, same(expect), 0, LEASES[name])


def amend(method: str, act: Act, name: str, scenes: tuple[Scene, ...] = BOTH, **options: Any) -> Call:
    def do(stage: Stage) -> Any:
        changed = getattr(queue_of(stage), method)(stage.ids[name], **options)
        return list(changed.done), {reason.value: list(ids) for reason, ids in changed.refused.items()}

    def expect(stage: Stage, model: Model) -> Any:
        return model.amend([stage.ids[name]], act, queue=Q, force=options.get("force", False))

    return Call(method, f"{method} {name} {options}", do, same(expect), 1, scenes)


def terminal_of(name: str, scenes: tuple[Scene, ...] = BOTH) -> Call:
    words = {"succeeded": "acked"}

    def do(stage: Stage) -> Any:
        terminal = queue_of(stage).terminal_of(stage.ids[name])
        return None if terminal is None else terminal.value

    def expect(stage: Stage, model: Model) -> Any:
        job = model.jobs.get(stage.ids[name])
        state = None if job is None or job["ended_at"] is None else job["state"]
        return words.get(state, state) if state else None

    return Call("terminal_of", f"terminal_of {name}", do, same(expect), 0, scenes)


def pause(*, paused: bool) -> Call:
    def expect(_: Stage, model: Model) -> None:
        model.settings[Q]["paused"] = paused

    method = "pause" if paused else "resume"
    return Call(method, method, on(lambda queue: getattr(queue, method)()), same(expect), 0, ALL)


PLAIN, URGENT = draft(b"plain"), draft(b"urgent", priority=5)
UNIQUE, NAMED = draft(b"unique", unique_key="u1"), draft(b"named", idempotency_key="i1")

CALLS: Sequence[Operation] = (
    enqueue("enqueue plain", lambda q: q.enqueue(b"plain"), PLAIN),
    enqueue("enqueue urgent", lambda q: q.enqueue(b"urgent", 5), URGENT),
    enqueue("enqueue unique", lambda q: q.enqueue(b"unique", unique_key="u1"), UNIQUE),
    enqueue("enqueue named", lambda q: q.enqueue(b"named", idempotency_key="i1"), NAMED),
    enqueue("enqueue delayed", lambda q: q.enqueue(b"x", delay=5), draft(delay_s=5.0)),
    enqueue("try_enqueue plain", lambda q: q.try_enqueue(b"plain"), PLAIN, scenes=ALL),
    enqueue("try_enqueue unique", lambda q: q.try_enqueue(b"unique", unique_key="u1"), UNIQUE, scenes=ALL),
    enqueue("enqueue_many two", lambda q: q.enqueue_many([b"plain", NewJob(b"urgent", 5)]), PLAIN, URGENT),
    enqueue(
        "enqueue_many of one key",
        lambda q: q.enqueue_many([NewJob(b"unique", unique_key="u1")] * 2),
        UNIQUE,
        UNIQUE,
    ),
    deliver("deliver", lambda q: q.deliver(), 1),
    deliver("deliver_many", lambda q: q.deliver_many(2), 2),
    deliver("deliver_many", lambda q: q.deliver_many(9), 9),
    settle("ack", Queue.ack, _done, "mine"),
    settle("ack", Queue.ack, _done, "theirs"),
    settle("ack", Queue.ack, _done, "late"),
    settle("ack", Queue.ack, _done, "second"),
    settle("ack_many", Queue.ack_many, _done, "mine", "theirs"),
    settle("ack_many", Queue.ack_many, _done, "mine", "second"),
    settle("ack_many", Queue.ack_many, _done, "second", "mine"),
    settle("ack_many", Queue.ack_many, _done, "mine", "mine"),
    settle("nack", Queue.nack, _failed, "mine"),
    settle("nack", Queue.nack, _failed, "theirs"),
    settle("nack", lambda q, lease: q.nack(lease, 5), lambda _: Retry(5.0), "mine"),
    settle("release", Queue.release, lambda _: RELEASE, "mine"),
    extend(60.0, "mine"),
    extend(60.0, "late"),
    Call(
        "tick_timeouts",
        "tick_timeouts",
        on(lambda q: q.tick_timeouts()),
        same(lambda _, m: _settle_lost(m)),
        1,
        ALL,
    ),
    amend("cancel", Cancel(), "keyed"),
    amend("cancel", Cancel(), "mine", (*BOTH, calm)),
    amend("cancel", Cancel(), "high", (busy, calm)),
    amend("cancel", Cancel(), "second", (calm,)),
    amend("redrive", Redrive(), "dead", (*BOTH, calm)),
    amend("redrive", Redrive(), "gone"),
    amend("reprioritise", Reprioritise(7), "keyed", priority=7),
    amend("reprioritise", Reprioritise(7), "low", (busy, calm), priority=7),
    amend("reprioritise", Reprioritise(-1), "high", (busy, calm), priority=-1),
    amend("delete", Delete(), "keyed"),
    amend("delete", Delete(), "mine", (*BOTH, calm), force=True),
    amend("delete", Delete(), "high", (busy, calm)),
    terminal_of("mine", (*BOTH, calm)),
    terminal_of("keyed"),
    pause(paused=True),
    pause(paused=False),
    counting(lambda stage: queue_of(stage).counts()),
)
# What workers, keepers and operators do meanwhile. Nobody changes how much room there is, since an enqueue
# might wait for it.
BESIDE = tuple(op for op in OPERATIONS if op.method not in {"configure", "declare"})
QUEUE_ENDING = (deliver("deliver_many", lambda q: q.deliver_many(1), 1), *ENDING)
