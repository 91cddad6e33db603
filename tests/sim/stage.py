"""One simulation: who is there, what goes wrong, how it comes to rest, and what is wrong with its history."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tests.sim import people, service
from tests.sim.faults import DEPLOYS, PROFILES, Faults
from tests.sim.front import Front
from tests.sim.home import Home, SimSignal
from tests.sim.jobs import Maker
from tests.sim.pool import SimPool
from tests.sim.trace import told
from tests.sim.trouble import Trouble
from tests.sim.watch import Watch
from tests.sim.world import Actor, Killed, Steps, World
from tests.support.history import Verdict, encoded, judge, stored_lines
from tests.support.history.lines import Line, Stored
from ulak.core.backoff import Backoff
from ulak.core.flows import Call, Sleep
from ulak.core.job import OPEN
from ulak.core.store import Change, Filter, Settings
from ulak.local import Producer, View
from ulak.schedules import SCHEDULE_HEADER, TICK_HEADER, moment
from ulak.storage.memory import MemoryStore

STEPS = 500
"""How many asks are answered while things go wrong; as many more as it takes come after."""

REST_STEPS_MAX = 10_000
JOB_S_MAX = 20.0
"""How long one attempt of a job may take, with its backoff and the end of a lost lease."""

LEAVE_S = 15.0
"""How long handlers that were left behind may still run in the end."""

POLL_S = 0.25
LAG_S = 0.02
DEPLOY_S = 5.0
RUNS_ON_S = 0.3
"""How long a task of an event loop may run on after its job was handed back."""

STRATEGIES = ("uniform", "sticky", "ranks")
PROFILE_WEIGHTS = {
    "calm": 12,
    "stalls": 12,
    "errors": 12,
    "clock": 6,
    "crashes": 10,
    "all": 14,
    "deploys": 20,
    "deploys under fire": 14,
}
PACES_S = (0.0004, 0.004, 0.02)
NO_POLL = ("calm", "stalls", "clock")
BUSY = ("producer", "consumer", "manager", "supervisor", "reaper", "operator", "observer", "wire")

Break = Callable[[Any], Any]


class Result(msgspec.Struct):
    """What came of one seed.

    problems: all, in words. struck: faults that struck. seen: what happened, to see that it did. done, told:
    how what the store did is judged, and what callers were told; history: both as bytes.
    """

    seed: int
    profile: str
    steps: int
    problems: list[str]
    struck: Counter[str]
    seen: Counter[str]
    done: Verdict
    told: Verdict
    history: bytes
    trace: list[str]


class Stage:
    """Sets a simulation up from its seed, and runs it."""

    def __init__(
        self, seed: int, *, profile: str | None = None, breaks: Break | None = None, traced: bool
    ) -> None:
        plan = random.Random(f"plan {seed}")
        self.seed = seed
        drawn = plan.choices(list(PROFILE_WEIGHTS), list(PROFILE_WEIGHTS.values()))[0]
        self.profile = profile or drawn
        self.rng = random.Random(f"people {seed}")
        self.has_processes = self.profile in DEPLOYS
        self.maker = Maker(random.Random(f"jobs {seed}"), for_processes=self.has_processes)
        self.calm, self.over = SimSignal(), SimSignal()
        self.is_calm = self.is_over = False
        self.known_ids: list[int] = []
        self.seen: Counter[str] = Counter()
        self.views: list[tuple[Home, View]] = []
        self.pools: list[SimPool] = []
        self.keepers: dict[str, Actor] = {}
        self.processes: dict[str, service.Process] = {}
        self.capacities: dict[str, int | None] = {}
        self._plan = plan
        self._breaks = breaks
        self._changed = SimSignal()
        faults = Faults(random.Random(f"faults {seed}"), PROFILES[self.profile])
        self.world = World(
            seed,
            faults,
            self._build,
            strategy=plan.choice(STRATEGIES),
            pace_s=plan.choice(PACES_S),
            traced=traced,
        )
        if self.profile == "deploys":
            self.world.lag_s = plan.choice((0.0, LAG_S, LAG_S))
        self.watch = Watch(self)
        self.world.on_call = self.watch.called
        self.world.on_jump = self.watch.jumps
        self.world.on_look = self.watch.looks_around
        self.world.on_over = self._note_over
        self.trouble = Trouble(self)
        self.world.on_disturb = self.trouble.strike
        self.has_several_homes = self.profile in ("crashes", *DEPLOYS) or (
            self.profile == "all" and plan.random() < 0.7
        )
        self.has_short_ways = self.profile in NO_POLL and breaks is None
        # Where every wake-up arrives, nobody looks by himself.
        self.poll_s = None if self.profile in NO_POLL else POLL_S
        self._people()

    @property
    def queues(self) -> list[str]:
        return list(self.capacities)

    def _build(self, world: World) -> Front:
        self.bare = MemoryStore(world.clock)
        return Front(self.bare if self._breaks is None else self._breaks(self.bare), world)

    def write(self, name: str, args: Any, kwargs: Any, answer: Any) -> None:
        """Write down a call that was made directly, as what was told and as what was done."""
        who, front = self.world.who(), self.world.store
        self.world.note(f"{who}: the short way, {told(Call(name, args, kwargs), answer)}")
        for pen, more in ((self.world.pen, {}), (front.pen, front.known_of(name, args, answer))):
            pen.told(who, pen.asked(who, name, args, kwargs), name, answer, **more)

    # Who is there

    def _people(self) -> None:
        plan = self._plan
        for number in range(plan.choice((1, 1, 2))):
            queue = f"q{number + 1}"
            self.capacities[queue] = plan.choice((None, 1, 2, 8))
            backoff = plan.choice((None, Backoff(base=0.05, cap=1.0), Backoff(base=0.5, cap=4.0)))
            self.bare.declare(queue, Settings(capacity=self.capacities[queue], backoff=backoff))
        homes = [self.new_home() for _ in range(plan.choice((2, 3)) if self.has_several_homes else 1)]
        self.schedules = service.schedules_of(self, plan) if self.has_processes else []
        for _ in range(plan.choice((2, 3)) if self.has_processes else 0):
            self._spawn("supervisor", self.world.net, self.queues[0], service.supervisor, rounds=12)
        for queue in self.queues:
            for home in () if self.has_processes else (homes * 2)[: plan.choice((1, 2))]:
                self._spawn("manager", home, queue, people.manager, rounds=3)
            for _ in range(plan.choice((1, 2, 3))):
                home, jobs = plan.choice(homes), plan.randint(3, 14)
                registered = Producer(home.local(queue)) if plan.random() < 0.85 else None
                self._spawn("producer", home, queue, people.producer, jobs=jobs, registered=registered)
            for _ in range(plan.choice((0, 1, 2))):
                self._spawn("consumer", plan.choice(homes), queue, people.consumer)
            for steps in (people.reaper, people.operator, people.observer):
                if plan.random() < 0.5:
                    self._spawn(steps.__name__, plan.choice(homes), queue, steps)

    def _spawn(self, role: str, home: Home, queue: str, steps: Callable[..., Steps], **options: Any) -> Actor:
        name = f"{home.name}.{queue}.{role}{len(self.world.everybody)}"
        actor = self.world.spawn(name, role, home, steps(self, home, queue, **options))
        actor.is_task = self.rng.random() < 0.3
        return actor

    def new_home(self) -> Home:
        """A new process."""
        name = f"home{len(self.world.homes)}"
        return self.world.home(name, has_own_lines=self.has_several_homes, poll_s=self.poll_s)

    def work_pool(self, home: Home) -> SimPool:
        """A new pool of a process of `ulak work`, not started yet."""
        rng = self.rng
        queues = rng.sample(self.queues, len(self.queues))
        # No process may be the only one for ever that serves a queue.
        kind = rng.choice(("threads", "threads", "tasks", "processes"))
        pool = SimPool(
            self,
            home,
            queues,
            worker=f"{home.name}.pool{len(self.pools) + 1}",
            count=rng.choice((1, 2, 3)),
            lease_s=rng.choice((1.0, 3.0)),
            are_tasks=kind == "tasks",
            turns={queue: rng.choice((1, 3)) for queue in queues} if rng.random() < 0.4 else None,
            jobs_max=rng.choice((1, 3, 8)) if rng.random() < 0.2 else None,
            can_halt=kind == "processes",
            schedules=self.schedules,
            runs_on_s=service.RUNS_ON_S,
        )
        self.pools.append(pool)
        return pool

    def pool(self, home: Home, queue: str, *, has_duties: bool = False) -> SimPool:
        """A new pool, not started yet. has_duties: it brings back jobs that did not fit before."""
        are_tasks = self.rng.random() < 0.4
        pool = SimPool(
            self,
            home,
            [queue],
            worker=f"{home.name}.{queue}.pool{len(self.pools) + 1}",
            count=self.rng.choice((1, 2, 3)),
            lease_s=self.rng.choice((0.3, 1.0, 3.0)),
            are_tasks=are_tasks,
            schedules=() if has_duties else None,
            runs_on_s=RUNS_ON_S if are_tasks else None,
        )
        self.pools.append(pool)
        return pool

    def restart(self, home: Home) -> None:
        """Somebody starts a process in the place of one that crashed, with a pool for some queue."""
        if home.name in self.processes:
            return
        actor = self._spawn(
            "manager", self.new_home(), self.rng.choice(self.queues), people.manager, rounds=2
        )
        actor.frozen_until = self.world.clock.now + self.rng.choice((0.1, 1.0))

    def is_task(self, actor: Actor) -> bool:
        """Whether it is a worker that only a cancellation can strike."""
        return any(pool.are_tasks for pool in self.pools if actor.name.startswith(f"{pool.worker}."))

    def die(self) -> None:
        """The outcome of a handler that takes its worker along."""

    def misfit(self) -> None:
        """The outcome of a job whose task does not take its arguments."""

    def _note_over(self, actor: Actor) -> None:
        self._changed.set()
        if actor.error is not None and not isinstance(actor.error, Killed):
            self.world.problem(f"{actor.name} died of {actor.error!r}")

    # Coming to rest

    def run(self, steps: int) -> None:
        """Let things go wrong for so many steps, then let them come to rest."""
        world = self.world
        while world.steps < steps and world.step():
            pass
        self._calm_down()
        closer = world.spawn("closer", "closer", world.net, self._close())
        limit, limit_at = world.steps + REST_STEPS_MAX, world.clock.now + self._rest_s_max()
        while not closer.is_over:
            if not world.step():
                world.problem(f"nobody can go on: {self._who_waits()}")
                break
            if world.steps > limit or world.clock.now > limit_at:
                world.problem(f"no rest at {world.clock.now:.1f}: {self._who_waits()}")
                break
        leave_by = world.clock.now + LEAVE_S
        while world.actors and world.clock.now < leave_by and world.step():
            pass
        self._check_roll()
        if world.actors:
            world.problem(f"still there in the end: {self._who_waits()}")
        world.end()

    def _check_roll(self) -> None:
        """Whoever has gone and was not kept from saying so is not on the store's list any more."""
        listed = {info.worker for info in self.bare.workers()}
        for pool in self.pools:
            keeper = pool.keeper
            if pool.worker not in listed or not pool.home.is_alive or keeper is None:
                continue
            # A word that a fault took along is not said again.
            if keeper.hit_at < keeper.over_at - 1.0:
                self.world.problem(f"{pool.worker} has gone, and is on the list of workers")

    def _rest_s_max(self) -> float:
        """How long everything may take from now on, one job after the other."""
        worst_s = 0.0
        for queue in self.queues:
            for job in self.bare.scan(Filter(queue=queue, states=OPEN), limit=10_000):
                worst_s += (job.max_attempts + 4) * JOB_S_MAX
        producing = sum(actor.role == "producer" for actor in self.world.actors)
        return worst_s + (producing + len(self.world.actors)) * JOB_S_MAX

    def _who_waits(self) -> str:
        told = [f"{actor.name} {actor.doing[:2]} {actor.ask!r}" for actor in self.world.actors]
        return "; ".join(told) or "nobody is left"

    def _calm_down(self) -> None:
        """Faults stop, and everybody finishes what was begun."""
        world = self.world
        self.trouble.end()
        world.pace_s = min(PACES_S)
        self.is_calm = True
        self._open_queues()
        self.calm.set()
        for home, view in self.views:
            if home.is_alive:
                view.close()

    def _close(self) -> Steps:
        """Wait until everybody has finished, then drain the queues."""
        helpers = [
            self._spawn("helper", self.world.net, queue, people.taker_of_strange) for queue in self.queues
        ]
        fresh = yield from self._wait_for_people(at_once=self.rng.random() < 0.5)
        while fresh:
            pool = fresh.pop()
            report = yield from pool.end("drain", None, 30.0)
            if report.drained:
                self.watch.done(pool, report)
                if self.bare.scan(Filter(queue=pool.crew.label, refused=True), limit=1):
                    # One was held after the first look, and the next is far off: here comes another deploy.
                    fresh.append((yield from self._start_fresh(pool.crew.label)))
            else:
                # A handler whose job was deleted under it may enqueue after the drain; the report is honest.
                fresh.append((yield from self._start_fresh(pool.crew.label)))
        self.is_over = True
        self.over.set()
        while not all(helper.is_over for helper in helpers):
            yield Sleep(SimSignal(), 0.1)

    def _wait_for_people(self, *, at_once: bool) -> Steps:
        """Wait for all but pools, with a fresh pool for each queue: at once, or when no other is left."""
        fresh: dict[str, SimPool] = {}
        older: list[SimPool] = []
        while True:
            self._changed.clear()
            self._open_queues()
            are_busy = any(actor.role in BUSY for actor in self.world.actors)
            for queue in self.queues:
                if queue not in fresh and (at_once or not are_busy or not self._has_pool(queue)):
                    fresh[queue] = yield from self._start_fresh(queue)
                elif self._waits_for_deploy(queue, fresh.get(queue)):
                    older.append(fresh[queue])
                    fresh[queue] = yield from self._start_fresh(queue)
            if not are_busy:
                return [*older, *fresh.values()]
            yield Sleep(self._changed, 1.0)

    def _waits_for_deploy(self, queue: str, pool: SimPool | None) -> bool:
        """Whether a job that did not fit was held only after a fresh pool's first look; it takes room."""
        if pool is None or pool.keeper is None or self.world.clock.now < pool.keeper.born_at + DEPLOY_S:
            return False
        return len(self.bare.scan(Filter(queue=queue, refused=True), limit=1)) > 0

    def _open_queues(self) -> None:
        """Undo what operators did to queues, also with a call of theirs that was under way."""
        for queue in self.queues:
            capacity, settings = self.capacities[queue], self.bare.queues()[queue]
            if settings.paused or settings.capacity != capacity:
                self.bare.configure(queue, Change(paused=False, capacity=capacity))

    def _has_pool(self, queue: str) -> bool:
        crews = [pool.crew for pool in self.pools if pool.home.is_alive]
        return any(crew.label == queue and crew.taking and crew.size > 0 for crew in crews)

    def _start_fresh(self, queue: str) -> Steps:
        alive = [home for home in self.world.homes if home.is_alive and home is not self.world.net]
        home = self.new_home() if self.has_several_homes else alive[0]
        pool = self.pool(home, queue, has_duties=self.has_processes)
        yield from pool.start()
        return pool

    # The end

    def result(self) -> Result:
        """What came of it, as judged from what callers were told and from what the store did."""
        world = self.world
        stored: list[Line] = list(stored_lines(self.bare, self.queues))
        done = judge([*world.done.lines, *stored], capacity=self.capacities)
        heard = judge([*world.told.lines, *stored], capacity=self.capacities)
        self.seen["killed its worker, and is dead"] = self._poisoned(stored)
        problems = [*world.problems, *self._wrong_ticks()]
        for name, verdict in (("done", done), ("told", heard)):
            problems += [f"{name}: {kind}: job {job}: {text}" for kind, job, text in verdict.problems]
        return Result(
            seed=self.seed,
            profile=self.profile,
            steps=world.steps,
            problems=problems,
            struck=world.faults.struck,
            seen=self.seen + done.seen,
            done=done,
            told=heard,
            history=encoded([*world.told.lines, *world.done.lines, *stored]),
            trace=world.trace or [],
        )

    def _wrong_ticks(self) -> Iterator[str]:
        """A tick fired twice, or left out where all are to be; one without its job, or a job without it."""
        fired = self.watch.fired
        self.seen["fired"] += fired.total()
        told = {(name, moment(at)) for name, at in fired}
        totals = [self.bare.counts([queue])[queue].totals for queue in self.queues]
        jobs = [job for queue in self.queues for job in self.bare.scan(Filter(queue=queue), limit=100_000)]
        stored = Counter(
            (job.headers[SCHEDULE_HEADER], job.headers[TICK_HEADER])
            for job in jobs
            if job.headers is not None and SCHEDULE_HEADER in job.headers
        )
        yield from (f"a tick was fired {n} times: {tick}" for tick, n in (fired | stored).items() if n > 1)
        if not any(of.pruned or of.deleted for of in totals) and (odd := told ^ stored.keys()):
            yield f"ticks without a job, or jobs without a tick: {sorted(odd)[:3]}"
        for schedule in self.schedules:
            began_at = self.watch.began.get(schedule.name, 0.0)
            ticks = sorted(at for name, at in fired if name == schedule.name and at > began_at)
            following = [schedule.rule.next_after(at) for at in [began_at, *ticks[:-1]]]
            if schedule.catch_up == "all" and ticks and following != ticks:
                yield f"ticks of {schedule.name} were left out: {ticks}"

    def _poisoned(self, stored: list[Line]) -> int:
        scripts = self.maker.scripts
        dead = [line.mark for line in stored if isinstance(line, Stored) and line.state == "dead"]
        return sum(scripts[mark].kind == "kills its worker" for mark in dead)


@contextmanager
def silence() -> Iterator[None]:
    """Keep ulak's log quiet: a simulation makes it say a lot, which nobody reads."""
    log = logging.getLogger("ulak")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    profile: str | None = None,
    breaks: Break | None = None,
    traced: bool = False,
) -> Result:
    """Run one seed. breaks: puts something broken before the store, to see that it is found."""
    with silence():
        stage = Stage(seed, profile=profile, breaks=breaks, traced=traced)
        stage.run(steps)
        return stage.result()
