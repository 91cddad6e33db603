"""What a handle says and refuses, on every storage: settings that are not used, arguments that cannot be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import StorageKind
from ulak import (
    FULL,
    ArgumentError,
    AsyncQueue,
    Backoff,
    Changed,
    Closed,
    ConfigError,
    Filter,
    JobOptions,
    Keep,
    NewJob,
    Outcome,
    PayloadError,
    Queue,
    Refusal,
    Retention,
    Settings,
    StorageUnavailable,
)
from ulak.clock import SYSTEM
from ulak.core.job import State
from ulak.core.store import MEMORY_RETENTION, Store
from ulak.local import masked
from ulak.testing import ManualClock

DAY_S = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(kind: StorageKind, clock: ManualClock) -> Iterator[Queue]:
    with Queue(kind.url(), max_attempts=1, visibility_timeout=30, clock=clock) as queue:
        yield queue


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# Opening


def test_a_handle_whose_first_call_fails_is_whole_at_its_next(
    kind: StorageKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = kind.url(), type(kind.make(SYSTEM))
    declare = store.declare

    def away(*_: object) -> Settings:
        monkeypatch.setattr(store, "declare", declare)
        raise StorageUnavailable("away")

    with Queue(url, name="other") as other:
        monkeypatch.setattr(store, "declare", away)
        q = Queue(url, name="mail", capacity=1)
        with pytest.raises(StorageUnavailable):
            q.enqueue("not stored")
        q.enqueue("stored")
        assert q.try_enqueue("no room") is FULL
        assert q.settings().capacity == 1
        q.close()
        assert other.counts().open == 0


def test_a_handle_that_failed_to_open_does_not_keep_the_store_open(
    kind: StorageKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = kind.url(), type(kind.make(SYSTEM))
    declare, close, closed = store.declare, store.close, []

    def away(*_: object) -> Settings:
        monkeypatch.setattr(store, "declare", declare)
        raise StorageUnavailable("away")

    def closing(opened: Store) -> None:
        closed.append(opened)
        close(opened)

    monkeypatch.setattr(store, "declare", away)
    monkeypatch.setattr(store, "close", closing)
    q = Queue(url)
    with pytest.raises(StorageUnavailable):
        q.counts()
    assert len(closed) == 1
    assert q.counts().open == 0
    q.close()
    assert len(closed) == 2


def test_both_of_two_handles_must_bring_the_same_clock(kind: StorageKind, clock: ManualClock) -> None:
    url = kind.url()
    with Queue(url, clock=clock) as q, Queue(url, clock=clock) as same:
        q.enqueue("shared")
        assert same.counts().ready == 1
        for other in (ManualClock(), SYSTEM):
            with pytest.raises(ArgumentError, match=r"another clock.*clock="):
                Queue(url, clock=other).counts()
        with pytest.raises(ArgumentError, match="another clock"):
            Queue(url).counts()
        assert same.counts().ready == 1
    Queue(url).close()


def test_a_private_store_has_the_clock_it_was_given(clock: ManualClock) -> None:
    with Queue("memory://", clock=clock) as q, Queue("memory://") as other:
        assert (q.counts().open, other.counts().open) == (0, 0)


@pytest.mark.parametrize(
    ("name", "stored", "wanted"),
    [
        ("capacity", 5, 6),
        ("backoff", Backoff(base=1), Backoff(base=2)),
        ("retention", Retention(dead=Keep(1, 1)), Retention(dead=Keep(2, 1))),
    ],
)
def test_a_setting_that_is_stored_otherwise_is_a_warning(
    kind: StorageKind, name: str, stored: Any, wanted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = kind.url()
    with Queue(url, **{name: stored}), Queue(url, **{name: stored}), Queue(url):
        assert warnings(caplog) == []
        with Queue(url, **{name: wanted}) as late:
            assert getattr(late.settings(), name) == stored
    (said,) = warnings(caplog)
    assert said.endswith(f"so {wanted} is not used; change it with q.configure({name}=)")


# What is kept


@pytest.mark.parametrize("count", [-1, True, 1.0, "1", None, 2**63])
def test_keep_refuses_a_count_that_cannot_be(count: Any) -> None:
    with pytest.raises(ArgumentError, match="count"):
        Keep(count, 1.0)


@pytest.mark.parametrize("age_s", [0, -1, True, "old", "0s", None, float("nan"), float("inf"), timedelta(0)])
def test_keep_refuses_an_age_that_cannot_be(age_s: Any) -> None:
    with pytest.raises(ArgumentError, match="age_s"):
        Keep(1, age_s)


def test_keep_turns_a_timedelta_into_seconds_and_prunes_by_it(q: Queue, clock: ManualClock) -> None:
    age: Any = timedelta(hours=1)
    q.configure(retention=Retention(succeeded=Keep(10, age)))
    q.enqueue("x")
    q.ack_many(q.deliver_many(1))
    clock.advance(3601)
    assert q.prune() == 1


def test_retention_names_only_what_differs() -> None:
    assert Retention() == MEMORY_RETENTION
    assert Retention(dead=Keep(5, 60)).of(State.SUCCEEDED) == Keep(10_000, DAY_S)


@pytest.mark.parametrize("state", ["succeeded", "dead", "cancelled", "expired"])
@pytest.mark.parametrize("keep", [None, 5, (5, 60.0)])
def test_retention_takes_keeps_only(state: str, keep: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{state} must be a Keep"):
        Retention(**{state: keep})


# Many at once


NOT_SEVERAL = ["hi", b"hi", bytearray(b"hi"), memoryview(b"hi"), {"to": "ada"}, 5, None, NewJob("hi")]


@pytest.mark.parametrize("jobs", NOT_SEVERAL, ids=lambda jobs: type(jobs).__name__)
def test_enqueue_many_refuses_what_is_one_value(q: Queue, jobs: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"a list of payloads.*got {type(jobs).__name__}"):
        q.enqueue_many(jobs)
    assert q.counts().total == 0


def test_many_may_come_from_any_iterable(q: Queue) -> None:
    assert len(q.enqueue_many(str(number) for number in range(3))) == 3
    assert len(q.enqueue_many(("a", {"b": 1}))) == 2
    assert q.ack_many(iter(q.deliver_many(5))) == [Outcome.OK] * 5


def test_ack_many_refuses_a_single_lease(q: Queue) -> None:
    q.enqueue("x")
    lease: Any = q.deliver()
    with pytest.raises(ArgumentError, match="a list of leases, got Lease"):
        q.ack_many(lease)
    assert q.ack(lease) is Outcome.OK


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        pytest.param({"a": {1}}, PayloadError, 'jobs[2].payload["a"]: a set', id="payload"),
        pytest.param(NewJob({"a": {1}}), PayloadError, 'jobs[2].payload["a"]: a set', id="job"),
        pytest.param(NewJob(1, "high"), ArgumentError, "jobs[2]: priority must be an int", id="priority"),
        pytest.param(NewJob(1, headers={"a": 1}), PayloadError, 'jobs[2].headers["a"]: ', id="header"),
        pytest.param(NewJob(1, max_attempts=0), ArgumentError, "jobs[2]: max_attempts counts", id="option"),
    ],
)
def test_an_error_in_many_says_which_one(q: Queue, bad: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        q.enqueue_many([1, 2, bad, 4])
    assert str(caught.value).startswith(text)
    assert q.counts().total == 0


# What operators name


def make_dead(q: Queue, number: int) -> list[int]:
    ids = q.enqueue_many(range(number))
    for lease in q.deliver_many(number):
        q.nack(lease, error="broken")
    return ids


def test_operators_may_pass_jobs_for_ids(q: Queue) -> None:
    first, second, third = make_dead(q, 3)
    jobs = q.jobs("dead")
    assert q.edit(jobs[0], "mended").done == (first,)
    assert q.redrive(jobs[0]).done == (first,)
    assert q.redrive(jobs[1:]).done == (second, third)
    assert q.reprioritise(jobs[0], priority=7).done == (first,)
    assert q.cancel([jobs[0], second]).done == (first, second)
    assert q.delete(job for job in jobs).done == (first, second, third)


def test_operators_may_pass_jobs_for_ids_on_a_loop(kind: StorageKind, clock: ManualClock) -> None:
    async def main() -> None:
        async with AsyncQueue(kind.url(), clock=clock) as q:
            ids = await q.enqueue_many([1, 2])
            jobs = await q.jobs()
            assert (await q.cancel(jobs[0])).done == (ids[0],)
            assert (await q.edit(jobs[1], 3)).done == (ids[1],)
            assert (await q.delete(jobs)).done == tuple(ids)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("which", "hint"),
    [("dead", "'dead'"), ("expired", "'expired'"), (State.CANCELLED, "'cancelled'"), ("all", "'dead'")],
)
def test_a_state_alone_is_answered_with_what_to_write(q: Queue, which: Any, hint: str) -> None:
    with pytest.raises(ArgumentError, match=rf"pass ids, jobs, or Filter\(states={hint}\), got"):
        q.redrive(which)


@pytest.mark.parametrize(
    "which", [b"1", {1: "x"}, None, 1.5, object()], ids=lambda which: type(which).__name__
)
def test_operators_refuse_what_names_no_jobs(q: Queue, which: Any) -> None:
    with pytest.raises(ArgumentError, match="pass ids, jobs, or Filter"):
        q.delete(which)


def test_a_filter_that_names_no_state_says_which_there_are() -> None:
    with pytest.raises(ArgumentError, match=r"not a job state: 'done'; the states are .*succeeded"):
        Filter(states="done")


def test_what_changed_nothing_is_false(q: Queue) -> None:
    (job_id,) = make_dead(q, 1)
    assert q.redrive(job_id)
    assert not q.redrive(job_id)
    assert not Changed((), {Refusal.NOT_FOUND: (1,)})


@pytest.mark.parametrize("error", [404, b"no", ValueError, ["no"]], ids=lambda error: type(error).__name__)
def test_nack_refuses_an_error_that_is_none(q: Queue, error: Any) -> None:
    q.enqueue("x")
    lease = q.deliver()
    assert lease is not None
    with pytest.raises(ArgumentError, match=f"error= .*not {type(error).__name__}"):
        q.nack(lease, error=error)
    assert q.ack(lease) is Outcome.OK


# What is shown


def next_of(q: Queue, job_id: int) -> str:
    info = q.get(job_id)
    assert info is not None
    assert [job.next for job in q.jobs() if job.id == job_id] == [info.next]
    return info.next


def test_next_knows_that_the_queue_is_paused(q: Queue) -> None:
    ready, later, running = q.enqueue("a"), q.enqueue("b", delay=60), q.enqueue("c", 9)
    q.deliver()
    assert next_of(q, ready) == "runs as soon as a worker is free"
    assert next_of(q, later) == "due in 60.0 s"
    q.pause()
    assert next_of(q, ready) == next_of(q, later) == "waits: its queue is paused"
    assert next_of(q, running).startswith("runs on ")
    q.resume()
    assert next_of(q, ready) == "runs as soon as a worker is free"


def test_next_of_a_lease_that_has_ended_counts_no_negative_seconds(q: Queue, clock: ManualClock) -> None:
    job_id = q.enqueue("x")
    q.deliver()
    clock.advance(29)
    assert next_of(q, job_id).endswith("its lease ends in 1.0 s")
    clock.advance(1)
    assert next_of(q, job_id) == "its lease has ended; any worker may take it over"
    q.cancel(job_id)
    assert next_of(q, job_id) == ("its lease has ended; any worker may take it over; its cancel is requested")


def test_a_closed_handle_says_so(kind: StorageKind) -> None:
    url = kind.url()
    q = Queue(url, name="mail")
    assert repr(q) == f"Queue({masked(url)!r}, name='mail')"
    q.close()
    assert repr(q) == f"<closed Queue({masked(url)!r}, name='mail')>"
    with pytest.raises(Closed):
        q.counts()


def test_secrets_of_a_url_are_not_shown() -> None:
    assert masked("memory://name") == "memory://name"
    assert masked("postgresql://ada:p@ss/word@host:1/db") == "postgresql://***"
    q = Queue("memory://")
    q.url = "redis://:secret@host/0"
    assert repr(q) == "Queue('redis://***@host/0', name='default')"


# Options


def test_options_may_be_none_as_if_not_given(q: Queue) -> None:
    options: JobOptions = {
        "delay": None,
        "run_at": None,
        "expires": None,
        "unique_key": None,
        "idempotency_key": None,
        "max_attempts": None,
        "backoff": None,
        "headers": None,
    }
    assert set(options) == set(JobOptions.__annotations__)
    ids = q.enqueue("a", **options), q.try_enqueue("a", **options), *q.enqueue_many([NewJob("a", **options)])
    first, *others = (q.get(int(job_id)) for job_id in ids)
    assert first is not None
    for other in others:
        assert other is not None
        assert (other.state, other.max_attempts, other.headers) == (first.state, first.max_attempts, {})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Queue(capacity=0), "got 0"),
        (lambda: Queue(capacity=2**63), "got 9223372036854775808"),
        (lambda: Queue(capacity=-(10**5000)), "got an int of 16610 bits"),
        (lambda: Queue(capacity="secret"), "got str"),  # type: ignore[arg-type]
        (lambda: Queue(max_attempts=0), "got 0"),
        (lambda: Queue(max_attempts=True), "got bool"),
        (lambda: Queue().jobs(limit=0), "got 0"),
    ],
)
def test_a_number_out_of_bounds_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()


def test_a_queues_name_in_the_place_of_a_url_is_told_where_it_goes() -> None:
    with pytest.raises(ConfigError, match=r"scheme: .*; for a queue's name write Queue\(name='mail'\)"):
        Queue("mail")
    with pytest.raises(ConfigError) as caught:
        Queue("ada:secret@host")
    assert "secret" not in str(caught.value)
    assert "name=" not in str(caught.value)


def test_a_payload_that_is_too_large_names_no_limit_to_raise(q: Queue) -> None:
    with pytest.raises(PayloadError, match="larger than the limit") as caught:
        q.enqueue(b"x" * 300_000)
    assert "raise" not in str(caught.value)


# Producers


def test_finishing_the_unregistered_producer_while_others_are_open_is_a_warning(
    q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    producer = q.producer()
    q.mark_producer_finished()
    (said,) = warnings(caplog)
    assert "1 registered" in said
    assert "producer.finish()" in said
    q.enqueue("still open")
    producer.finish()
    q.mark_producer_finished()
    assert len(warnings(caplog)) == 1
    with pytest.raises(Closed):
        q.enqueue("too late")


def test_a_producer_says_whose_it_is_and_whether_it_has_finished(kind: StorageKind) -> None:
    with Queue(kind.url(), name="mail") as q:
        producer = q.producer()
        assert repr(producer) == "Producer(queue='mail', finished=False)"
        producer.finish()
        assert repr(producer) == "Producer(queue='mail', finished=True)"
