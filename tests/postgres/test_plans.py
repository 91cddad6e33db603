"""Whatever plan the server thinks best, a claim takes what it must and no more."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from tests.contract.steps import FAIL, LOST, OTHER, Q, draft
from ulak.core.job import Dead, Done, Hold, Lease, Retry, State
from ulak.core.store import (
    Cancel,
    Change,
    Delete,
    Edit,
    Filter,
    Keep,
    Redrive,
    Reprioritise,
    Retention,
    Settings,
    Tasks,
)
from ulak.storage.postgres import book, change, due, looks
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.link import Session, compiled
from ulak.storage.postgres.marks import given, spans_of
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.store import PostgresStore

R = TypeVar("R")

# What the server may not use. It does so all the same where there is no other way.
PLANS = {
    "as we have it": [],
    "as the server likes": None,
    "no index": ["indexscan", "indexonlyscan", "bitmapscan"],
    "no loops": ["nestloop", "material"],
    "no sorts": ["sort", "incremental_sort", "hashagg"],
}
_ALL = ("indexscan", "indexonlyscan", "bitmapscan", "seqscan", "nestloop", "hashjoin", "mergejoin")

Run = Callable[[Callable[[Scene], Step[R]]], R]


@pytest.fixture(params=PLANS)
def run(request: pytest.FixtureRequest, url: str) -> Iterator[Run]:
    """Runs a step on a session that may not use what the plan is named for, and has no plan from before."""
    with_schema = PostgresStore(place_of(url))
    with_schema.open()
    uid = with_schema.uid
    with_schema.close()
    session = Session(place_of(url))
    forbidden = PLANS[request.param]
    if forbidden != []:
        for name in _ALL:
            session.execute(Execute(f"SET enable_{name} TO on"))
        session.execute(Execute("SET plan_cache_mode TO auto"))
    for name in forbidden or ():
        session.execute(Execute(f"SET enable_{name} TO off"))

    def run_step(make: Callable[[Scene], Step[R]]) -> R:
        scene = Scene(uid, 1, shard=0, holder=1)
        return session.drive(Attempt(make(scene), session.begin, is_proxied=False).work())

    yield run_step
    session.close()


def kept(step: Step[R], texts: list[str]) -> Step[R]:
    """The same step, its statements being kept."""
    ask = next(step)
    while True:
        texts.append(ask.text)
        rows = yield ask
        try:
            ask = step.send(rows)
        except StopIteration as stop:
            answer: R = stop.value
            return answer


def put(run: Run, *options: dict[str, object], queue: str = Q) -> list[int]:
    """New jobs with these options."""
    ids = run(lambda scene: book.add(scene, queue, [draft(**wanted) for wanted in options]))
    assert isinstance(ids, list)
    return ids


def take(
    run: Run, limit: int, *queues: str, lease_s: float = 60.0, tasks: Tasks | None = None
) -> list[Lease]:
    """A claim."""
    leases: list[Lease] = run(
        lambda scene: book.claim(scene, queues or [Q], limit, worker="w", lease_s=lease_s, tasks=tasks)
    )
    assert len(leases) <= limit
    return leases


def test_a_claim_takes_the_best_of_its_first_queue_and_no_more_than_its_limit(run: Run) -> None:
    first = put(run, *({"priority": number % 3} for number in range(30)))
    second = put(run, *({"priority": 9} for _ in range(30)), queue=OTHER)
    best = sorted(first, key=lambda job_id: (-(first.index(job_id) % 3), job_id))
    # Again and again, as the server keeps a plan after some runs.
    for number in range(8):
        leases = take(run, 3, Q, OTHER)
        assert [lease.id for lease in leases] == best[3 * number : 3 * number + 3]
    assert [lease.id for lease in take(run, 10, Q, OTHER)] == [*best[24:], *second[:4]]


class Marked:
    """Where claims begin, said from outside."""

    def __init__(self, queue: str, marks: dict[int, int]) -> None:
        self._spans = {queue: spans_of(marks)}

    def spans(self, queues: Sequence[str]) -> dict[str, Any]:
        """As they are given."""
        return given(queues, self._spans)

    def met(self, queue: str, priority: int) -> None:
        """It learns nothing."""

    def since(self, what: str, queues: Iterable[str], *, renews: bool) -> float:
        """From the head."""
        return -math.inf

    def raise_to(self, what: str, queue: str, first: float, since: float) -> None:
        """It learns nothing."""


def test_a_claim_that_begins_at_marks_takes_the_best_and_no_more_than_its_limit(run: Run) -> None:
    first = put(run, *({"priority": number % 4} for number in range(40)))
    second = put(run, *({"priority": 9} for _ in range(30)), queue=OTHER)
    best = sorted(first, key=lambda job_id: (-(first.index(job_id) % 4), job_id))
    marked = Marked(Q, {3: first[3], 1: first[5], 0: first[4]})

    def take_marked(scene: Scene) -> Step[list[Lease]]:
        scene.marks = marked
        return (yield from book.claim(scene, [Q, OTHER], 3, worker="w", lease_s=60.0))

    # What lies below a mark is not there for it.
    best.remove(first[1])
    best.remove(first[0])
    for number in range(12):
        assert [lease.id for lease in run(take_marked)] == best[3 * number : 3 * number + 3]
    assert [lease.id for lease in run(take_marked)] == [*best[36:], *second[:1]]
    # But for a job that has come back.
    put(run, {"priority": 1, "delay_s": 0.0})
    lease = take(run, 1)[0]
    assert lease.id == first[1]
    run(lambda scene: book.settle(scene, [(lease, Retry())]))
    assert [lease.id for lease in run(take_marked)][:1] == [first[1]]


def test_a_turn_finishes_what_it_names_and_takes_no_more_than_its_limit(run: Run) -> None:
    ids = put(run, *({} for _ in range(40)))
    leases = take(run, 4)
    for number in range(8):
        ends = [(lease, Done()) for lease in leases]
        settled, leases = run(
            lambda scene, ends=ends: book.turn(scene, ends, [Q], 4, worker="w", lease_s=60.0)
        )
        assert settled == ["succeeded"] * 4
        assert [lease.id for lease in leases] == ids[4 * number + 4 : 4 * number + 8]
    counts = run(lambda scene: looks.counts(scene, [Q]))[Q]
    assert (counts.acked, counts.leased, counts.ready) == (32, 4, 4)


def test_a_claim_with_due_and_held_jobs_takes_the_best_of_all_and_no_more(run: Run) -> None:
    held = put(run, *({"task": "send", "priority": 1} for _ in range(4)))
    holds = [(lease, Hold()) for lease in take(run, 4)]
    run(lambda scene: book.settle(scene, holds))
    ready = put(run, *({"priority": number % 2} for number in range(4)))
    late = put(run, *({"priority": 2, "delay_s": 0.001} for _ in range(2)))
    put(run, {"priority": 5, "expires_s": 0.0}, {"task": "draw", "priority": 3, "delay_s": 3600.0})
    found: list[int] = []
    while leases := take(run, 3, tasks=frozenset({None, "send"})):
        found += [lease.id for lease in leases]
    assert found == [*late, *held, ready[1], ready[3], ready[0], ready[2]]
    assert run(lambda scene: looks.counts(scene, [Q]))[Q].expired == 1


def test_due_jobs_alone_take_a_claim_three_statements_whatever_its_queues(run: Run) -> None:
    ready = put(run, {"priority": 1}, {})
    done = [(lease, Done()) for lease in take(run, 1)]
    late = put(run, *({"priority": 2 * (number % 2), "delay_s": 0.001} for number in range(4)))
    others = put(run, {"delay_s": 0.0001}, {"delay_s": 3600.0}, queue=OTHER)
    texts: list[str] = []

    def turn(scene: Scene, limit: int) -> Step[tuple[Any, list[Lease]]]:
        step = book.turn(scene, done, [Q, OTHER], limit, worker="w", lease_s=60.0)
        answer = yield from kept(step, texts)
        assert not scene.rings or {name for _, name in scene.rings} == {Q, OTHER}
        return answer

    settled, leases = run(lambda scene: turn(scene, 4))
    assert settled == ["succeeded"]
    assert [lease.id for lease in leases] == [late[1], late[3], ready[1], late[0]]
    assert len(texts) == 3
    assert texts[0] == texts[2]
    done.clear()
    texts.clear()
    assert [lease.id for lease in run(lambda scene: turn(scene, 4))[1]] == [late[2], others[0]]
    assert len(texts) == 1
    counts = run(lambda scene: looks.counts(scene, [Q, OTHER]))
    assert (counts[Q].scheduled, counts[Q].ready, counts[Q].leased, counts[Q].acked) == (0, 0, 5, 1)
    assert (counts[OTHER].scheduled, counts[OTHER].ready, counts[OTHER].leased) == (1, 0, 1)


def test_due_jobs_of_a_paused_queue_stay_as_they_are_when_those_of_others_are_made_ready(run: Run) -> None:
    put(run, {"delay_s": 0.001}, {"delay_s": 0.001})
    (other,) = put(run, {"delay_s": 0.001}, queue=OTHER)
    run(lambda scene: change.configure(scene, Q, Change(paused=True)))
    assert [lease.id for lease in take(run, 3, Q, OTHER)] == [other]
    counts = run(lambda scene: looks.counts(scene, [Q]))[Q]
    assert (counts.scheduled, counts.ready) == (2, 0)


def test_looks_and_retention_keep_to_their_limits(run: Run) -> None:
    kept = Retention(dead=Keep(3, 3600.0))
    run(lambda scene: change.declare(scene, Q, Settings(retention=kept)))
    ids = put(run, *({} for _ in range(12)))
    leases = take(run, 12, lease_s=0.0)
    assert len(run(lambda scene: book.ended(scene, [Q], 5))) == 5
    found = run(lambda scene: book.leased(scene, Q, after=ids[1], limit=4))
    assert [lease.id for lease in found] == ids[2:6]
    ends = list(zip(leases, [*[FAIL] * 3, *[Retry(60.0)] * 4, *[Dead()] * 5], strict=True))
    answers = run(lambda scene: book.settle(scene, ends))
    assert answers == ["ready"] * 3 + ["scheduled"] * 4 + ["dead"] * 5
    assert run(lambda scene: book.promote(scene, [Q])) == 0
    dead = run(lambda scene: looks.scan(scene, Filter(queue=Q, states="dead")))
    assert [job.id for job in dead] == ids[9:]
    none = Change(retention=Retention(dead=Keep(0, 3600.0)))
    run(lambda scene: change.configure(scene, Q, none))
    assert run(lambda scene: change.prune(scene, limit=2)) == {"dead": 2}
    assert run(change.prune) == {"dead": 1}
    some = run(lambda scene: looks.scan(scene, Filter(queue=Q), after=ids[1], limit=3))
    assert [job.id for job in some] == ids[2:5]


# What a session plans once, it does for good.


class Recorder:
    """Runs steps on a session, and keeps their statements."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.texts: list[str] = []

    def run(self, make: Callable[[Scene], Step[R]]) -> R:
        return self.session.drive(kept(make(Scene("store", 1, shard=0, holder=1)), self.texts))


def test_no_statement_walks_all_jobs_however_few_there_were_when_it_was_planned(url: str) -> None:
    # With empty tables the server thinks every way as good as another; a plan for an empty table that walked
    # it whole took minutes when there were 30,000 jobs.
    store = PostgresStore(place_of(url))
    store.open()
    store.close()
    session = Session(place_of(url))
    try:
        for table in ("jobs", "ended", "keys", "tallies", "queues"):
            session.execute(Execute(f"VACUUM ANALYZE {table}"))
        recorder = Recorder(session)
        do_everything(recorder.run)
        assert len(set(recorder.texts)) > 40
        assert due._MAKE_READY in recorder.texts
        for text in dict.fromkeys(recorder.texts):
            if not text.startswith(("BEGIN", "COMMIT")):
                for node in nodes(session, text):
                    is_scan = node["Node Type"].endswith("Scan")
                    whole = is_scan and node.get("Relation Name") in {"jobs", "ended", "keys"}
                    assert not whole or "Index Cond" in node or "TID Cond" in node, (node, text)
    finally:
        session.close()


def nodes(session: Session, text: str) -> Iterator[dict[str, Any]]:
    """The plan that is kept for a statement, part by part."""
    query, params = compiled(Execute(text, collections.defaultdict(str)))
    session.execute(Execute(f"PREPARE planned AS {query}"))
    nulls = f"({', '.join(['NULL'] * len(params))})" if params else ""
    ((plan,),) = session.db.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned{nulls}").fetchall()
    session.execute(Execute("DEALLOCATE planned"))
    waiting = [plan[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        yield node


def do_everything(run: Run) -> None:
    """Each call once or twice, on hardly any jobs."""
    ids = put(run, {}, {"unique_key": "u", "idempotency_key": "i"}, {"expires_s": 0.0}, {"delay_s": 9.0})
    put(run, {})
    put(run, {"idempotency_key": "i"})
    leases = take(run, 1)
    leases += take(run, 1, tasks=frozenset({"send"}))
    leases += take(run, 1, OTHER, Q)
    run(lambda scene: book.extend(scene, leases, 60.0))
    run(lambda scene: book.settle(scene, [(leases[0], Done())]))
    run(lambda scene: book.settle(scene, [(leases[1], Hold())]))
    take(run, 1, tasks=frozenset({None}))
    ends = [(lease, Done()) for lease in take(run, 1)]
    run(lambda scene: book.turn(scene, ends, [Q], 1, worker="w", lease_s=60.0, tasks=frozenset({None})))
    run(lambda scene: book.turn(scene, ends, [Q], 1, worker="w", lease_s=60.0))
    run(lambda scene: book.settle(scene, [(leases[2], LOST), (leases[2], Dead())]))
    run(lambda scene: book.ended(scene, [Q], 5, gone=[1, 2]))
    run(lambda scene: book.leased(scene, Q, worker="w"))
    run(lambda scene: book.horizon(scene, [Q]))
    run(lambda scene: book.promote(scene, [Q]))
    put(run, {"delay_s": 0.0001})
    take(run, 1)
    run(lambda scene: book.unadd(scene, ids))
    for act in (Cancel(), Redrive(), Reprioritise(1), Edit(b"y", "bytes")):
        run(lambda scene, act=act: change.amend(scene, ids, act))
    run(change.prune)
    run(lambda scene: looks.get(scene, ids))
    run(lambda scene: looks.over(scene, ids))
    for state in State:
        run(lambda scene, state=state: looks.scan(scene, Filter(queue=Q, states=state)))
    run(lambda scene: change.amend(scene, ids, Delete(), force=True))
