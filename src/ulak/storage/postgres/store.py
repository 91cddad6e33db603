"""The store on a PostgreSQL server: durable, for every process of every machine that reaches it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg

from ulak.core import rules
from ulak.core.history import Grain, Moment, Took
from ulak.core.job import Counts, Draft, Duplicate, Full, Job, Lease, Outcome, State
from ulak.core.store import (
    Act,
    Capabilities,
    Change,
    Changed,
    Filter,
    Fired,
    Line,
    Settings,
    Settled,
    Settlement,
    Tasks,
    Until,
    WorkerInfo,
)
from ulak.errors import UlakError
from ulak.storage.group import Merge
from ulak.storage.postgres import book, change, joined, looks, own, past
from ulak.storage.postgres.asks import Scene, Step
from ulak.storage.postgres.engine import Engine
from ulak.storage.postgres.listen import HeardLine
from ulak.storage.postgres.plans import Plan, look, planned, step

POLL_S = 1.0

JOB_BYTES = 1_024
"""About so much is sent for a job beside its payload, at most."""

TOGETHER_MAX = 1_000
"""A call of more jobs than that goes alone."""

R = TypeVar("R")


def _given_back(leases: Sequence[Lease]) -> Callable[[Scene], Step[Any]] | None:
    """Hand back what was claimed for a caller that is gone."""
    if not leases:
        return None
    settlements = [(lease, rules.give_back()) for lease in leases]
    return lambda scene: book.settle(scene, settlements)


def _taken_back(answer: list[int] | Full) -> Callable[[Scene], Step[Any]] | None:
    """Take back what was stored for a caller that is gone."""
    ids = [] if isinstance(answer, Full) else [x for x in answer if not isinstance(x, Duplicate)]
    return (lambda scene: book.unadd(scene, ids)) if ids else None


def _burying(unreadable: Sequence[Settlement]) -> Plan[None]:
    """End what was leased and cannot be read. If that fails its lease ends, and it dies in time."""
    if unreadable:
        with contextlib.suppress(UlakError):
            yield from step(lambda scene: book.bury(scene, unreadable))


class PostgresStore(Engine):
    """Jobs in one schema. See `ulak.core.store.Store` for what each operation promises."""

    capabilities = Capabilities(
        durable=True, immediate=False, processes=True, transactions=True, poll_s=POLL_S
    )

    async def acall(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as the operation
        """An operation for an event loop, which it never blocks."""
        connection = kwargs.pop("connection", None)
        if connection is not None:
            self.check_open()
            make = _JOINED[name]
            work = self._work(lambda scene: make(scene, *args, **kwargs))
            return await joined.arun_joined(connection, self.place, work)
        return await super().acall(_PLANS.get(name, name), args, kwargs)

    def _work(self, make: Callable[[Scene], Step[R]]) -> Any:  # noqa: ANN401 - a generator
        def new_scene() -> Scene:
            scene = self.scene(0)
            scene.shard = None
            return scene

        return joined.work(self.place, self.uid, new_scene, make, self.bell.named)

    def _join(self, connection: object, make: Callable[[Scene], Step[R]]) -> R:
        self.check_open()
        answer: R = joined.run_joined(connection, self.place, self._work(make))
        return answer

    # Operations

    def add(
        self,
        queue: str,
        drafts: Sequence[Draft],
        *,
        known_only: bool = False,
        connection: object | None = None,
    ) -> list[int] | Full:
        """Store jobs, all or none."""
        if connection is None:
            return self._add(queue, drafts, known_only=known_only)
        return self._join(connection, lambda scene: joined.add(scene, queue, drafts, known_only=known_only))

    @planned
    def _add(
        self, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
    ) -> Plan[list[int] | Full]:
        merge = None
        if not known_only and len(drafts) <= TOGETHER_MAX:
            # Only keys may have to wait for somebody else's.
            has_keys = any(draft.unique_key or draft.idempotency_key for draft in drafts)
            merge = Merge(
                ("add", queue, has_keys),
                drafts,
                lambda scene, calls: book.add_together(scene, queue, calls),
                sum(len(draft.payload) for draft in drafts) + JOB_BYTES * len(drafts),
            )
        return step(
            lambda scene: book.add(scene, queue, drafts, known_only=known_only), merge=merge, undo=_taken_back
        )

    @planned
    def claim(
        self, queues: Sequence[str], limit: int, *, worker: str, lease_s: float, tasks: Tasks | None = None
    ) -> Plan[list[Lease]]:
        """Lease up to `limit` due jobs, in order."""
        yield from self.others.join()
        asked: dict[str, Any] = {"worker": worker, "lease_s": lease_s, "tasks": tasks}
        asked["unreadable"] = unreadable = list[Settlement]()
        leases = yield from step(
            lambda scene: book.claim(scene, queues, limit, **asked),
            undo=_given_back,
        )
        yield from _burying(unreadable)
        return leases

    def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> list[Settled]:
        """Apply verdicts, one answer per settlement."""
        if connection is None:
            return self._settle(settlements)
        return self._join(connection, lambda scene: joined.settle(scene, settlements))

    @planned
    def _settle(self, settlements: Sequence[Settlement]) -> Plan[list[Settled]]:
        return step(
            lambda scene: book.settle(scene, settlements),
            merge=Merge("settle", settlements, book.settle_together),
        )

    @planned
    def turn(
        self,
        settlements: Sequence[Settlement],
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        lease_s: float,
        tasks: Tasks | None = None,
    ) -> Plan[tuple[list[Settled], list[Lease]]]:
        """Settle, then claim, in one step."""
        yield from self.others.join()
        asked: dict[str, Any] = {"worker": worker, "lease_s": lease_s, "tasks": tasks}
        asked["unreadable"] = unreadable = list[Settlement]()

        def alone(scene: Scene) -> Step[tuple[list[Settled], list[Lease]]]:
            return book.turn(scene, settlements, queues, limit, **asked)

        def together(scene: Scene, calls: list[Any]) -> Step[list[tuple[list[Settled], list[Lease]]]]:
            return book.turn_together(scene, calls, queues, **asked)

        merge = Merge(("turn", *queues, worker, lease_s, tasks), (settlements, limit), together)
        answer = yield from step(alone, merge=merge, undo=lambda answer: _given_back(answer[1]))
        yield from _burying(unreadable)
        return answer

    @planned
    def promote(self, queues: Sequence[str]) -> Plan[int]:
        """Make due jobs ready; how many."""
        return look(lambda scene: book.promote(scene, queues))

    @planned
    def extend(
        self, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
    ) -> Plan[list[bool | Outcome]]:
        """Move lease ends to now + `lease_s`, never to earlier."""
        return look(lambda scene: book.extend(scene, leases, lease_s, progress=progress))

    @planned
    def ended(self, queues: Sequence[str], limit: int) -> Plan[list[Lease]]:
        """Leases past their end, or whose process is gone."""
        gone = yield from self.others.gone()
        return (yield from look(lambda scene: book.ended(scene, queues, limit, gone=gone)))

    @planned
    def leased(
        self, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
    ) -> Plan[list[Lease]]:
        """The current leases of a queue, by id; of one worker of this process, if given."""
        return look(lambda scene: book.leased(scene, queue, worker=worker, after=after, limit=limit))

    @planned
    def horizon(self, queues: Sequence[str]) -> Plan[float | None]:
        """Seconds until time alone makes a job claimable."""
        horizon_s = yield from look(lambda scene: book.horizon(scene, queues))
        if self.others.any:
            return self.others.look_s if horizon_s is None else min(horizon_s, self.others.look_s)
        return horizon_s

    @planned
    def amend(
        self,
        which: Sequence[int] | Filter,
        act: Act,
        *,
        queue: str | None = None,
        states: frozenset[State] | None = None,
        force: bool = False,
    ) -> Plan[Changed]:
        """An operator's act on each of these jobs."""
        return step(lambda scene: change.amend(scene, which, act, queue=queue, states=states, force=force))

    @planned
    def get(self, ids: Sequence[int]) -> Plan[list[Job | None]]:
        """Copies of the records."""
        jobs = yield from look(lambda scene: looks.get(scene, ids))
        return [None if job is None else self._here(job) for job in jobs]

    @planned
    def scan(self, which: Filter, *, after: int = 0, limit: int = 100) -> Plan[list[Job]]:
        """Matching jobs with id > `after`, by id."""
        jobs = yield from look(lambda scene: looks.scan(scene, which, after=after, limit=limit))
        return [self._here(job) for job in jobs]

    def _here(self, job: Job) -> Job:
        """With its lease's end on this process's clock, for who shows it."""
        if job.state is not State.LEASED or not self.ahead_s:
            return job
        return msgspec.structs.replace(job, lease_end=job.lease_end - self.ahead_s)

    @planned
    def counts(self, queues: Sequence[str]) -> Plan[dict[str, Counts]]:
        """One snapshot of states and totals."""
        return look(lambda scene: looks.counts(scene, queues))

    @planned
    def queues(self) -> Plan[dict[str, Settings]]:
        """All queues and their settings."""
        return look(looks.queues)

    @planned
    def declare(self, queue: str, settings: Settings) -> Plan[Settings]:
        """Make the queue unless it is there."""
        return look(lambda scene: change.declare(scene, queue, settings))

    @planned
    def configure(self, queue: str, change: Change) -> Plan[Settings]:
        """Change a queue's settings."""
        return step(lambda scene: _configured(scene, queue, change))

    @planned
    def fire(
        self, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
    ) -> Plan[int | Duplicate | Fired | Full]:
        """Insert the job, if there is one, and move the schedule's last tick, in one step."""
        return step(lambda scene: change.fire(scene, schedule, tick_at, queue, draft))

    @planned
    def schedules(self) -> Plan[dict[str, float]]:
        """Each schedule's last tick."""
        return look(looks.schedules)

    @planned
    def beat(self, worker: str, info: Mapping[str, str]) -> Plan[None]:
        """Say that a worker is there."""
        return look(lambda scene: change.beat(scene, worker, info))

    @planned
    def depart(self, worker: str) -> Plan[None]:
        """Say that a worker has gone for good."""
        return look(lambda scene: change.depart(scene, worker))

    @planned
    def workers(self) -> Plan[list[WorkerInfo]]:
        """The workers that are there, by name."""
        return look(looks.workers)

    @planned
    def prune(self, *, limit: int = 1000) -> Plan[Mapping[State, int]]:
        """End what has expired, forget what retention does not keep, and processes that are gone."""
        yield from self.others.forget_gone()
        return (yield from step(lambda scene: change.prune(scene, limit=limit)))

    @planned
    def record(self, took: Mapping[str, Took]) -> Plan[None]:
        """Note how queues' counts stand, and how long jobs took."""
        return step(lambda scene: past.record(scene, took))

    @planned
    def history(
        self, queues: Sequence[str], since_at: float, *, grain: Grain
    ) -> Plan[dict[str, list[Moment]]]:
        """What was noted since then."""
        return look(lambda scene: past.since(scene, queues, since_at, grain))

    def line(self, until: Until, queue: str) -> Line:
        """Where waiters of this process stand."""
        line = self.lines.get((until, queue))
        if line is None:
            line = self.lines.setdefault((until, queue), HeardLine(until, self.begin_watch))
        return line

    def ends(self, job_id: int) -> Line:
        """Where waiters of this process stand for the end of one job."""
        return self.awaited.line(job_id)

    # Transactions of handlers, each on a connection of its own

    def open_transaction(self) -> psycopg.Connection[Any]:
        """A connection to the database whose first statement begins a transaction."""
        self.check_open()
        return own.connect(self.place)

    def commit_transaction(self, db: psycopg.Connection[Any]) -> None:
        """Commit what was begun so."""
        with own.told(self.place):
            db.commit()

    async def aopen_transaction(self) -> psycopg.AsyncConnection[Any]:
        """As `open_transaction`."""
        self.check_open()
        return await own.aconnect(self.place)

    async def acommit_transaction(self, db: psycopg.AsyncConnection[Any]) -> None:
        """As `commit_transaction`."""
        with own.told(self.place):
            await db.commit()


def _configured(scene: Scene, queue: str, wanted: Change) -> Step[Settings]:
    return change.configure(scene, queue, wanted)


_PLANS = {"add": "_add", "settle": "_settle"}
_JOINED: Mapping[str, Callable[..., Step[Any]]] = {"add": joined.add, "settle": joined.settle}
