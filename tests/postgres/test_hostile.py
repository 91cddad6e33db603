"""Whatever a text holds, it comes back as it was, and nothing of it is read as a statement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.steps import Q, act, draft, end, put_one, record, take_one
from ulak.core.job import PRIORITY_MAX, PRIORITY_MIN, Dead, Duplicate, Failure, Retry
from ulak.core.store import Cancel, Edit, Filter
from ulak.storage.postgres.place import place_of
from ulak.storage.postgres.store import PostgresStore

TEXTS = (
    "\0",
    "a\0b",
    "'; DROP TABLE jobs; --",
    '"',
    "\\",
    "\\x00",
    "%s %(now)s %%",
    "{} {0} {name}",
    "$1 :name ?",
    "{NULL,NULL}",
    "NULL",
    "\n\r\t\x1b[31m\x7f",
    "\u202e\ufeff\ud7ff\U0001f600",
    "ö" * 256,
)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(place_of(url))
    store.open()
    yield store
    store.close()


def test_keys_headers_workers_and_errors_hold_any_text(store: PostgresStore) -> None:
    for text in TEXTS:
        keys = {"unique_key": text, "idempotency_key": text}
        job_id = put_one(store, **keys, headers={text: text}, payload=text.encode())
        assert store.add(Q, [draft(**keys), draft(unique_key=text)]) == [Duplicate(job_id)] * 2
        lease = take_one(store, worker=text)
        assert (lease.worker, lease.headers, lease.body) == (text, {text: text}, text.encode())
        assert store.extend([lease], 60.0, progress={job_id: text}) == [False]
        assert [job.id for job in store.scan(Filter(worker=text, states="leased"))] == [job_id]
        assert [found.worker for found in store.leased(Q, worker=text)] == [text]
        end(store, lease, Retry(3600.0, error=Failure(text, text, text)))
        job = record(store, job_id)
        assert (job.unique_key, job.idempotency_key, job.progress) == (text, text, text)
        assert job.history[0].error == Failure(text, text, text)
        assert act(store, Edit(text.encode() * 2, "str"), job_id)
        act(store, Cancel(), job_id)
        assert record(store, job_id).payload == text.encode() * 2
    assert store.counts([Q])[Q].cancelled == len(TEXTS)


def test_many_hostile_jobs_at_once_come_back_as_they_were(store: PostgresStore) -> None:
    ids = store.add(Q, [draft(text.encode(), unique_key=text, headers={"h": text}) for text in TEXTS])
    leases = store.claim([Q], 100, worker="w", lease_s=60.0)
    assert [lease.id for lease in leases] == ids
    assert [(lease.body, lease.headers) for lease in leases] == [(t.encode(), {"h": t}) for t in TEXTS]
    store.settle([(lease, Dead(error=Failure("E", lease.body.decode()))) for lease in leases])
    errors = [job.history[0].error for job in store.scan(Filter(queue=Q, states="dead"))]
    assert errors == [Failure("E", text) for text in TEXTS]


def test_names_and_filters_of_any_text_find_nothing_and_break_nothing(store: PostgresStore) -> None:
    put_one(store)
    for text in TEXTS:
        store.beat(text, {text: text})
        assert [dict(info.info) for info in store.workers()] == [{text: text}]
        store.depart(text)
        assert store.scan(Filter(task=text)) == store.scan(Filter(queue=text)) == []
        assert store.amend(Filter(task=text, worker=text), Cancel()).done == ()
        assert store.claim([Q], 1, worker=text, lease_s=0.0, tasks=frozenset({text})) != []
        (lease,) = store.ended([Q], 1)
        assert lease.worker == text
        end(store, lease, Retry(refund=True))


def test_numbers_hold_64_bits(store: PostgresStore) -> None:
    ids = [put_one(store, priority=priority) for priority in (PRIORITY_MIN, PRIORITY_MAX, 0)]
    huge = 2**63
    assert [job.id for job in store.scan(Filter(), after=-huge)] == ids
    assert store.scan(Filter(), after=huge) == []
    assert store.get([huge, -1, 0, ids[1]])[:3] == [None] * 3
    assert act(store, Cancel(), huge, -1, ids[0]).done == (ids[0],)
    lease = take_one(store)
    assert lease.priority == PRIORITY_MAX
