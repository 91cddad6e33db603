"""Who uses the queues in a simulation, beside pools: each is the steps of one actor."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.sim.home import Home
from tests.sim.jobs import CONNOISSEUR, STRANGE, nap
from tests.sim.pool import SimPool
from tests.sim.short import ShortWays, is_plain
from tests.sim.world import Actor, Steps
from ulak.core import flows, rules
from ulak.core.flows import Handling, Sleep, ask
from ulak.core.job import FULL, Cancelled, Cause, Dead, Done, Draft, Lease, State, Verdict
from ulak.core.store import (
    Cancel,
    Change,
    Delete,
    Edit,
    Filter,
    Redrive,
    Reprioritise,
    Store,
)
from ulak.errors import Closed, QueueFull, StorageUnavailable, UlakError
from ulak.local import Producer, View

if TYPE_CHECKING:
    from tests.sim.stage import Stage

REPEATS = 4


def producer(stage: Stage, home: Home, queue: str, *, jobs: int, registered: Producer | None) -> Steps:
    """Enqueues so many jobs, now and then several at once."""
    # Registered before anything runs, so that a queue which is finished stays so.
    with registered or contextlib.nullcontext():
        yield from _produce(stage, home, queue, jobs, stage.rng)


def _produce(stage: Stage, home: Home, queue: str, jobs: int, rng: random.Random) -> Steps:
    actor = stage.world.current
    assert actor is not None
    most = stage.capacities[queue] or 3
    while jobs > 0 and not stage.is_calm:
        yield from nap(rng.choice((0.0, 0.0, 0.05, 0.5)))
        drafts = [stage.maker.draft() for _ in range(min(rng.choice((1, 1, 1, 2, 3)), most))]
        jobs -= len(drafts)
        for _ in range(REPEATS):
            is_done = yield from _enqueue(stage, actor, queue, drafts, rng)
            if is_done:
                break
            yield from nap(0.3)


def _enqueue(stage: Stage, actor: Actor, queue: str, drafts: Sequence[Draft], rng: random.Random) -> Steps:
    """Enqueue once; whether that is all that can be done."""
    local, seen, start = actor.home.local(queue), stage.seen, stage.watch.started()
    if (short := _short_of(stage, actor, queue)) is not None and len(drafts) == 1 and is_plain(drafts[0]):
        job_id = short.enqueue(drafts[0])
        if job_id is not None:
            seen["went the short way"] += 1
            stage.known_ids.append(job_id)
            return True
    actor.doing = "enqueue", queue, len(drafts)
    timeout_s: float | None = 0.0
    try:
        if rng.random() < 0.4:
            answer = yield from flows.try_enqueue(local, queue, drafts, handler=Handling.NOTHING)
        else:
            timeout_s = rng.choice((None, None, 0.0, 0.4, 2.0))
            answer = yield from flows.enqueue(
                local, queue, drafts, timeout_s=timeout_s, handler=Handling.NOTHING
            )
    except StorageUnavailable:
        # Only under its own names may an enqueue be repeated whose outcome is unknown.
        return any(draft.idempotency_key is None for draft in drafts)
    except Closed:
        seen["closed"] += 1
        return True
    except QueueFull:
        seen["full in the end"] += 1
        stage.watch.took(f"an enqueue of {actor.name}", start, timeout_s)
        return False
    except UlakError:
        return False
    finally:
        actor.doing = ()
    stage.watch.took(f"an enqueue of {actor.name}", start, timeout_s)
    if answer is FULL:
        return False
    stage.known_ids += [int(job_id) for job_id in answer]
    return True


def _short_of(stage: Stage, actor: Actor, queue: str) -> ShortWays | None:
    """The short ways of a producer, where there are any."""
    if not stage.has_short_ways:
        return None
    view = View(actor.home.local(queue))
    return ShortWays(stage, view, queue, worker=actor.name, lease_s=1.0)


def consumer(stage: Stage, home: Home, queue: str) -> Steps:
    """Takes jobs without a pool, keeps them for a while, and settles them in one way or another."""
    rng, actor = stage.rng, stage.world.current
    assert actor is not None
    view = View(home.local(queue))
    stage.views.append((home, view))
    lease_s = rng.choice((0.4, 1.0, 3.0))
    short = (
        ShortWays(stage, view, queue, worker=actor.name, lease_s=lease_s) if stage.has_short_ways else None
    )
    while not stage.is_calm:
        if short is not None and (lease := short.deliver()) is not None:
            stage.seen["went the short way"] += 1
            yield from _treat(stage, view, lease, rng, short)
            continue
        actor.doing = "deliver", queue
        start, timeout_s = stage.watch.started(), rng.choice((0.0, 0.3, 2.0, None))
        limit = rng.choice((1, 1, 1, 3))
        try:
            leases = yield from flows.deliver(
                view, queue, limit, worker=actor.name, lease_s=lease_s, timeout_s=timeout_s
            )
        except Closed:
            break
        except UlakError:
            leases = []
        else:
            stage.watch.took(f"a deliver of {actor.name}", start, timeout_s)
            if not leases and timeout_s is None and not view.finished:
                stage.world.problem(f"{actor.name} was sent away before the producers had finished")
        finally:
            actor.doing = ()
        for lease in leases:
            yield from _treat(stage, view, lease, rng, short)
        yield from nap(rng.choice((0.0, 0.1, 0.5)))
    # As closing a handle does.
    view.close()
    try:
        yield from flows.release_all(queue, actor.name)
    except UlakError:
        stage.world.note(f"{actor.name}: leaves its leases to their deadline")


def _treat(stage: Stage, view: View, lease: Lease, rng: random.Random, short: ShortWays | None) -> Steps:
    """Work on a delivery, and settle it: well, badly, late, twice, or not at all."""
    script = stage.maker.scripts[lease.body.decode()]
    yield from nap(script.run_s)
    if rng.random() < 0.3:
        lease_s = rng.choice((0.1, lease.lease_s, 2 * lease.lease_s))
        yield from _call(lambda: flows.extend(view, lease, lease_s))
        yield from nap(rng.choice((0.0, 0.5)))
    if rng.random() < 0.15:
        # Just when its deadline has passed, so that a reclaim may be under way.
        left_s = max(0.0, lease.lease_end - stage.world.clock.now)
        yield from nap(left_s * rng.choice((1.0, 1.0, 1.5)) + rng.uniform(0.0, 0.08))
        yield from _call(lambda: flows.extend(view, lease, lease.lease_s))
    if rng.random() < 0.07:
        return
    for _ in range(2 if rng.random() < 0.1 else 1):
        if script.kind == "always fails" or rng.random() < 0.2:
            delay_s = rng.choice((None, 0.0, 0.5))
            yield from _call(lambda: flows.nack(view, lease, delay_s=delay_s, error=None))  # noqa: B023
        else:
            verdict = _verdict(rng)
            if verdict == Done() and short is not None and short.ack(lease) is not None:
                continue
            yield from _call(lambda: flows.settle(view, [(lease, verdict)]))  # noqa: B023


def _verdict(rng: random.Random) -> Verdict:
    draw = rng.random()
    if draw < 0.8:
        return Done()
    if draw < 0.9:
        return rules.give_back()
    return Cancelled() if draw < 0.95 else Dead(cause=Cause.REJECT)


def _call(steps: Callable[[], Steps]) -> Steps:
    """Ask until there is an answer, a few times; settling the same lease again is safe."""
    for _ in range(REPEATS):
        try:
            yield from steps()
        except UlakError:
            yield from nap(0.2)
        else:
            return


def reaper(stage: Stage, home: Home, queue: str) -> Steps:
    """Reclaims ended leases beside all others, slowly at times; now and then takes everybody for dead."""
    rng = stage.rng
    while not stage.is_calm:
        yield from nap(rng.choice((0.01, 0.03, 0.1, 1.0)))
        steps = flows.crash(queue) if rng.random() < 0.15 else flows.reclaim([queue])
        try:
            yield from _dawdling(steps) if rng.random() < 0.5 else steps
        except UlakError:
            continue


def _dawdling(steps: Steps) -> Steps:
    """The same steps, with a pause before each."""
    answer = None
    with contextlib.closing(steps):
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration:
                return
            yield from nap(0.04)
            answer = yield asked


def operator(stage: Stage, home: Home, queue: str) -> Steps:
    """Cancels, redrives, edits, deletes, pauses."""
    rng = stage.rng
    while not stage.is_calm:
        yield from nap(rng.choice((0.2, 1.0, 3.0)))
        try:
            yield from _operate(stage, queue, rng)
        except UlakError:
            continue


def _operate(stage: Stage, queue: str, rng: random.Random) -> Steps:
    ids = [rng.choice(stage.known_ids)] if stage.known_ids else [1]
    match rng.choice(("cancel", "redrive", "reprioritise", "edit", "delete", "pause", "room", "redrive all")):
        case "cancel":
            yield from ask(Store.amend, ids, Cancel(), queue=queue)
        case "redrive":
            yield from ask(Store.amend, ids, Redrive(), queue=queue)
        case "redrive all":
            states = frozenset({State.DEAD, State.CANCELLED})
            yield from ask(Store.amend, Filter(queue=queue, states=states), Redrive(), queue=queue)
        case "reprioritise":
            act = Reprioritise(rng.randint(-5, 5))
            yield from ask(Store.amend, ids, act, queue=queue, force=rng.random() < 0.5)
        case "edit":
            draft = stage.maker.draft(is_child=True)
            yield from ask(Store.amend, ids, Edit(draft.payload, draft.codec), queue=queue)
        case "delete":
            yield from ask(Store.amend, ids, Delete(), queue=queue, force=rng.random() < 0.5)
        case "room":
            # Lowering a capacity removes nothing, so the queue may then be more than full.
            most = stage.capacities[queue]
            room = None if most is None else rng.randint(1, most)
            yield from ask(Store.configure, queue, Change(capacity=room))
        case "pause":
            yield from ask(Store.configure, queue, Change(paused=True))
            yield from nap(rng.choice((0.2, 1.0)))
            yield from ask(Store.configure, queue, Change(paused=False))


def observer(stage: Stage, home: Home, queue: str) -> Steps:
    """Looks at jobs and numbers."""
    rng = stage.rng
    while not stage.is_calm:
        yield from nap(rng.choice((0.1, 0.5)))
        try:
            if rng.random() < 0.5 and stage.known_ids:
                count = min(3, len(stage.known_ids))
                yield from ask(Store.get, rng.sample(stage.known_ids, count))
            else:
                yield from ask(Store.counts, [queue])
        except UlakError:
            continue


def manager(stage: Stage, home: Home, queue: str, *, rounds: int) -> Steps:
    """Starts a pool, lets it work, ends it in some way; then perhaps another one."""
    rng = stage.rng
    for _ in range(rounds):
        pool = stage.pool(home, queue)
        yield from start(pool)
        if rng.random() < 0.3:
            stage.world.spawn(f"{pool.worker}.impatient", "manager", home, _impatient(stage, pool, rng))
        how = rng.choice(("drain", "drain for", "shutdown", "shutdown", "stay"))
        if how == "stay":
            yield Sleep(stage.calm, None)
        else:
            yield Sleep(stage.calm, rng.uniform(0.2, 6.0))
        if stage.is_calm or how in ("drain", "stay"):
            yield from pool.end("drain", None, rng.choice((0.5, 30.0)))
        elif how == "drain for":
            yield from pool.end("drain", rng.choice((0.0, 0.5, 3.0)), 1.0)
        else:
            yield from pool.end("shutdown", None, rng.choice((0.0, 0.0, 0.2, 1.0)))
        if stage.is_calm:
            return
        yield from nap(rng.choice((0.0, 0.5)))


def start(pool: SimPool) -> Steps:
    """Start a pool, at the first time that the store is there."""
    while True:
        try:
            yield from pool.start()
        except UlakError:
            yield from nap(0.3)
        else:
            return


def _impatient(stage: Stage, pool: SimPool, rng: random.Random) -> Steps:
    """Ends a pool that another ends too."""
    yield Sleep(stage.calm, rng.uniform(0.5, 8.0))
    yield from pool.end("shutdown", None, rng.choice((0.0, 0.5)))


def taker_of_strange(stage: Stage, home: Home, queue: str) -> Steps:
    """A worker that knows the tasks which no pool here knows; at the end it finishes all of them."""
    tasks = frozenset({STRANGE})
    while True:
        # Without a claim where nothing is held: that would do for others what they must do themselves.
        leases: list[Lease] = []
        if stage.bare.counts([queue])[queue].held:
            leases = yield from ask(Store.claim, [queue], 1, worker=CONNOISSEUR, lease_s=5.0, tasks=tasks)
        if leases:
            yield from ask(Store.settle, [(lease, Done()) for lease in leases])
        elif stage.is_over:
            return
        else:
            yield Sleep(stage.over, 0.5)
