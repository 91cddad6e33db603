"""What workers may do, in time or late."""

from __future__ import annotations

from collections.abc import Sequence

from tests.explore.actions import Action, Spawn
from tests.explore.short import Short
from tests.explore.step import Claimed, End, Extended, Step
from tests.explore.world import HOLDS, LEASE_S, QUEUE, QUEUES, UNSURE, UNSURE_WON, Grip, World
from ulak.core import flows, rules
from ulak.core.job import Cancelled, Cause, Dead, Done, Hold, Job, Lease, Outcome, Retry, State, Verdict
from ulak.core.store import Settlement, Tasks
from ulak.storage.drive import run

ALL_TASKS: Tasks = frozenset({None, "t", "u"})
NO_TASKS: Tasks = frozenset({None})


class WorkerAction(Action):
    """What one worker does with one of its deliveries."""

    def __init__(self, verb: str, worker: int, slot: int = 0) -> None:
        self.worker, self.slot = worker, slot
        self.name = f"worker {worker} {verb}" + (f" (its delivery {slot + 1})" if slot else "")

    def is_possible(self, world: World) -> bool:
        hand = world.hands[self.worker]
        return hand is not None and len(hand) > self.slot and hand[self.slot].knows == HOLDS

    def grip(self, world: World) -> Grip:
        """The delivery."""
        hand = world.hands[self.worker]
        assert hand is not None
        return hand[self.slot]


def is_first_idle(world: World, worker: int) -> bool:
    """Whether it is idle, and no worker of the same kind and lower number is: that one would do the same.

    With shutdowns workers differ by what still bears their names.
    """
    if world.scope.shutdowns:
        return world.hands[worker] == ()
    first = 0 if worker < world.scope.strangers else world.scope.strangers
    return world.hands[worker] == () and () not in world.hands[first:worker]


class Claim(WorkerAction):
    """A worker with a free hand claims."""

    helps = True

    def __init__(self, world: World, worker: int, limit: int, *, tasks: Tasks | None) -> None:
        verb = "claims" if limit == 1 else f"claims up to {limit}"
        super().__init__(verb if tasks or not world.scope.strangers else f"{verb} of any task", worker)
        self._limit, self._tasks = limit, tasks
        self._name = world.names[worker]

    def is_possible(self, world: World) -> bool:
        hand = world.hands[self.worker]
        if not hand:
            return is_first_idle(world, self.worker)
        return len(hand) + self._limit <= world.scope.grasp

    def run(self, world: World) -> Step:
        leases = self.claim(world)
        take(world, self.worker, leases)
        return Step(claimed=Claimed(self._limit, self._tasks, leases))

    def claim(self, world: World) -> list[Lease]:
        """Claim by the store's operation."""
        return world.store.claim(QUEUES, self._limit, worker=self._name, lease_s=LEASE_S, tasks=self._tasks)


class ClaimShort(Claim):
    """A worker of a pool claims: by the short way if it goes."""

    def __init__(self, world: World, worker: int, tasks: Tasks | None, short: Short) -> None:
        super().__init__(world, worker, 1, tasks=tasks)
        self.name += ", short"
        self._short = short

    def run(self, world: World) -> Step:
        leases = self._short.take(self.worker, lambda: self.claim(world))
        take(world, self.worker, leases, short=self._short)
        return Step(claimed=Claimed(1, self._tasks, leases))


class Deliver(Claim):
    """A worker claims as `deliver()` does: it reclaims what has ended on its way. short: by the short way."""

    def __init__(self, world: World, worker: int, limit: int, short: Short | None) -> None:
        super().__init__(world, worker, limit, tasks=None)
        verb = "delivers itself" + (f" up to {limit}" if limit > 1 else "") + (", short" if short else "")
        self.name = f"worker {worker} {verb}"
        self._short = short

    def run(self, world: World) -> Step:
        now = world.clock.interval()
        leased = [job for job in world.seen.jobs if job is not None and job.state is State.LEASED]
        ends = [End(job, "lost") for job in leased if job.lease_end <= now]
        world.u = 0.0
        if self._short is None:
            leases = self._general(world, self._limit)
        elif self._limit == 1:
            leases = self._short.take(self.worker, lambda: self._general(world, 1))
        else:
            leases = self._short.take_many(self.worker, self._limit, lambda left: self._general(world, left))
        take(world, self.worker, leases, short=self._short)
        return Step(ends=ends, claimed=Claimed(self._limit, None, leases))

    def _general(self, world: World, limit: int) -> list[Lease]:
        flow = flows.deliver(world.local, QUEUE, limit, worker=self._name, lease_s=LEASE_S, timeout_s=0)
        return run(world.edge, flow)


def take(world: World, worker: int, leases: Sequence[Lease], *, short: Short | None = None) -> None:
    """The worker has these deliveries now."""
    grips = [Grip(lease, is_short=short is not None and short.took(worker, lease)) for lease in leases]
    world.hold(worker, (*(world.hands[worker] or ()), *grips))
    for lease in leases:
        world.learn(lease.id, handed=1, attempts=1)


class Settle(WorkerAction):
    """A worker settles its delivery, in time or late, and gets the answer.

    is_stranger: it knows the tasks of NO_TASKS alone, and holds jobs of any other.
    """

    def __init__(
        self, how: str, verdict: Verdict, worker: int, slot: int, *, is_stranger: bool = False
    ) -> None:
        super().__init__(_VERBS[how], worker, slot)
        self._how, self._verdict, self._is_stranger = how, verdict, is_stranger
        self.helps = how in {"ack", "hold"}

    def is_possible(self, world: World) -> bool:
        if not super().is_possible(world):
            return False
        lease = self.grip(world).lease
        if self._is_stranger:
            return (lease.task in NO_TASKS) is not (self._how == "hold")
        return self._how not in {"back", "refuse"} or may_give_back(world, lease)

    def run(self, world: World) -> Step:
        lease = self.grip(world).lease
        (answer,) = run(world.edge, flows.settle(world.local, [(lease, self._verdict)]))
        world.drop(self.worker, self.slot)
        learn_end(world, lease, self._how, answer)
        return Step(ends=(End(lease, self._how, answer, getattr(self._verdict, "delay_s", None)),))


_VERBS = {
    "ack": "acks",
    "back": "gives back",
    "hold": "does not know the task of",
    "refuse": "refuses the payload of",
    "reject": "rejects",
    "give up": "cancels from inside",
}


def may_give_back(world: World, lease: Lease) -> bool:
    """Whether the job may be given back once more; a stale delivery always may, to no effect."""
    return world.facts[lease.id - 1].refunds < world.scope.refunds


def learn_end(world: World, lease: Lease | Job, how: str, answer: object) -> None:
    """What the answer to a settlement teaches."""
    if answer is Outcome.STALE:
        return
    if how == "ack":
        world.learn(lease.id, acks=1)
    elif how in {"back", "refuse"}:
        world.learn(lease.id, attempts=-1, refunds=1)
    elif how == "hold":
        world.learn(lease.id, attempts=-1)


class AckAllShort(WorkerAction):
    """A worker acks all that it has in one call, the first one twice, by the short way as far as it goes."""

    def __init__(self, short: Short, worker: int) -> None:
        super().__init__("acks all at once, the first one twice, short", worker)
        self._short = short

    def is_possible(self, world: World) -> bool:
        hand = world.hands[self.worker]
        return bool(hand) and all(grip.knows == HOLDS for grip in hand or ())

    def run(self, world: World) -> Step:
        hand = world.hands[self.worker] or ()
        leases = [grip.lease for grip in (*hand, hand[0])]
        answers = self._short.finish_many(self.worker, leases, lambda left: ack(world, left))
        world.hold(self.worker, ())
        ends = [End(lease, "ack", answer) for lease, answer in zip(leases, answers, strict=True)]
        for end in ends:
            learn_end(world, end.lease, "ack", end.answer)
        return Step(ends=ends)


class Nack(WorkerAction):
    """A worker's attempt failed: by the job's own policy, or with a delay.

    short: by the short way, if it goes.
    """

    def __init__(
        self, worker: int, slot: int, delay_s: float | None, u: float, short: Short | None = None
    ) -> None:
        how = f"nacks, delay {delay_s:g} s" if delay_s is not None else f"nacks, draw {u:g}" if u else "nacks"
        super().__init__(how + (", short" if short is not None else ""), worker, slot)
        self._delay_s, self._u, self._short = delay_s, u, short

    def run(self, world: World) -> Step:
        lease = self.grip(world).lease
        world.u = self._u
        answer = self._fail_short(lease)
        if answer is None:
            answer = run(world.edge, flows.nack(world.local, lease, delay_s=self._delay_s, error=None))
        world.drop(self.worker, self.slot)
        return Step(ends=(End(lease, "fail", answer, self._delay_s),), u=self._u)

    def _fail_short(self, lease: Lease) -> Outcome | None:
        verdict = rules.failure(lease, Cause.NACK, draw=self._u, delay_s=self._delay_s)
        if self._short is None or not isinstance(verdict, Retry):
            return None
        return None if self._short.fail(self.worker, lease, verdict) is None else Outcome.OK


def ack(world: World, leases: Sequence[Lease]) -> list[Outcome]:
    """Ack by the flow that `ack` and `ack_many` run."""
    return run(world.edge, flows.settle(world.local, [(lease, Done()) for lease in leases]))


class Ack(WorkerAction):
    """A worker acks, in time or late.

    short: by the short way, what it took by that. is_heard: it gets the answer. is_again: it never heard the
    answer to its first ack; whatever that was, this one must be STALE.
    """

    def __init__(
        self,
        worker: int,
        slot: int,
        *,
        short: Short | None = None,
        is_heard: bool = True,
        is_again: bool = False,
    ) -> None:
        verb = ("acks again" if is_again else "acks") + ("" if is_heard else ", and the answer is lost")
        super().__init__(verb + (", short" if short is not None else ""), worker, slot)
        self._short, self._is_heard, self._is_again = short, is_heard, is_again
        self.helps = is_heard

    def is_possible(self, world: World) -> bool:
        hand = world.hands[self.worker]
        if hand is None or len(hand) <= self.slot:
            return False
        grip = hand[self.slot]
        is_way = grip.is_short if self._short is not None else world.scope.general or not grip.is_short
        return is_way and (grip.knows != HOLDS) is self._is_again

    def run(self, world: World) -> Step:
        grip = self.grip(world)
        if self._short is None:
            (answer,) = ack(world, [grip.lease])
        else:
            answer = self._short.finish(self.worker, grip.lease, lambda lease: ack(world, [lease])[0])
        world.drop(self.worker, self.slot)
        if not self._is_heard:
            knows = UNSURE if answer is Outcome.STALE else UNSURE_WON
            world.hold(self.worker, (*(world.hands[self.worker] or ()), grip._replace(knows=knows)))
        learn_end(world, grip.lease, "ack", answer)
        ends = (End(grip.lease, "ack", answer),)
        return Step(ends=ends, knows_won=grip.knows == UNSURE_WON) if self._is_again else Step(ends=ends)


class Extend(WorkerAction):
    """A worker asks for more time, in time or late; or for less, which must not shorten the lease."""

    def __init__(self, worker: int, slot: int, *, is_shorter: bool = False) -> None:
        super().__init__("extends" if not is_shorter else "extends, by less than it has", worker, slot)
        self._is_shorter = is_shorter

    def is_possible(self, world: World) -> bool:
        if not super().is_possible(world):
            return False
        grip = self.grip(world)
        if not self._is_shorter:
            return grip.extends < world.scope.extends
        job = world.seen.jobs[grip.lease.id - 1]
        return job is not None and job.lease_end - world.clock.interval() >= LEASE_S

    def run(self, world: World) -> Step:
        grip = self.grip(world)
        lease, extends = grip.lease, grip.extends
        lease_s = LEASE_S / 2 if self._is_shorter else LEASE_S * (extends + 2)
        answer = run(world.edge, flows.extend(world.local, lease, lease_s))
        if answer is Outcome.OK and not self._is_shorter:
            hand = list(world.hands[self.worker] or ())
            hand[self.slot] = grip._replace(extends=extends + 1)
            world.hold(self.worker, tuple(hand))
        return Step(extended=Extended(lease, lease_s, answer))


class Crash(WorkerAction):
    """A worker dies: its leases stay, its memory of them is gone. A new one takes its place and its name."""

    def __init__(self, worker: int) -> None:
        super().__init__("crashes", worker)

    def is_possible(self, world: World) -> bool:
        return bool(world.hands[self.worker])

    def run(self, world: World) -> Step:
        world.hold(self.worker, ())
        return Step()


class Turn(WorkerAction):
    """A worker acks and claims in one round trip."""

    helps = True

    def __init__(self, world: World, worker: int) -> None:
        super().__init__("acks and claims in one step", worker)
        self._name = world.names[worker]

    def run(self, world: World) -> Step:
        lease = self.grip(world).lease
        # The same settlement twice in one call: the first one wins.
        settlements: list[Settlement] = [(lease, Done()), (lease, rules.give_back())]
        settled, leases = world.store.turn(
            settlements, QUEUES, 1, worker=self._name, lease_s=LEASE_S, tasks=None
        )
        world.drop(self.worker, self.slot)
        ends = (End(lease, "ack", settled[0]), End(lease, "back", settled[1], 0.0))
        for end in ends:
            learn_end(world, lease, end.how, end.answer)
        take(world, self.worker, leases)
        return Step(ends=ends, claimed=Claimed(1, None, leases), is_direct=True)


class Shutdown(WorkerAction):
    """A worker's process ends normally: it gives back every lease that bears its name."""

    def __init__(self, world: World, worker: int) -> None:
        super().__init__("shuts down, and another takes its name", worker)
        self._name = world.names[worker]

    def is_possible(self, world: World) -> bool:
        jobs = [job for job in world.seen.jobs if job is not None and job.worker == self._name]
        leased = [job for job in jobs if job.state is State.LEASED]
        return bool(leased) and all(world.facts[job.id - 1].refunds < world.scope.refunds for job in leased)

    def run(self, world: World) -> Step:
        jobs = [job for job in world.seen.jobs if job is not None and job.worker == self._name]
        ends = [End(job, "back", None, 0.0) for job in jobs if job.state is State.LEASED]
        given = run(world.edge, flows.release_all(QUEUE, self._name, Cause.SHUTDOWN))
        for end in ends:
            learn_end(world, end.lease, "back", Outcome.OK)
        world.hold(self.worker, ())
        return Step(ends=ends, reclaimed=given)


class Leave(WorkerAction):
    """A worker leaves, if it may: every producer has finished, and nothing is left that could run."""

    helps = True

    def __init__(self, worker: int) -> None:
        super().__init__("asks whether it may leave", worker)

    def is_possible(self, world: World) -> bool:
        return is_first_idle(world, self.worker)

    def run(self, world: World) -> Step:
        may_leave = world.local.finished and run(world.edge, flows.is_drained(QUEUES))
        if may_leave:
            world.hold(self.worker, None)
        return Step(leaver=self.worker, may_leave=may_leave)


def of_workers(world: World, short: Short | None) -> list[Action]:
    """Every action of a worker that the scope allows."""
    scope = world.scope
    actions: list[Action] = []
    for worker in range(scope.workers):
        actions += _claims(world, short, worker)
        for slot in range(scope.grasp):
            actions += _settles(world, short, worker, slot)
        actions += [AckAllShort(short, worker)] if short is not None and scope.grasp > 1 else []
        actions += [Crash(worker)] if scope.crashes else []
        actions += [Turn(world, worker)] if scope.turns else []
        actions += [Shutdown(world, worker)] if scope.shutdowns else []
        actions += [Spawn(worker)] if scope.spawns else []
        actions += [Leave(worker)] if scope.producers is not None else []
    return actions


def _claims(world: World, short: Short | None, worker: int) -> list[Action]:
    scope = world.scope
    actions: list[Action] = []
    known = NO_TASKS if worker < scope.strangers else ALL_TASKS
    tasks = known if scope.strangers else None
    for limit in range(1, scope.grasp + 1):
        actions += [Claim(world, worker, limit, tasks=tasks)] if scope.general else []
        # Whoever asks for anything must be able to run it.
        if scope.strangers <= worker:
            actions += [Deliver(world, worker, limit, None)] if scope.clocked and scope.general else []
            actions += [Deliver(world, worker, limit, short)] if short is not None else []
    actions += [ClaimShort(world, worker, tasks, short)] if short is not None else []
    actions += [Claim(world, worker, 1, tasks=None)] if 0 < scope.strangers <= worker else []
    return actions


def _settles(world: World, short: Short | None, worker: int, slot: int) -> list[Action]:
    scope = world.scope
    actions: list[Action] = []
    if scope.extends:
        actions += [Extend(worker, slot), Extend(worker, slot, is_shorter=True)]
    if worker < scope.strangers:
        verdicts: list[tuple[str, Verdict]] = [("hold", Hold())]
        verdicts += [("ack", Done())] if None in scope.tasks[: scope.jobs] else []
        return actions + [Settle(how, verdict, worker, slot, is_stranger=True) for how, verdict in verdicts]
    for way in (None,) if short is None else (None, short):
        actions += [Ack(worker, slot, short=way)]
        if scope.lost_replies:
            actions += [Ack(worker, slot, short=way, is_heard=False)]
            actions += [Ack(worker, slot, short=way, is_again=True)]
    actions += [Nack(worker, slot, None, u) for u in scope.draws or (0.0,)]
    actions += [Nack(worker, slot, delay_s, 0.0) for delay_s in scope.delays]
    if short is not None:
        actions += [Nack(worker, slot, delay_s, 0.0, short) for delay_s in scope.delays]
    if scope.refunds:
        actions += [Settle("back", rules.give_back(), worker, slot)]
    if scope.refuses:
        actions += [Settle("refuse", Hold(cause=Cause.UNDECODABLE), worker, slot)]
    if scope.snoozes:
        actions += [Settle("back", rules.give_back(Cause.SNOOZE, delay_s=1.0), worker, slot)]
    if scope.rejects:
        actions += [Settle("reject", Dead(cause=Cause.REJECT), worker, slot)]
        actions += [Settle("give up", Cancelled(), worker, slot)]
    return actions
