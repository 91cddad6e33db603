"""Whatever plan the server thinks best, a claim takes what it must and no more."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.contract.steps import FAIL, OTHER, Q, draft, end, put, take
from ulak.core.job import Dead, Done, Hold, Retry
from ulak.core.store import Change, Filter, Keep, Retention, Settings
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.store import PostgresStore

PLANS = {
    "as the server likes": [],
    "no index": ["indexscan", "indexonlyscan", "bitmapscan"],
    "no loops": ["nestloop", "material"],
    "loops only": ["hashjoin", "mergejoin", "seqscan", "bitmapscan"],
    "no sorts": ["sort", "incremental_sort", "hashagg"],
}


@pytest.fixture(params=PLANS)
def store(request: pytest.FixtureRequest, url: str) -> Iterator[PostgresStore]:
    """A store whose sessions may not use what the plan is named for."""
    options = " ".join(f"-c enable_{name}=off" for name in PLANS[request.param])
    mark = "&" if "?" in url else "?"
    store = PostgresStore(place_of(f"{url}{mark}options={quote(options)}" if options else url))
    store.open()
    yield store
    store.close()


def test_a_claim_takes_the_best_of_its_first_queue_and_no_more_than_its_limit(store: PostgresStore) -> None:
    first = put(store, *(draft(priority=number % 3) for number in range(30)))
    second = put(store, *(draft(priority=9) for _ in range(30)), queue=OTHER)
    best = sorted(first, key=lambda job_id: (-(first.index(job_id) % 3), job_id))
    # Again and again, as the server keeps a plan after some runs.
    for number in range(8):
        leases = store.claim([Q, OTHER], 3, worker="w", lease_s=60.0)
        assert [lease.id for lease in leases] == best[3 * number : 3 * number + 3]
    leases = store.claim([Q, OTHER], 10, worker="w", lease_s=60.0)
    assert [lease.id for lease in leases] == [*best[24:], *second[:4]]


def test_a_turn_finishes_what_it_names_and_takes_no_more_than_its_limit(store: PostgresStore) -> None:
    ids = put(store, *(draft() for _ in range(40)))
    leases = take(store, 4)
    for number in range(8):
        settled, taken = store.turn([(lease, Done()) for lease in leases], [Q], 4, worker="w", lease_s=60.0)
        assert settled == ["succeeded"] * 4
        assert [lease.id for lease in taken] == ids[4 * number + 4 : 4 * number + 8]
        leases = taken
    counts = store.counts([Q])[Q]
    assert (counts.acked, counts.leased, counts.ready) == (32, 4, 4)


def test_a_claim_with_due_and_held_jobs_takes_the_best_of_all_and_no_more(store: PostgresStore) -> None:
    held = put(store, *(draft(task="send", priority=1) for _ in range(4)))
    for lease in take(store, 4):
        end(store, lease, Hold())
    ready = put(store, *(draft(priority=number % 2) for number in range(4)))
    late = put(store, *(draft(priority=2, delay_s=0.001) for _ in range(2)))
    put(store, draft(priority=5, expires_s=0.0), draft(task="draw", priority=3, delay_s=3600.0))
    tasks = frozenset({None, "send"})
    expected = [*late, *held, ready[1], ready[3], ready[0], ready[2]]
    found: list[int] = []
    while leases := take(store, 3, tasks=tasks):
        assert len(leases) <= 3
        found += [lease.id for lease in leases]
    assert found == expected
    assert store.counts([Q])[Q].expired == 1


def test_looks_and_retention_keep_to_their_limits(store: PostgresStore) -> None:
    store.declare(Q, Settings(retention=Retention(dead=Keep(3, 3600.0))))
    ids = put(store, *(draft() for _ in range(12)))
    leases = take(store, 12, lease_s=0.0)
    assert len(store.ended([Q], 5)) == 5
    assert [lease.id for lease in store.leased(Q, after=ids[1], limit=4)] == ids[2:6]
    verdicts = [*[FAIL] * 3, *[Retry(60.0)] * 4, *[Dead()] * 5]
    answers = store.settle(list(zip(leases, verdicts, strict=True)))
    assert answers == ["ready"] * 3 + ["scheduled"] * 4 + ["dead"] * 5
    assert store.promote([Q]) == 0
    assert [job.id for job in store.scan(Filter(queue=Q, states="dead"))] == ids[9:]
    store.configure(Q, Change(retention=Retention(dead=Keep(0, 3600.0))))
    assert [store.prune(limit=2), store.prune()] == [{"dead": 2}, {"dead": 1}]
    assert [job.id for job in store.scan(Filter(queue=Q), after=ids[1], limit=3)] == ids[2:5]
