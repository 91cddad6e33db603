"""Two or three calls at the same moment, in every order of their statements.

ULAK_ORDERS=1 tries every one; without it, one in a few.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.contract.steps import FAIL, LOST, RELEASE, act, draft, end, put, put_one, take, take_one
from tests.postgres.lockstep import Lockstep, Make, orders
from ulak.core.job import FULL, OPEN, Dead, Done, Duplicate, Hold, Lease, Outcome
from ulak.core.store import Cancel, Change, Delete, Filter, Keep, Redrive, Reprioritise, Retention, Settings
from ulak.storage.postgres import book, change
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.store import PostgresStore

EVERY = 1 if os.environ.get("ULAK_ORDERS") else 4
MOVES = 4

Case = Callable[[PostgresStore, str], tuple[list[Make], Callable[[list[Any]], None]]]


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(place_of(url))
    store.open()
    yield store
    store.close()


def two_claims(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    ids = put(store, *(draft(priority=number % 2) for number in range(5)), queue=q)

    def check(answers: list[Any]) -> None:
        taken = [[lease.id for lease in leases] for leases in answers]
        assert all(len(leases) <= 3 for leases in taken)
        assert len({job_id for leases in taken for job_id in leases}) == len(taken[0]) + len(taken[1])
        assert sorted(itertools.chain(*taken)) == sorted(ids)
        for leases in taken:
            assert leases == sorted(leases, key=lambda job_id: (-(ids.index(job_id) % 2), job_id))

    return [claiming(q, 3), claiming(q, 3)], check


def claims_with_something_due(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put(store, draft(), draft(run_at=1.0), draft(task="send"), queue=q)
    later = put_one(store, queue=q, delay_s=0.001)
    end(store, take_one(store, queue=q), Hold())

    def check(answers: list[Any]) -> None:
        taken = [lease.id for leases in answers for lease in leases]
        assert len(taken) == len(set(taken))
        assert all(len(leases) <= 2 for leases in answers)
        assert later not in taken or len(taken) <= 4

    return [claiming(q, 2), claiming(q, 2)], check


def claiming(q: str, limit: int) -> Make:
    return lambda scene: book.claim(scene, [q], limit, worker="w", lease_s=60.0)


def settling(*settlements: Any) -> Make:
    return lambda scene: book.settle(scene, settlements)


def two_ends(one: Any, other: Any) -> Case:
    def case(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
        put(store, draft(), draft(), queue=q)
        first, second = take(store, 2, queue=q)

        def check(answers: list[Any]) -> None:
            stale = [answer is Outcome.STALE for batch in answers for answer in batch]
            # Each of both jobs is settled once.
            assert [a + b for a, b in zip(stale[:2], reversed(stale[2:]), strict=True)] == [1, 1]

        # In different orders, as batches of two workers come.
        return [settling((first, one), (second, one)), settling((second, other), (first, other))], check

    return case


def reclaim_and_extend(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put_one(store, queue=q)
    lease = take_one(store, queue=q, lease_s=0.0)
    (seen,) = store.ended([q], 10)

    def check(answers: list[Any]) -> None:
        (reclaimed,), (extended,) = answers
        # A holder that was told to have it longer has it.
        assert reclaimed is Outcome.STALE or extended is Outcome.STALE
        if extended is not Outcome.STALE:
            assert end(store, lease, Done()) == "succeeded"

    return [settling((seen, LOST)), lambda scene: book.extend(scene, [lease], 60.0)], check


def turn_and_claim(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put(store, draft(), draft(), queue=q)
    first, second = take(store, 2, queue=q)

    def check(answers: list[Any]) -> None:
        (settled, leases), others = answers
        assert settled == ["succeeded", "ready"]
        assert [lease.id for lease in (*leases, *others)] in ([second.id], [])

    def turning(scene: Any) -> Any:
        settlements = [(first, Done()), (second, RELEASE)]
        return book.turn(scene, settlements, [q], 2, worker="w", lease_s=60.0)

    return [turning, claiming(q, 2)], check


def two_adds_with_room_for_one(*, has_expired: bool) -> Case:
    def case(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
        store.declare(q, Settings(capacity=3))
        put(store, draft(), *([draft(expires_s=0.0)] if has_expired else []), queue=q)

        def check(answers: list[Any]) -> None:
            assert sorted(answer is FULL for answer in answers) == [False, True]

        def adding(scene: Any) -> Any:
            return book.add(scene, q, [draft(), draft()])

        return [adding, adding], check

    return case


def an_add_and_a_redrive_with_room_for_one(
    store: PostgresStore, q: str
) -> tuple[list[Make], Callable[[list[Any]], None]]:
    store.declare(q, Settings(capacity=1))
    dead = put_one(store, queue=q)
    end(store, take_one(store, queue=q), Dead())

    def check(answers: list[Any]) -> None:
        added, changed = answers
        assert (added is FULL) is bool(changed)

    def adding(scene: Any) -> Any:
        return book.add(scene, q, [draft()])

    def bringing_back(scene: Any) -> Any:
        return change.amend(scene, [dead], Redrive())

    return [adding, bringing_back], check


def a_redrive_of_what_ends_just_then(
    store: PostgresStore, q: str
) -> tuple[list[Make], Callable[[list[Any]], None]]:
    store.declare(q, Settings(capacity=1))
    job_id = put_one(store, queue=q)
    lease = take_one(store, queue=q)

    def check(answers: list[Any]) -> None:
        added, changed = answers
        # There is room for one of both.
        assert added is not FULL
        assert not changed

    def ending_and_adding(scene: Any) -> Any:
        yield from book.settle(scene, [(lease, Dead())])
        return (yield from book.add(scene, q, [draft()]))

    return [ending_and_adding, lambda scene: change.amend(scene, [job_id], Redrive())], check


def two_adds_of_a_key(**keys: str) -> Case:
    def case(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
        put_one(store, queue=q)

        def check(answers: list[Any]) -> None:
            (one,), (other,) = answers
            assert one == other
            assert sorted(isinstance(answer, Duplicate) for answer in (one, other)) == [False, True]

        def adding(scene: Any) -> Any:
            return book.add(scene, q, [draft(**keys)])

        return [adding, adding], check

    return case


def two_adds_of_two_keys_crossed(
    store: PostgresStore, q: str
) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put_one(store, queue=q)

    def check(answers: list[Any]) -> None:
        one, other = answers
        assert set(map(int, one)) == set(map(int, other))

    def adding(*names: str) -> Make:
        return lambda scene: book.add(scene, q, [draft(unique_key=name) for name in names])

    return [adding("a", "b"), adding("b", "a")], check


def an_operator(which: Any, verdict: Any) -> Case:
    """An operator's act on a running job that is settled at the same moment."""

    def case(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
        job_id = put_one(store, queue=q)
        lease = take_one(store, queue=q)

        def check(answers: list[Any]) -> None:
            (settled,), changed = answers
            is_gone = isinstance(which, Delete) and changed
            assert (settled is Outcome.STALE) <= bool(is_gone)
            assert job_id in changed.done or changed.refused

        def acting(scene: Any) -> Any:
            return change.amend(scene, [job_id], which, force=True)

        return [settling((lease, verdict)), acting], check

    return case


def two_ticks(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    store.declare(q, Settings())

    def check(answers: list[Any]) -> None:
        assert sum(type(answer) is int for answer in answers) == 1

    def firing(scene: Any) -> Any:
        return change.fire(scene, q, 100.0, q, draft())

    return [firing, firing], check


def two_acks_beyond_what_is_kept(
    store: PostgresStore, q: str
) -> tuple[list[Make], Callable[[list[Any]], None]]:
    store.declare(q, Settings(retention=Retention(succeeded=Keep(3, 3600.0), dead=Keep(1, 3600.0))))
    put(store, *(draft() for _ in range(10)), queue=q)
    *done, dead, first, second, third, fourth, last = take(store, 10, queue=q)
    store.settle([(lease, Done()) for lease in done])
    end(store, dead, Dead())

    def check(answers: list[Any]) -> None:
        assert Outcome.STALE not in answers[0] + answers[1]
        # Where one passes over what the other removes, some may be left; never fewer than are kept.
        assert store.counts([q])[q].acked >= 3
        store.prune()
        counts = store.counts([q])[q]
        assert (counts.acked, counts.dead, counts.pruned) == (3, 1, 6)

    return [
        settling((first, Done()), (second, Done())),
        settling((third, Done()), (fourth, Dead()), (last, Done(b"1"))),
    ], check


def two_prunes_of_what_is_beyond(
    store: PostgresStore, q: str
) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put(store, *(draft() for _ in range(6)), queue=q)
    store.settle([(lease, Done()) for lease in take(store, 6, queue=q)])
    store.configure(q, Change(retention=Retention(succeeded=Keep(4, 3600.0))))

    def check(answers: list[Any]) -> None:
        assert sum(answer.get("succeeded", 0) for answer in answers) == 2
        assert store.counts([q])[q].acked == 4

    return [change.prune, change.prune], check


def a_prune_beside_acks(store: PostgresStore, q: str) -> tuple[list[Make], Callable[[list[Any]], None]]:
    put(store, draft(), draft(expires_s=0.0), draft(idempotency_key="i"), queue=q)
    leases: list[Lease] = take(store, 5, queue=q)

    def check(answers: list[Any]) -> None:
        assert answers[0] == ["succeeded"] * len(leases)

    return [settling(*((lease, Done()) for lease in leases)), change.prune], check


CASES: dict[str, Case] = {
    "two claims": two_claims,
    "claims with something due": claims_with_something_due,
    "two acks": two_ends(Done(), Done()),
    "an ack and a failure": two_ends(Done(), FAIL),
    "an ack and a reclaim": two_ends(Done(), LOST),
    "a result and a death": two_ends(Done(b"1"), Dead()),
    "two reclaims": two_ends(LOST, LOST),
    "a reclaim and an extend": reclaim_and_extend,
    "a turn and a claim": turn_and_claim,
    "two adds, room for one": two_adds_with_room_for_one(has_expired=False),
    "two adds, room for one as another has expired": two_adds_with_room_for_one(has_expired=True),
    "an add and a redrive, room for one": an_add_and_a_redrive_with_room_for_one,
    "a redrive of what ends just then": a_redrive_of_what_ends_just_then,
    "a unique key": two_adds_of_a_key(unique_key="ada"),
    "an idempotency key": two_adds_of_a_key(idempotency_key="ada"),
    "both keys": two_adds_of_a_key(idempotency_key="ada", unique_key="ada"),
    "two keys, crossed": two_adds_of_two_keys_crossed,
    "a cancel and an ack": an_operator(Cancel(), Done()),
    "a cancel and a failure": an_operator(Cancel(), FAIL),
    "a delete and an ack": an_operator(Delete(), Done()),
    "a delete and a failure": an_operator(Delete(), FAIL),
    "a new priority and a failure": an_operator(Reprioritise(3), FAIL),
    "two ticks": two_ticks,
    "acks beyond what is kept": two_acks_beyond_what_is_kept,
    "two prunes": two_prunes_of_what_is_beyond,
    "a prune and acks": a_prune_beside_acks,
}


@pytest.mark.parametrize("name", CASES)
def test_two_calls_come_to_the_same_in_every_order_of_their_statements(
    store: PostgresStore, url: str, name: str
) -> None:
    lockstep = Lockstep(url, store.uid, 2)
    try:
        for number, order in enumerate(itertools.islice(orders(MOVES, MOVES), 0, None, EVERY)):
            q = f"q{number}"
            makes, check = CASES[name](store, q)
            answers = lockstep.run(makes, order)
            try:
                check(answers)
                everything_adds_up(store, q)
            except AssertionError as error:
                error.add_note(f"{name}, in the order {order}: {answers}")
                raise
    finally:
        lockstep.close()


def test_three_claims_never_share_a_job_in_any_order_of_their_statements(
    store: PostgresStore, url: str
) -> None:
    lockstep = Lockstep(url, store.uid, 3)
    try:
        for number, order in enumerate(itertools.islice(orders(2, 2, 2), 0, None, EVERY)):
            q = f"q{number}"
            put(store, *(draft() for _ in range(7)), queue=q)
            answers = lockstep.run([claiming(q, 3)] * 3, order)
            taken = [lease.id for leases in answers for lease in leases]
            assert len(taken) == len(set(taken)) == 7
            assert max(map(len, answers)) <= 3
            everything_adds_up(store, q)
    finally:
        lockstep.close()


def everything_adds_up(store: PostgresStore, q: str) -> None:
    """The counters of a queue are a recount of its jobs, no key is there twice, no capacity is passed."""
    jobs, counts = store.scan(Filter(queue=q), limit=1000), store.counts([q])[q]
    recount = Counter(job.state.value for job in jobs)
    names = {"succeeded": "acked"}
    told = {name: getattr(counts, names.get(name, name)) for name in recount}
    assert recount == told
    assert counts.open == sum(job.state in OPEN for job in jobs)
    totals = msgspec.structs.asdict(counts.totals)
    ended = totals["succeeded"] + totals["dead_lettered"] + totals["cancelled"] + totals["expired"]
    assert totals["enqueued"] + totals["redriven"] == ended + totals["deleted"] + counts.open
    capacity = store.queues()[q].capacity
    assert capacity is None or counts.open <= capacity
    keys = [job.unique_key for job in jobs if job.state in OPEN and job.unique_key is not None]
    assert len(keys) == len(set(keys))


def test_acts_are_answered_alike_by_jobs_that_end_meanwhile(store: PostgresStore, url: str) -> None:
    # An operator's act waits for whoever settles a job, and then finds it among those that ended.
    lockstep = Lockstep(url, store.uid, 2)
    try:
        for number, order in enumerate(orders(3, 3)):
            q = f"q{number}"
            job_id = put_one(store, queue=q)
            lease = take_one(store, queue=q)
            _, changed = lockstep.run(
                [settling((lease, Dead())), lambda scene, i=job_id: change.amend(scene, [i], Delete())], order
            )
            assert changed.done == (job_id,) or changed.refused
            assert not act(store, Delete(), job_id) if changed else act(store, Delete(), job_id)
    finally:
        lockstep.close()
