"""What OpenTelemetry is told: where jobs are enqueued, each attempt, what became of those that failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.semconv._incubating.attributes import error_attributes, messaging_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

import ulak
from tests.support.pools import AT_ONCE
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, ArgumentError, Cancel, Context, MissingExtra, QueueFull, Reject, Retry, Snooze
from ulak.clock import SYSTEM
from ulak.schedules import Scheduler
from ulak.storage.drive import run
from ulak.telemetry import conventions, otel
from ulak.testing import ManualClock

SECRET = "4111-1111-1111-1111"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


@pytest.fixture(params=["def", "async def", "both"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def one(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = named(spans, name)
    return span


def run_all(app: App) -> None:
    with app.workers(2) as pool:
        assert pool.drain(timeout=WAIT_S).drained


def task_of(app: App, work: Any, style: str = "def", **settings: Any) -> Any:
    """A task that does this work, in this style; "both": an async one in a pool of threads."""
    if style == "both":
        app.task(name="other")(lambda: None)
    if style == "def":

        def function(number: int = 0) -> Any:
            return work()
    else:

        async def function(number: int = 0) -> Any:  # type: ignore[misc]
            await asyncio.sleep(0)
            return work()

    return app.task(**{"name": "t", "max_attempts": 3, **settings})(function)


def attributes(span: ReadableSpan, *names: str) -> dict[str, Any]:
    found = dict(span.attributes or {})
    return {name: found.get(name) for name in names}


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def place(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def test_the_job_of_a_schedule_links_to_the_tick_that_sent_it(
    provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    clock = ManualClock()
    app = App(clock=clock)
    with app:
        ulak.traces_of(app, provider)
        app.every(60)(app.task(name="t")(lambda: None))
        with app.workers(1):
            eventually(lambda: named(spans, "process default"), clock=clock)
        process, *_ = named(spans, "process default")
        sends = [place(span) for span in named(spans, "send default")]
        assert len(linked(process)) == 1
        assert linked(process)[0] in sends


def test_a_tick_that_another_worker_has_fired_is_no_span(
    provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    with App() as app:
        ulak.traces_of(app, provider)
        app.every(60)(app.task(name="t")(lambda: None))
        (schedule,) = app.schedules
        scheduler = Scheduler(app.schedules, SYSTEM.calendar, sending=lambda: app._home.sending)
        edge = app.queue("default")._edge
        for _ in range(2):
            assert run(edge, scheduler._fire(schedule, schedule.name, 1e9)) is False
        assert app.queue("default").counts().total == 1
        assert len(named(spans, "send default")) == 1


def test_an_attempt_is_a_trace_of_its_own_that_links_to_where_its_job_was_enqueued(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter, style: str
) -> None:
    ulak.traces_of(app, provider)
    inside: list[tuple[int, int]] = []

    def work() -> None:
        context = trace.get_current_span().get_span_context()
        inside.append((context.trace_id, context.span_id))

    task = task_of(app, work, style)
    with provider.get_tracer("test").start_as_current_span("request"):
        job = task.using(priority=7).enqueue()
    # The pool's own starting place is nobody's parent either.
    with provider.get_tracer("test").start_as_current_span("main"):
        run_all(app)
    send, process, request = (one(spans, name) for name in ("send default", "process default", "request"))
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert send.parent is not None
    assert (send.parent.trace_id, send.parent.span_id) == place(request)
    assert process.parent is None
    assert place(process)[0] != place(send)[0]
    assert linked(process) == [place(send)]
    assert inside == [place(process)]
    common = {"messaging.system": "ulak", "messaging.destination.name": "default", "ulak.job.task": "t"}
    message = {"messaging.message.id": str(job.id)}
    assert dict(send.attributes or {}) == {
        **common,
        **message,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    worker = (process.attributes or {})["messaging.client.id"]
    assert dict(process.attributes or {}) == {
        **common,
        **message,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": worker,
        "ulak.job.attempt": 1,
        "ulak.job.max_attempts": 3,
        "ulak.job.priority": 7,
    }
    assert process.status.status_code is StatusCode.UNSET
    assert named(spans, "settle default") == []
    assert send.instrumentation_scope is not None
    assert send.instrumentation_scope.schema_url == conventions.SCHEMA_URL


def test_its_context_travels_in_the_headers_beside_the_jobs_own(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)
    task = task_of(app, lambda: None)
    job = task.using(headers={"tenant": "7"}).enqueue()
    trace_id, span_id = place(one(spans, "send default"))
    headers = dict(job.info().headers)
    assert headers.pop("traceparent").startswith(f"00-{format_trace_id(trace_id)}-{format_span_id(span_id)}-")
    assert headers == {"tenant": "7"}


@pytest.mark.parametrize(
    ("headers", "is_kept"),
    [({"big": "x" * 8_150}, False), ({"big": "x" * 8_000}, True)],
    ids=["too full", "room left"],
)
def test_headers_that_have_no_room_for_it_stay_as_they_are(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter, headers: dict[str, str], is_kept: bool
) -> None:
    ulak.traces_of(app, provider)
    job = task_of(app, lambda: None).using(headers=headers).enqueue()
    assert ("traceparent" in job.info().headers) == is_kept
    assert job.info().headers["big"] == headers["big"]
    run_all(app)
    assert len(linked(one(spans, "process default"))) == is_kept


def test_a_creation_context_that_the_caller_gives_is_kept(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = task_of(app, lambda: None).using(headers={"traceparent": theirs}).enqueue()
    run_all(app)
    assert job.info().headers == {"traceparent": theirs}
    creation = [(int(theirs[3:35], 16), int(theirs[36:52], 16))]
    send, process = one(spans, "send default"), one(spans, "process default")
    assert linked(send) == linked(process) == creation
    assert send.kind is SpanKind.CLIENT


@pytest.mark.parametrize("header", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x00" * 55])
def test_a_header_that_is_no_context_gives_no_link(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter, header: str
) -> None:
    task = task_of(app, lambda: None)
    task.using(headers={"traceparent": header}).enqueue()
    ulak.traces_of(app, provider)
    run_all(app)
    assert linked(one(spans, "process default")) == []


def test_each_failed_attempt_and_what_became_of_it_is_recorded(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter, style: str
) -> None:
    ulak.traces_of(app, provider)

    def fail() -> None:
        raise ZeroDivisionError

    job = task_of(app, fail, style, max_attempts=2).enqueue()
    run_all(app)
    send = one(spans, "send default")
    first, second = named(spans, "process default")
    retried, died = named(spans, "settle default")
    for process, attempt in ((first, 1), (second, 2)):
        assert process.status.status_code is StatusCode.ERROR
        assert attributes(process, "error.type", "ulak.job.attempt") == {
            "error.type": "ZeroDivisionError",
            "ulak.job.attempt": attempt,
        }
        assert linked(process) == [place(send)]
    for settle, process in ((retried, first), (died, second)):
        assert settle.parent is not None
        assert (settle.parent.trace_id, settle.parent.span_id) == place(process)
        assert (settle.kind, linked(settle)) == (SpanKind.CLIENT, [place(send)])
        assert attributes(settle, "messaging.operation.type", "messaging.message.id") == {
            "messaging.operation.type": "settle",
            "messaging.message.id": str(job.id),
        }
    outcome = ("ulak.job.outcome", "ulak.job.cause", "ulak.job.retry_delay_s")
    delay_s = attributes(retried, "ulak.job.retry_delay_s")["ulak.job.retry_delay_s"]
    assert list(attributes(retried, *outcome).values()) == ["retried", "error", delay_s]
    assert 0 <= delay_s <= AT_ONCE.cap
    assert list(attributes(died, *outcome).values()) == ["died", "error", None]
    assert place(first)[0] != place(second)[0]


ASKED: dict[str, tuple[Exception, StatusCode, list[str | None]]] = {
    "Retry": (Retry(after=0), StatusCode.ERROR, ["retried", "nack"]),
    "Reject": (Reject("no"), StatusCode.ERROR, ["died", "reject"]),
    "Cancel": (Cancel("no"), StatusCode.UNSET, ["cancelled", None]),
    "Snooze": (Snooze(0), StatusCode.UNSET, ["returned", "snooze"]),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_handler_asks_for_is_recorded_as_that(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter, asked: str
) -> None:
    ulak.traces_of(app, provider)
    raised, status, outcome = ASKED[asked]
    left = [raised]

    def work() -> None:
        if left:
            raise left.pop()

    task_of(app, work).enqueue()
    run_all(app)
    process, settle = named(spans, "process default")[0], one(spans, "settle default")
    assert (process.status.status_code, settle.status.status_code) == (status, status)
    assert list(attributes(settle, "ulak.job.outcome", "ulak.job.cause").values()) == outcome


def test_a_timeout_is_an_error(app: App, provider: TracerProvider, spans: InMemorySpanExporter) -> None:
    ulak.traces_of(app, provider)

    @app.task(name="t", timeout=0.01, max_attempts=1)
    async def hang() -> None:
        await asyncio.Event().wait()

    hang.enqueue()
    run_all(app)
    assert attributes(one(spans, "process default"), "error.type") == {"error.type": "TimeoutError"}
    settle = one(spans, "settle default")
    assert attributes(settle, "ulak.job.cause") == {"ulak.job.cause": "timeout"}


def test_no_span_holds_an_argument_a_result_or_the_text_of_an_error(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)

    @app.task(name="pay", max_attempts=2)
    def pay(card: str, *, fails: bool) -> str:
        if fails:
            raise ValueError(f"refused {card}")
        return card

    pay.enqueue(SECRET, fails=True)
    pay.enqueue_many([pay.call(SECRET, fails=False), pay.call(SECRET, fails=True)])
    with pytest.raises(ArgumentError):
        pay.using(headers={"traceparent": SECRET}).enqueue(SECRET, nothing=SECRET)
    run_all(app)
    finished = spans.get_finished_spans()
    assert len(finished) == 2 + 5 + 4
    for span in finished:
        assert SECRET not in span.to_json()
        assert span.events == ()
        assert span.status.description is None


def test_a_batch_is_one_span_which_all_of_its_jobs_link_to(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)
    task = task_of(app, lambda: None)
    task.enqueue_many([task.call(number) for number in range(3)])
    run_all(app)
    send = one(spans, "send default")
    assert attributes(send, "messaging.batch.message_count", "messaging.message.id") == {
        "messaging.batch.message_count": 3,
        "messaging.message.id": None,
    }
    assert [linked(process) for process in named(spans, "process default")] == [[place(send)]] * 3


def test_the_awaited_calls_are_traced_likewise(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)
    task = task_of(app, lambda: None, "async def")

    async def main() -> None:
        with provider.get_tracer("test").start_as_current_span("request"):
            await task.aenqueue()
            await task.aenqueue_many([task.call()])
        async with app.aworkers(2) as pool:
            await pool.drain(timeout=WAIT_S)

    asyncio.run(main())
    sends, request = named(spans, "send default"), one(spans, "request")
    assert [span.parent and span.parent.span_id for span in sends] == [place(request)[1]] * 2
    processes = named(spans, "process default")
    assert sorted(link for span in processes for link in linked(span)) == sorted(map(place, sends))


def test_an_enqueue_that_fails_is_an_error_and_one_that_finds_its_job_says_so(
    make_app: MakeApp, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    app = make_app(queues={"default": 1})
    ulak.traces_of(app, provider)
    task = task_of(app, lambda: None)
    task.using(unique_key="one").enqueue()
    task.using(unique_key="one").enqueue()
    with pytest.raises(QueueFull):
        task.using(wait=0).enqueue()
    stored, existed, refused = named(spans, "send default")
    assert [
        attributes(span, "ulak.job.existed")["ulak.job.existed"] for span in (stored, existed, refused)
    ] == [None, True, None]
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused, "error.type") == {"error.type": "ulak.errors.QueueFull"}


def test_a_job_of_a_callers_transaction_is_traced_and_its_context_stored_with_it(
    make_app: MakeApp, provider: TracerProvider, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    ulak.traces_of(app, provider)
    task = task_of(app, lambda: None)
    app.open()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        job = task.using(connection=db).enqueue()
        db.execute("COMMIT")
    run_all(app)
    assert job.info().state == "succeeded"
    assert linked(one(spans, "process default")) == [place(one(spans, "send default"))]


def test_what_goes_on_around_a_job_is_part_of_its_span(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    @app.around
    @contextlib.contextmanager
    def around(_: Context) -> Iterator[None]:
        with provider.get_tracer("test").start_as_current_span("around"):
            yield

    ulak.traces_of(app, provider)
    task_of(app, lambda: None).enqueue()
    run_all(app)
    inner = one(spans, "around")
    assert inner.parent is not None
    assert inner.parent.span_id == place(one(spans, "process default"))[1]


def test_a_handlers_own_enqueue_belongs_to_its_span(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    ulak.traces_of(app, provider)
    second = app.task(name="second")(lambda: None)
    first = app.task(name="first")(lambda: second.enqueue().id)
    first.enqueue()
    run_all(app)
    of_first = one_of_task(spans, "process default", "first")
    send = one_of_task(spans, "send default", "second")
    assert send.parent is not None
    assert (send.parent.trace_id, send.parent.span_id) == place(of_first)
    assert linked(one_of_task(spans, "process default", "second")) == [place(send)]


def one_of_task(spans: InMemorySpanExporter, name: str, task: str) -> ReadableSpan:
    (span,) = [span for span in named(spans, name) if (span.attributes or {})["ulak.job.task"] == task]
    return span


def test_an_app_that_is_traced_no_more_is_as_before(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    task = task_of(app, lambda: None)
    urgent = task.using(priority=9)
    assert (task.enqueue().info().headers, urgent.enqueue().info().headers) == ({}, {})
    assert asyncio.run(urgent.aenqueue()).info().headers == {}
    traces = ulak.traces_of(app, provider)
    with pytest.raises(ArgumentError, match="traced already"):
        ulak.traces_of(app, provider)
    assert "traceparent" in task.enqueue().info().headers
    assert "traceparent" in urgent.enqueue().info().headers
    assert "traceparent" in asyncio.run(urgent.aenqueue()).info().headers
    traces.close()
    traces.close()
    assert (task.enqueue().info().headers, urgent.enqueue().info().headers) == ({}, {})
    assert asyncio.run(urgent.aenqueue()).info().headers == {}
    run_all(app)
    assert [span.name for span in spans.get_finished_spans()] == ["send default"] * 3
    assert not app._events.is_heard
    assert app._arounds == []


def test_a_tracer_that_raises_fails_no_enqueue_and_no_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sampler):
        def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
            raise RuntimeError("broken")

        def get_description(self) -> str:
            return "broken"

    caplog.set_level(logging.ERROR, "ulak")
    ulak.traces_of(app, TracerProvider(sampler=Broken()))
    job = task_of(app, lambda: 7).enqueue()
    failing = app.task(name="failing", max_attempts=2)(lambda: 1 / 0).enqueue()
    run_all(app)
    assert job.result(0) == 7
    assert failing.info().state == "dead"
    said = [record.message for record in caplog.records if record.name == "ulak" and record.exc_info]
    assert said == ["tracing raised; jobs go on without it (said once)"]


def test_without_a_provider_nothing_is_recorded_or_stored(app: App) -> None:
    ulak.traces_of(app)
    job = task_of(app, lambda: 7).enqueue()
    run_all(app)
    assert (job.result(0), job.info().headers) == (7, {})


def test_of_failed_attempts_only_so_many_are_remembered(
    make_app: MakeApp, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "FAILED_MAX", 2)
    traces = ulak.traces_of(make_app(), provider)
    span = trace.INVALID_SPAN.get_span_context()
    for delivery in range(5):
        traces._remember((1, delivery), span, ())
    assert list(traces._failed) == [(1, 3), (1, 4)]


def test_nothing_is_remembered_once_all_is_settled(app: App, provider: TracerProvider) -> None:
    traces = ulak.traces_of(app, provider)
    app.task(name="t", max_attempts=3, backoff=AT_ONCE)(lambda: 1 / 0).enqueue()
    run_all(app)
    assert traces._failed == {}


def test_it_needs_the_extra_and_nothing_imports_it_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "ulak.telemetry.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ulak\[otel\]'"):
        ulak.traces_of(App())


def test_the_conventions_are_those_of_their_version() -> None:
    assert conventions.SCHEMA_URL in {str(schema.value) for schema in Schemas}
    for ours, theirs in {
        conventions.SYSTEM: messaging_attributes.MESSAGING_SYSTEM,
        conventions.DESTINATION: messaging_attributes.MESSAGING_DESTINATION_NAME,
        conventions.OPERATION: messaging_attributes.MESSAGING_OPERATION_NAME,
        conventions.OPERATION_TYPE: messaging_attributes.MESSAGING_OPERATION_TYPE,
        conventions.MESSAGE_ID: messaging_attributes.MESSAGING_MESSAGE_ID,
        conventions.BATCH_COUNT: messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT,
        conventions.CLIENT_ID: messaging_attributes.MESSAGING_CLIENT_ID,
        conventions.ERROR_TYPE: error_attributes.ERROR_TYPE,
    }.items():
        assert ours == theirs
    known = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
    assert {conventions.SEND, conventions.PROCESS, conventions.SETTLE} <= known
