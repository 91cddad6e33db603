"""What a pool runs: which callables, with what context, and how a delivery ends by what they do."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import threading

import pytest

from tests.support.pools import AT_ONCE, KINDS, LEASE_S, causes, of_kind
from tests.support.waiting import WAIT_S, eventually
from ulak import (
    ArgumentError,
    Backoff,
    Cancel,
    Context,
    PayloadError,
    Reject,
    Retry,
    Snooze,
    WouldDeadlock,
    current_job,
)
from ulak.capture import ERROR_TEXT_MAX
from ulak.core.job import Draft

SECRET = "hunter2"


def run_all(q, handler, count=2):
    """Run what is in the queue to its end."""
    with q.workers(handler, count=count, backoff=AT_ONCE) as pool:
        assert pool.size == count
        assert pool.drain(timeout=WAIT_S).drained


def run_one(q, handler, payload="payload", **options):
    """Run one job to its end; its record."""
    job_id = q.enqueue(payload, **options)
    run_all(q, handler)
    return q.get(job_id)


# What can be a handler


class Caller:
    def __init__(self, ran):
        self.ran = ran

    def __call__(self, payload):
        self.ran.append(payload)

    def method(self, payload, suffix=""):
        self.ran.append(payload + suffix)

    async def amethod(self, payload):
        self.ran.append(payload)


class AsyncCaller(Caller):
    async def __call__(self, payload):
        self.ran.append(payload)


HANDLERS = {
    "def": lambda ran: of_kind("def", ran.append),
    "async def": lambda ran: of_kind("async def", ran.append),
    "lambda": lambda ran: lambda payload: ran.append(payload),  # noqa: PLW0108 - a lambda is what is tried
    "builtin": lambda ran: ran.append,
    "method": lambda ran: Caller(ran).method,
    "async method": lambda ran: Caller(ran).amethod,
    "object": Caller,
    "object with async __call__": AsyncCaller,
    "partial": lambda ran: functools.partial(Caller(ran).method, suffix=""),
    "partial of async def": lambda ran: functools.partial(Caller(ran).amethod),
    "partial of an object with async __call__": lambda ran: functools.partial(AsyncCaller(ran)),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_whatever_can_be_called_with_a_payload_is_a_handler(make, name):
    q, ran = make(), []
    assert run_one(q, HANDLERS[name](ran)).state == "succeeded"
    assert ran == ["payload"]


def test_a_builtin_without_a_signature_is_a_handler(make):
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(int)
    q = make(max_attempts=1)
    assert run_one(q, int, "17").state == "succeeded"
    assert run_one(q, int, "x").history[0].error.type == "ValueError"


async def agenerator(payload):
    yield payload


def generator(payload):
    yield payload


def only_context(context: Context):
    """The payload has no place."""


REFUSED = {
    "nothing to call": "payload",
    "None": None,
    "no parameter": lambda: None,
    "two parameters": lambda payload, other: None,
    "only by name": lambda *, payload: None,
    "the context alone": only_context,
    "a generator": generator,
    "an async generator": agenerator,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_for_a_payload_is_refused_at_once(make, name):
    """A generator would be made and dropped: nothing would run, and the job would be acked."""
    with pytest.raises(ArgumentError):
        make().workers(REFUSED[name])


def handlers_with_context(seen):
    def second(payload, context: Context):
        seen.append(context)

    def by_name(payload, *, job: Context):
        seen.append(job)

    async def awaited(payload, context: Context):
        seen.append(context)

    class Called:
        def __call__(self, payload, context: Context):
            seen.append(context)

    def bound(into, payload, context: Context):
        into.append(context)

    return {
        "second": second,
        "by name": by_name,
        "async def": awaited,
        "object": Called(),
        "partial": functools.partial(bound, seen),
    }


@pytest.mark.parametrize("name", handlers_with_context([]))
def test_a_parameter_annotated_context_gets_the_jobs_context(make, name):
    q, seen = make(max_attempts=3), []
    job = run_one(q, handlers_with_context(seen)[name], priority=7, headers={"trace": "1"})
    (context,) = seen
    assert (context.id, context.queue, context.priority) == (job.id, q.name, 7)
    assert (context.attempt, context.max_attempts, context.delivery, context.redelivered) == (1, 3, 1, False)
    assert (context.headers, context.cancelled, context.token[1]) == ({"trace": "1"}, False, 1)
    assert str(job.id) in repr(context)


@pytest.mark.parametrize("kind", KINDS)
def test_each_worker_sees_its_own_current_job_and_nobody_else_sees_one(make, kind):
    q, seen = make(), {}
    together, atogether = threading.Barrier(3), asyncio.Barrier(3)

    def handler(payload):
        together.wait(WAIT_S)
        seen[payload] = current_job().id

    async def ahandler(payload):
        async with asyncio.timeout(WAIT_S):
            await atogether.wait()
        seen[payload] = current_job().id

    ids = q.enqueue_many(["a", "b", "c"])
    run_all(q, handler if kind == "def" else ahandler, count=3)
    assert seen == dict(zip(["a", "b", "c"], ids, strict=True))
    assert current_job() is None


# How a job ends


def test_what_a_handler_returns_is_dropped(make):
    q = make()
    for returned in (object(), "x" * 10**6, NotImplemented, [1]):
        job = run_one(q, lambda _, returned=returned: returned)
        assert job.state == "succeeded"
        assert q._edge.store.get([job.id])[0].result is None


@pytest.mark.parametrize("returned", ["coroutine", "future"])
def test_a_def_handler_that_returns_an_awaitable_fails_and_nothing_is_left_unawaited(make, returned):
    q = make(max_attempts=1)
    loop = asyncio.new_event_loop()

    async def work():
        """Never runs."""

    def handler(_):
        return work() if returned == "coroutine" else loop.create_future()

    (attempt,) = run_one(q, handler).history
    # A coroutine that is dropped unawaited warns when it is collected, and warnings are errors here.
    gc.collect()
    loop.close()
    assert (attempt.cause, attempt.error.type) == ("error", "TypeError")
    assert "async def" in attempt.error.text


# What is raised -> the state after it, the attempt shown, how the delivery ended, its reason, the totals.
ENDINGS = {
    "retry after": (Retry(3600, "later"), "scheduled", 1, "nack", "later", (1, 1, 0)),
    "retry": (Retry(reason="later"), "scheduled", 1, "nack", "later", (1, 1, 0)),
    "snooze": (Snooze(3600), "scheduled", 0, "snooze", None, (0, 0, 0)),
    "reject": (Reject("never"), "dead", 1, "reject", "never", (1, 1, 0)),
    "cancel": (Cancel("unwanted"), "cancelled", 1, "cancel", "unwanted", (1, 1, 0)),
    "error": (ValueError("no"), "scheduled", 1, "error", "no", (1, 1, 0)),
    "nothing": (None, "succeeded", 1, "ack", None, (1, 0, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_delivery_ends_by_what_its_handler_raises(make, kind, name):
    raised, state, attempt, cause, reason, totals = ENDINGS[name]
    q = make(backoff=Backoff(base=3600, cap=3600, floor=3600))

    def handler(_):
        if raised is not None:
            raise raised

    with q.workers(of_kind(kind, handler), count=1) as pool:
        job_id = q.enqueue("payload")
        eventually(lambda: q.get(job_id).history)
        metrics = pool.metrics()
    job = q.get(job_id)
    assert (job.state, job.attempt, causes(job)) == (state, attempt, [cause])
    error = job.history[0].error
    assert (None if error is None else error.text) == reason
    assert (metrics.processed, metrics.failed, metrics.succeeded) == totals
    if state == "scheduled":
        wait_s = (job.run_at - job.created_at).total_seconds()
        assert 3600 <= wait_s < 3700


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_at_the_last_attempt_is_dead_and_a_snooze_never_is(make, kind):
    q, ran = make(max_attempts=2), []

    def handler(payload):
        ran.append(payload)
        if payload == "retry":
            raise Retry(after=0, reason="again")
        if ran.count(payload) <= 5:
            raise Snooze(0)

    retried = run_one(q, of_kind(kind, handler), "retry")
    assert (retried.state, ran.count("retry")) == ("dead", 2)
    snoozed = run_one(q, of_kind(kind, handler), "snooze")
    assert (snoozed.state, snoozed.attempt, snoozed.delivery) == ("succeeded", 1, 6)


class RateLimited(Retry):
    def __init__(self):
        """As users write it, without a call of its base."""


class Elsewhere(Snooze):
    def __init__(self):
        """As above."""


@pytest.mark.parametrize("raised", [RateLimited, Elsewhere])
def test_a_subclass_that_forgot_its_base_ends_the_delivery_all_the_same(make, raised):
    q, ran = make(max_attempts=2), []

    def handler(_):
        ran.append(1)
        if len(ran) == 1:
            raise raised

    job = run_one(q, handler)
    assert (job.state, causes(job)) == ("succeeded", ["nack" if raised is RateLimited else "snooze", "ack"])


def test_an_undecodable_payload_is_dead_at_once_and_its_bytes_are_kept(make):
    q, ran = make(), []
    (job_id,) = q._edge.store.add(q.name, [Draft(b"{not json", "json", max_attempts=5)])
    run_all(q, ran.append)
    job = q.get(job_id)
    assert (job.state, causes(job), job.body, ran) == ("dead", ["undecodable"], b"{not json", [])
    assert job.history[0].error.type == "PayloadError"


def test_a_payload_error_of_the_handlers_own_is_an_ordinary_failure(make):
    q = make(max_attempts=2)

    def handler(_):
        raise PayloadError("the handler's own")

    assert causes(run_one(q, handler)) == ["error", "error"]


def test_another_jobs_undecodable_payload_is_an_ordinary_failure(make):
    q = make(max_attempts=2)
    (damaged,) = q._edge.store.add("other", [Draft(b"{not json", "json")])
    (lease,) = q._edge.store.claim(["other"], 1, worker="w", lease_s=LEASE_S)
    assert lease.id == damaged
    assert causes(run_one(q, lambda _: lease.payload)) == ["error", "error"]


class Unshowable(Exception):
    def __str__(self):
        raise SystemExit(9)


class NotText(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307 - hostile on purpose


class Masked(Exception):
    @property
    def __class__(self):
        raise RuntimeError


class Traceless(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError


class Sly(str):
    __slots__ = ()

    def __getitem__(self, _):
        raise RuntimeError

    def encode(self, *_):
        raise RuntimeError


class SlyText(Exception):
    def __str__(self):
        return Sly("sly")


def endless():
    error = ValueError("endless")
    error.__cause__ = error.__context__ = error
    return error


# What is raised -> how its stored text begins.
HOSTILE = {
    "text cannot be had": (Unshowable(), "(its text cannot be shown"),
    "text is none": (NotText(), "(its text cannot be shown"),
    "20 MB of text": (ValueError("ü" * 10_000_000), "üüü"),
    "surrogates": (ValueError("\ud800 \udfff"), "? ?"),
    "NUL": (ValueError("a\x00b"), "a\x00b"),
    "no class": (Masked("x"), ""),
    "no traceback": (Traceless("x"), "x"),
    "sly text": (SlyText(), "sly"),
    "its own cause": (endless(), "endless"),
    "a group": (BaseExceptionGroup("many", [ValueError(), KeyboardInterrupt()]), "many"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_exception_is_a_failed_attempt_with_a_bounded_text(make, kind, name):
    q = make(max_attempts=1)
    raised, begins = HOSTILE[name]

    def handler(payload):
        if payload == "hostile":
            raise raised

    job = run_one(q, of_kind(kind, handler), "hostile")
    assert (job.state, causes(job)) == ("dead", ["error"])
    error = job.history[0].error
    assert len(error.text.encode()) <= ERROR_TEXT_MAX
    assert len(error.traceback.encode()) <= ERROR_TEXT_MAX
    assert error.text.startswith(begins)
    assert error.type == type(raised).__qualname__
    assert run_one(q, of_kind(kind, handler)).state == "succeeded"


def test_no_log_line_holds_a_payload(make, caplog):
    caplog.set_level(logging.DEBUG)

    def handler(payload):
        raise ValueError(payload)

    run_one(make(max_attempts=2), handler, SECRET)
    assert len(caplog.records) >= 2
    assert SECRET not in caplog.text


def test_an_enqueue_that_would_wait_for_its_own_handler_fails_the_attempt(make):
    q = make(capacity=1, max_attempts=1)
    (attempt,) = run_one(q, lambda _: q.enqueue("child")).history
    assert attempt.error.type == WouldDeadlock.__name__


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_handler_enqueues_is_part_of_the_drain(make, kind):
    q, ran = make(), []

    def handler(payload):
        ran.append(payload)
        if payload:
            q.enqueue(payload - 1)

    with q.workers(of_kind(kind, handler), count=2) as pool:
        with q.producer():
            q.enqueue(5)
        assert pool.drain(timeout=WAIT_S).drained
    assert ran == [5, 4, 3, 2, 1, 0]
