"""An App's jobs as OpenTelemetry spans: where they are enqueued, where they run, what became of failures.

Spans hold names, ids and numbers; never an argument, a result, or the text of an error, which may quote one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ulak import __version__, codec, events
from ulak.app import App
from ulak.context import Cancel, Context, Snooze
from ulak.core.job import Draft, Duplicate
from ulak.errors import ArgumentError, PayloadError
from ulak.events import Event
from ulak.home import Sending, Sent
from ulak.telemetry import conventions as names

_log = logging.getLogger("ulak")

FAILED_MAX = 1_000
"""Of how many failed attempts is remembered under which span they ran, until they are settled."""

_Value: TypeAlias = str | int | float | bool
_NO_ERROR = (Snooze, Cancel)
_BAD = (events.Retried, events.Died, events.Expired, events.Stale)
_Unlucky: TypeAlias = (
    events.Retried | events.Died | events.Expired | events.Stale | events.Cancelled | events.Returned
)

R = TypeVar("R")


class AppTraces:
    """Traces an App from when it is made, until `close`.

    A `send` span where jobs are enqueued, whose context goes into their headers; a `process` span around each
    attempt, in a trace of its own, linked to that; a `settle` span below it for one that did not succeed.
    """

    def __init__(
        self, app: App, provider: TracerProvider | None, propagator: TextMapPropagator | None
    ) -> None:
        self._home = app._home  # noqa: SLF001 - nobody else needs it
        self._arounds = app._arounds  # noqa: SLF001 - as above
        if self._home.sending is not None:
            raise ArgumentError(f"{app!r} is traced already; close() what traces_of gave before")
        self._app = app
        # A context alone: baggage is the caller's, may hold anything, and would be stored.
        self._propagator = propagator or TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("ulak", __version__, provider, names.SCHEMA_URL)
        self._lock = threading.Lock()
        self._failed: dict[tuple[int, int], tuple[SpanContext, Sequence[Link]]] = {}
        self._has_complained = False
        self._around = self.around
        self._send_by(self.sending)
        # The outermost, so that what goes on around a job is part of its span.
        self._arounds.insert(0, self._around)
        app.on(self.hear)

    def close(self) -> None:
        """Trace nothing any more; idempotent."""
        if self._around in self._arounds:
            self._arounds.remove(self._around)
            self._send_by(None)
            self._app.off(self.hear)

    def _send_by(self, sending: Sending | None) -> None:
        self._home.sending = sending
        for task in self._app.tasks.values():
            task.forget_ways()

    # Where jobs are enqueued

    @contextlib.contextmanager
    def sending(self, task: str, queue: str, drafts: list[Draft]) -> Iterator[Sent]:
        """While inside, these jobs are stored."""
        sent = Sent(drafts)
        span = self._tried(lambda: self._send_span(task, queue, drafts))
        if span is None:
            yield sent
            return
        sent.drafts = self._tried(lambda: self._with_context(drafts, span)) or drafts
        try:
            with _current(span):
                yield sent
        except BaseException as error:
            self._tried(partial(_fail, span, error))
            self._tried(span.end)
            raise
        # A tick that another worker has fired, or that finds no room, sends nothing: its span has no end.
        if sent.ids or not drafts:
            self._tried(lambda: _note_ids(span, sent.ids))
            self._tried(span.end)

    def _send_span(self, task: str, queue: str, drafts: Sequence[Draft]) -> Span:
        given = [self._contexts_in(draft.headers) for draft in drafts]
        attributes = self._attributes(names.SEND, queue, task)
        if len(drafts) > 1:
            attributes[names.BATCH_COUNT] = len(drafts)
        # Its own context is that of the jobs' creation, unless they all came with another.
        kind = SpanKind.CLIENT if all(given) else SpanKind.PRODUCER
        links = [link for found in given for link in found]
        return self._tracer.start_span(f"{names.SEND} {queue}", None, kind, attributes, links)

    def _with_context(self, drafts: list[Draft], span: Span) -> list[Draft]:
        """The jobs, with the span's context in the headers of those that have none and have room for it."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span, OtelContext()))
        return [self._marked(draft, carrier) for draft in drafts] if carrier else drafts

    def _marked(self, draft: Draft, carrier: Mapping[str, str]) -> Draft:
        given = draft.headers or {}
        if given.keys() & self._propagator.fields:
            return draft
        try:
            return msgspec.structs.replace(draft, headers=codec.encode_headers({**given, **carrier}))
        except PayloadError:
            # The job's own headers come first.
            return draft

    # Where they run

    @contextlib.contextmanager
    def around(self, job: Context) -> Iterator[None]:
        """The span of an attempt."""
        span = self._tried(lambda: self._process_span(job))
        if span is None:
            yield
            return
        try:
            with _current(span):
                yield
        except BaseException as error:
            self._tried(partial(self._failed_in, span, job, error))
            raise
        finally:
            self._tried(span.end)

    def _process_span(self, job: Context) -> Span:
        attributes = {
            **self._attributes(names.PROCESS, job.queue, job.task),
            names.MESSAGE_ID: str(job.id),
            names.CLIENT_ID: job.worker,
            names.ATTEMPT: job.attempt,
            names.MAX_ATTEMPTS: job.max_attempts,
            names.PRIORITY: job.priority,
        }
        # In a trace of its own: retries and delays would make that of its creation days long.
        root, links = OtelContext(), self._contexts_in(job.headers)
        return self._tracer.start_span(
            f"{names.PROCESS} {job.queue}", root, SpanKind.CONSUMER, attributes, links
        )

    def _failed_in(self, span: Span, job: Context, error: BaseException) -> None:
        if not issubclass(type(error), _NO_ERROR):
            _fail(span, error)
        self._remember((job.id, job.delivery), span.get_span_context(), self._contexts_in(job.headers))

    def _remember(self, delivery: tuple[int, int], context: SpanContext, links: Sequence[Link]) -> None:
        with self._lock:
            # In a process of an executor nobody settles, so nobody asks for them.
            while len(self._failed) >= FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            self._failed[delivery] = context, links

    # What became of them

    def hear(self, event: Event) -> None:
        """A span of its own for what an attempt was settled as, if that was no success."""
        if not isinstance(event, (*_BAD, events.Cancelled, events.Returned)):
            return
        with self._lock:
            ran = self._failed.pop((event.job_id, event.delivery), None)
        if ran is not None or isinstance(event, _BAD):
            self._tried(partial(self._settle_span, event, ran))

    def _settle_span(self, event: _Unlucky, ran: tuple[SpanContext, Sequence[Link]] | None) -> None:
        attributes = {
            **self._attributes(names.SETTLE, event.queue, event.task),
            names.MESSAGE_ID: str(event.job_id),
            names.CLIENT_ID: event.worker,
            names.ATTEMPT: event.attempt,
            names.MAX_ATTEMPTS: event.max_attempts,
            names.OUTCOME: type(event).__name__.lower(),
        }
        if isinstance(event, (events.Retried, events.Died, events.Returned)):
            attributes[names.CAUSE] = event.cause.value
        if isinstance(event, (events.Retried, events.Returned)):
            attributes[names.DELAY_S] = event.delay_s
        below, links = OtelContext(), ran[1] if ran is not None else ()
        if ran is not None:
            below = trace.set_span_in_context(trace.NonRecordingSpan(ran[0]), below)
        name = f"{names.SETTLE} {event.queue}"
        span = self._tracer.start_span(name, below, SpanKind.CLIENT, attributes, links)
        if isinstance(event, _BAD):
            _mark_failed(span, event.error.type if event.error is not None else names.SETTLE)
        span.end()

    # What both have in common

    def _attributes(self, operation: str, queue: str, task: str | None) -> dict[str, _Value]:
        attributes: dict[str, _Value] = {
            names.SYSTEM: names.ULAK,
            names.DESTINATION: queue,
            names.OPERATION: operation,
            names.OPERATION_TYPE: operation,
        }
        if task is not None:
            attributes[names.TASK] = task
        return attributes

    def _contexts_in(self, headers: Mapping[str, str] | None) -> Sequence[Link]:
        """A link to where a job was created, if its headers tell."""
        if not headers:
            return ()
        found = self._propagator.extract(headers, OtelContext())
        context = trace.get_current_span(found).get_span_context()
        return (Link(context),) if context.is_valid else ()

    def _tried(self, call: Callable[[], R]) -> R | None:
        """What it answers. What tracing raises is logged once, and fails no job."""
        try:
            return call()
        except Exception:  # noqa: BLE001 - samplers and processors are the user's
            if not self._has_complained:
                self._has_complained = True
                _log.exception("tracing raised; jobs go on without it (said once)")
            return None


def _current(span: Span) -> contextlib.AbstractContextManager[Span]:
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def _note_ids(span: Span, ids: Sequence[int]) -> None:
    if len(ids) == 1:
        span.set_attribute(names.MESSAGE_ID, str(int(ids[0])))
    if any(type(job_id) is Duplicate for job_id in ids):
        span.set_attribute(names.EXISTED, True)  # noqa: FBT003 - as it is called there


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    _mark_failed(span, f"{module}{kind.__qualname__}")


def _mark_failed(span: Span, kind: str) -> None:
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))
