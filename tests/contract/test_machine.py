"""One state machine over all operations of a storage, judged by the model after every step.

ULAK_EXAMPLES sets how many runs it makes on each storage; a failure prints how to repeat it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.contract import wishes as w
from tests.contract.conftest import StorageKind
from tests.contract.model import ENDED, OPEN, TOTALS, Model, plain_lease, plain_record, shown
from ulak.core.backoff import Backoff
from ulak.core.job import Cause, Counts, Done, Duplicate, Full, Job, Lease, Outcome, Retry, State, Verdict
from ulak.core.store import Act, Change, Filter, Fired, Redrive, Settings, Tasks
from ulak.errors import ArgumentError
from ulak.testing import ManualClock

STEPS = 40
RECENT = 8

optional_changes = {
    "capacity": w.capacities,
    "paused": st.sampled_from((False, False, False, True)),
    "backoff": w.backoffs,
    "retention": w.retentions,
}
changes = st.fixed_dictionaries({}, optional=optional_changes)


class StorageMachine(RuleBasedStateMachine):
    """Every operation in any order; each answer must be the model's."""

    def __init__(self, kind: StorageKind) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = kind.make(self.clock)
        self.store.open()
        self.model = Model(self.clock, w.QUEUES, durable=kind.capabilities.durable)
        self.leases: list[Lease] = []
        self.waiters: dict[int, threading.Event] = {}
        self.generation = 0
        self.generation_from_at = self.clock.calendar()

    def teardown(self) -> None:
        self.store.close()

    @initialize(
        jobs=st.lists(w.wishes, min_size=2, max_size=8), capacity=w.capacities, limit=st.integers(0, 3)
    )
    def begin(self, jobs: list[w.Wish], capacity: int | None, limit: int) -> None:
        for queue in w.QUEUES:
            made = Settings(capacity=capacity if queue == "mail" else None)
            assert self.store.declare(queue, made) == made
            self.model.settings[queue]["capacity"] = made.capacity
        for number, job in enumerate(jobs):
            self.add("bulk" if number % 3 == 2 else "mail", [job])
            self.everything_stored_is_as_expected()
        self.claim(w.QUEUES, limit, "w1", 10.0, None)

    # Into the store

    @rule(
        queue=w.queues,
        jobs=st.lists(w.wishes, min_size=1, max_size=5),
        known_only=st.sampled_from((False, False, False, True)),
    )
    def add_jobs(self, queue: str, jobs: list[w.Wish], known_only: bool) -> None:
        self.add(queue, jobs, known_only=known_only)

    def add(self, queue: str, jobs: list[w.Wish], *, known_only: bool = False) -> None:
        drafts = [wish.draft_at(self.clock.calendar(), self.generation) for wish in jobs]
        expected = self.model.add(queue, drafts, known_only=known_only)
        try:
            answer = plain(self.store.add(queue, drafts, known_only=known_only))
        except ArgumentError:
            answer = "never"
        assert answer == expected
        self.check_room_of(queue, is_new=isinstance(answer, list) and any(type(a) is int for a in answer))

    @rule(
        schedule=st.sampled_from(("hourly", "daily")),
        tick=st.integers(0, 5),
        queue=w.queues,
        job=st.one_of(w.wishes, w.wishes, st.none()),
    )
    def fire(self, schedule: str, tick: int, queue: str, job: w.Wish | None) -> None:
        draft = None if job is None else job.draft_at(self.clock.calendar(), self.generation)
        tick_at = tick * 3600.0
        expected = self.model.fire(schedule, tick_at, queue, draft)
        assert plain(self.store.fire(schedule, tick_at, queue, draft)) == expected
        assert self.store.schedules() == self.model.ticks
        self.check_room_of(queue, is_new=job is not None and expected == "fired")

    def check_room_of(self, queue: str, *, is_new: bool) -> None:
        capacity = self.model.settings[queue]["capacity"]
        if is_new and capacity is not None:
            assert self.store.counts([queue])[queue].open <= capacity

    # Under leases

    @rule(
        names=w.queue_lists,
        limit=st.integers(1, 6),
        worker=w.workers,
        lease_s=w.lease_lengths,
        tasks=w.task_sets,
    )
    def claim_jobs(
        self, names: Sequence[str], limit: int, worker: str, lease_s: float, tasks: Tasks | None
    ) -> None:
        self.claim(names, limit, worker, lease_s, tasks)

    def claim(
        self, names: Sequence[str], limit: int, worker: str, lease_s: float, tasks: Tasks | None
    ) -> None:
        expected = self.model.claim(names, limit, worker=worker, lease_s=lease_s, tasks=tasks)
        self.take(self.store.claim(names, limit, worker=worker, lease_s=lease_s, tasks=tasks), expected)

    def take(self, leases: Sequence[Lease], expected: list[dict[str, Any]]) -> None:
        assert [plain_lease(lease) for lease in leases] == expected
        assert {(lease.store, lease.epoch) for lease in leases} <= {(self.store.uid, self.store.epoch)}
        self.keep(leases)

    def have_leases(self) -> bool:
        """See to it that something is leased, if that can be: else most steps had nothing to work on."""
        if not self.model.is_anything_leased():
            self.claim(w.QUEUES, 3, "w1", 10.0, None)
            self.everything_stored_is_as_expected()
        if not self.model.is_anything_leased():
            self.add("mail", [w.PLAIN, w.PLAIN])
            self.everything_stored_is_as_expected()
            self.claim(w.QUEUES, 3, "w2", 5.0, None)
            self.everything_stored_is_as_expected()
        return bool(self.leases)

    def keep(self, leases: Sequence[Lease]) -> None:
        self.leases += [lease for lease in leases if lease not in self.leases]

    @rule(data=st.data(), wanted=w.batches)
    def settle(self, data: st.DataObject, wanted: list[Verdict]) -> None:
        if self.have_leases():
            batch, expected = self.batch_of(data, wanted)
            assert plain(self.store.settle(batch)) == expected

    @rule(data=st.data(), wanted=w.batches, names=w.queue_lists, limit=st.integers(0, 4), tasks=w.task_sets)
    def turn(
        self,
        data: st.DataObject,
        wanted: list[Verdict],
        names: Sequence[str],
        limit: int,
        tasks: Tasks | None,
    ) -> None:
        batch, expected = self.batch_of(data, wanted) if self.have_leases() else ([], [])
        expected_leases = self.model.claim(names, limit, worker="w2", lease_s=10.0, tasks=tasks)
        settled, leases = self.store.turn(batch, names, limit, worker="w2", lease_s=10.0, tasks=tasks)
        assert plain(settled) == expected
        self.take(leases, expected_leases)

    def batch_of(
        self, data: st.DataObject, wanted: list[Verdict]
    ) -> tuple[list[tuple[Lease, Verdict]], list[str]]:
        """Settlements of some leases, the same one twice among them, and what the model answers."""
        leases = [self.some_lease(data) for _ in wanted]
        batch = [(lease, w.legal(lease, verdict)) for lease, verdict in zip(leases, wanted, strict=True)]
        return batch, [self.model.settle(lease, verdict) for lease, verdict in batch]

    def some_lease(self, data: st.DataObject) -> Lease:
        """A lease, mostly a current one, sometimes one that has ended, sometimes one that was never given."""
        current = [lease for lease in self.leases if self.model.current(lease)][-RECENT:]
        lease: Lease = data.draw(st.sampled_from([*current, *current, *self.leases[-3:]]))
        wrong = data.draw(st.sampled_from((0, 0, 0, 0, 0, 0, 0, 0, 1, -1)))
        forged = msgspec.structs.replace(lease, delivery=lease.delivery + wrong) if wrong else lease
        job = self.model.current(forged)
        # One that happens to be right also knows its attempt.
        return msgspec.structs.replace(forged, attempt=job["attempt"]) if wrong and job else forged

    @rule(
        data=st.data(),
        number=st.integers(1, 3),
        lease_s=st.sampled_from((0.5, 5.0, 10.0, 60.0)),
        progress=st.sampled_from((None, "half", "most")),
    )
    def extend(self, data: st.DataObject, number: int, lease_s: float, progress: str | None) -> None:
        if not self.have_leases():
            return
        leases = [self.some_lease(data) for _ in range(number)]
        texts = None if progress is None else {leases[0].id: progress}
        expected = self.model.extend(leases, lease_s, progress=texts)
        assert plain(self.store.extend(leases, lease_s, progress=texts)) == expected

    @rule(
        data=st.data(),
        names=w.queue_lists,
        limit=st.integers(1, 5),
        between=st.sampled_from(("nothing", "nothing", "extend", "short extend", "ack", "another reaper")),
        lost=st.builds(Retry, w.waits, st.just(Cause.LOST), crashed=st.booleans()),
    )
    def reclaim(
        self, data: st.DataObject, names: Sequence[str], limit: int, between: str, lost: Retry
    ) -> None:
        """Look for ended leases, let something happen to one of them, settle what was seen."""
        if self.have_leases() and not self.model.ended(names):
            self.pass_time(data.draw(st.sampled_from((5.0, 10.0, 30.0))))
        seen, past = self.store.ended(names, limit), self.model.ended(names)
        assert {lease.id: plain_lease(lease) for lease in seen}.items() <= past.items()
        assert len(seen) == min(limit, len(past))
        if not seen:
            return
        if between != "nothing":
            self.meddle(data.draw(st.sampled_from(seen)), between)
        batch = [(lease, w.legal(lease, lost)) for lease in seen]
        expected = [self.model.settle(lease, verdict) for lease, verdict in batch]
        assert plain(self.store.settle(batch)) == expected
        self.keep(seen)

    def meddle(self, lease: Lease, how: str) -> None:
        if how.endswith("extend"):
            lease_s = 0.0 if how == "short extend" else 20.0
            expected: list[Any] = self.model.extend([lease], lease_s, progress=None)
            assert plain(self.store.extend([lease], lease_s)) == expected
            return
        verdict: Verdict = Done() if how == "ack" else w.legal(lease, Retry(cause=Cause.LOST))
        expected = [self.model.settle(lease, verdict)]
        assert plain(self.store.settle([(lease, verdict)])) == expected

    # By an operator

    @rule(
        backs=st.lists(st.integers(0, 9), min_size=1, max_size=6),
        act=w.acts,
        states=st.none() | st.frozensets(st.sampled_from(State)),
        force=st.booleans(),
    )
    def amend_some(self, backs: list[int], act: Act, states: frozenset[State] | None, force: bool) -> None:
        # Counted from the newest id, so that most are still there; the first of them is not there yet.
        ids = [self.model.last_id + 1 - back for back in backs]
        self.amend(ids, act, queue=None, states=states, force=force)

    @rule(which=w.filters, act=w.acts, queue=st.sampled_from((None, *w.QUEUES)), force=st.booleans())
    def amend_matching(self, which: Filter, act: Act, queue: str | None, force: bool) -> None:
        self.amend(which, act, queue=queue, force=force)

    @rule(queue=w.queues, ids=st.lists(st.integers(1, 12), max_size=4))
    def redrive(self, queue: str, ids: list[int]) -> None:
        self.amend(ids, Redrive(), queue=queue)
        self.amend(Filter(states=("dead", "cancelled", "expired")), Redrive(), queue=queue)

    def amend(
        self,
        which: list[int] | Filter,
        act: Act,
        *,
        queue: str | None,
        states: frozenset[State] | None = None,
        force: bool = False,
    ) -> None:
        done, refused = self.model.amend(which, act, queue=queue, states=states, force=force)
        changed = self.store.amend(which, act, queue=queue, states=states, force=force)
        assert list(changed.done) == done
        assert {reason.value: list(ids) for reason, ids in changed.refused.items()} == refused

    @rule(queue=w.queues, change=changes)
    def configure(self, queue: str, change: dict[str, Any]) -> None:
        self.model.settings[queue] |= change
        assert fields(self.store.configure(queue, Change(**change))) == self.model.settings[queue]
        assert {name: fields(kept) for name, kept in self.store.queues().items()} == self.model.settings

    @rule(limit=st.sampled_from((1, 2, 1000)))
    def prune(self, limit: int) -> None:
        answer = {state.value: number for state, number in self.store.prune(limit=limit).items()}
        self.model.prune(self.everything(), answer, limit=limit)

    @rule(names=w.queue_lists)
    def promote(self, names: Sequence[str]) -> None:
        scheduled = [job["id"] for job in self.model.jobs.values() if job["state"] == "scheduled"]
        promoted = self.store.promote(names)
        self.model.promote(names)
        after = self.store.get(scheduled)
        assert promoted == sum(job is not None and job.state is State.READY for job in after)

    @rule()
    def await_ends(self) -> None:
        """Somebody waits for the end of each open job from now on."""
        for job in self.model.jobs.values():
            if job["state"] in OPEN and job["id"] not in self.waiters:
                signal = self.waiters[job["id"]] = threading.Event()
                self.store.ends(job["id"]).join(signal)

    # Looks, which change nothing. They share one rule, to leave more steps to what does.

    @rule(
        which=w.filters,
        queue=w.queues,
        worker=st.sampled_from((None, *w.WORKERS)),
        after=st.integers(0, 8),
        limit=st.integers(1, 5),
        names=w.queue_lists,
        backoff=w.backoffs,
    )
    def look(self, **wanted: Any) -> None:
        self.scan(wanted["which"], wanted["after"], wanted["limit"])
        self.scan(Filter(queue=wanted["queue"], states=State.HELD), wanted["after"], wanted["limit"])
        self.leased(wanted["queue"], wanted["worker"], wanted["after"], wanted["limit"])
        self.horizon(wanted["names"])
        self.get([self.model.last_id + 1, wanted["limit"], wanted["after"]])
        self.declare_again(wanted["queue"], wanted["backoff"])
        self.beat(wanted["worker"] or "w3", {"limit": str(wanted["limit"])})

    def scan(self, which: Filter, after: int, limit: int) -> None:
        matching = [job for job in self.model.matching(which) if job["id"] > after]
        expected = [shown(job) for job in matching[:limit]]
        assert [plain_record(job) for job in self.store.scan(which, after=after, limit=limit)] == expected

    def leased(self, queue: str, worker: str | None, after: int, limit: int) -> None:
        expected = self.model.leased(queue, worker=worker, after=after, limit=limit)
        leases = self.store.leased(queue, worker=worker, after=after, limit=limit)
        assert [plain_lease(lease) for lease in leases] == expected
        self.keep(leases)

    def get(self, ids: list[int]) -> None:
        records = [None if job is None else plain_record(job) for job in self.store.get(ids)]
        assert records == [shown(self.model.jobs[i]) if i in self.model.jobs else None for i in ids]

    def declare_again(self, queue: str, backoff: Backoff | None) -> None:
        kept = self.store.declare(queue, Settings(capacity=1, backoff=backoff))
        assert fields(kept) == self.model.settings[queue]

    def beat(self, worker: str, info: dict[str, str]) -> None:
        self.store.beat(worker, info)
        self.model.workers[worker] = (worker, info, self.clock.calendar())
        seen = [(known.worker, dict(known.info), known.seen_at) for known in self.store.workers()]
        assert seen == sorted(self.model.workers.values(), key=lambda known: known[0])

    def horizon(self, names: Sequence[str]) -> None:
        answer = self.store.horizon(names)
        lease_s, due_s = self.model.horizon(names)
        # A sleep towards an instant of the calendar is cut, since the calendar may be set at any moment.
        latest = [max(0.0, wait_s) for wait_s in (lease_s, due_s) if wait_s is not None]
        earliest = [max(0.0, wait_s) for wait_s in (lease_s, due_s and min(due_s, 1.0)) if wait_s is not None]
        assert (answer is None) == (not latest)
        assert answer is None or min(earliest) <= answer <= min(latest)

    # Time

    @rule(data=st.data(), back_s=st.sampled_from((0.0, 0.0, 0.5)))
    def reach_an_instant(self, data: st.DataObject, back_s: float) -> None:
        """Let time pass until something is just about to happen, or is."""
        instants = self.model.instants()
        if instants:
            self.pass_time(max(0.0, data.draw(st.sampled_from(instants)) - back_s))

    @rule(duration_s=st.sampled_from((0.5, 5.0, 60.0, 3600.0, 43_200.0)))
    def pass_time(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.note_calendar()

    @rule(step_s=st.sampled_from((-43_200.0, -60.0, -5.0, 5.0, 60.0, 43_200.0)))
    def set_calendar(self, step_s: float) -> None:
        self.clock.set_calendar(datetime.fromtimestamp(self.clock.calendar() + step_s, UTC))
        self.model.calendar_went_back |= step_s < 0
        self.note_calendar()

    def note_calendar(self) -> None:
        # How long an idempotency key is remembered beyond its 24 hours is the storage's business, so none is
        # used again once it may have been forgotten.
        now_at = self.clock.calendar()
        if not 0 <= now_at - self.generation_from_at < 86_400.0:
            self.generation += 1
            self.generation_from_at = now_at

    # After every step

    @invariant()
    def everything_stored_is_as_expected(self) -> None:
        stored = self.everything()
        self.model.follow(stored)
        for queue, counts in self.store.counts(w.QUEUES).items():
            recount = Counter(job.state.value for job in stored if job.queue == queue)
            assert numbers_of(counts) == {state: recount[state] for state in (*OPEN, *ENDED)}
            assert numbers_of(counts) == self.model.numbers(queue)
            assert {name: getattr(counts.totals, name) for name in TOTALS} == self.model.totals[queue]
            check_identities(counts)
        keyed = [job for job in stored if job.state.value in OPEN and job.unique_key is not None]
        open_keys = [(job.queue, job.unique_key) for job in keyed]
        assert len(open_keys) == len(set(open_keys))

    @invariant()
    def whoever_waits_for_an_end_is_woken_by_it_and_by_nothing_else(self) -> None:
        for job_id, signal in list(self.waiters.items()):
            job = self.model.jobs.get(job_id)
            is_over = job is None or job["state"] in ENDED
            assert signal.is_set() is is_over
            if is_over:
                del self.waiters[job_id]
                line = self.store.ends(job_id)
                line.leave(signal)
                assert len(line) == 0

    def everything(self) -> list[Job]:
        return self.store.scan(Filter(), limit=100_000)


def plain(answer: Any) -> Any:
    """An answer as the model gives it."""
    match answer:
        case list():
            return [plain(one) for one in answer]
        case Duplicate():
            return "duplicate", int(answer)
        case Outcome() | State() | Fired() | Full():
            return answer.value
        case _:
            return answer


def fields(kept: Settings) -> dict[str, Any]:
    return {name: getattr(kept, name) for name in kept.__struct_fields__}


def numbers_of(counts: Counts) -> dict[str, int]:
    """How many jobs are in each state."""
    names = {state: "acked" if state == "succeeded" else state for state in (*OPEN, *ENDED)}
    numbers = {state: getattr(counts, name) for state, name in names.items()}
    assert counts.open == sum(numbers[state] for state in OPEN)
    assert counts.pending == numbers["ready"] + numbers["scheduled"]
    return numbers


def check_identities(counts: Counts) -> None:
    """What always holds between the totals, and between them and the states."""
    t = counts.totals
    assert t.processed == t.succeeded + t.failed
    assert t.failed == t.retries + t.dead_lettered + t.cut
    ended = t.succeeded + t.dead_lettered + t.cancelled + t.expired
    assert t.enqueued + t.redriven == ended + t.deleted + counts.open
    stored = counts.open + counts.acked + counts.dead + counts.cancelled + counts.expired
    assert counts.total == t.enqueued == stored + t.pruned + t.deleted


@pytest.mark.timeout(600)  # what makes a failure small again takes its time
def test_every_answer_and_every_record_is_what_the_model_says(kind: StorageKind) -> None:
    run_state_machine_as_test(
        lambda: StorageMachine(kind),
        settings=settings(
            max_examples=kind.examples,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
